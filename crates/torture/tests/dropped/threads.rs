//! Ordinary threads in `block_on` on a file, whose futures are dropped after a poll, or panic.

use super::check;
use extant_block::FileDevice;
use extant_cache::{CacheConfig, PageCache};
use extant_fs::{Caller, FileOptions, Volume, WriteOptions};
use extant_rt::{Nanos, RealConfig, Rng, Rt};
use std::future::{Future, poll_fn};
use std::process::Command;
use std::sync::Arc;
use std::task::Poll;

const THREADS: u64 = 6;

fn hammer(rt: &Rt, volume: &Volume, name: &str, mut rng: Rng, rounds: u64) {
    let caller = Caller::root();
    let root = rt.block_on(volume.root_node()).unwrap().unwrap();
    let node = rt.block_on(root.create(&caller, name.as_bytes(), 0o644)).unwrap().unwrap();
    let file = node.open(&caller, FileOptions::default()).unwrap();
    let mut model = vec![0_u8; 402 * 4096];
    for round in 0..rounds {
        let (at, kind, fill) = (rng.below(400) * 4096, rng.below(8), round as u8 | 1);
        let op = async {
            file.write(at, &[fill; 8192]).await.unwrap();
            if kind < 4 {
                file.sync().await.unwrap();
            }
            if kind == 4 {
                file.read(at, &mut [0; 8192]).await.unwrap();
            }
        };
        let mut op = Box::pin(op);
        match kind {
            0 | 5 => {
                let _ = rt.block_on(poll_fn(|cx| Poll::Ready(op.as_mut().poll(cx).is_ready()))).unwrap();
            }
            1 => {
                let mut polls = 0;
                // It may complete at once.
                let _ = rt.block_on(poll_fn(|cx| {
                    polls += 1;
                    let polled = op.as_mut().poll(cx);
                    assert!(polls < 2 || polled.is_ready(), "on purpose");
                    polled
                }));
            }
            _ => rt.block_on(op).unwrap(),
        }
        let mut found = [0; 8192];
        rt.block_on(file.read(at, &mut found)).unwrap().unwrap();
        let old = &mut model[at as usize..][..8192];
        for (old, found) in old.iter_mut().zip(found) {
            assert!(found == *old || found == fill, "{name}, round {round}: {found}, not {old} or {fill}");
            *old = found;
        }
    }
    rt.block_on(file.sync()).unwrap().unwrap();
}

#[test]
fn threads_whose_futures_are_dropped_or_panic_keep_no_other_waiting() {
    if Command::new("mke2fs").arg("-V").output().is_err() {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
        return;
    }
    let seed = super::number("EXTANT_SEED").unwrap_or(1);
    let rounds = 60 * super::number("EXTANT_ROUNDS").unwrap_or(1);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let args = ["-t", "ext4", "-b", "4096", "-F", "-q", path.to_str().unwrap(), "64M"];
    assert!(Command::new("mke2fs").args(args).status().unwrap().success());
    for workers in [1, 2] {
        let rt = Rt::real(RealConfig { worker_threads: Some(workers), ..RealConfig::default() });
        let options = extant_block::FileOptions { write: true, direct: workers == 2 };
        let device = FileDevice::open(&path, options).unwrap().driven_by(&rt);
        println!("EXTANT_SEED={seed}: {} direct {}", device.engine(), device.is_direct());
        let cache = PageCache::new(&rt, CacheConfig::with_budget(2 << 20)).unwrap();
        let disk = cache.attach(Arc::new(device));
        let volume =
            rt.block_on(Volume::open_writable(&rt, &disk, WriteOptions::default())).unwrap().unwrap();
        std::thread::scope(|scope| {
            for n in 0..THREADS {
                let (rt, volume) = (&rt, &volume);
                let rng = Rng::labelled(seed * THREADS + n, "threads");
                scope.spawn(move || hammer(rt, volume, &format!("t{workers}{n}"), rng, rounds));
            }
        });
        rt.block_on(volume.close()).unwrap().unwrap();
        drop(disk);
        rt.block_on(cache.close()).unwrap().unwrap();
        let left = rt.shutdown(Nanos::from_secs(60));
        assert!(left.in_flight.is_empty(), "{left:?}");
        check(&path, false);
    }
}
