//! Servers that are killed, and damaged volumes.

use crate::bed::{Bed, can_mount, text};
use crate::testbed::noise;
use std::fs::{self, File};
use std::io::Write;

#[test]
fn what_was_synced_survives_a_killed_server() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("64M", &[], "");
    let bytes = noise(9, 1 << 20);
    for n in 0..8 {
        let mut file = File::create(bed.path(&format!("synced{n}"))).unwrap();
        file.write_all(&bytes[n * 1000..]).unwrap();
        file.sync_all().unwrap();
    }
    fs::rename(bed.path("synced0"), bed.path("moved")).unwrap();
    File::open(&bed.at).unwrap().sync_all().unwrap();
    // Writers that are interrupted.
    std::thread::scope(|scope| {
        for n in 0..3 {
            let path = bed.path(&format!("unsynced{n}"));
            scope.spawn(move || {
                let Ok(mut file) = File::create(path) else { return };
                while file.write_all(&[n; 100_000]).is_ok()
                    && file.metadata().is_ok_and(|meta| meta.len() < 10_000_000)
                {}
            });
        }
        bed.kill();
    });
    assert_eq!(fs::metadata(&bed.at).unwrap_err().raw_os_error(), Some(107), "a dead mount point");
    // The next mount clears it.
    bed.mount("");
    for n in 1..8 {
        assert!(fs::read(bed.path(&format!("synced{n}"))).unwrap() == bytes[n * 1000..], "{n}");
    }
    assert!(fs::read(bed.path("moved")).unwrap() == bytes);
    assert!(!bed.path("synced0").exists());
    bed.umount();
}

#[test]
fn a_whole_volume_is_made_durable_on_request() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("16M", &[], "commit=900");
    fs::create_dir(bed.path("d")).unwrap();
    fs::write(bed.path("d/f"), noise(3, 500_000)).unwrap();
    let ran = crate::bed::extant(&["sync", text(&bed.at)]);
    assert_eq!((ran.code, &*ran.stderr), (Some(0), ""));
    bed.kill();
    bed.mount("");
    assert!(fs::read(bed.path("d/f")).unwrap() == noise(3, 500_000));
    bed.umount();
}

/// Bytes of a volume's structures are changed; programs get errors, and the server goes on.
#[test]
fn a_damaged_volume_gives_errors_and_no_hang() {
    if !can_mount() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    for n in 0..40 {
        fs::create_dir_all(source.path().join(format!("d{}", n % 4))).unwrap();
        fs::write(source.path().join(format!("d{}/file{n}", n % 4)), noise(n, 9000)).unwrap();
    }
    for seed in 0..4 {
        let mut bed = Bed::unmounted("4M", &["-d", text(source.path())]);
        let mut image = fs::read(&bed.image).unwrap();
        let places = noise(seed, 400);
        for at in places.chunks_exact(4) {
            // Anything past the superblock and the group descriptors, in the first MiB.
            let place = 8192 + u32::from_le_bytes([at[0], at[1], at[2], 0]) as usize % (1 << 20);
            image[place] ^= at[3] | 1;
        }
        fs::write(&bed.image, image).unwrap();
        let ran = bed.try_mount("errors=continue");
        if ran.code != Some(0) {
            assert!(!ran.stderr.is_empty() && ran.code == Some(3), "seed {seed}: {ran:?}");
            continue;
        }
        bed.shell("set +e; ls -lR . > /dev/null 2>&1; cat d*/* > /dev/null 2>&1; echo x > new 2>/dev/null; rm -rf d0 2>/dev/null; sync . ; true");
        // Damage may keep the journal from being emptied; the image is free all the same.
        let ran = crate::bed::extant(&["umount", text(&bed.at)]);
        assert!(matches!(ran.code, Some(0 | 1)), "seed {seed}: {ran:?}");
        let again = bed.try_mount("ro");
        assert!(matches!(again.code, Some(0 | 3)), "seed {seed}: {again:?}");
    }
}
