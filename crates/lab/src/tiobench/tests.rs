//! The page cache of Linux 2.6.6, a few pages at a time.

use super::control::Control;
use super::disks::Submitter;
use super::*;
use extant_rt::Nanos;
use std::path::Path;

/// A world with nothing in it yet, whose queues have so many requests.
fn small(threads: u32, requests: usize) -> (Sim, Arc<Host>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/e3000-2004.toml");
    let machine = Machine::load(&path).unwrap();
    let policy = Waits {
        pages: "linux-2.6.6".into(),
        buffers: "linux-2.6.6".into(),
        elevator: "anticipatory".into(),
        requests,
    };
    let options = Tiobench { threads, mib_per_thread: 1, random_ops: 0, waiters: 0 };
    world(options, &machine, &policy, 1).unwrap()
}

/// A page's frame: whether it is locked, dirty, under write-back.
fn state(host: &Host, file: u32, page: u64) -> (bool, bool, bool) {
    let cache = host.cache.lock();
    let frame = cache.frames[cache.find(file, page).unwrap() as usize];
    (frame.locked, frame.dirty != 0, frame.writeback)
}

#[test]
fn a_page_is_locked_while_the_bio_before_it_waits_for_a_request() {
    let (sim, host) = small(2, 1);
    let rt = sim.rt();
    rt.block_on(async {
        // Eight blocks of the one file, eight of the other, and again: a file's second eight do not continue its first.
        for chunk in 0..2 {
            for file in 0..2 {
                for block in chunk * 8..chunk * 8 + 8 {
                    host.write(file, block).await;
                }
            }
        }
        // The one request of the disk is another's.
        let byte = host.cache.lock().byte(0, 0);
        let other = host.stripe.pieces(byte + (1 << 20) * 100, 4096)[0];
        assert_eq!(other.disk, host.stripe.pieces(byte, 4096)[0].disk);
        host.stripe.submit(other, true, Submitter::throttled(1), || {}).await;
        let writer = host.clone();
        let writer = rt.spawn("writer", Class::Normal, async move {
            writer.write_pages(0, &mut Control::throttled(Submitter::throttled(0), 100)).await;
        });
        rt.sleep(Nanos::from_millis(2)).await;
        assert_eq!(state(&host, 0, 3), (false, false, true), "in the bio that waits");
        assert_eq!(state(&host, 0, 4), (true, false, false), "does not continue it");
        assert_eq!(state(&host, 0, 5), (false, true, false), "not looked at yet");
        // The file's own thread writes to that page meanwhile, and waits for its lock.
        host.write(0, 8).await;
        assert_eq!(host.sleeps[Caller::PageLock as usize].load(Relaxed), 1);
        writer.await.unwrap();
        assert_eq!(state(&host, 0, 5), (false, false, true));
        assert!(state(&host, 0, 4).1, "dirty again");
    })
    .unwrap();
}

#[test]
fn a_throttled_writer_waits_for_requests_and_the_background_does_not() {
    let (sim, host) = small(1, 1);
    let rt = sim.rt();
    rt.block_on(async {
        for block in 0..8 {
            host.write(0, block).await;
        }
        let byte = host.cache.lock().byte(0, 0);
        let other = host.stripe.pieces(byte + (1 << 20) * 100, 4096)[0];
        host.stripe.submit(other, true, Submitter::throttled(1), || {}).await;
        let before = rt.now();
        let mut background = Control::background(100);
        host.write_inodes(&mut background).await;
        assert!(background.encountered_congestion && background.left == 100);
        assert!(rt.now() < before + Nanos::from_millis(1));
        let mut throttled = Control::throttled(Submitter::throttled(0), 100);
        host.write_inodes(&mut throttled).await;
        assert_eq!((throttled.left, throttled.encountered_congestion), (96, false));
        assert!(rt.now() > before + Nanos::from_millis(5));
    })
    .unwrap();
}
