//! Direct I/O: how many requests reach the device, what cached readers see, and what a failed write
//! leaves.

use super::bed::*;
use extant::{Buf, File, FileOptions, OpenOptions, Volume};
use extant_block::{Bio, Device, Fault, FaultConfig, FileDevice, IoError, Limits, Op, Segment};
use extant_rt::{Rng, Rt};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

fn open_file(volume: &Volume, name: &str) -> File {
    volume.root().open_with(name, FileOptions::new().read(true).write(true).create(true)).unwrap()
}

fn device(image: &Path) -> Arc<dyn Device> {
    let options = extant_block::FileOptions { write: true, ..Default::default() };
    Arc::new(FileDevice::open(image, options).unwrap())
}

/// Counts long requests and advertises a maximum request length.
#[derive(Debug)]
struct Counting {
    inner: Arc<dyn Device>,
    limits: Limits,
    long: AtomicU64,
}

impl Counting {
    const MAX_BYTES: u64 = 256 << 10;

    fn over(inner: Arc<dyn Device>) -> Arc<Self> {
        let limits = Limits { max_bytes: Self::MAX_BYTES, ..inner.limits().clone() };
        Arc::new(Self { inner, limits, long: AtomicU64::new(0) })
    }

    fn taken(&self) -> u64 {
        self.long.swap(0, Ordering::Relaxed)
    }
}

impl Device for Counting {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        assert!(bio.bytes <= Self::MAX_BYTES, "{bio:?}");
        if matches!(bio.op, Op::Read | Op::Write) && bio.bytes >= 64 << 10 {
            self.long.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<extant_block::Claim, IoError> {
        self.inner.claim()
    }
}

#[test]
fn a_request_is_as_few_bios_as_the_places_of_its_blocks_and_the_device_allow() {
    if !have_tools() {
        return;
    }
    const LEN: usize = 4 << 20;
    for args in ["-t ext4 -b 4096 64M", "-t ext3 -b 1024 64M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let rt = Rt::real(Default::default());
        let counting = Counting::over(device(&image));
        let volume = Volume::open_device(&rt, counting.clone(), &OpenOptions::new().write(true)).unwrap();
        let file = open_file(&volume, "f");
        let mut rng = Rng::labelled(1, args);
        let mut expected: Vec<u8> = (0..LEN).map(|_| rng.next_u64() as u8).collect();
        let mut buf = Buf::from_slice(&expected);
        counting.taken();
        assert_eq!(file.write_direct(0, &mut buf).unwrap(), LEN);
        // With a map of block pointers, blocks of the map may lie between the file's runs.
        let runs = file.extents(0..u64::MAX).unwrap();
        let bios: u64 = runs.iter().map(|run| run.bytes.div_ceil(Counting::MAX_BYTES)).sum();
        let short = runs.iter().filter(|run| run.bytes % Counting::MAX_BYTES < 64 << 10).count() as u64;
        // Long requests for the log and metadata are counted too.
        let allowed = |count: u64| (bios.saturating_sub(2 * short)..=bios + 2).contains(&count);
        let (written, least) = (counting.taken(), LEN as u64 / Counting::MAX_BYTES);
        println!("{args}: {written} bios for {} runs", runs.len());
        assert!(allowed(written) && written >= least - 2 * short, "{args}: {written} of {bios}, {runs:?}");
        file.sync_all().unwrap();
        counting.taken();
        assert_eq!(file.read_direct(0, &mut buf).unwrap(), LEN);
        assert!(buf[..] == expected);
        assert!(allowed(counting.taken()), "{args}");
        expected[8192..12_288].fill(7);
        assert_eq!(file.write_direct(8192, &mut Buf::from_slice(&[7; 4096])).unwrap(), 4096);
        let mut read = vec![0; LEN];
        assert_eq!(file.read_at(0, &mut read).unwrap(), LEN);
        assert!(read == expected, "{args}: through the cache");
        drop(file);
        volume.close().unwrap();
        check(&image, args);
    }
}

/// Records the memory addresses of long requests.
#[derive(Debug)]
struct Noting {
    inner: Arc<dyn Device>,
    places: Mutex<Vec<Range<usize>>>,
}

impl Device for Noting {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        if matches!(bio.op, Op::Read | Op::Write) && bio.bytes >= 64 << 10 {
            let place = |segment: &Segment| segment.as_slice().as_ptr_range();
            let places = bio.segments.iter().map(place).map(|at| at.start.addr()..at.end.addr());
            self.places.lock().unwrap().extend(places);
        }
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<extant_block::Claim, IoError> {
        self.inner.claim()
    }
}

#[test]
fn memory_of_the_caller_is_read_and_written_in_place_where_it_is_aligned() {
    if !have_tools() {
        return;
    }
    const LEN: usize = 1 << 20;
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 4096 32M");
    let rt = Rt::real(Default::default());
    let noting = Arc::new(Noting { inner: device(&image), places: Mutex::default() });
    let volume = Volume::open_device(&rt, noting.clone(), &OpenOptions::new().write(true)).unwrap();
    let file = open_file(&volume, "f");
    let mut rng = Rng::new(1);
    let mut memory = vec![0; LEN + 8192];
    let aligned = memory.as_ptr().align_offset(4096);
    let held = |memory: &[u8]| {
        let (own, places) = (memory.as_ptr_range(), std::mem::take(&mut *noting.places.lock().unwrap()));
        let own = own.start.addr()..own.end.addr();
        assert!(!places.is_empty());
        places.iter().all(|place| own.contains(&place.start) && place.end <= own.end)
    };
    for (begin, in_place) in [(aligned, true), (aligned + 512, false), (aligned + 1, false)] {
        let expected: Vec<u8> = (0..LEN).map(|_| rng.next_u64() as u8).collect();
        let memory = &mut memory[begin..begin + LEN];
        memory.copy_from_slice(&expected);
        noting.places.lock().unwrap().clear();
        assert_eq!(file.write_direct_from(0, memory).unwrap(), LEN);
        assert_eq!(held(memory), in_place);
        assert!(*memory == expected, "a write leaves the caller's memory alone");
        memory.fill(0);
        assert_eq!(file.read_direct_into(0, memory).unwrap(), LEN);
        assert_eq!(held(memory), in_place);
        assert!(*memory == expected);
        let mut read = vec![0; LEN];
        assert_eq!(file.read_at(0, &mut read).unwrap(), LEN);
        assert!(read == expected, "through the cache");
    }
    // Requests that are not direct, one past the end, and one that is refused.
    let memory = &mut memory[aligned..aligned + LEN];
    memory[..100].fill(7);
    assert_eq!(file.write_direct_from(5000, &memory[..100]).unwrap(), 100);
    memory.fill(0);
    assert_eq!(file.read_direct_into(5000, &mut memory[..100]).unwrap(), 100);
    assert!(memory[..100] == [7; 100] && memory[100..].iter().all(|&byte| byte == 0));
    assert_eq!(file.read_direct_into(LEN as u64 - 4096, &mut memory[..8192]).unwrap(), 4096);
    assert_eq!(file.read_direct_into(2 * LEN as u64, memory).unwrap(), 0);
    assert_eq!(file.read_direct_into(0, &mut []).unwrap(), 0);
    let unreadable = volume.root().open_with("f", FileOptions::new().write(true)).unwrap();
    assert_eq!(unreadable.read_direct_into(0, memory).unwrap_err().errno(), 9);
    drop((file, unreadable));
    volume.close().unwrap();
    check(&image, "direct I/O in place");
}

#[test]
fn readers_through_the_cache_see_whole_blocks_of_direct_writers() {
    if !have_tools() {
        return;
    }
    const BLOCKS: u64 = 16;
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 4096 32M");
    let volume = open(&image);
    let file = open_file(&volume, "f");
    file.write_all_at(0, &[1; 4096 * BLOCKS as usize]).unwrap();
    let writers: Vec<u64> = (0..3).collect();
    std::thread::scope(|scope| {
        for &n in &writers {
            let volume = &volume;
            scope.spawn(move || {
                let file = open_file(volume, "f");
                let mut rng = Rng::labelled(n, "direct");
                for round in 0..60_u8 {
                    let at = rng.below(BLOCKS) * 4096;
                    let mark = round.wrapping_mul(3).wrapping_add(n as u8) | 1;
                    match rng.below(4) {
                        0 => file.write_all_at(at, &[mark; 4096]).unwrap(),
                        _ => assert_eq!(
                            file.write_direct(at, &mut Buf::from_slice(&[mark; 4096])).unwrap(),
                            4096
                        ),
                    }
                }
            });
        }
        let mut rng = Rng::labelled(9, "readers");
        let mut read = Buf::zeroed(4096);
        for n in 0..300 {
            let at = rng.below(BLOCKS) * 4096;
            let got = if n % 3 == 0 { file.read_direct(at, &mut read) } else { file.read_at(at, &mut read) };
            assert_eq!(got.unwrap(), 4096);
            assert!(read.iter().all(|&byte| byte == read[0] && byte != 0), "block {}", at / 4096);
        }
    });
    let mut all = vec![0; 4096 * BLOCKS as usize];
    assert_eq!(file.read_at(0, &mut all).unwrap(), all.len());
    file.sync_all().unwrap();
    let mut direct = Buf::zeroed(all.len());
    assert_eq!(file.read_direct(0, &mut direct).unwrap(), all.len());
    assert!(direct[..] == all);
    drop(file);
    volume.close().unwrap();
    check(&image, "after direct writers");
}

#[test]
fn a_direct_write_that_fails_leaves_the_file_as_long_as_it_was() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 4096 32M");
    let rt = Rt::real(Default::default());
    let fault = Arc::new(Fault::new(device(&image), &rt, FaultConfig::default()));
    let options = OpenOptions::new().write(true).offline(true);
    let volume = Volume::open_device(&rt, fault.clone(), &options).unwrap();
    let file = open_file(&volume, "f");
    let mut expected = vec![1; 10_000];
    file.write_all_at(0, &expected).unwrap();
    file.sync_all().unwrap();
    let free = volume.statfs().blocks_free;
    let mut buf = Buf::from_slice(&[2; 64 << 10]);
    fault.set_config(FaultConfig { error_ppm: 1_000_000, ..FaultConfig::default() });
    for at in [0, 8192, 12_288, 1 << 20] {
        assert_eq!(file.write_direct(at, &mut buf).unwrap_err().errno(), 5, "at {at}");
        assert_eq!((file.len(), buf.len()), (10_000, 64 << 10), "at {at}");
    }
    assert_eq!(file.read_direct(0, &mut buf).unwrap_err().errno(), 5);
    fault.set_config(FaultConfig::default());
    assert_eq!(volume.statfs().blocks_free, free, "nothing is promised for what failed");
    let mut buf = Buf::from_slice(&[3; 64 << 10]);
    assert_eq!(file.write_direct(8192, &mut buf).unwrap(), 64 << 10);
    expected.resize(8192 + (64 << 10), 3);
    expected[8192..].fill(3);
    file.sync_all().unwrap();
    let mut read = vec![0; expected.len()];
    assert_eq!(file.read_at(0, &mut read).unwrap(), expected.len());
    // Every byte of the failed write still has its old value.
    assert!(read == expected);
    drop(file);
    volume.close().unwrap();
    check(&image, "after failed writes");
}

/// Writes distinct parts of a new file from one thread with eight requests in flight.
fn write_parts(rt: &Rt, file: &File, parts: usize, part_bytes: usize) {
    let (next, open) = (std::cell::Cell::new(0), file.asynch().clone());
    let slot = async || {
        while next.get() < parts {
            let part = next.replace(next.get() + 1);
            let buf = Buf::from_slice(&vec![part as u8 + 1; part_bytes]);
            assert_eq!(open.write_direct((part * part_bytes) as u64, buf).await.1.unwrap(), part_bytes);
        }
    };
    let mut slots: Vec<_> = (0..8).map(|_| Box::pin(slot())).collect();
    let all = std::future::poll_fn(|cx| {
        slots.retain_mut(|slot| slot.as_mut().poll(cx).is_pending());
        if slots.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    rt.block_on(all).unwrap();
}

#[test]
fn one_thread_writes_new_files_with_many_requests_in_flight() {
    if !have_tools() {
        return;
    }
    const PART: usize = 256 << 10;
    const PARTS: usize = 96;
    for args in ["-t ext4 -b 4096 96M", "-t ext4 -b 1024 96M", "-t ext3 -b 1024 96M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let rt = Rt::real(Default::default());
        let volume = Volume::open_device(&rt, device(&image), &OpenOptions::new().write(true)).unwrap();
        let beside = open_file(&volume, "beside");
        let options = *FileOptions::new().read(true).append(true).create(true);
        let appended = volume.root().open_with("appended", &options).unwrap();
        // Appends run one after the other, in any order.
        for (file, in_order) in [(beside, true), (appended, false)] {
            write_parts(&rt, &file, PARTS, PART);
            file.sync_all().unwrap();
            let mut read = vec![0; PARTS * PART];
            assert_eq!(file.read_at(0, &mut read).unwrap(), read.len());
            let mut marks: Vec<u8> = read.chunks(PART).map(|part| part[0]).collect();
            assert!(read.chunks(PART).all(|part| part.iter().all(|&byte| byte == part[0])), "{args}");
            if !in_order {
                marks.sort_unstable();
            }
            assert!(marks.into_iter().eq(1..=PARTS as u8), "{args}");
        }
        volume.close().unwrap();
        check(&image, args);
    }
}
