//! Directories of every depth, with every hash, as built by Linux: each name must be in the leaf
//! that its hash leads to. Needs root and loop devices; skipped with a message otherwise.

use extant_format::*;
use std::path::Path;
use std::process::Command;
use std::{fs, io};

const BLOCK: usize = 1024;

fn sh(script: &str) -> Result<String, String> {
    let out = Command::new("sh").args(["-ec", script]).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    if out.status.success() { Ok(text) } else { Err(format!("{script}: {text}")) }
}

/// Long, so that few fit in a block, and with high bytes.
fn name(i: usize) -> Vec<u8> {
    let mut name = format!("{i}-").into_bytes();
    name.resize(220 + i % 30, 0x80 | (i % 97) as u8);
    name
}

/// A volume whose directory has `names` links to one file; returns its superblock and the
/// directory's blocks.
fn volume(dir: &Path, names: usize, hash: &str) -> Result<(Vec<u8>, Vec<u8>), String> {
    use std::os::unix::ffi::OsStrExt;
    let (image, at, dump) = (dir.join("image"), dir.join("mount"), dir.join("dump"));
    let path = image.display();
    sh(&format!("mke2fs -q -t ext4 -b {BLOCK} -N 64 -O metadata_csum,large_dir,^has_journal {path} 64M"))?;
    sh(&format!("tune2fs -E hash_alg={hash} {path}"))?;
    let mount = extant_testbed::Mount::try_new(&image, &at, "rw")?;
    let fill = || -> io::Result<()> {
        fs::create_dir(mount.path().join("dir"))?;
        fs::write(mount.path().join("file"), "")?;
        for i in 0..names {
            fs::hard_link(
                mount.path().join("file"),
                mount.path().join("dir").join(std::ffi::OsStr::from_bytes(&name(i))),
            )?;
        }
        Ok(())
    };
    fill().map_err(|e| e.to_string())?;
    drop(mount);
    sh(&format!("debugfs -R 'dump /dir {}' {path}", dump.display()))?;
    let image = fs::read(&image).map_err(|e| e.to_string())?;
    Ok((image[1024..2048].to_vec(), fs::read(&dump).map_err(|e| e.to_string())?))
}

fn check(dir: &Path, names: usize, hash: &str, levels: u8) -> Result<(), String> {
    let (superblock, blocks) = volume(dir, names, hash)?;
    let sb = Superblock::parse(&superblock).unwrap();
    let sign = if sb.unsigned_dir_hash() { CharSign::Unsigned } else { CharSign::Signed };
    let block = |index: FileBlock| &blocks[index.0 as usize * BLOCK..][..BLOCK];
    let context = |block| HtreeContext { dir: InodeNumber(12), block, checksums: true, large_dir: true };
    let root = DxRoot::parse(block(FileBlock(0)), &context(FileBlock(0))).unwrap();
    assert_eq!((root.info.levels, root.info.hash_version.to_string().as_str()), (levels, hash));
    // All leaves in order. The first entry of a node has the hash of the entry above it.
    let mut leaves: Vec<DxEntry> = root.entries.iter().collect();
    for _ in 0..levels {
        leaves = leaves
            .iter()
            .flat_map(|above| {
                let node = DxNode::parse(block(above.block), &context(above.block)).unwrap();
                let hash = |n: usize, entry: DxEntry| if n == 0 { above.hash } else { entry.hash };
                let below: Vec<_> = node.entries.iter().collect();
                below.into_iter().enumerate().map(move |(n, entry)| DxEntry { hash: hash(n, entry), ..entry })
            })
            .collect();
    }
    for i in 0..names {
        let name = name(i);
        let hash = hash_name(root.info.hash_version, sign, &sb.hash_seed(), &name).unwrap();
        // Names with the same hash may continue in the next leaf.
        let first = leaves.partition_point(|leaf| leaf.hash <= hash.major) - 1;
        let more = leaves[first + 1..].iter().take_while(|leaf| leaf.continues(hash)).count();
        let found = leaves[first..=first + more].iter().any(|leaf| {
            DirEntries::new(block(leaf.block), true, sb.inodes_count(), InodeNumber(12), leaf.block)
                .any(|entry| entry.unwrap().name == name)
        });
        assert!(found, "name {i} is not in block {} nor in the {more} behind", leaves[first].block);
    }
    Ok(())
}

#[test]
fn names_lie_where_their_hash_leads() {
    if !extant_testbed::have(&["mke2fs", "tune2fs", "debugfs"]) || !extant_testbed::can_mount() {
        return;
    }
    for (names, hash, levels) in
        [(30, "legacy", 0), (30, "tea", 0), (3000, "half_md4", 1), (3000, "tea", 1), (45_000, "half_md4", 2)]
    {
        let dir = tempfile::tempdir().unwrap();
        check(dir.path(), names, hash, levels).unwrap();
    }
}
