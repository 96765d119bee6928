//! Plain jobs on volumes of modelled disks (`--volume`), and what they ask of the page cache.

use extant_cache::Event;
use extant_lab::{FileSystem, JobsOutcome, Memory, Policy, RunError, VolumeSpec, fio, on_machine};
use extant_rt::Sink;
use extant_rt::trace::Record;
use extant_sim::Machine;
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;

/// The pages that were written back, and those that were read ahead.
#[derive(Debug, Default)]
struct Pages(Mutex<[Vec<(u64, u64)>; 2]>);

impl Sink for Pages {
    fn record(&self, record: &Record) {
        match record.event.of::<Event>() {
            Some(&Event::PagesWritten { page, pages, .. }) => self.0.lock()[0].push((page, pages)),
            Some(&Event::PagesReadAhead { page, pages, .. }) => self.0.lock()[1].push((page, pages)),
            _ => {}
        }
    }
}

fn run(line: &str, volume: Option<FileSystem>, sink: Option<Arc<dyn Sink>>) -> Result<JobsOutcome, RunError> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/sata-7200-2013.toml");
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let jobs = fio::command_line(&words, |_| Err("no files".to_owned())).unwrap().jobs;
    let volume = volume.map(|fs| VolumeSpec::for_jobs(fs, Some(256 << 20)));
    let memory = Memory { cache_bytes: Some(64 << 20), ..Memory::default() };
    let policy = Policy { elevator: "mq-deadline".parse().unwrap(), memory, volume, ..Policy::default() };
    on_machine(&jobs, Machine::load(&file).unwrap(), &policy, 1, sink)
}

/// Checks whether a disk is fast enough for etcd's log, as many people do. On ext4, an fdatasync
/// after a change of the file's map commits the journal, so it waits for more turns of the platters
/// than the data alone.
#[test]
fn etcds_log_pays_for_the_journal_of_its_volume() {
    let line = "--rw=write --ioengine=sync --fdatasync=1 --directory=/mnt/sda/etcd --size=500k --bs=2300 --name=mytest";
    let p99_ms = |volume| {
        let outcome = run(line, volume, None).unwrap();
        let sync = &outcome.results[0].measured.sync;
        assert_eq!(sync.count, 221, "none after the last write");
        sync.percentile_ns(99.0) as f64 / 1e6
    };
    let (bare, ext4) = (p99_ms(None), p99_ms(Some(FileSystem::Ext4)));
    println!("p99 of fdatasync: {bare:.1} ms on a run of the disk, {ext4:.1} ms on ext4");
    assert!((8.0..10.0).contains(&bare), "a turn lasts 8.3 ms: {bare} ms");
    assert!((20.0..30.0).contains(&ext4), "{ext4} ms");
}

/// Only the range is written, although the first job leaves other pages of the same file dirty.
#[test]
fn sync_file_range_on_a_volume_writes_its_range_only() {
    for flags in ["write,wait_after", "write"] {
        let pages = Arc::new(Pages::default());
        let line = format!(
            "--filename=/mnt/sda/f --rw=write --bs=64k --name=lazy --size=2m \
             --name=eager --stonewall --invalidate=0 --offset=2m --size=1m --thinktime=20000 --sync_file_range={flags}:4"
        );
        let outcome = run(&line, Some(FileSystem::Ext4), Some(pages.clone())).unwrap();
        assert_eq!(outcome.results[1].measured.sync.count, 3);
        let [written, _] = &*pages.0.lock();
        let all: u64 = written.iter().map(|(_, pages)| pages).sum();
        assert!(written.iter().all(|(page, _)| *page >= 512), "{flags}: {written:?}");
        // The last range may still be in flight when the run ends.
        assert!((128..=192).contains(&all), "{flags}: 12 blocks of 16 pages, {written:?}");
    }
}

#[test]
fn jobs_read_and_write_files_of_a_volume_several_ios_at_a_time() {
    for fs in [FileSystem::Ext2, FileSystem::Ext3, FileSystem::Ext4] {
        let line = "--filename=/mnt/f --bs=4k --size=8m --rw=randrw --direct=1 --ioengine=libaio --iodepth=8 --name=a \
                    --name=b --direct=0 --ioengine=psync --filename=g";
        let outcome = run(line, Some(fs), None).unwrap();
        for report in &outcome.results {
            let measured = &report.measured;
            assert!(measured.error.is_none(), "{fs:?}: {:?}", measured.error);
            assert_eq!(measured.read.ios + measured.write.ios, 2048, "{fs:?}");
        }
        let depths = outcome.results[0].measured.depths;
        assert!(depths[3] > 1000, "eight in flight: {depths:?}");
    }
}

/// Like Linux since 4.10, reads ahead at most the read-ahead limit or the disk's longest command.
#[test]
fn the_caller_of_willneed_reads_ahead_what_linux_would() {
    for volume in [None, Some(FileSystem::Ext4)] {
        let ahead = |hint: &str| {
            let pages = Arc::new(Pages::default());
            let line = format!(
                "--name=a --filename=/mnt/sda/f --rw=randread --bs=4k --size=16m --io_size=4k --fadvise_hint={hint}"
            );
            let outcome = run(&line, volume, Some(pages.clone())).unwrap();
            let [_, ahead] = &*pages.0.lock();
            (ahead.iter().map(|(_, pages)| pages).sum::<u64>(), outcome.results[0].measured.runtime)
        };
        // The cache's read-ahead limit is 1 MiB here, a command is at most 512 KiB.
        assert_eq!(ahead("willneed").0, 256, "{volume:?}");
        assert_eq!(ahead("random").0, 0, "{volume:?}");
    }
}

#[test]
fn advice_changes_what_is_read_ahead_and_what_stays_in_memory() {
    for volume in [None, Some(FileSystem::Ext4)] {
        let rate = |options: &str| {
            let line = format!(
                "--filename=/mnt/sda/f --rw=read --bs=4k --size=8m --name=first --name=a --stonewall {options}"
            );
            let measured = run(&line, volume, None).unwrap().results[1].measured.clone();
            measured.read.bytes_s(measured.runtime) / 1e6
        };
        let (cached, dropped) = (rate("--invalidate=0"), rate("--invalidate=0 --fadvise_hint=dontneed"));
        assert!(cached > 5.0 * dropped, "{cached} and {dropped} MB/s");
        let (by_itself, random) = (rate(""), rate("--fadvise_hint=random"));
        let sequential = rate("--fadvise_hint=1");
        assert!(by_itself > 2.0 * random, "{by_itself} MB/s, {random} without read-ahead");
        assert!(sequential > 0.95 * by_itself, "{sequential} and {by_itself} MB/s");
    }
}
