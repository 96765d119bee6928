//! Callers may pass any offset and length; each must be handled.

use extant::{Buf, Fallocate, FileOptions, OpenOptions, Volume};
use extant_rt::Rng;
use std::process::Command;

/// Offsets near a file's size, within it, and up to the largest possible.
fn any_offset(rng: &mut Rng, size: u64) -> u64 {
    match rng.below(8) {
        0 => size.saturating_add(rng.below(3)).saturating_sub(1),
        1 => size + rng.below(5000),
        2 => u64::MAX - rng.below(5000),
        3 => (1 << rng.below(64)) - rng.below(2),
        4 => rng.next_u64(),
        _ => rng.below(size + 1),
    }
}

#[test]
fn any_offset_and_length_get_an_answer() {
    for (options, seed) in [("-t ext4 -b 1024 -I 256 -O inline_data", 1), ("-t ext2 -b 4096", 2)] {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        let contents = [("empty", 0), ("five", 5), ("tail", 130), ("large", 100_001)];
        for (name, len) in contents {
            std::fs::write(source.join(name), vec![b'x'; len]).unwrap();
        }
        let image = dir.path().join("image");
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F"]).args(options.split(' ')).arg("-d").arg(&source).arg(&image).arg("16M");
        match command.status() {
            Ok(made) if made.success() => {}
            _ => return println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)"),
        }
        println!("{options}: seed {seed}");
        let mut rng = Rng::new(seed);
        for write in [false, true] {
            let volume = Volume::open(&image, &OpenOptions::new().write(write)).unwrap();
            for (name, len) in contents {
                let file = volume.root().open_with(name, FileOptions::new().read(true).write(write)).unwrap();
                for _ in 0..60 {
                    let size = file.len();
                    assert_eq!(size, len as u64);
                    let (at, bytes) = (any_offset(&mut rng, size), rng.below(9000) as usize);
                    let expected = size.saturating_sub(at).min(bytes as u64) as usize;
                    let mut to = vec![0; bytes];
                    assert_eq!(file.read_at(at, &mut to).unwrap(), expected, "{name}: {bytes} bytes at {at}");
                    assert!(to[..expected].iter().all(|&byte| byte == b'x'), "{name}: {bytes} bytes at {at}");
                    let mut buf = Buf::zeroed(bytes / 512 * 512);
                    let read = file.read_direct(at, &mut buf);
                    assert_eq!(
                        read.unwrap(),
                        expected.min(buf.len()),
                        "{name}: {bytes} bytes at {at}, direct"
                    );
                    let _ = (file.seek_data(at), file.seek_hole(at), file.extents(at..u64::MAX));
                    let end = any_offset(&mut rng, size);
                    let _ = (file.extents(at..end), file.extents(end..at));
                    let _ = volume.trim(at..end, end);
                }
            }
            if !write {
                continue;
            }
            let root = volume.root();
            let [file, other] = ["scratch", "other"].map(|name| {
                root.open_with(name, FileOptions::new().read(true).write(true).create(true)).unwrap()
            });
            other.write_all_at(0, &[1; 20_000]).unwrap();
            for _ in 0..150 {
                let (at, len) = (any_offset(&mut rng, 20_000), any_offset(&mut rng, 20_000));
                match rng.below(10) {
                    0 => drop(file.write_at(at, &[7; 3000])),
                    1 => drop(file.write_direct(at, &mut Buf::zeroed(4096))),
                    2 => drop(other.copy_range(at, &file, len, at)),
                    3 => drop(file.copy_range(len, &file, at, len)),
                    4 => drop(file.fallocate(Fallocate::PunchHole, at, len)),
                    5 => drop(file.fallocate(Fallocate::ZeroRange { keep_size: true }, at, len)),
                    6 => drop(file.fallocate(Fallocate::CollapseRange, at, len)),
                    7 => drop(file.fallocate(Fallocate::InsertRange, at, len)),
                    8 => drop(file.read_at(at, &mut [0; 100])),
                    // Bounded by what the volume can hold: the next write would fill it.
                    _ => drop(file.set_len(at.min(1 << 20))),
                }
                if file.len() > 1 << 20 {
                    file.set_len(0).unwrap();
                }
            }
            drop((file, other));
            volume.close().unwrap();
            let said = Command::new("e2fsck").arg("-fn").arg(&image).output().unwrap();
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
        }
    }
}
