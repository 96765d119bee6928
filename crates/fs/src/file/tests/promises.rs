//! Guarantees to callers, tested one by one.

use super::*;
use extant_block::{Fault, FaultConfig, MemDevice};
use extant_rt::{Class, Nanos};
use extant_sim::{Machine, Preemption, Sim};

fn with_file(
    mib: usize,
    args: &str,
    contents: Vec<u8>,
    budget: u64,
    work: impl AsyncFnOnce(&Bed, InodeNumber, &Path),
) {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), mib, args, &[contents]);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let number = numbers(&image, 1).await[0];
        let bed = Bed::open(&rt, device(&image), budget).await;
        work(&bed, number, &image).await;
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, args);
}

/// A repaired copy of the device's current contents, as after a crash.
fn crashed(image: &Path) -> PathBuf {
    let copy = image.with_extension("crashed");
    std::fs::copy(image, &copy).unwrap();
    run("e2fsck", &["-fy", copy.to_str().unwrap()]);
    copy
}

#[test]
fn a_small_synchronous_write_makes_the_whole_size_durable() {
    // Linux leaves 4,096 bytes, the size covered by the range of the second write.
    with_file(8, "-t ext4 -b 4096 -O ^has_journal -N 64", vec![], 8 << 20, async |bed, number, image| {
        let (_, file) = bed.file(number, FileOptions::default()).await;
        let (_, synchronous) = bed.file(number, FileOptions { sync: true, ..Default::default() }).await;
        let mut model = vec![7; 5000];
        file.write(0, &model).await.unwrap();
        synchronous.write(100, b"small").await.unwrap();
        model[100..105].copy_from_slice(b"small");
        assert!(dumped(&crashed(image), number) == model);
    });
}

#[test]
fn a_sync_makes_what_was_written_durable_and_nothing_else_is_written() {
    with_file(
        16,
        "-t ext4 -b 1024 -O ^has_journal -N 64",
        vec![1; 3000],
        16 << 20,
        async |bed, number, image| {
            let (_, file) = bed.file(number, FileOptions { append: true, ..Default::default() }).await;
            let mut model = vec![1; 3000];
            for n in 2..40 {
                file.write(0, &vec![n; 700]).await.unwrap();
                model.extend(vec![n; 700]);
                if n % 5 == 0 {
                    file.datasync().await.unwrap();
                    assert!(dumped(&crashed(image), number) == model, "after append {n}");
                }
            }
        },
    );
}

#[test]
fn the_last_block_can_be_written_and_no_more_is_acknowledged_than_fits() {
    for args in ["-t ext4 -b 1024 -O ^has_journal -m 0 -N 64", "-t ext2 -b 1024 -m 0 -N 64"] {
        with_file(4, args, vec![], 16 << 20, async |bed, number, _| {
            let (_, file) = bed.file(number, FileOptions::default()).await;
            let mut counts = Vec::new();
            for round in 0..3u8 {
                let free = bed.writer.alloc.statfs().free;
                let mut written = 0u64;
                loop {
                    match file.write(written << 10, &[round; 1024]).await {
                        Ok(done) => assert_eq!(done, 1024),
                        Err(Error::NoSpace) => break,
                        Err(other) => panic!("{other}"),
                    }
                    written += 1;
                }
                file.sync().await.unwrap();
                let left = bed.writer.alloc.statfs().free;
                assert!(left <= 1, "{left} blocks of {free} are left after {written}");
                let mut read = vec![0; (written << 10) as usize];
                assert_eq!(file.read(0, &mut read).await.unwrap(), read.len());
                assert!(read.iter().all(|&byte| byte == round));
                counts.push(written);
                file.set_size(0).await.unwrap();
            }
            assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "nothing leaks: {counts:?}");
        });
    }
}

#[test]
fn a_write_that_fits_in_part_says_how_much() {
    with_file(4, "-t ext4 -b 1024 -O ^has_journal -m 0 -N 64", vec![], 16 << 20, async |bed, number, _| {
        let (_, file) = bed.file(number, FileOptions::default()).await;
        let data = vec![9; 6 << 20];
        let done = file.write(0, &data).await.unwrap();
        assert!(done > 2 << 20 && done < data.len() && done.is_multiple_of(1024), "{done}");
        assert_eq!(file.size(), done as u64);
        assert!(matches!(file.write(done as u64, b"x").await, Err(Error::NoSpace)));
        file.sync().await.unwrap();
    });
}

const PART: usize = 1 << 20;

/// Runs six writers over a cache much smaller than their data.
async fn six_writers(rt: &Rt, device: Arc<dyn Device>, numbers: &[InodeNumber], seed: u64) {
    let bed = Bed::open(rt, device, 4 << 20).await;
    let mut tasks = Vec::new();
    for task in 0..6usize {
        // Three of them write parts of the first file; the other three write a file each.
        let number = numbers[task.saturating_sub(2)];
        let start = if task < 3 { task * PART } else { 0 };
        let file = bed.file(number, FileOptions::default()).await.1;
        let mut rng = Rng::labelled(seed, &format!("writer {task}"));
        tasks.push(bed.rt.spawn("writer", Class::Normal, async move {
            let mut at = 0;
            while at < PART {
                let len = (rng.below(70_000) as usize + 1).min(PART - at);
                let part = vec![task as u8 + 1; len];
                assert_eq!(file.write((start + at) as u64, &part).await.unwrap(), len);
                at += len;
                if rng.below(8) == 0 {
                    file.sync().await.unwrap();
                }
                if task > 2 && rng.below(16) == 0 {
                    at = rng.below(at as u64) as usize;
                    file.set_size(at as u64).await.unwrap();
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    bed.close().await;
}

fn check_writers(image: &Path, numbers: &[InodeNumber]) {
    check_is_silent(image, "six writers");
    for (n, &number) in numbers.iter().enumerate() {
        let found = dumped(image, number);
        let parts = if n == 0 { vec![1, 2, 3] } else { vec![n as u8 + 3] };
        assert_eq!(found.len(), parts.len() * PART);
        for (chunk, part) in found.chunks(PART).zip(parts) {
            assert!(chunk.iter().all(|&byte| byte == part), "file {n}, part {part}");
        }
    }
}

#[test]
fn writers_of_one_file_and_of_many_do_not_disturb_each_other() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let made = make(dir.path(), 16, "-t ext4 -b 4096 -O ^has_journal -N 64", &vec![vec![]; 4]);
    let fresh = std::fs::read(&made).unwrap();
    let rt = Rt::real(Default::default());
    let numbers = rt.block_on(numbers(&made, 4)).unwrap();
    rt.block_on(six_writers(&rt, device(&made), &numbers, 0)).unwrap();
    check_writers(&made, &numbers);
    // In the virtual world every seed gives a different order of events.
    let seeds = std::env::var("EXTANT_SEEDS").map_or(6, |seeds| seeds.parse().unwrap());
    for seed in 0..seeds {
        println!("seed {seed}");
        let sim = Sim::new(Machine::free(4, Preemption::None), seed);
        let disk = Arc::new(MemDevice::from_bytes(fresh.clone()));
        let delays = FaultConfig {
            seed,
            delay_ppm: 1_000_000,
            delay_max: Nanos::from_micros(200),
            ..Default::default()
        };
        let slow = Arc::new(Fault::new(disk.clone(), sim.rt(), delays));
        sim.rt()
            .block_on(async {
                six_writers(sim.rt(), slow, &numbers, seed).await;
            })
            .unwrap();
        std::fs::write(&made, disk.to_bytes()).unwrap();
        check_writers(&made, &numbers);
    }
}

#[test]
fn flags_are_obeyed() {
    with_file(8, "-t ext4 -b 4096 -O ^has_journal -N 64", vec![1; 100], 8 << 20, async |bed, number, _| {
        let (cell, file) = bed.file(number, FileOptions::default()).await;
        let (_, appender) = bed.file(number, FileOptions { append: true, ..Default::default() }).await;
        let set = async |flags: extant_format::InodeFlags| {
            let mut handle = bed.writer.journal.start(Credits(1)).await.unwrap();
            let mut inode = handle.inode(&cell);
            let kept = inode.flags() & extant_format::InodeFlags::EXTENTS;
            inode.raw.i_flags = (kept | flags).bits().into();
        };
        set(extant_format::InodeFlags::APPEND).await;
        assert!(matches!(file.write(0, b"x").await, Err(Error::Permission(_))));
        assert!(matches!(file.set_size(0).await, Err(Error::Permission(_))));
        assert_eq!(appender.write(0, b"x").await.unwrap(), 1);
        set(extant_format::InodeFlags::IMMUTABLE).await;
        assert!(matches!(appender.write(0, b"x").await, Err(Error::Permission(_))));
        set(extant_format::InodeFlags::empty()).await;
        assert_eq!(file.size(), 101);
    });
}

#[test]
fn an_ordinary_writer_strips_setuid() {
    with_file(8, "-t ext4 -b 4096 -O ^has_journal -N 64", vec![1; 100], 8 << 20, async |bed, number, _| {
        let (cell, file) = bed.file(number, FileOptions::default()).await;
        let (_, privileged) = bed.file(number, FileOptions { keeps_setid: true, ..Default::default() }).await;
        let set = async |mode: u16| {
            let mut handle = bed.writer.journal.start(Credits(1)).await.unwrap();
            handle.inode(&cell).raw.i_mode = (0o100_000 | mode).into();
        };
        set(0o6755).await;
        privileged.write(0, b"x").await.unwrap();
        assert_eq!(cell.read(Inode::mode) & 0o7777, 0o6755);
        file.write(0, b"x").await.unwrap();
        assert_eq!(cell.read(Inode::mode) & 0o7777, 0o755);
        set(0o2745).await;
        file.write(0, b"x").await.unwrap();
        assert_eq!(cell.read(Inode::mode) & 0o7777, 0o2745, "a mark of mandatory locking stays");
    });
}

#[test]
fn what_a_cache_above_writes_back_is_not_judged_again() {
    with_file(8, "-t ext4 -b 4096 -O ^has_journal -N 64", vec![1; 100], 8 << 20, async |bed, number, _| {
        let options = FileOptions { append: true, keeps_times: true, ..FileOptions::default() };
        let (cell, appender) = bed.file(number, options).await;
        let (_, ordinary) = bed.file(number, FileOptions::default()).await;
        let fixed = extant_format::InodeFlags::IMMUTABLE | extant_format::InodeFlags::APPEND;
        {
            let mut handle = bed.writer.journal.start(Credits(1)).await.unwrap();
            let mut inode = handle.inode(&cell);
            inode.raw.i_mode = 0o106_755.into();
            inode.raw.i_flags = (inode.flags() | fixed).bits().into();
            inode.raw.i_mtime = 1.into();
        }
        let seen = || cell.read(|inode| (inode.mode(), inode.modified(), inode.changed()));
        let before = seen();
        let behind = appender.behind_cache();
        assert_eq!(behind.write(10, b"here").await.unwrap(), 4);
        let mut read = [0; 5];
        assert_eq!(behind.read(10, &mut read).await.unwrap(), 5);
        assert_eq!((&read, behind.size(), seen()), (b"here\x01", 100, before));
        assert!(matches!(appender.write(0, b"x").await, Err(Error::Permission(_))));
        // Unless it leaves the times to the volume.
        ordinary.behind_cache().write(10, b"there").await.unwrap();
        assert!(seen().0 == before.0 && seen().1 > before.1);
    });
}
