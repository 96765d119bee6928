//! Volumes built from directories: clean for e2fsck, equal to the source as seen by the kernel, and
//! usable by e2fsprogs.

mod common;

use common::*;
use extant_format::BlockSize;
use extant_image::{FeatureChoices, FsType, JournalSize, SizePolicy, VolumeOptions};
use std::fs;
use std::path::PathBuf;

struct Made {
    dir: tempfile::TempDir,
}

impl Made {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("source")).unwrap();
        Self { dir }
    }

    /// Creates a source that contains one of everything.
    fn full() -> Self {
        let made = Self::new();
        make_source(&made.source());
        made
    }

    fn source(&self) -> PathBuf {
        self.dir.path().join("source")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// Builds with these options; e2fsck must find nothing and the kernel must see the source.
    fn check(&self, volume: VolumeOptions) {
        build_directory(&self.source(), &self.image(), volume);
        assert_clean(&self.image());
        assert_kernel_sees(&self.image(), &self.source());
    }
}

fn block(bytes: u32) -> Option<BlockSize> {
    Some(BlockSize::from_bytes(bytes).unwrap())
}

#[test]
fn default_volume_holds_one_of_everything() {
    Made::full().check(VolumeOptions::default());
}

#[test]
fn every_block_size() {
    let made = Made::full();
    for bytes in [1024, 2048, 4096] {
        made.check(VolumeOptions { block_size: block(bytes), ..Default::default() });
    }
    // These blocks are larger than a page. Linux mounts such volumes only since 6.19, so check with
    // e2fsck.
    for bytes in [8192, 16_384, 65_536] {
        build_directory(
            &made.source(),
            &made.image(),
            VolumeOptions { block_size: block(bytes), ..Default::default() },
        );
        assert_clean(&made.image());
    }
}

#[test]
fn every_type() {
    let made = Made::full();
    for fs_type in [FsType::Ext2, FsType::Ext3, FsType::Ext4] {
        for bytes in [1024, 4096] {
            made.check(VolumeOptions { fs_type, block_size: block(bytes), ..Default::default() });
        }
    }
}

#[test]
fn every_inode_size() {
    let made = Made::full();
    for inode_size in [256, 512, 1024, 4096] {
        made.check(VolumeOptions { inode_size, ..Default::default() });
    }
}

#[test]
fn small_inodes_keep_everything_but_nanoseconds() {
    let made = Made::full();
    build_directory(&made.source(), &made.image(), VolumeOptions { inode_size: 128, ..Default::default() });
    assert_clean(&made.image());
}

#[test]
fn every_feature_off_or_on() {
    let made = Made::full();
    let off = Some(false);
    let on = Some(true);
    let none = FeatureChoices::default();
    for features in [
        FeatureChoices { metadata_csum: off, ..none },
        FeatureChoices { metadata_csum: off, uninit_bg: on, ..none },
        FeatureChoices { metadata_csum_seed: on, ..none },
        FeatureChoices { flex_bg: off, ..none },
        FeatureChoices { bits64: off, ..none },
        FeatureChoices { resize_inode: off, ..none },
        FeatureChoices { orphan_file: on, ..none },
        FeatureChoices { dir_index: off, ..none },
        FeatureChoices { large_dir: on, ea_inode: on, ..none },
        FeatureChoices { extents: off, bits64: off, ..none },
        FeatureChoices { flex_bg: off, bits64: off, metadata_csum: off, resize_inode: off, ..none },
    ] {
        made.check(VolumeOptions { features, ..Default::default() });
        let small = VolumeOptions { features, block_size: block(1024), ..Default::default() };
        made.check(small);
    }
}

#[test]
fn every_journal() {
    let made = Made::full();
    for journal in
        [JournalSize::None, JournalSize::Auto, JournalSize::Blocks(1024), JournalSize::Blocks(40_000)]
    {
        made.check(VolumeOptions { journal, ..Default::default() });
    }
}

#[test]
fn exact_size_wastes_less_than_a_percent_and_mounts_writable() {
    let made = Made::full();
    for (fs_type, bytes) in
        [(FsType::Ext4, 4096), (FsType::Ext4, 1024), (FsType::Ext2, 4096), (FsType::Ext3, 1024)]
    {
        let volume = VolumeOptions { fs_type, block_size: block(bytes), ..Default::default() };
        let report = build_directory(&made.source(), &made.image(), volume);
        assert!(report.free_bytes < report.image_bytes / 100 + (64 << 10), "{report:?}");
        if let Some(mount) = Mount::new(&made.image(), "rw") {
            // Linux keeps 2 % of the blocks in reserve, so new data must replace old data.
            fs::remove_file(mount.path().join("file-3000001")).unwrap();
            rustix::fs::syncfs(fs::File::open(mount.path()).unwrap()).unwrap();
            fs::write(mount.path().join("written"), b"by the kernel").unwrap();
            drop(mount);
            assert_clean(&made.image());
        }
    }
}

#[test]
fn volumes_of_several_groups_and_just_past_a_group() {
    // 1 KiB blocks mean groups of 8 MiB.
    let made = Made::new();
    let mut bytes = Bytes(7);
    for mib in 1..14 {
        fs::write(made.source().join(format!("file-{mib}")), bytes.take((mib << 20) - 17)).unwrap();
        let volume = VolumeOptions { block_size: block(1024), ..Default::default() };
        let report = build_directory(&made.source(), &made.image(), volume);
        assert_clean(&made.image());
        assert!(report.free_bytes < report.image_bytes / 100 + (64 << 10), "{report:?}");
    }
    for flex_bg in [Some(true), Some(false)] {
        let features = FeatureChoices { flex_bg, ..Default::default() };
        made.check(VolumeOptions { block_size: block(1024), features, ..Default::default() });
        made.check(VolumeOptions { fs_type: FsType::Ext2, block_size: block(1024), ..Default::default() });
    }
}

#[test]
fn room_that_was_asked_for_is_there() {
    let made = Made::full();
    let volume = VolumeOptions { size: SizePolicy::PlusPercent(20), ..Default::default() };
    let report = build_directory(&made.source(), &made.image(), volume);
    assert_clean(&made.image());
    let used = report.image_bytes - report.free_bytes;
    assert!(report.free_bytes >= used / 5 && report.free_bytes < used / 4, "{report:?}");
    // The room is also for new inodes.
    let needed = report.used_inodes;
    assert!(report.free_inodes >= 64 && report.free_inodes >= needed / 5, "{report:?}");
    for mib in [16, 200, 1500] {
        let volume = VolumeOptions { size: SizePolicy::Fixed(mib << 20), ..Default::default() };
        made.check(volume);
        assert_eq!(fs::metadata(made.image()).unwrap().len(), mib << 20);
    }
}

#[test]
fn directories_of_a_hundred_thousand_entries() {
    let made = Made::new();
    let many = made.source().join("many");
    fs::create_dir(&many).unwrap();
    fs::write(many.join("000000"), b"the only inode").unwrap();
    for n in 1..100_000 {
        // Hard links add entries without inodes, 50,000 to each.
        let first = if n % 2 == 0 { "000000" } else { "000001" };
        if n == 1 {
            fs::write(many.join("000001"), b"the other").unwrap();
        } else {
            fs::hard_link(many.join(first), many.join(format!("{n:06}"))).unwrap();
        }
    }
    // With small blocks the tree has three levels.
    for bytes in [4096, 1024] {
        build_directory(
            &made.source(),
            &made.image(),
            VolumeOptions { block_size: block(bytes), ..Default::default() },
        );
        assert_clean(&made.image());
        let Some(mount) = Mount::new(&made.image(), "rw") else { continue };
        let dir = mount.path().join("many");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 100_000);
        for n in (0..100_000).step_by(97) {
            assert!(fs::symlink_metadata(dir.join(format!("{n:06}"))).is_ok(), "{n} is found by its hash");
        }
        drop(mount);
    }
}

#[test]
fn large_sparse_files_and_deep_maps() {
    use std::os::unix::fs::FileExt;
    let made = Made::new();
    let sparse = |name: &str, size: u64, every: u64| {
        let file = fs::File::create(made.source().join(name)).unwrap();
        file.set_len(size).unwrap();
        let mut at = 0;
        while at < size {
            file.write_all_at(&at.to_le_bytes(), at).unwrap();
            at += every;
        }
    };
    sparse("past-2-gib", (3 << 30) + 5, 1 << 28);
    sparse("past-128-gib", 150 << 30, 7 << 30);
    // More extents than fit in two levels of 1 KiB nodes.
    sparse("fragmented", 40_000 * 8192, 8192);
    made.check(VolumeOptions { block_size: block(1024), ..Default::default() });
    made.check(VolumeOptions::default());
    fs::remove_file(made.source().join("past-128-gib")).unwrap();
    made.check(VolumeOptions { fs_type: FsType::Ext3, ..Default::default() });
    made.check(VolumeOptions { fs_type: FsType::Ext2, block_size: block(1024), ..Default::default() });
}

#[test]
fn large_attributes_get_inodes_of_their_own() {
    let made = Made::new();
    let Some(large) = Mount::new_source() else { return };
    let mut bytes = Bytes(3);
    for n in 0..3 {
        let path = large.path().join(format!("file-{n}"));
        fs::write(&path, b"x").unwrap();
        set_xattr(&path, "user.large", &vec![b'l'; 20_000]);
        set_xattr(&path, "user.mine", &bytes.take(9000));
        set_xattr(&path, "user.small", b"s");
    }
    let features = FeatureChoices { ea_inode: Some(true), ..Default::default() };
    build_directory(large.path(), &made.image(), VolumeOptions { features, ..Default::default() });
    assert_clean(&made.image());
    assert_kernel_sees(&made.image(), large.path());
}

#[test]
fn resize2fs_grows_and_tune2fs_edits() {
    let made = Made::full();
    for (fs_type, bytes) in [(FsType::Ext4, 4096), (FsType::Ext4, 1024), (FsType::Ext3, 4096)] {
        build_directory(
            &made.source(),
            &made.image(),
            VolumeOptions { fs_type, block_size: block(bytes), ..Default::default() },
        );
        let image = made.image();
        let image = image.to_str().unwrap();
        if !must("tune2fs", &["-L", "renamed", "-m", "3", "-e", "remount-ro", "-U", "random", image])
            || !must("e2fsck", &["-fp", image])
            || !must("resize2fs", &[image, "900M"])
        {
            return;
        }
        assert_clean(&made.image());
        assert_kernel_sees(&made.image(), &made.source());
    }
}

/// resize2fs moves whatever is in the way of new descriptors, so the orphan file and the resize
/// inode's map must not be there.
#[test]
fn volumes_grow_past_their_reserved_descriptors() {
    const MIB: u64 = 1 << 20;
    let newest =
        FeatureChoices { metadata_csum_seed: Some(true), orphan_file: Some(true), ..Default::default() };
    for (bytes, size, features, grown) in [
        (4096, 60 * MIB, newest, "300G"),
        (1024, 60 * MIB, newest, "300G"),
        (1024, 200 * MIB, FeatureChoices { resize_inode: Some(false), ..newest }, "500M"),
        (1024, 200 * MIB, newest, "500M"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (source, image) = (dir.path().join("source"), dir.path().join("image"));
        fs::create_dir(&source).unwrap();
        fs::write(source.join("file"), vec![b'x'; 5 << 20]).unwrap();
        let volume = VolumeOptions {
            size: SizePolicy::Fixed(size),
            block_size: block(bytes),
            features,
            ..Default::default()
        };
        build_directory(&source, &image, volume);
        if !must("resize2fs", &[image.to_str().unwrap(), grown]) {
            return;
        }
        assert_clean(&image);
        assert_kernel_sees(&image, &source);
    }
}

#[test]
fn mounted_volumes_grow_online() {
    let made = Made::full();
    build_directory(&made.source(), &made.image(), VolumeOptions::default());
    let image = fs::OpenOptions::new().write(true).open(made.image()).unwrap();
    image.set_len(400 << 20).unwrap();
    drop(image);
    let Some(mount) = Mount::new(&made.image(), "rw") else { return };
    let grown = tool("resize2fs", &[mount.device()]).unwrap();
    if text(&grown).contains("Permission denied") {
        println!("skipped: growing a mounted volume needs CAP_SYS_RESOURCE");
        return;
    }
    assert!(grown.status.success(), "{}", text(&grown));
    fs::write(mount.path().join("large"), vec![7; 100 << 20]).unwrap();
    drop(mount);
    assert_clean(&made.image());
}
