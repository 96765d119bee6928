use super::transfer::Step;
use super::*;
use crate::{Buf, IoErrorKind, Sector, Segment, discard, execute, flush, read, write};
use extant_rt::{Nanos, RealConfig};
use extant_testbed::{LoopDevice, can_mount};
use rustix::fs::{CWD, FileType};
use rustix::io::Errno;
use std::future::Future;
use std::io::{Read, Seek, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use tempfile::{NamedTempFile, TempDir};

fn world() -> Rt {
    Rt::real(RealConfig::default())
}

fn temp_file(bytes: &[u8]) -> NamedTempFile {
    // Next to the build, because /tmp may be a tmpfs without O_DIRECT.
    let mut file = NamedTempFile::new_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    file.write_all(bytes).unwrap();
    file
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 * 7 + i % 251) as u8).collect()
}

/// Runs `check` on every engine, with direct and with buffered I/O.
fn on_every_engine(rt: &Rt, path: &Path, write: bool, check: impl Fn(FileDevice)) {
    for direct in [false, true] {
        let open = || FileDevice::open(path, FileOptions { write, direct }).unwrap();
        check(open());
        check(open().on_threads_of(rt));
        check(waiting(open()).on_threads_of(rt));
        check(open().driven_by(rt));
        let ring = waiting(open()).driven_by(rt);
        if ring.engine() != "io_uring" {
            println!("skipped: io_uring is not available here");
        }
        check(ring);
    }
}

/// The device, set to behave as if its file could not be read without waiting.
fn waiting(device: FileDevice) -> FileDevice {
    device.host_file.refuse_to_read_now();
    device
}

#[test]
fn reads_of_what_the_host_has_cached_end_at_once() {
    let rt = world();
    let content = pattern(1 << 20);
    let file = temp_file(&content);
    let open = || FileDevice::open(file.path(), FileOptions::default()).unwrap();
    for device in [open().driven_by(&rt), open().on_threads_of(&rt)] {
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        for (at, len) in [(0, 512), (4096, 64 << 10), (0, 1 << 20)] {
            let mut read = std::pin::pin!(read(&device, Sector::containing(at), len));
            let Poll::Ready(bytes) = read.as_mut().poll(&mut cx) else { panic!("{len} bytes at {at}") };
            assert_eq!(bytes.unwrap()[..], content[at as usize..][..len]);
        }
    }
}

#[test]
fn reads_of_what_the_host_has_cached_in_part_are_whole() {
    use rustix::fs::{Advice, fadvise};
    let rt = world();
    let content = pattern(1 << 20);
    let file = temp_file(&content);
    file.as_file().sync_all().unwrap();
    on_every_engine(&rt, file.path(), false, |device| {
        // Forget the file, then load some pages without those after them.
        fadvise(file.as_file(), 0, None, Advice::DontNeed).unwrap();
        fadvise(file.as_file(), 0, None, Advice::Random).unwrap();
        for at in [0, 4096, 512 << 10] {
            rustix::io::pread(file.as_file(), &mut [0; 4096], at).unwrap();
        }
        for at in [0, 508 << 10] {
            let bytes = rt.block_on(read(&device, Sector::containing(at), 64 << 10)).unwrap().unwrap();
            assert_eq!(bytes[..], content[at as usize..][..64 << 10], "from byte {at}");
        }
    });
}

#[test]
fn one_writer_at_a_time_claims_a_file() {
    let file = temp_file(&pattern(4096));
    let open = || FileDevice::open(file.path(), FileOptions { write: true, direct: false }).unwrap();
    let (first, second) = (open(), open());
    let claim = first.claim().unwrap();
    for device in [&first, &second] {
        assert_eq!(device.claim().unwrap_err().kind, IoErrorKind::Claimed);
    }
    drop(claim);
    drop(second.claim().unwrap());
}

#[test]
fn bytes_under_a_loop_device_are_written_under_no_name() {
    if !can_mount() {
        return;
    }
    const MIB: u64 = 1 << 20;
    let file = temp_file(&[]);
    file.as_file().set_len(16 * MIB).unwrap();
    let hard = file.path().with_extension("hard");
    std::fs::hard_link(file.path(), &hard).unwrap();
    let attach = |path: &Path, from: u64, bytes: u64| {
        let (offset, limit) = (from.to_string(), bytes.to_string());
        LoopDevice::attach(path, &["--offset", &offset, "--sizelimit", &limit]).unwrap()
    };
    let open = |path: &Path| FileDevice::open(path, FileOptions { write: true, direct: false });
    let refused = |path: &Path, device: &LoopDevice| {
        let error = open(path).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ResourceBusy);
        let name = format!("it is attached to {}", device.path().display());
        assert!(error.to_string().starts_with(&name), "{error}");
        let to_replace = FileDevice::claim_to_replace(path, ForeignLocks::Override).unwrap_err();
        assert_eq!(to_replace.to_string(), error.to_string());
    };
    let first = attach(file.path(), 0, 8 * MIB);
    refused(file.path(), &first);
    refused(&hard, &first);
    // Two parts of the file, attached like partitions.
    let second = attach(&hard, 8 * MIB, 8 * MIB);
    drop(open(first.path()).unwrap());
    drop(open(second.path()).unwrap());
    let both = attach(file.path(), 4 * MIB, 8 * MIB);
    refused(first.path(), &both);
    refused(second.path(), &both);
    drop((both, first));
    refused(file.path(), &second);
    // A device on top of the device.
    let above = attach(second.path(), 0, MIB);
    refused(second.path(), &above);
    drop(above);
    drop(open(second.path()).unwrap());
    // The backing file lives on without a name, and another file now has that name.
    std::fs::write(file.path().with_extension("new"), [0; 4096]).unwrap();
    std::fs::rename(file.path().with_extension("new"), file.path()).unwrap();
    drop(open(file.path()).unwrap());
    refused(&hard, &second);
    drop(second);
    drop(open(&hard).unwrap());
    std::fs::remove_file(&hard).unwrap();
}

#[test]
fn a_layout_over_files_claims_all_of_them_or_none() {
    let files = [temp_file(&pattern(8192)), temp_file(&pattern(8192))];
    let open = |n: usize| -> Arc<dyn Device> {
        Arc::new(FileDevice::open(files[n].path(), FileOptions { write: true, direct: false }).unwrap())
    };
    let stripe = crate::Stripe::new("stripe", 8, vec![open(0), open(1)]).unwrap();
    let claim = stripe.claim().unwrap();
    assert_eq!(open(1).claim().unwrap_err().kind, IoErrorKind::Claimed);
    drop(claim);
    let second = open(1).claim().unwrap();
    assert_eq!(stripe.claim().unwrap_err().kind, IoErrorKind::Claimed);
    drop(open(0).claim().unwrap());
    drop(second);
    drop(stripe.claim().unwrap());
}

#[test]
fn refused_entries_are_entered_again_beside_a_second_device() {
    let rt = world();
    let files = [temp_file(&pattern(4096)), temp_file(&pattern(4096))];
    let open =
        |n: usize| waiting(FileDevice::open(files[n].path(), FileOptions::default()).unwrap()).driven_by(&rt);
    let (first, _second) = (open(0), open(1));
    let Engine::Ring { ring, .. } = &first.engine else {
        println!("skipped: io_uring is not available here");
        return;
    };
    ring.refuse(3);
    let bytes = rt.block_on(read(&first, Sector(0), 4096)).unwrap().unwrap();
    assert_eq!(bytes[..], pattern(4096));
}

/// Calls `test` with a world that has started no worker, and a device of it. A worker might enter a
/// request while the poll that made it continues, and both system calls would be counted.
fn with_ring(test: impl FnOnce(&Rt, &FileDevice, &ring::Ring)) {
    let file = temp_file(&pattern(1 << 20));
    let rt = world();
    let device = waiting(FileDevice::open(file.path(), FileOptions::default()).unwrap()).driven_by(&rt);
    match &device.engine {
        Engine::Ring { ring, .. } => test(&rt, &device, ring),
        _ => println!("skipped: io_uring is not available here"),
    }
}

#[test]
fn requests_of_a_poll_are_entered_at_its_end() {
    with_ring(|rt, device, ring| {
        let read_all = async |count: u64| {
            let reads = (0..count).map(|n| read(device, Sector(n * 8), 4096));
            for (n, bytes) in futures_util::future::join_all(reads).await.into_iter().enumerate() {
                assert_eq!(bytes.unwrap()[..], pattern(1 << 20)[n * 4096..][..4096]);
            }
        };
        for count in [1, 2, 3, 8, 40] {
            let before = ring.entered();
            rt.block_on(read_all(count)).unwrap();
            // One more read than may be held back enters them all.
            let expected = (count as usize).div_ceil(ring::DEFERRED_MAX + 1);
            assert_eq!(ring.entered() - before, expected, "{count} reads");
        }
    });
    // Three ways to end a poll: it returns, it goes on to something long, or it panics.
    for then in [|_: &Rt| (), |rt: &Rt| rt.ensure_driven(), |_: &Rt| panic!("after a submission")] {
        with_ring(|rt, device, ring| {
            let mut left = None;
            let polled = std::future::poll_fn(|cx| {
                let read = left.get_or_insert_with(|| Box::pin(read(device, Sector(0), 4096)));
                assert!(read.as_mut().poll(cx).is_pending());
                then(rt);
                Poll::Ready(())
            });
            let _ = rt.block_on(polled);
            assert_eq!(ring.entered(), 1);
            rt.block_on(left.unwrap()).unwrap().unwrap();
        });
    }
    with_ring(|rt, device, ring| {
        let long = rt.block_on(async { (read(device, Sector(0), 128 << 10), ring.entered()) });
        let (long, entered) = long.unwrap();
        assert_eq!(entered, 1, "a long request does not stay");
        assert_eq!(ring.entered(), 1);
        rt.block_on(long).unwrap().unwrap();
    });
}

#[test]
fn a_thread_of_another_executor_has_its_io_driven() {
    let file = temp_file(&pattern(4096));
    let rt = world();
    let device = waiting(FileDevice::open(file.path(), FileOptions::default()).unwrap()).driven_by(&rt);
    let (done, wait) = std::sync::mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "this needs a thread outside every world")]
    std::thread::spawn(move || done.send(pollster::block_on(read(&device, Sector(0), 4096))));
    let bytes = wait.recv_timeout(std::time::Duration::from_secs(60)).expect("the read ends").unwrap();
    assert_eq!(bytes[..], pattern(4096));
}

#[test]
fn written_bytes_are_in_the_file() {
    let rt = world();
    let file = temp_file(&pattern(1 << 20));
    on_every_engine(&rt, file.path(), true, |device| {
        let new: Vec<u8> = pattern(64 << 10).iter().map(|b| b ^ 0xff).collect();
        rt.block_on(write(&device, Sector(16), Buf::from_slice(&new))).unwrap().unwrap();
        rt.block_on(flush(&device)).unwrap().unwrap();
        let on_disk = std::fs::read(file.path()).unwrap();
        assert_eq!(on_disk[8192..8192 + new.len()], new, "{device:?}");
        assert_eq!(on_disk.len(), 1 << 20);
        let back = rt.block_on(read(&device, Sector(16), new.len())).unwrap().unwrap();
        assert_eq!(back[..], new, "{device:?}");
    });
}

#[test]
fn a_last_partial_sector_is_no_part_of_the_device() {
    let rt = world();
    let file = temp_file(&[9; 3 * 4096 + 700]);
    on_every_engine(&rt, file.path(), false, |device| {
        assert_eq!(device.limits().capacity_bytes, 3 * 4096 + 512);
        let tail = rt.block_on(read(&device, Sector(16), 4096 + 512)).unwrap().unwrap();
        assert!(tail.iter().all(|&b| b == 9), "{device:?}");
        // The contents of the missing bytes are unknown: they are not zeros.
        let error = rt.block_on(read(&device, Sector(16), 4096 + 1024)).unwrap().unwrap_err();
        assert_eq!(error.kind, IoErrorKind::OutOfRange);
    });
}

#[test]
fn a_file_that_shrank_is_an_error_not_zeroes() {
    let rt = world();
    let file = temp_file(&[9; 64 << 10]);
    on_every_engine(&rt, file.path(), false, |device| {
        file.as_file().set_len(8192).unwrap();
        let error = rt.block_on(read(&device, Sector(0), 16384)).unwrap().unwrap_err();
        assert_eq!(error.kind, IoErrorKind::Short(8192), "{device:?}");
        assert!(error.to_string().contains(file.path().to_str().unwrap()), "{error}");
        file.as_file().set_len(64 << 10).unwrap();
    });
}

#[test]
fn memory_and_ranges_need_no_alignment_beyond_a_sector() {
    let rt = world();
    let content = pattern(3 << 20);
    let file = temp_file(&content);
    on_every_engine(&rt, file.path(), true, |device| {
        // Odd addresses, odd lengths that add up to whole sectors, and more than the bounce buffer
        // holds.
        let shared = Arc::new(Buf::from_slice(&content));
        let segments = [(1, 511), (512, 1025), (1537, 2_000_000 - 1537)]
            .map(|(start, len)| Segment::shared(shared.clone(), start, len));
        let pad = 2_000_000_usize.next_multiple_of(512) - 2_000_000 + 1;
        let mut segments = Vec::from(segments);
        segments.push(Segment::shared(shared.clone(), 2_000_000, pad));
        let (bio, result) = rt.block_on(execute(&device, Bio::new(Op::Write, Sector(3), segments))).unwrap();
        result.unwrap();
        let len = bio.bytes as usize;
        let mut on_disk = vec![0; len];
        let mut reader = std::fs::File::open(file.path()).unwrap();
        reader.seek(std::io::SeekFrom::Start(3 * 512)).unwrap();
        reader.read_exact(&mut on_disk).unwrap();
        assert!(on_disk == content[1..1 + len], "{device:?}");

        let mut memory = vec![0_u8; len + 3];
        let ptr = NonNull::new(memory[3..].as_mut_ptr()).unwrap();
        // SAFETY: `memory` outlives the bio, which has ended before we look at the memory.
        let segment = unsafe { Segment::exclusive(ptr, len, Arc::new(())) };
        let (bio, result) =
            rt.block_on(execute(&device, Bio::new(Op::Read, Sector(3), vec![segment]))).unwrap();
        result.unwrap();
        drop(bio);
        assert!(memory[3..] == content[1..1 + len], "{device:?}");
    });
}

#[test]
fn holes_are_skipped_punched_and_zeroed() {
    let rt = world();
    let file = temp_file(&[]);
    file.as_file().set_len(16 << 20).unwrap();
    on_every_engine(&rt, file.path(), true, |device| {
        let at = |mib: u64| Sector(mib << 11);
        rt.block_on(write(&device, at(4), Buf::from_slice(&[1; 1 << 20]))).unwrap().unwrap();
        rt.block_on(flush(&device)).unwrap().unwrap();
        assert_eq!(device.next_data(0).unwrap(), Some(4 << 20..5 << 20), "{device:?}");
        assert_eq!(device.next_data(5 << 20).unwrap(), None, "{device:?}");
        rt.block_on(execute(&device, Bio::range(Op::WriteZeroes, at(4), 512 << 10))).unwrap().1.unwrap();
        let head = rt.block_on(read(&device, at(4), 1 << 20)).unwrap().unwrap();
        assert!(head[..512 << 10].iter().all(|&b| b == 0) && head[512 << 10..].iter().all(|&b| b == 1));
        rt.block_on(discard(&device, at(4), 1 << 20)).unwrap().unwrap();
        assert_eq!(device.next_data(0).unwrap(), None, "{device:?}");
    });
}

#[test]
fn a_thread_that_waits_makes_its_writes_durable_itself() {
    let rt = world();
    let file = temp_file(&pattern(1 << 16));
    on_every_engine(&rt, file.path(), true, |device| {
        let mut bio = Bio::new(Op::Write, Sector(8), vec![Buf::from_slice(&[9; 4096]).into()]);
        bio.flags = BioFlags::PREFLUSH | BioFlags::FUA;
        let ended_at_once = rt.block_on(async {
            // Ready at the first poll: no other thread took part.
            let mut flush = std::pin::pin!(flush(&device));
            let flushed = std::future::poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx))).await;
            let mut write = std::pin::pin!(execute(&device, bio));
            let written = std::future::poll_fn(|cx| Poll::Ready(write.as_mut().poll(cx))).await;
            matches!((flushed, written), (Poll::Ready(Ok(())), Poll::Ready((_, Ok(())))))
        });
        assert!(ended_at_once.unwrap(), "{}", device.engine());
        assert_eq!(std::fs::read(file.path()).unwrap()[4096..8192], [9; 4096]);
    });
}

#[test]
fn writes_to_a_read_only_device_are_refused() {
    let rt = world();
    let file = temp_file(&[0; 8192]);
    on_every_engine(&rt, file.path(), false, |device| {
        let error = rt.block_on(write(&device, Sector(0), Buf::zeroed(512))).unwrap().unwrap_err();
        assert_eq!(error.kind, IoErrorKind::ReadOnly);
    });
}

#[test]
fn files_without_sectors_are_refused_with_a_sentence_and_not_waited_for() {
    let dir = TempDir::new().unwrap();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    for path in [dir.path(), &fifo, Path::new("/dev/full")] {
        for write in [false, true] {
            let error = FileDevice::open(path, FileOptions { write, direct: false }).unwrap_err();
            assert_eq!(error.to_string(), "it is neither a regular file nor a block device");
        }
    }
}

/// More bios than the ring holds, from threads that exit before their bios end.
#[test]
fn bios_outlive_the_threads_that_submit_them_and_the_device() {
    let rt = world();
    let file = temp_file(&pattern(8 << 20));
    on_every_engine(&rt, file.path(), true, |device| {
        let (sender, ended) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let sender = sender.clone();
                let device = &device;
                scope.spawn(move || {
                    let bios: Vec<Bio> = (0..600_u64)
                        .map(|i| {
                            let mut bio = match i % 50 {
                                49 => Bio::range(Op::Flush, Sector(0), 0),
                                _ => {
                                    let at = (thread * 600 + i) * 8 % (15 << 10);
                                    Bio::new(Op::Read, Sector(at), vec![Buf::zeroed(4096).into()])
                                }
                            };
                            let sender = sender.clone();
                            bio.on_end(Box::new(move |bio, result| sender.send((bio, result)).unwrap()));
                            bio
                        })
                        .collect();
                    device.submit_all(&mut bios.into_iter());
                });
            }
        });
        drop((device, sender));
        let content = pattern(8 << 20);
        let mut count = 0;
        for (bio, result) in ended {
            result.unwrap();
            count += 1;
            if bio.op == Op::Read {
                let at = bio.start.byte_offset().unwrap() as usize;
                assert!(bio.segments[0].as_slice() == &content[at..at + 4096]);
            }
        }
        assert_eq!(count, 2400);
    });
}

fn loop_over(file: &NamedTempFile, sector_bytes: &str) -> Option<LoopDevice> {
    can_mount().then(|| LoopDevice::attach(file.path(), &["--sector-size", sector_bytes]).unwrap())
}

#[test]
fn block_devices_have_their_size_and_discard() {
    let rt = world();
    let file = temp_file(&pattern(4 << 20));
    let Some(disk) = loop_over(&file, "512") else { return };
    on_every_engine(&rt, disk.path(), true, |device| {
        assert_eq!(device.limits().capacity_bytes, 4 << 20);
        rt.block_on(write(&device, Sector(8), Buf::from_slice(&[5; 8192]))).unwrap().unwrap();
        let back = rt.block_on(read(&device, Sector(8), 8192)).unwrap().unwrap();
        assert!(back.iter().all(|&b| b == 5));
        rt.block_on(execute(&device, Bio::range(Op::WriteZeroes, Sector(8), 4096))).unwrap().1.unwrap();
        rt.block_on(discard(&device, Sector(16), 4096)).unwrap().unwrap();
        let back = rt.block_on(read(&device, Sector(8), 8192)).unwrap().unwrap();
        assert!(back.iter().all(|&b| b == 0), "{device:?}");
        let odd = rt.block_on(read(&device, Sector(8191), 512)).unwrap().unwrap();
        assert!(odd[..] == pattern(4 << 20)[8191 * 512..]);
    });
}

/// If the kernel accepts a request only for whole blocks, it gets only whole blocks.
#[test]
fn sectors_within_the_blocks_of_a_block_device_are_zeroed_and_discarded() {
    let rt = world();
    let file = temp_file(&pattern(1 << 20));
    let Some(disk) = loop_over(&file, "4096") else { return };
    on_every_engine(&rt, disk.path(), true, |device| {
        rt.block_on(write(&device, Sector(0), Buf::from_slice(&[5; 65536]))).unwrap().unwrap();
        for (start, bytes) in [(1, 512), (10, 4096), (20, 20_480), (0, 512)] {
            rt.block_on(execute(&device, Bio::range(Op::WriteZeroes, Sector(start), bytes)))
                .unwrap()
                .1
                .unwrap();
        }
        let back = rt.block_on(read(&device, Sector(0), 65536)).unwrap().unwrap();
        for (sector, bytes) in back.chunks(512).enumerate() {
            let zero = sector < 2 || (10..18).contains(&sector) || (20..60).contains(&sector);
            assert!(bytes.iter().all(|&b| b == if zero { 0 } else { 5 }), "{device:?}, sector {sector}");
        }
        for (start, bytes) in [(65, 512), (66, 4096), (70, 20_480)] {
            rt.block_on(discard(&device, Sector(start), bytes)).unwrap().unwrap();
        }
        let back = rt.block_on(read(&device, Sector(0), 1 << 20)).unwrap().unwrap();
        assert!(back[128 * 512..] == pattern(1 << 20)[128 * 512..], "nothing beyond was discarded");
        assert!(back[70 * 512..72 * 512].iter().all(|&b| b == 5), "parts of blocks stay");
    });
}

#[test]
fn an_empty_write_with_preflush_is_a_sync_and_nothing_more() {
    let file = temp_file(&[1; 512]);
    let fd = std::fs::File::open(file.path()).unwrap().into();
    let host_file = HostFile::new(fd, file.path(), FileOptions::default()).unwrap();
    let mut bio = Bio::range(Op::Write, Sector(0), 0);
    bio.flags = crate::BioFlags::PREFLUSH;
    let mut transfer = Transfer::new(bio, 0);
    assert_eq!(transfer.step(&host_file), Step::Sync);
    assert_eq!(transfer.completed(&host_file, Ok(0)), Some(Ok(())));
}

/// A direct read of a file that supports direct I/O, with its first step in flight; `None` if not
/// supported here.
fn direct_read(file: &NamedTempFile) -> Option<(HostFile, Transfer)> {
    let fd = std::fs::File::open(file.path()).unwrap().into();
    let host_file = HostFile::new(fd, file.path(), FileOptions { write: false, direct: true }).unwrap();
    let mut transfer = Transfer::new(Bio::new(Op::Read, Sector(0), vec![Buf::zeroed(8192).into()]), 0);
    match transfer.step(&host_file) {
        Step::Read { direct: true, .. } => Some((host_file, transfer)),
        _ => {
            println!("skipped: no direct I/O here");
            None
        }
    }
}

#[test]
fn a_backing_that_refuses_direct_io_after_all_is_read_through_the_page_cache() {
    let file = temp_file(&[1; 8192]);
    let Some((host_file, mut first)) = direct_read(&file) else { return };
    let mut second = Transfer::new(Bio::new(Op::Read, Sector(0), vec![Buf::zeroed(8192).into()]), 0);
    assert_eq!(second.step(&host_file), Step::Read { offset: 0, direct: true });
    // Both transfers were in flight when the first one was refused.
    for transfer in [&mut first, &mut second] {
        assert_eq!(transfer.completed(&host_file, Err(Errno::INVAL)), None);
        assert_eq!(transfer.step(&host_file), Step::Read { offset: 0, direct: false });
        assert!(!host_file.direct_is_on());
        assert_eq!(transfer.completed(&host_file, Err(Errno::INVAL)), Some(Err(IoErrorKind::Os(22))));
    }
}

#[test]
fn a_media_error_is_tried_again_once_and_told() {
    let file = temp_file(&[1; 8192]);
    let Some((host_file, mut transfer)) = direct_read(&file) else { return };
    assert_eq!(transfer.completed(&host_file, Err(Errno::IO)), None);
    assert_eq!(transfer.step(&host_file), Step::Read { offset: 0, direct: false });
    assert!(host_file.direct_is_on(), "other bios go on as before");
    assert_eq!(transfer.completed(&host_file, Err(Errno::IO)), Some(Err(IoErrorKind::Os(5))));
}

/// The page cache would accept data that never reached the medium, so a failed write must not
/// complete there.
#[test]
fn a_direct_write_that_fails_with_a_media_error_fails() {
    let file = temp_file(&[1; 8192]);
    let fd = std::fs::File::options().read(true).write(true).open(file.path()).unwrap().into();
    let host_file = HostFile::new(fd, file.path(), FileOptions { write: true, direct: true }).unwrap();
    for op in [Op::Write, Op::WriteZeroes] {
        let bio = match op {
            Op::Write => Bio::new(op, Sector(0), vec![Buf::zeroed(8192).into()]),
            _ => Bio::range(op, Sector(0), 8192),
        };
        let mut transfer = Transfer::new(bio, 0);
        if op == Op::WriteZeroes {
            assert_eq!(transfer.step(&host_file), Step::PunchHole { offset: 0, len: 8192 });
            assert_eq!(
                transfer.completed(&host_file, Err(Errno::OPNOTSUPP)),
                None,
                "zeroes are written instead"
            );
        }
        let Step::Write { direct: true, .. } = transfer.step(&host_file) else {
            return println!("skipped: no direct I/O here");
        };
        assert_eq!(transfer.completed(&host_file, Err(Errno::IO)), Some(Err(IoErrorKind::Os(5))), "{op}");
        assert!(host_file.direct_is_on());
    }
}

#[test]
fn the_rest_of_a_short_transfer_follows_and_a_cancelled_step_is_taken_again() {
    let file = temp_file(&[1; 8192]);
    let Some((host_file, mut transfer)) = direct_read(&file) else { return };
    assert_eq!(transfer.completed(&host_file, Err(Errno::CANCELED)), None);
    assert_eq!(transfer.step(&host_file), Step::Read { offset: 0, direct: true });
    assert_eq!(transfer.completed(&host_file, Ok(4096)), None);
    assert_eq!(transfer.step(&host_file), Step::Read { offset: 4096, direct: true });
    // Not a multiple of any block size: direct I/O cannot continue from here.
    assert_eq!(transfer.completed(&host_file, Ok(1000)), None);
    assert_eq!(transfer.step(&host_file), Step::Read { offset: 5096, direct: false });
    assert_eq!(transfer.completed(&host_file, Ok(3096)), Some(Ok(())));
}

#[test]
fn a_completion_that_panics_leaves_its_neighbours_their_results() {
    let file = temp_file(&[7; 64 << 10]);
    let rt = world();
    on_every_engine(&rt, file.path(), false, |device| {
        let ended = Arc::new(AtomicUsize::new(0));
        let bio = |n: u64| {
            let mut bio = Bio::new(Op::Read, Sector(n * 8), vec![Buf::zeroed(4096).into()]);
            let ended = ended.clone();
            bio.on_end(Box::new(move |bio, result| {
                ended.fetch_add(1, Ordering::SeqCst);
                assert!(n != 3, "a mistake in one completion");
                assert!(n > 3 || (result.is_ok() && bio.segments[0].as_slice() == [7; 4096]));
            }));
            bio
        };
        // On the caller's own thread the panic reaches the caller, and bios not started yet are
        // dropped.
        let submitted = catch_unwind(AssertUnwindSafe(|| {
            device.submit_all(&mut (0..8).map(bio).collect::<Vec<_>>().into_iter())
        }));
        assert_eq!(submitted.is_err(), device.engine() == "caller");
        while ended.load(Ordering::SeqCst) < 8 {
            assert_eq!(
                rt.block_on(rt.sleep(Nanos::from_micros(100))),
                Ok(()),
                "a task that waits is not harmed"
            );
        }
        drop(device);
        assert_eq!(ended.load(Ordering::SeqCst), 8);
    });
    let mistakes = rt.shutdown(Nanos::from_secs(10)).panicked.into_iter();
    assert!(mistakes.map(|(_, message)| message).all(|message| message == "a mistake in one completion"));
}
