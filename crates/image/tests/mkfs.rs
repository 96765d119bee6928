//! Empty volumes, compared with those of mke2fs.

mod common;

use common::*;
use extant_block::{Device, MemDevice, Record};
use extant_format::BlockSize;
use extant_image::{
    BuildError, FeatureChoices, FsType, InPlace, JournalSize, SizePolicy, Target, Timestamp, VolumeOptions,
    mkfs, mkfs_on,
};
use extant_rt::Rt;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

const CREATED: Timestamp = Timestamp { seconds: 1_700_000_000, nanos: 0 };

fn make(image: &Path, volume: &VolumeOptions) {
    mkfs(image, volume, CREATED, &Rt::real(Default::default()), Arc::new(|_, _| {})).unwrap();
}

fn sized(bytes: u64) -> VolumeOptions {
    VolumeOptions { size: SizePolicy::Fixed(bytes), ..Default::default() }
}

/// Header lines of dumpe2fs, except times and random numbers.
fn header(image: &Path) -> Option<BTreeMap<String, String>> {
    let output = tool("dumpe2fs", &["-h", image.to_str().unwrap()])?;
    assert!(output.status.success(), "{}", text(&output));
    let ignored = [
        "UUID",
        "created",
        "write time",
        "Last checked",
        "Seed",
        "Checksum seed",
        "Checksum:",
        "Lifetime",
        "Journal backup",
    ];
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(
        lines
            .lines()
            .filter(|line| !ignored.iter().any(|word| line.contains(word)))
            .filter_map(|line| line.split_once(':'))
            .map(|(key, value)| (key.trim().to_owned(), value.trim().to_owned()))
            .collect(),
    )
}

#[test]
fn volumes_look_like_those_of_mke2fs() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for mib in [1, 8, 33, 100, 511, 512, 513, 1024, 5000, 20_000, 70_000, 1 << 20] {
        for (fs_type, name) in [(FsType::Ext4, "ext4"), (FsType::Ext3, "ext3"), (FsType::Ext2, "ext2")] {
            make(&ours, &VolumeOptions { fs_type, ..sized(mib << 20) });
            fs::File::create(&theirs).unwrap().set_len(mib << 20).unwrap();
            // The machine's own configuration must not affect the comparison.
            let features = match fs_type {
                FsType::Ext4 => {
                    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,\
                                 sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum"
                }
                FsType::Ext3 => {
                    "none,has_journal,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file"
                }
                FsType::Ext2 => "none,ext_attr,resize_inode,dir_index,filetype,sparse_super,large_file",
            };
            let args = ["-q", "-F", "-t", name, "-O", features, theirs.to_str().unwrap()];
            if !must("mke2fs", &args) {
                return;
            }
            let (Some(a), Some(b)) = (header(&ours), header(&theirs)) else { return };
            let other: Vec<_> = b.iter().filter(|(key, value)| a.get(*key) != Some(value)).collect();
            let here: Vec<_> = other.iter().map(|(key, _)| a.get(*key)).collect();
            assert!(other.is_empty(), "{name} of {mib} MiB: {other:?}, ours {here:?}");
            if mib <= 5000 {
                assert_clean(&ours);
            }
        }
    }
}

#[test]
fn the_default_volume_mounts() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (bytes, block) in [(64 << 20, 1024), (300 << 20, 4096)] {
        let block_size = BlockSize::from_bytes(block);
        make(&image, &VolumeOptions { block_size, label: b"a label".to_vec(), ..sized(bytes) });
        assert_clean(&image);
        let Some(mount) = Mount::new(&image, "rw") else { return };
        for n in 0..500 {
            fs::write(mount.path().join(format!("file-{n}")), vec![7; n * 10]).unwrap();
        }
        drop(mount);
        assert_clean(&image);
    }
}

#[test]
fn sixteen_tebibytes_take_little_space_and_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    // The largest file possible on ext4, in case the tests run on it.
    let bytes = (16 << 40) - (1 << 20);
    make(&image, &sized(bytes));
    let meta = fs::metadata(&image).unwrap();
    assert_eq!(meta.len(), bytes);
    assert!(meta.blocks() * 512 < 600 << 20, "{} bytes", meta.blocks() * 512);
    let Some(found) = header(&image) else { return };
    assert_eq!(found["Block count"], (bytes >> 12).to_string());
    if let Some(mount) = Mount::new(&image, "rw") {
        fs::write(mount.path().join("file"), b"at the bottom of a large volume").unwrap();
    }
}

#[test]
fn uuids_differ_unless_given() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    make(&a, &sized(8 << 20));
    make(&b, &sized(8 << 20));
    assert_ne!(sha256(&a), sha256(&b));
    let given = VolumeOptions { uuid: Some([7; 16]), hash_seed: Some([9; 16]), ..sized(8 << 20) };
    make(&a, &given);
    make(&b, &given);
    assert_eq!(sha256(&a), sha256(&b));
}

#[test]
fn a_journal_has_the_bytes_asked_for_whatever_the_block_size() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for block in [None, BlockSize::from_bytes(2048), BlockSize::from_bytes(65_536)] {
        let journal = JournalSize::Bytes(64 << 20);
        make(&image, &VolumeOptions { journal, block_size: block, ..sized(300 << 20) });
        assert_clean(&image);
        let Some(header) = header(&image) else { return };
        assert!(header["Total journal size"] == "64M", "{header:?}");
    }
}

#[test]
fn a_volume_that_32_bits_cannot_count_is_not_made_smaller() {
    let dir = tempfile::tempdir().unwrap();
    let features = FeatureChoices { bits64: Some(false), ..Default::default() };
    let volume = VolumeOptions { features, ..sized(17 << 40) };
    let image = dir.path().join("image");
    let error = mkfs(&image, &volume, CREATED, &Rt::real(Default::default()), Arc::new(|_, _| {}));
    assert!(error.unwrap_err().to_string().contains("needs 64bit"));
}

/// Blocks that dumpe2fs lists as free.
fn free_blocks(image: &Path) -> Option<Vec<std::ops::RangeInclusive<usize>>> {
    let output = tool("dumpe2fs", &[image.to_str().unwrap()])?;
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let lists = listed.lines().filter_map(|line| line.strip_prefix("  Free blocks: "));
    let runs = lists.flat_map(|list| list.split(", ")).filter(|run| !run.is_empty());
    let run = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        first.parse().unwrap()..=last.parse().unwrap()
    };
    Some(runs.map(run).collect())
}

#[test]
fn a_volume_made_in_place_is_there_as_a_whole_or_not_at_all() {
    const BYTES: usize = 3 << 20;
    const OLD: u8 = 0xa5;
    let dir = tempfile::tempdir().unwrap();
    let (image, placed) = (dir.path().join("image"), dir.path().join("placed"));
    for block in [1024, 4096] {
        let volume = VolumeOptions {
            uuid: Some([7; 16]),
            hash_seed: Some([8; 16]),
            block_size: BlockSize::from_bytes(block),
            // Such a small volume has no room for a journal with large blocks.
            journal: if block == 1024 { JournalSize::Blocks(1024) } else { JournalSize::None },
            ..sized(BYTES as u64)
        };
        make(&image, &volume);
        let new = fs::read(&image).unwrap();
        // The superblock of an older volume, and remains of its contents.
        let mut old = vec![OLD; BYTES];
        old[..4096].copy_from_slice(&new[..4096]);
        let disk = Arc::new(MemDevice::from_bytes(old.clone()));
        let record = Arc::new(Record::new(disk.clone()));
        let place = |overwrite| {
            let device: Arc<dyn Device> = record.clone();
            let place = InPlace { device, name: "the disk".into(), overwrite, discard: false };
            mkfs_on(
                Target::Place(place),
                &volume,
                CREATED,
                &Rt::real(Default::default()),
                Arc::new(|_, _| {}),
            )
        };
        let refused = place(false).unwrap_err();
        assert!(matches!(&refused, BuildError::Occupied { .. }), "{refused}");
        assert_eq!(refused.to_string(), "the disk holds an ext4 volume");
        assert!(disk.to_bytes() == old, "nothing is written");

        place(true).unwrap();
        let done = disk.to_bytes();
        fs::write(&placed, &done).unwrap();
        assert_clean(&placed);
        // All blocks in use are those of a new image, and those of the disk's ends.
        if let Some(free) = free_blocks(&placed) {
            for (n, (there, new)) in done.chunks(block as usize).zip(new.chunks(block as usize)).enumerate() {
                let is_free = free.iter().any(|run| run.contains(&n));
                assert!(there == new || is_free && there.iter().all(|&byte| byte == OLD), "block {n}");
            }
            assert!(done.iter().filter(|&&byte| byte == OLD).count() > BYTES / 4, "free blocks are left");
        }
        // After a crash at any time, there is the old volume, no volume, or the complete new one.
        let log = record.log();
        let is_volume = |disk: &[u8]| disk[1024 + 0x38..][..2] == [0x53, 0xef];
        let (mut gone, mut whole) = (0, 0);
        for events in 0..=log.events.len() {
            for lucky in [false, true] {
                let crashed = log.disk_after(&old, events, lucky);
                assert!(!is_volume(&crashed) || crashed == old || crashed == done, "event {events}, {lucky}");
                gone += usize::from(!is_volume(&crashed));
                whole += usize::from(crashed == done);
            }
        }
        assert!(gone > 4 && whole > 1, "{gone} {whole}");
    }
}

#[test]
fn a_volume_in_place_has_blocks_that_its_disk_takes_and_must_fit() {
    let make = |bytes: usize, block_bytes, volume: &VolumeOptions| {
        let disk = OfBlocks(MemDevice::new(bytes), block_bytes);
        let place =
            InPlace { device: Arc::new(disk), name: "the disk".into(), overwrite: false, discard: true };
        let rt = Rt::real(Default::default());
        mkfs_on(Target::Place(place), volume, CREATED, &rt, Arc::new(|_, _| {}))
    };
    let small = sized(4 << 20);
    assert_eq!(make(4 << 20, 512, &small).unwrap().block_bytes, 1024);
    assert_eq!(make(4 << 20, 4096, &small).unwrap().block_bytes, 4096);
    let of_1k = VolumeOptions { block_size: BlockSize::from_bytes(1024), ..small.clone() };
    let error = make(4 << 20, 4096, &of_1k).unwrap_err();
    assert!(error.to_string().contains("the disk is read and written in blocks of 4096 bytes"), "{error}");
    let error = make(3 << 20, 512, &small).unwrap_err();
    assert!(matches!(error, BuildError::TooSmall { needed: 4_194_304, given: 3_145_728 }), "{error}");
}

/// A disk with blocks of the given size.
#[derive(Debug)]
struct OfBlocks(MemDevice, u32);

impl Device for OfBlocks {
    fn limits(&self) -> &extant_block::Limits {
        static LARGE: std::sync::OnceLock<extant_block::Limits> = std::sync::OnceLock::new();
        match self.1 {
            4096 => LARGE.get_or_init(|| extant_block::Limits {
                block_bytes: 4096,
                physical_block_bytes: 4096,
                ..self.0.limits().clone()
            }),
            _ => self.0.limits(),
        }
    }

    fn submit(&self, bio: extant_block::Bio) {
        assert!(((bio.start.0 * 512) | bio.bytes).is_multiple_of(self.1.into()), "{bio:?}");
        self.0.submit(bio);
    }
}
