//! What a command writes is never the image that it reads, by whatever name.

use crate::testbed::{extant, have, mke2fs, place};
use extant_testbed::{LoopDevice, Mount, can_mount};
use std::fs;

#[test]
fn the_image_that_is_read_is_not_written_over() {
    if !have("mke2fs") || !can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), vec![7; 100_000]).unwrap();
    let (image, other) = (dir.path().join("image"), dir.path().join("other"));
    for image in [&image, &other] {
        mke2fs(image, "8M", &["-t", "ext4", "-d", source.to_str().unwrap()]);
    }
    let device = LoopDevice::attach(&image, &[]).unwrap();
    let mount = Mount::new(&other, &dir.path().join("mnt"), "rw");
    let before = fs::read(&image).unwrap();
    let (disk, mounted) = (device.path().to_str().unwrap(), mount.device().unwrap().to_str().unwrap());
    let (name, within) = (image.to_str().unwrap(), dir.path().join("mnt/out"));
    let within = within.to_str().unwrap();
    let other_name = other.to_str().unwrap();
    for args in [
        &["rescue", name, disk][..],
        &["undelete", name, disk],
        &["export", name, "-o", disk],
        &["cp", &place(&image, "/file"), disk],
        // Not its own, but a disk, or one in use.
        &["rescue", other_name, disk],
        &["cp", &place(&image, "/file"), mounted],
        // On the volume itself.
        &["rescue", other_name, within],
        &["undelete", other_name, within],
    ] {
        let ran = extant(args);
        assert_eq!(ran.code, Some(1), "{args:?}: {}", ran.stderr);
    }
    assert!(fs::read(&image).unwrap() == before);
    assert!(!fs::exists(within).unwrap());
    drop((device, mount));
}

#[test]
fn a_map_replaces_nothing() {
    if !have("mke2fs") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs(&image, "2M", &["-t", "ext2"]);
    let out = dir.path().join("out.tar");
    let (image, out) = (image.to_str().unwrap(), out.to_str().unwrap());
    let ran = extant(["rescue", image, out, "--map", out]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(&fs::read(out).unwrap()[257..262], b"ustar", "the archive is there");
}
