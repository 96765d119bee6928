//! Damage that would make a change to one file affect another, or the volume's own structures.

use super::*;
use crate::testbed::check_is_silent;
use crate::{Follow, RenameMode, SetMode};
use extant_format::Group;
use std::path::{Path, PathBuf};

/// One group of 8 MiB, in which structures have no checksums.
const EXT2: &str = "-t ext2 -b 1024 -N 256 -I 128";
const EXT4: &str = "-t ext4 -b 1024 -N 256 -J size=1 -O ^metadata_csum,^uninit_bg";

/// A volume that debugfs damages.
struct Bed {
    dir: tempfile::TempDir,
    image: PathBuf,
    rt: Rt,
}

impl Bed {
    /// Makes a volume with `/big` of 300 blocks, `/a` and `/b` of 6, and a symbolic link `/link`.
    fn new(args: &str) -> Option<Self> {
        if !have_tools() {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        make(&image, 8, args);
        let bed = Self { dir, image, rt: Rt::real(Default::default()) };
        let lines = [("big", 300), ("a", 6), ("b", 6)].map(|(name, blocks)| {
            let path = bed.dir.path().join(name);
            let bytes: Vec<u8> = (0..blocks * 1024).map(|n| (n / 1024 * 7 + n) as u8 | 1).collect();
            std::fs::write(&path, bytes).unwrap();
            format!("write {} {name}", path.display())
        });
        bed.edit(&lines);
        bed.edit(&["symlink link target".to_owned()]);
        Some(bed)
    }

    fn edit(&self, lines: &[String]) {
        let script = self.dir.path().join("script");
        std::fs::write(&script, lines.join("\n") + "\n").unwrap();
        run("debugfs", &["-w", "-f", script.to_str().unwrap(), self.image.to_str().unwrap()]);
    }

    fn device(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::from_bytes(self.bytes()))
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.image).unwrap()
    }

    /// Runs `look` with the volume opened for reading.
    fn reading<T>(&self, look: impl AsyncFnOnce(&Volume) -> T) -> T {
        let work = async { look(&Volume::open(self.device(), OpenOptions::default()).await.unwrap()).await };
        self.rt.block_on(work).unwrap()
    }

    fn inode(&self, path: &str) -> extant_format::Inode {
        self.reading(async |volume| volume.resolve(path.as_bytes(), Follow::No).await.unwrap())
    }

    /// The blocks of a file's map that can be read.
    fn blocks(&self, path: &str) -> Vec<u64> {
        let inode = self.inode(path);
        let ranges = self.reading(async |volume| volume.view().readable_blocks_of(&inode).await.unwrap());
        ranges.into_iter().flat_map(|range| range.start.0..range.end.0).collect()
    }

    /// Marks blocks as free in the bitmap and the counts.
    fn free_blocks(&self, blocks: &[u64]) {
        let (group, volume) = self.reading(async |volume| {
            let free = volume.superblock().raw().s_free_blocks_count_lo.get();
            (volume.group(Group(0)).await.unwrap().free_blocks, free)
        });
        let mut lines: Vec<_> = blocks.iter().map(|at| format!("freeb {at}")).collect();
        lines.push(format!("set_bg 0 free_blocks_count {}", group + blocks.len() as u32));
        lines.push(format!("ssv free_blocks_count {}", volume + blocks.len() as u32));
        self.edit(&lines);
    }

    /// Marks an inode as free in the bitmap and the counts.
    fn free_inode(&self, number: u32) {
        let (group, volume) = self.reading(async |volume| {
            let free = volume.superblock().raw().s_free_inodes_count.get();
            (volume.group(Group(0)).await.unwrap().free_inodes, free)
        });
        self.edit(&[
            format!("freei <{number}>"),
            format!("set_bg 0 free_inodes_count {}", group + 1),
            format!("ssv free_inodes_count {}", volume + 1),
        ]);
    }

    /// Opens the volume, runs `work` and closes it. Returns the device's bytes and the problems.
    fn writing(&self, work: impl AsyncFnOnce(&Volume, &Node)) -> (Vec<u8>, Vec<String>) {
        let disk = self.device();
        let problems = self.rt.block_on(async {
            let (volume, _cache) = open(&self.rt, &disk, 1_700_000_000).await.unwrap();
            let root = volume.root_node().await.unwrap();
            work(&volume, &root).await;
            drop(root);
            volume.clone().close().await.unwrap();
            volume.problems().iter().map(ToString::to_string).collect()
        });
        (disk.to_bytes(), problems.unwrap())
    }

    /// Asserts that discarding all free space reports damage and leaves these blocks alone.
    fn trim_keeps(&self, what: &str, blocks: &[u64]) -> Vec<String> {
        let before = self.bytes();
        let (after, problems) = self.writing(async |volume, _| {
            volume.trim(0..u64::MAX, 0).await.unwrap();
        });
        for &at in blocks {
            let at = at as usize * 1024;
            assert!(before[at..at + 1024] == after[at..at + 1024], "{what}: block {}", at / 1024);
        }
        assert!(!problems.is_empty(), "{what}");
        problems
    }

    /// Asserts that the volume is not opened for writing, and not changed.
    fn is_refused(&self, what: &str, words: &str) {
        let disk = self.device();
        let refused = self.rt.block_on(open(&self.rt, &disk, 0)).unwrap().map(drop);
        let told = match &refused {
            Err(Error::Corrupt(corrupt)) => corrupt.to_string(),
            other => panic!("{what}: {other:?}"),
        };
        assert!(told.contains(words), "{what}: {told}");
        assert!(disk.to_bytes() == self.bytes(), "{what}: the volume is as it was");
    }

    fn patch(&self, change: impl FnOnce(&mut [u8])) {
        let mut bytes = self.bytes();
        change(&mut bytes);
        std::fs::write(&self.image, bytes).unwrap();
    }
}

/// A file whose blocks cannot be freed is not removed. Returns why.
async fn is_kept(root: &Node, name: &[u8]) -> String {
    let refused = root.unlink(&Caller::root(), name).await;
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    root.lookup(&Caller::root(), name).await.unwrap();
    refused.unwrap_err().to_string()
}

/// e2fsck repairs a volume that one of the tests has changed.
fn mends(image: &Path, bytes: &[u8]) {
    std::fs::write(image, bytes).unwrap();
    run("e2fsck", &["-fy", image.to_str().unwrap()]);
    check_is_silent(image, "after e2fsck");
}

#[test]
fn a_damaged_map_keeps_the_blocks_that_can_be_read() {
    for (args, damage) in [
        // A pointer in the inode; one in the indirect block, which is block 13 of the map.
        (EXT2, &["sif big block[3] 0x0fffffff"][..]),
        (EXT2, &["sif big block[IND] 0x0fffffff"]),
        // The second of three extents in the root begins outside the volume.
        (EXT4, &["punch big 10 11", "punch big 100 110", "sif big block[8] 0x0fffffff"]),
    ] {
        let Some(bed) = Bed::new(args) else { return };
        bed.edit(&damage.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>());
        let blocks = bed.blocks("/big");
        assert!(blocks.len() > 10, "{damage:?}: {blocks:?}");
        bed.free_blocks(&blocks);
        bed.trim_keeps(damage[damage.len() - 1], &blocks);
    }
}

#[test]
fn blocks_of_a_damaged_map_may_have_a_second_owner() {
    let Some(bed) = Bed::new(EXT2) else { return };
    let shared = bed.blocks("/big")[5];
    bed.edit(&["sif big block[3] 0x0fffffff".into(), format!("sif a block[1] {shared}")]);
    let at = shared as usize * 1024;
    let before = bed.bytes();
    let (after, _) = bed.writing(async |volume, root| {
        is_kept(root, b"a").await;
        volume.trim(0..u64::MAX, 0).await.unwrap();
    });
    assert!(before[at..at + 1024] == after[at..at + 1024]);
}

#[test]
fn an_inode_with_links_is_in_use_whatever_the_bitmap_says() {
    for args in [EXT2, EXT4] {
        let Some(bed) = Bed::new(args) else { return };
        let (number, blocks) = (bed.inode("/big").number, bed.blocks("/big"));
        bed.free_blocks(&blocks);
        bed.free_inode(number.0);
        let problems = bed.trim_keeps(args, &blocks);
        let told = format!("inode {number}: i_links_count is 1");
        assert!(problems.iter().any(|problem| problem.contains(&told)), "{problems:?}");
    }
}

#[test]
fn what_a_deleted_inode_was_is_no_damage() {
    for args in [EXT2, EXT4] {
        let Some(bed) = Bed::new(args) else { return };
        bed.edit(&["rm big".into(), "rm link".into()]);
        check_is_silent(&bed.image, args);
        let (_, problems) = bed.writing(async |volume, _| {
            volume.trim(0..u64::MAX, 0).await.unwrap();
        });
        assert!(problems.is_empty(), "{problems:?}");
    }
}

/// Gives `/a` an attribute block; returns its number.
fn with_attributes(bed: &Bed) -> u64 {
    let value = bed.dir.path().join("value");
    std::fs::write(&value, [b'v'; 300]).unwrap();
    bed.edit(&[format!("ea_set -f {} a user.long", value.display())]);
    bed.inode("/a").xattr_block().expect("it does not fit in the inode").0
}

#[test]
fn an_attribute_block_belongs_to_as_many_inodes_as_it_counts() {
    let Some(bed) = Bed::new(EXT2) else { return };
    let at = with_attributes(&bed);
    bed.trimmed_cleanly();
    let whole = bed.bytes();
    bed.free_blocks(&[at]);
    bed.trim_keeps("marked as free", &[at]);

    // A second inode that the block does not count.
    std::fs::write(&bed.image, &whole).unwrap();
    bed.edit(&[format!("sif b file_acl {at}"), "sif b blocks 14".into()]);
    let (after, _) = bed.writing(async |_, root| {
        let node = root.lookup(&Caller::root(), b"b").await.unwrap();
        for name in [b"b", b"a"] {
            let node = root.lookup(&Caller::root(), name).await.unwrap();
            let removed = node.remove_xattr(&Caller::root(), b"user.long").await;
            assert!(matches!(removed, Err(Error::Corrupt(_))), "{removed:?}");
        }
        let set = node.set_xattr(&Caller::root(), b"user.new", b"value", SetMode::Any).await;
        assert!(matches!(set, Err(Error::Corrupt(_))), "{set:?}");
    });
    let place = at as usize * 1024;
    assert!(whole[place..place + 1024] == after[place..place + 1024]);

    // One that it counts.
    bed.patch(|bytes| bytes[place + 4] = 2);
    check_is_silent(&bed.image, "shared by two");
    bed.trimmed_cleanly();

    // A file's data.
    std::fs::write(&bed.image, &whole).unwrap();
    bed.edit(&[format!("sif b block[1] {at}")]);
    let (after, _) = bed.writing(async |volume, root| {
        is_kept(root, b"b").await;
        volume.trim(0..u64::MAX, 0).await.unwrap();
    });
    assert!(whole[place..place + 1024] == after[place..place + 1024]);
}

impl Bed {
    fn trimmed_cleanly(&self) {
        let (after, problems) = self.writing(async |volume, _| {
            volume.trim(0..u64::MAX, 0).await.unwrap();
        });
        assert!(problems.is_empty(), "{problems:?}");
        let path = self.dir.path().join("trimmed");
        std::fs::write(&path, after).unwrap();
        check_is_silent(&path, "trimmed");
    }
}

#[test]
fn a_count_of_free_inodes_does_not_end_the_search() {
    let args = EXT4.replace("-N 256", "-N 8192");
    let Some(bed) = Bed::new(&args) else { return };
    let blocks = bed.blocks("/big");
    bed.free_blocks(&blocks);
    bed.edit(&["set_bg 0 free_inodes_count 0".into()]);
    bed.trim_keeps("no free inodes", &blocks);
}

#[test]
fn many_inodes_are_searched_once_an_error_is_known() {
    for known in ["ssv state 3", "ssv error_count 1"] {
        let Some(bed) = Bed::new(&EXT4.replace("-N 256", "-N 8192")) else { return };
        let bitmap =
            bed.reading(async |volume| volume.group(Group(0)).await.unwrap().inode_bitmap.0 as usize);
        bed.patch(|bytes| bytes[bitmap * 1024..][..5000 / 8].fill(0xff));
        bed.edit(&["set_bg 0 free_inodes_count 3192".into(), "ssv free_inodes_count 3192".into()]);
        let shared = bed.blocks("/big")[20..26].to_vec();
        bed.edit(&[format!("sif a block[5] {}", shared[0]), known.into()]);
        assert_eq!(bed.blocks("/a"), shared);
        let before = bed.bytes();
        let (after, _) = bed.writing(async |volume, root| {
            let told = is_kept(root, b"a").await;
            assert!(told.contains("one file"), "{known}: {told}");
            volume.trim(0..u64::MAX, 0).await.unwrap();
        });
        for at in shared.iter().map(|at| *at as usize * 1024) {
            assert!(before[at..at + 1024] == after[at..at + 1024], "{known}: block {}", at / 1024);
        }
        // An inode that is marked as free.
        std::fs::write(&bed.image, &before).unwrap();
        let number = bed.inode("/b").number;
        bed.free_inode(number.0);
        let (_, problems) = bed.writing(async |_, _| {});
        let told = format!("inode {number}: i_links_count is 1");
        assert!(problems.iter().any(|problem| problem.contains(&told)), "{known}: {problems:?}");
    }
}

#[test]
fn an_inode_that_is_marked_as_free_is_not_freed_again() {
    for args in [EXT2, EXT4] {
        for (path, is_replaced) in [("link", false), ("link", true), ("b", false)] {
            let Some(bed) = Bed::new(args) else { return };
            let number = bed.inode(&format!("/{path}")).number;
            bed.free_inode(number.0);
            let (after, problems) = bed.writing(async |_, root| {
                let caller = Caller::root();
                let done = match is_replaced {
                    true => {
                        root.create(&caller, b"new", 0o644).await.unwrap();
                        root.rename(&caller, b"new", root, path.as_bytes(), RenameMode::Replace).await
                    }
                    false => root.unlink(&caller, path.as_bytes()).await,
                };
                assert!(matches!(done, Err(Error::Corrupt(_))), "{done:?}");
                let kept = root.lookup(&caller, path.as_bytes()).await.unwrap();
                assert_eq!(kept.inode(), number);
                // The number is not given out either.
                if let Ok(made) = root.create(&caller, b"other", 0o644).await {
                    assert_ne!(made.inode(), number);
                }
            });
            let told = format!("inode is {number}, must be marked as in use");
            assert!(problems.iter().any(|problem| problem.contains(&told)), "{problems:?}");
            mends(&bed.image, &after);
        }
    }
}

#[test]
fn an_orphan_that_is_marked_as_free_is_left_to_e2fsck() {
    let Some(bed) = Bed::new(EXT4) else { return };
    bed.edit(&["ssv last_orphan 100".into()]);
    let disk = bed.device();
    for _ in 0..2 {
        let done = bed.rt.block_on(recover(&bed.rt, disk.clone(), OpenOptions::default())).unwrap().unwrap();
        assert!(done.has_orphans && !done.problems.is_empty(), "{done:?}");
        let sb = bed.rt.block_on(read_superblock(&*disk, 1024)).unwrap().unwrap();
        assert!(!sb.incompat().contains(Incompat::RECOVER));
    }
    // Its number is not given out while it is on the list.
    std::fs::write(&bed.image, disk.to_bytes()).unwrap();
    let (after, problems) = bed.writing(async |_, root| {
        for n in 0..100 {
            let Ok(made) = root.create(&Caller::root(), format!("{n}").as_bytes(), 0o644).await else {
                break;
            };
            assert_ne!(made.inode(), InodeNumber(100));
        }
    });
    assert!(!problems.is_empty());
    mends(&bed.image, &after);
}

/// Offset of the record of an inode of group 0.
fn record(bytes: &[u8], number: usize) -> usize {
    let word = |at: usize| u32::from_le_bytes(*bytes[at..].first_chunk().unwrap()) as usize;
    let size = usize::from(bytes[1024 + 88]) | usize::from(bytes[1024 + 89]) << 8;
    word(2048 + 8) * 1024 + (number - 1) * size
}

/// Makes the second extent of the log lie at `at`.
fn move_log(bytes: &mut [u8], at: u64) {
    let map = record(bytes, 8) + 40;
    assert!(bytes[map + 2] > 1, "the log has several extents");
    bytes[map + 32..map + 36].copy_from_slice(&(at as u32).to_le_bytes());
}

#[test]
fn structures_on_a_files_blocks_are_not_written() {
    let Some(bed) = Bed::new(EXT4) else { return };
    let whole = bed.bytes();
    let blocks = bed.blocks("/big");
    bed.patch(|bytes| move_log(bytes, blocks[20]));
    bed.is_refused("the log", "inode 8: block is");
    // Reserved for more descriptors.
    std::fs::write(&bed.image, &whole).unwrap();
    bed.patch(|bytes| move_log(bytes, 20));
    bed.is_refused("the log on reserved blocks", "block is");

    let Some(bed) = Bed::new(&format!("{EXT2} -g 2048")) else { return };
    let whole = bed.bytes();
    for (field, at) in [
        ("inode_table", bed.blocks("/big")[20]),
        ("block_bitmap", bed.blocks("/a")[2]),
        ("inode_bitmap", bed.blocks("/b")[1]),
        ("inode_table", 20),
    ] {
        std::fs::write(&bed.image, &whole).unwrap();
        bed.edit(&[format!("set_bg 3 {field} {at}")]);
        bed.is_refused(field, "block is");
    }
}

#[test]
fn a_file_on_structures_whose_place_is_certain_does_not_keep_the_volume_from_being_written() {
    let Some(bed) = Bed::new(EXT4) else { return };
    let log = bed.reading(async |volume| {
        let inode = volume.inode(InodeNumber(8)).await.unwrap();
        volume.view().blocks_of(&inode).await.unwrap()[0].start.0
    });
    // The superblock has a copy of the journal's map, and its own place is fixed.
    for at in [log + 5, 1, 2] {
        bed.edit(&[format!("sif a block[5] {at}")]);
        bed.writing(async |_, root| {
            root.mkdir(&Caller::root(), b"d", 0o755).await.unwrap();
            is_kept(root, b"a").await;
        });
    }
}

#[test]
fn a_root_that_was_never_in_use_is_refused_before_the_volume_is_marked() {
    for args in [
        "-t ext4 -b 1024 -N 256 -O ^metadata_csum,uninit_bg",
        "-t ext4 -b 1024 -O ^metadata_csum,uninit_bg,^has_journal",
    ] {
        let Some(bed) = Bed::new(args) else { return };
        bed.edit(&["set_bg 0 flags 1".into(), "set_bg 0 checksum calc".into()]);
        bed.is_refused(args, "inode is 2");
    }
}

#[test]
fn a_name_that_its_hash_does_not_lead_to_is_not_called_absent() {
    let Some(bed) = Bed::new(EXT4) else { return };
    let name = |n: usize| format!("name-long-long-long-long-{n}");
    let (made, problems) = bed.writing(async |_, root| {
        let dir = root.mkdir(&Caller::root(), b"m", 0o755).await.unwrap();
        for n in 0..150 {
            dir.create(&Caller::root(), name(n).as_bytes(), 0o644).await.unwrap();
        }
    });
    assert!(problems.is_empty(), "{problems:?}");
    std::fs::write(&bed.image, made).unwrap();
    check_is_silent(&bed.image, "a sound tree");
    let (_, problems) = bed.writing(async |_, root| {
        let dir = root.lookup(&Caller::root(), b"m").await.unwrap();
        let absent = dir.lookup(&Caller::root(), b"absent").await;
        assert!(matches!(absent, Err(Error::NotFound(_))), "{absent:?}");
    });
    assert!(problems.is_empty(), "{problems:?}");
    // The root of the tree then has one entry only.
    let first = bed.blocks("/m")[0] as usize * 1024;
    bed.patch(|bytes| bytes[first + 34..first + 36].copy_from_slice(&[1, 0]));
    bed.writing(async |_, root| {
        let caller = Caller::root();
        let dir = root.lookup(&caller, b"m").await.unwrap();
        let mut missed = 0;
        for n in 0..150 {
            match dir.lookup(&caller, name(n).as_bytes()).await {
                Ok(_) => continue,
                Err(Error::Corrupt(_)) => missed += 1,
                Err(other) => panic!("{other}"),
            }
            let removed = dir.unlink(&caller, name(n).as_bytes()).await;
            assert!(matches!(removed, Err(Error::Corrupt(_))), "{removed:?}");
        }
        assert!((10..140).contains(&missed), "{missed} of 150");
    });
}

#[test]
fn a_name_of_a_large_tree_gets_no_second_entry() {
    let Some(bed) = Bed::new("-t ext4 -b 1024 -N 256 -O ^metadata_csum,^uninit_bg,^has_journal") else {
        return;
    };
    let name = |n: usize| format!("name-{n:05}-{}", "long".repeat(60));
    let (made, problems) = bed.writing(async |_, root| {
        let caller = Caller::root();
        let dir = root.mkdir(&caller, b"m", 0o755).await.unwrap();
        let file = root.lookup(&caller, b"a").await.unwrap();
        for n in 0..3000 {
            dir.link(&caller, &file, name(n).as_bytes()).await.unwrap();
        }
        let size = dir.attributes().unwrap().size;
        assert!(size > 1 << 20, "{size} bytes");
    });
    assert!(problems.is_empty(), "{problems:?}");
    std::fs::write(&bed.image, made).unwrap();
    check_is_silent(&bed.image, "a sound tree");
    let (after, problems) = bed.writing(async |_, root| {
        let dir = root.lookup(&Caller::root(), b"m").await.unwrap();
        dir.create(&Caller::root(), b"new", 0o644).await.unwrap();
        dir.unlink(&Caller::root(), b"new").await.unwrap();
        let absent = dir.unlink(&Caller::root(), b"absent").await;
        assert!(matches!(absent, Err(Error::NotFound(_))), "{absent:?}");
    });
    assert!(problems.is_empty(), "{problems:?}");
    std::fs::write(&bed.image, after).unwrap();
    check_is_silent(&bed.image, "changed");

    // Another name in the place of one leads elsewhere.
    let (old, moved) = (name(1234), name(91234));
    bed.patch(|bytes| {
        let places: Vec<_> =
            (0..bytes.len() - old.len()).filter(|&at| bytes[at..].starts_with(old.as_bytes())).collect();
        // What a split leaves behind in a block is zeroed.
        assert_eq!(places.len(), 1);
        bytes[places[0]..][..moved.len()].copy_from_slice(moved.as_bytes());
    });
    let names = |bytes: &[u8]| {
        let device = Arc::new(MemDevice::from_bytes(bytes.to_vec()));
        let work = async {
            let volume = Volume::open(device, OpenOptions::default()).await.unwrap();
            let dir = volume.resolve(b"/m", Follow::No).await.unwrap();
            let all = volume.view().list(&dir).await.unwrap();
            all.into_iter().map(|item| item.name).collect::<Vec<_>>()
        };
        bed.rt.block_on(work).unwrap()
    };
    let before = names(&bed.bytes());
    assert_eq!(before.iter().filter(|name| **name == moved.as_bytes()).count(), 1);
    let (after, problems) = bed.writing(async |_, root| {
        let caller = Caller::root();
        let dir = root.lookup(&caller, b"m").await.unwrap();
        let file = root.lookup(&caller, b"a").await.unwrap();
        let moved = moved.as_bytes();
        for refused in [
            dir.create(&caller, moved, 0o644).await.map(drop),
            dir.mkdir(&caller, moved, 0o755).await.map(drop),
            dir.link(&caller, &file, moved).await.map(drop),
            dir.rename(&caller, name(7).as_bytes(), &dir, moved, RenameMode::Replace).await.map(drop),
            root.rename(&caller, b"b", &dir, moved, RenameMode::NoReplace).await.map(drop),
            dir.unlink(&caller, moved).await,
            dir.rename(&caller, moved, &dir, b"new", RenameMode::Replace).await.map(drop),
            // Nor any other name.
            dir.create(&caller, b"new", 0o644).await.map(drop),
        ] {
            assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
        }
        // What is there can still be removed.
        dir.unlink(&caller, name(8).as_bytes()).await.unwrap();
    });
    assert!(problems.is_empty(), "no group is distrusted: {problems:?}");
    let state = u16::from_le_bytes([after[1024 + 58], after[1024 + 59]]);
    assert_ne!(state & STATE_ERROR, 0, "the volume is marked");
    let kept: Vec<_> = before.into_iter().filter(|kept| *kept != name(8).as_bytes()).collect();
    assert_eq!(names(&after), kept);
}
