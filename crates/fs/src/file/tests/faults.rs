//! Failing data writes.

use super::*;
use extant_block::{Bio, BioFlags, IoErrorKind, Limits, Op};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Fails one data write. If it was merged from several, which the cache retries separately, these
/// fail as well.
#[derive(Debug)]
struct FailOne {
    inner: Arc<dyn Device>,
    nth: u64,
    seen: AtomicU64,
    /// First sector and sector count of the failed write, until the sync that issued it has ended.
    failed: Mutex<Option<(u64, u64)>>,
}

impl Device for FailOne {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let is_data = bio.op == Op::Write && !bio.flags.contains(BioFlags::META);
        if is_data {
            let (first, sectors) = (bio.start.0, bio.bytes >> 9);
            let mut failed = self.failed.lock();
            let is_part = failed
                .is_some_and(|(from, all)| sectors < all && first >= from && first + sectors <= from + all);
            if is_part || self.seen.fetch_add(1, Ordering::Relaxed) == self.nth {
                failed.get_or_insert((first, sectors));
                drop(failed);
                return bio.end_as(&self.limits().name, Err(IoErrorKind::Os(5)));
            }
        }
        self.inner.submit(bio);
    }
}

/// Syncs until it succeeds. Returns the number of failures.
async fn sync(file: &OpenFile, failing: &FailOne) -> u32 {
    let mut failures = 0;
    loop {
        let synced = file.sync().await;
        *failing.failed.lock() = None;
        match synced {
            Ok(()) => return failures,
            Err(Error::Io(_)) => failures += 1,
            Err(other) => panic!("{other}"),
        }
        assert!(failures < 3, "a failure is told once");
    }
}

#[test]
fn a_failed_write_is_told_and_tried_again() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let rt = Rt::real(Default::default());
    let mut rng = Rng::labelled(1, "faults");
    let start = bytes(&mut rng, 70_000);
    let first = bytes(&mut rng, 100_000);
    let last = bytes(&mut rng, 5000);
    for (n, args) in ["-t ext4 -b 4096 -O ^has_journal -N 64", "-t ext2 -b 1024 -N 64"].iter().enumerate() {
        let place = dir.path().join(n.to_string());
        std::fs::create_dir(&place).unwrap();
        let made = make(&place, 8, args, std::slice::from_ref(&start));
        let mut struck = 0;
        for nth in 0.. {
            let image = place.join("copy");
            std::fs::copy(&made, &image).unwrap();
            let mut model = start.clone();
            let (number, failures, seen) = rt
                .block_on(async {
                    let number = numbers(&image, 1).await[0];
                    let (seen, failed) = Default::default();
                    let failing = Arc::new(FailOne { inner: device(&image), nth, seen, failed });
                    let bed = Bed::open(&rt, failing.clone(), 8 << 20).await;
                    let (_, file) = bed.file(number, FileOptions::default()).await;
                    assert_eq!(file.write(50_000, &first).await.unwrap(), first.len());
                    // It writes back first, and reads from memory what it cannot write.
                    let (buf, read) = file.read_direct(0, Buf::zeroed(149_504)).await;
                    assert!(read.unwrap() == 149_504 && buf[50_000..] == first[..99_504]);
                    let mut failures = sync(&file, &failing).await;
                    file.set_size(30_001).await.unwrap();
                    failures += sync(&file, &failing).await;
                    file.write(31_000, &last).await.unwrap();
                    failures += sync(&file, &failing).await;
                    drop(file);
                    bed.close().await;
                    (number, failures, failing.seen.load(Ordering::Relaxed))
                })
                .unwrap();
            model.resize(150_000, 0);
            model[50_000..].copy_from_slice(&first);
            model.resize(30_001, 0);
            model.resize(36_000, 0);
            model[31_000..].copy_from_slice(&last);
            check_is_silent(&image, &format!("{args}, write {nth}"));
            assert!(dumped(&image, number) == model, "{args}, write {nth}");
            if nth >= seen {
                assert_eq!(failures, 0);
                break;
            }
            assert_eq!(failures, 1, "{args}, write {nth}: told once");
            struck += 1;
        }
        assert!(struck >= 3, "{struck} writes of data");
    }
}
