//! Empty volumes, compared with those of mke2fs.

mod common;

use common::*;
use extant_format::BlockSize;
use extant_image::{FeatureChoices, FsType, JournalSize, SizePolicy, Timestamp, VolumeOptions, mkfs};
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
