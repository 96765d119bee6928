//! Attributes whose values are in inodes of their own, checked by e2fsck and the kernel.

use super::kernel::in_kernel;
use super::*;
use crate::names::SetAttributes;

const ANY: SetMode = SetMode::Any;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..len).map(|_| rng.below(256) as u8).collect()
}

fn free_inodes(image: &Path) -> Option<String> {
    let said = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    said.lines().find(|line| line.starts_with("Free inodes:")).map(str::to_owned)
}

/// Volumes that vary what affects the feature: block sizes, room in inodes, pointer maps, quotas.
const VOLUMES: [&str; 5] = [
    "-t ext4 -b 1024 -I 256 -O ea_inode 16M",
    "-t ext4 -b 4096 -I 128 -O ea_inode,^metadata_csum 32M",
    "-t ext4 -b 1024 -O ea_inode,^extent,^64bit,^flex_bg 16M",
    "-t ext4 -b 1024 -O ea_inode,quota,project,orphan_file -E quotatype=usrquota:grpquota:prjquota 24M",
    "-t ext4 -b 1024 -O ea_inode,inline_data,metadata_csum_seed 16M",
];

#[test]
fn values_of_any_length_come_and_go_with_their_attributes_and_owners() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = &Caller::root();
    for (n, volume) in VOLUMES.into_iter().enumerate() {
        let image = make(dir.path(), volume);
        let free = free_inodes(&image);
        let sizes = [0, 90, 900, 980, 3000, 20_000, 65_536];
        within(&image, async |_, top| {
            let file = top.create(root, b"file", 0o644).await.unwrap();
            for (n, &len) in sizes.iter().enumerate() {
                let (name, value) = (format!("user.n{n}"), noise(n as u64, len));
                file.set_xattr(root, name.as_bytes(), &value, ANY).await.unwrap();
                assert_eq!(file.xattr(root, name.as_bytes()).await.unwrap(), value, "{volume}: {len}");
            }
            let too_long = file.set_xattr(root, b"user.n", &[1; 65_537], ANY).await.unwrap_err();
            assert_eq!(too_long.errno(), 7);
            let exists = file.set_xattr(root, b"user.n5", &[1; 9000], SetMode::Create).await.unwrap_err();
            assert_eq!(exists.errno(), 17);
            let link = top.symlink(root, b"link", b"a short target").await.unwrap();
            let refused = link.set_xattr(root, b"trusted.large", &noise(7, 5000), ANY).await.unwrap_err();
            assert_eq!(refused.errno(), 95, "e2fsck takes such a link for damaged");
            let long = top.symlink(root, b"long", &[b'l'; 100]).await.unwrap();
            long.set_xattr(root, b"trusted.large", &noise(7, 5000), ANY).await.unwrap();
            let sub = top.mkdir(root, b"dir", 0o755).await.unwrap();
            sub.set_xattr(root, b"user.large", &noise(8, 30_000), ANY).await.unwrap();
            let gone = top.create(root, b"gone", 0o644).await.unwrap();
            for n in 0..20u64 {
                gone.set_xattr(root, format!("user.{n}").as_bytes(), &noise(n, 5000), ANY).await.unwrap();
            }
        });
        check_is_silent(&image, &format!("{volume}: made"));
        within(&image, async |bed, top| {
            let file = top.lookup(root, b"file").await.unwrap();
            for (n, &len) in sizes.iter().enumerate() {
                let name = format!("user.n{n}");
                assert_eq!(file.xattr(root, name.as_bytes()).await.unwrap(), noise(n as u64, len));
            }
            // Read it as an export would, while the writer is open.
            let inode = bed.volume.inode(file.inode()).await.unwrap();
            let read = bed.volume.xattrs(&inode).await.unwrap();
            assert!(read.iter().any(|found| found.name == b"user.n6" && found.value == noise(6, 65_536)));
            assert_eq!(
                top.lookup(root, b"link").await.unwrap().read_link().await.unwrap(),
                b"a short target"
            );
            file.set_xattr(root, b"user.n5", &noise(9, 40_000), SetMode::Replace).await.unwrap();
            file.set_xattr(root, b"user.n6", b"short", ANY).await.unwrap();
            file.set_xattr(root, b"user.n1", &noise(10, 4000), ANY).await.unwrap();
            file.remove_xattr(root, b"user.n4").await.unwrap();
            let all = SetAttributes { uid: Some(70), gid: Some(71), ..Default::default() };
            file.set_attributes(root, &all).await.unwrap();
            if n == 3 {
                file.set_project(root, 72).await.unwrap();
            }
            top.unlink(root, b"gone").await.unwrap();
        });
        check_is_silent(&image, &format!("{volume}: changed"));
        within(&image, async |_, top| {
            let file = top.lookup(root, b"file").await.unwrap();
            assert_eq!(file.xattr(root, b"user.n5").await.unwrap(), noise(9, 40_000));
            assert_eq!(file.xattr(root, b"user.n6").await.unwrap(), b"short");
            drop(file);
            for name in [&b"file"[..], b"link", b"long"] {
                top.unlink(root, name).await.unwrap();
            }
            top.rmdir(root, b"dir").await.unwrap();
        });
        check_is_silent(&image, &format!("{volume}: gone"));
        assert_eq!(free_inodes(&image), free, "{volume}: inodes of values are left");
    }
}

#[test]
fn inodes_that_share_a_block_share_its_values_until_one_changes() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 1024 -I 128 -O ea_inode 16M");
    let root = &Caller::root();
    let mounted = in_kernel(&image, |at| {
        for n in 0..4 {
            let file = at.join(format!("f{n}"));
            std::fs::write(&file, b"").unwrap();
            for (name, value) in [("user.small", vec![b'x'; 50]), ("user.large", noise(1, 20_000))] {
                rustix::fs::lsetxattr(&file, name, &value, XattrFlags::empty()).unwrap();
            }
        }
    });
    if !mounted {
        return;
    }
    check_is_silent(&image, "the kernel's");
    within(&image, async |_, top| {
        let file = async |n: u32| top.lookup(root, format!("f{n}").as_bytes()).await.unwrap();
        assert_eq!(file(0).await.xattr(root, b"user.large").await.unwrap(), noise(1, 20_000));
        file(0).await.set_xattr(root, b"user.small", b"another", ANY).await.unwrap();
        file(1).await.remove_xattr(root, b"user.large").await.unwrap();
        top.unlink(root, b"f2").await.unwrap();
        // A value of ours, for the kernel to share and change.
        let ours = top.create(root, b"ours", 0o644).await.unwrap();
        ours.set_xattr(root, b"user.large", &noise(2, 30_000), ANY).await.unwrap();
    });
    check_is_silent(&image, "ours of the kernel's");
    in_kernel(&image, |at| {
        let get = |name: &str| {
            let mut value = vec![0; 1 << 16];
            let len = rustix::fs::lgetxattr(at.join(name), "user.large", &mut value[..]).unwrap();
            value.truncate(len);
            value
        };
        assert_eq!(get("ours"), noise(2, 30_000));
        for name in ["f0", "f3"] {
            assert_eq!(get(name), noise(1, 20_000), "{name}");
        }
        std::fs::write(at.join("twin"), b"").unwrap();
        let set = |name: &str, value: &[u8]| {
            rustix::fs::lsetxattr(at.join(name), "user.large", value, XattrFlags::empty()).unwrap();
        };
        // Linux 6.18 counts one reference too many if both have the same blocks.
        rustix::fs::lsetxattr(at.join("twin"), "user.twin", b"t", XattrFlags::empty()).unwrap();
        set("twin", &noise(2, 30_000));
        set("f3", &noise(3, 9000));
        std::fs::remove_file(at.join("f0")).unwrap();
    });
    check_is_silent(&image, "the kernel's of ours");
    within(&image, async |_, top| {
        for name in [&b"ours"[..], b"f1", b"f3"] {
            top.unlink(root, name).await.unwrap();
        }
        let twin = top.lookup(root, b"twin").await.unwrap();
        assert_eq!(twin.xattr(root, b"user.large").await.unwrap(), noise(2, 30_000));
        twin.remove_xattr(root, b"user.large").await.unwrap();
    });
    check_is_silent(&image, "all values are gone");
}

#[test]
fn a_value_lies_in_many_pieces_or_not_at_all() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = &Caller::root();
    for volume in [
        "-t ext4 -b 1024 -m 0 -N 3000 -O ea_inode 4M",
        "-t ext4 -b 1024 -m 0 -N 3000 -O ea_inode,^extent,^64bit 4M",
    ] {
        let image = make(dir.path(), volume);
        within(&image, async |bed, top| {
            let mut made = 0;
            loop {
                let created = top.create(root, format!("f{made}").as_bytes(), 0o644).await;
                let Ok(file) = created else { break };
                let file = file.open(root, Default::default()).unwrap();
                if file.write(0, &[1; 1000]).await.is_err() {
                    break;
                }
                made += 1;
            }
            bed.volume.sync().await.unwrap();
            let file = top.lookup(root, b"f0").await.unwrap();
            let full = file.set_xattr(root, b"user.large", &noise(1, 20_000), ANY).await.unwrap_err();
            assert_eq!(full.errno(), 28);
            for n in (1..60).step_by(2) {
                top.unlink(root, format!("f{n}").as_bytes()).await.unwrap();
            }
            bed.volume.sync().await.unwrap();
            file.set_xattr(root, b"user.large", &noise(1, 20_000), ANY).await.unwrap();
            assert_eq!(file.xattr(root, b"user.large").await.unwrap(), noise(1, 20_000));
            let full = file.set_xattr(root, b"user.more", &noise(1, 30_000), ANY).await.unwrap_err();
            assert_eq!(full.errno(), 28);
        });
        check_is_silent(&image, &format!("{volume}: in pieces"));
        within(&image, async |_, top| {
            let file = top.lookup(root, b"f0").await.unwrap();
            assert_eq!(file.xattr(root, b"user.large").await.unwrap(), noise(1, 20_000));
            drop(file);
            top.unlink(root, b"f0").await.unwrap();
        });
        check_is_silent(&image, &format!("{volume}: freed"));
    }
}

/// Fills a volume that has groups of 256 blocks. Returns the single blocks of its files in
/// ascending order, with the files' names.
async fn fill(bed: &Bed, top: &Node) -> BTreeMap<u64, String> {
    let root = &Caller::root();
    let mut names = Vec::new();
    loop {
        let name = format!("f{}", names.len());
        let Ok(node) = top.create(root, name.as_bytes(), 0o644).await else { break };
        if node.open(root, Default::default()).unwrap().write(0, &[1; 1000]).await.is_err() {
            break;
        }
        names.push(name);
    }
    bed.volume.sync().await.unwrap();
    let mut blocks = BTreeMap::new();
    for name in names {
        let node = top.lookup(root, name.as_bytes()).await.unwrap();
        let file = node.open(root, Default::default()).unwrap();
        let extents = file.extents(extant_cache::ByteRange::ALL).await.unwrap();
        blocks.insert(extents[0].device_offset / 1024, name);
    }
    blocks
}

/// Frees up to `in_group` blocks in each of up to `groups` groups, none adjacent; returns how many.
async fn free_some(
    bed: &Bed,
    top: &Node,
    blocks: &mut BTreeMap<u64, String>,
    in_group: u64,
    groups: usize,
) -> u64 {
    let mut taken: BTreeMap<u64, u64> = BTreeMap::new();
    let all: Vec<u64> = blocks.keys().copied().filter(|at| at % 3 == 0).collect();
    for at in all {
        let is_known = taken.contains_key(&(at / 256));
        if !is_known && taken.len() == groups || taken.get(&(at / 256)) == Some(&in_group) {
            continue;
        }
        *taken.entry(at / 256).or_default() += 1;
        let name = blocks.remove(&at).unwrap();
        top.unlink(&Caller::root(), name.as_bytes()).await.unwrap();
    }
    bed.volume.sync().await.unwrap();
    taken.values().sum()
}

const SCATTERED: &str = "-t ext4 -b 1024 -g 256 -m 0 -N 6400 -O ea_inode 8M";

#[test]
fn a_value_in_many_groups_is_freed_with_its_attribute() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = &Caller::root();
    let (image, crashed) = (make(dir.path(), SCATTERED), dir.path().join("crashed"));
    within(&image, async |bed, top| {
        let kept = top.create(root, b"kept", 0o644).await.unwrap();
        let mut blocks = fill(bed, top).await;
        let free = free_some(bed, top, &mut blocks, 4, 12).await;
        assert!((42..=48).contains(&free), "{free} blocks");
        kept.set_xattr(root, b"user.large", &noise(1, 40 << 10), ANY).await.unwrap();
        let file = kept.open(root, Default::default()).unwrap();
        file.sync().await.unwrap();
        kept.remove_xattr(root, b"user.large").await.unwrap();
        file.sync().await.unwrap();
        std::fs::copy(&image, &crashed).unwrap();
    });
    check_is_silent(&image, "freed");
    let said = run("e2fsck", &["-fy", crashed.to_str().unwrap()]);
    assert!(said.contains("recovering journal") && !said.contains("orphaned inode"), "{said}");
}

#[test]
fn the_longest_value_in_pieces_replaces_another_however_little_memory_there_is() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = &Caller::root();
    let image = make(dir.path(), SCATTERED);
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let options = WriteOptions { metadata_bytes: 256 << 10, ..WriteOptions::default() };
        let bed = Bed::open_with(&rt, device(&image), options).await;
        let top = bed.volume.root_node().await.unwrap();
        let kept = top.create(root, b"kept", 0o644).await.unwrap();
        let mut blocks = fill(&bed, &top).await;
        assert_eq!(free_some(&bed, &top, &mut blocks, 2, 8).await, 16);
        kept.set_xattr(root, b"user.large", &noise(1, 15 << 10), ANY).await.unwrap();
        bed.volume.sync().await.unwrap();
        assert!(free_some(&bed, &top, &mut blocks, 12, 8).await > 66);
        let value = noise(2, 64 << 10);
        kept.set_xattr(root, b"user.large", &value, ANY).await.unwrap();
        assert_eq!(kept.xattr(root, b"user.large").await.unwrap(), value);
        drop((kept, top));
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, "replaced");
}

#[test]
fn an_entry_of_a_value_is_damage_on_a_volume_without_the_feature() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = &Caller::root();
    // The entry is in a block.
    let image = make(dir.path(), "-t ext4 -b 1024 -I 128 -O ea_inode 16M");
    within(&image, async |_, top| {
        let node = top.create(root, b"file", 0o644).await.unwrap();
        node.set_xattr(root, b"user.large", &noise(1, 5000), ANY).await.unwrap();
    });
    run("debugfs", &["-w", "-R", "feature -ea_inode", image.to_str().unwrap()]);
    within(&image, async |bed, top| {
        let node = top.lookup(root, b"file").await.unwrap();
        let errno = |result: Result<Vec<u8>>| result.unwrap_err().errno();
        assert_eq!(errno(node.xattr(root, b"user.large").await), 117);
        let inode = bed.volume.inode(node.inode()).await.unwrap();
        assert!(matches!(bed.volume.xattrs(&inode).await, Err(Error::Corrupt(_))));
        assert_eq!(node.remove_xattr(root, b"user.large").await.unwrap_err().errno(), 117);
        node.set_xattr(root, b"user.small", b"other", ANY).await.unwrap();
        assert_eq!(node.xattr(root, b"user.small").await.unwrap(), b"other");
        drop(node);
        top.unlink(root, b"file").await.unwrap();
    });
}
