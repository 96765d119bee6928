//! Long reads and writes of files that are too large for the cache.

use super::bed::{fsck, image, writable};
use super::{Counted, Meanwhile, pattern};
use extant::{Fallocate, File, FileOptions, OpenOptions, Volume};
use extant_rt::Rt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

/// Files of more than half of this pass it.
const CACHE_BYTES: u64 = 8 << 20;

fn open(path: &Path, write: bool) -> (Arc<Counted>, Volume) {
    let rt = Rt::real(Default::default());
    let device = Counted::open(&rt, path, write);
    let options = OpenOptions::new().write(write).cache_bytes(CACHE_BYTES);
    let volume = Volume::open_device(&rt, device.clone(), &options).unwrap();
    (device, volume)
}

fn read(file: &File, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let read = file.read_at(at as u64, &mut bytes).unwrap();
    bytes.truncate(read);
    bytes
}

#[test]
fn a_long_read_of_a_large_file_leaves_the_cache_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let mut large = pattern(6 * MIB - 100, 1);
    large[5 * MIB - 3 * PAGE..][..2 * PAGE].fill(0);
    let volume = writable(&path);
    volume.root().write("kept", pattern(30_000, 2)).unwrap();
    let file = volume.root().create("large").unwrap();
    file.write_all_at(0, &large).unwrap();
    file.fallocate(Fallocate::PunchHole, (5 * MIB - 3 * PAGE) as u64, 2 * PAGE as u64).unwrap();
    drop(file);
    volume.close().unwrap();

    for write in [false, true] {
        let (device, volume) = open(&path, write);
        let file = volume.root().open_with("large", FileOptions::new().read(true).write(write)).unwrap();
        assert_eq!(volume.read("kept").unwrap(), pattern(30_000, 2));
        // Finds the map.
        read(&file, 0, 1);
        let (bios, mut here) = (device.bio_bytes(), device.here_bytes());
        let mut look = |at: usize, len: usize, pages: usize| {
            assert!(
                read(&file, at, len) == large[at..large.len().min(at + len)],
                "{len} bytes from byte {at}"
            );
            here += (pages * PAGE) as u64;
            assert_eq!((device.bio_bytes(), device.here_bytes()), (bios, here), "{len} bytes from byte {at}");
        };
        look(MIB, MIB, 256);
        look(MIB, MIB, 256);
        // Pages that are read in part are kept.
        look(2 * MIB + 100, MIB, 257);
        look(2 * MIB + 100, MIB, 255);
        // A hole, and the end of the file.
        look(4 * MIB, 3 * MIB, 510);
        look(6 * MIB - PAGE, PAGE, 0);
        assert_eq!(volume.read("kept").unwrap(), pattern(30_000, 2));
        assert_eq!(device.here_bytes(), here, "it is still cached");
        if write {
            // Bytes that the device does not have yet.
            file.write_all_at((3 * MIB + 5 * PAGE + 7) as u64, b"new").unwrap();
            large[3 * MIB + 5 * PAGE + 7..][..3].copy_from_slice(b"new");
            assert!(read(&file, 3 * MIB, MIB) == large[3 * MIB..4 * MIB]);
        }
        drop(file);
        volume.close().unwrap();
    }
}

#[test]
fn a_long_read_never_has_bytes_of_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    volume.root().write("file", vec![b'a'; 8 * MIB]).unwrap();
    volume.sync().unwrap();
    let space = volume.statfs();
    let free = (space.blocks_available * u64::from(space.block_bytes)) as usize;
    volume.root().write("rest", vec![b'r'; free - MIB / 2]).unwrap();
    volume.close().unwrap();

    let (device, volume) = open(&path, true);
    let file = volume.root().open_with("file", FileOptions::new().read(true).write(true)).unwrap();
    read(&file, 0, 1);
    let before = file.extents(0..u64::MAX).unwrap();
    let (changed, on) = (file.clone(), volume.clone());
    *device.meanwhile.lock().unwrap() = Some(Meanwhile(Box::new(move || {
        changed.fallocate(Fallocate::PunchHole, 4 << 20, 2 << 20).unwrap();
        on.sync().unwrap();
        on.root().write("other", vec![b'o'; 3 * MIB / 2]).unwrap();
        on.sync().unwrap();
    })));
    let bytes = read(&file, 4 * MIB, MIB);
    assert!(device.meanwhile.lock().unwrap().is_none(), "the file changed while it was read");
    let other = volume.open_file("other").unwrap().extents(0..u64::MAX).unwrap();
    let took = other.iter().any(|other| {
        let end = other.device_offset + other.bytes;
        before
            .iter()
            .any(|own| own.device_offset < end && other.device_offset < own.device_offset + own.bytes)
    });
    assert!(took, "the other file took the blocks: {before:?}, {other:?}");
    assert!(bytes.len() == MIB && bytes.iter().all(|&byte| byte == b'a' || byte == 0));
    drop((file, device));
    volume.close().unwrap();
}

#[test]
fn a_long_read_has_each_page_as_it_was_at_one_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    volume.root().write("file", vec![b'a'; 16 * MIB]).unwrap();
    volume.close().unwrap();

    let (device, volume) = open(&path, true);
    let file = volume.root().open_with("file", FileOptions::new().read(true).write(true)).unwrap();
    read(&file, 0, 1);
    let changed = file.clone();
    *device.meanwhile.lock().unwrap() = Some(Meanwhile(Box::new(move || {
        changed.write_all_at(4 << 20, &[b'n'; MIB]).unwrap();
        changed.sync_all().unwrap();
        // Others take their frames.
        (0..2).for_each(|_| (256 * 5..256 * 16).for_each(|page| drop(read(&changed, page * PAGE, 100))));
    })));
    let bytes = read(&file, 4 * MIB, MIB);
    assert!(device.meanwhile.lock().unwrap().is_none(), "the file changed while it was read");
    assert!(bytes.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page[0])));
    drop((file, device));
    volume.close().unwrap();
}

#[test]
fn a_stream_of_long_writes_goes_past_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let rt = Rt::real(Default::default());
    let device = Counted::open(&rt, &path, true);
    let volume = Volume::open_device(&rt, device.clone(), &OpenOptions::new().write(true)).unwrap();
    let bytes = pattern(14 * MIB + 1000, 3);
    let file = volume.root().create("stream").unwrap();
    for (n, piece) in bytes.chunks(MIB).enumerate() {
        file.write_all_at((n * MIB) as u64, piece).unwrap();
    }
    let written = device.written_bytes.load(Ordering::Relaxed);
    assert!(written >= 14 << 20, "all whole pages are on the device before a sync: {written}");
    assert_eq!(file.len(), bytes.len() as u64);
    // As few as on a volume that is written through the cache, and the end, which is in memory.
    let extents = file.extents(0..u64::MAX).unwrap();
    assert!(extents.len() <= 3, "{extents:?}");
    // One write that does not begin on a page of memory.
    volume.root().write("at once", &bytes[1..9 * MIB]).unwrap();
    assert!(device.written_bytes.load(Ordering::Relaxed) >= written + (8 << 20));
    // Space runs out in the middle of a write.
    let rest = volume.root().create("rest").unwrap();
    rest.set_len(8 << 20).unwrap();
    let kept = (8..).map_while(|n| rest.write_at(n << 20, &bytes[..MIB]).ok()).sum::<usize>();
    assert!(kept > MIB && kept % MIB > 0 && rest.len() == (8 * MIB + kept) as u64, "{kept}");
    drop((file, rest));
    volume.close().unwrap();
    fsck(&path);
    let volume = Volume::open(&path, &OpenOptions::new()).unwrap();
    assert!(volume.read("stream").unwrap() == bytes);
    assert!(volume.read("at once").unwrap() == bytes[1..9 * MIB]);
    let rest = &volume.read("rest").unwrap()[8 * MIB..];
    assert!(rest.len() == kept && rest.chunks(MIB).all(|piece| *piece == bytes[..piece.len()]));
}
