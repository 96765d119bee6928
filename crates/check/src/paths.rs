//! Finds the paths of inodes that findings are about. This is done afterwards, for a few inodes, by
//! searching for their names again.

use crate::context::Context;
use crate::finding::Finding;
use crate::listing::{Directories, Item};
use extant_format::{DirEntries, FileBlock, InodeNumber, UintExt};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of inodes of findings to look up.
const WANTED: usize = 10_000;
/// Maximum number of inodes to look up, including the directories above them.
const NAMES: usize = 50_000;
/// Maximum number of directories above an inode.
const DEPTH: usize = 4096;
/// Maximum size of all paths in bytes.
const PATHS_BYTES: usize = 8 << 20;

/// Adds paths to findings.
pub(crate) async fn add(ctx: &Context, all: &Directories, findings: &mut [Finding]) {
    let mut wanted: BTreeSet<u32> = BTreeSet::new();
    for number in findings.iter().filter_map(|finding| finding.spot.inode) {
        if wanted.len() < WANTED && !ctx.sb.is_own_inode(InodeNumber(number)) {
            wanted.insert(number);
        }
    }
    wanted.remove(&InodeNumber::ROOT.0);
    let mut names: BTreeMap<u32, (u32, Vec<u8>)> = BTreeMap::new();
    // The first pass finds names of the inodes, the second those of the directories above them.
    for _ in 0..2 {
        if wanted.is_empty() {
            break;
        }
        for number in wanted.clone() {
            add_ancestors(all, number, &mut wanted);
        }
        look(ctx, all, &wanted, &mut names).await;
        let parents: BTreeSet<u32> = names.values().map(|(parent, _)| *parent).collect();
        wanted.clear();
        for number in parents {
            if !names.contains_key(&number) && number != InodeNumber::ROOT.0 && wanted.len() < NAMES {
                wanted.insert(number);
                add_ancestors(all, number, &mut wanted);
            }
        }
        wanted.retain(|number| !names.contains_key(number));
    }
    let mut bytes = 0;
    for finding in findings {
        if let Some(number) = finding.spot.inode
            && bytes < PATHS_BYTES
        {
            finding.path = path(&names, number);
            bytes += finding.path.as_ref().map_or(0, Vec::len);
        }
    }
}

/// Adds the known directories above a directory that are not in the list yet.
fn add_ancestors(all: &Directories, number: u32, wanted: &mut BTreeSet<u32>) {
    let mut at = number;
    while let Some(n) = all.find(at) {
        at = all.parent(n);
        if at == 0 || at == InodeNumber::ROOT.0 || wanted.len() >= NAMES || !wanted.insert(at) {
            break;
        }
    }
}

/// Number of directory blocks to read together.
const BLOCKS: usize = 16 << 10;

async fn look(
    ctx: &Context,
    all: &Directories,
    wanted: &BTreeSet<u32>,
    names: &mut BTreeMap<u32, (u32, Vec<u8>)>,
) {
    for items in all.items.chunks(BLOCKS) {
        let blocks: Vec<u64> = items.iter().map(|item| item.block).collect();
        ctx.source
            .scattered(&blocks, |n, block| {
                let Item { dir, logical, .. } = items[n];
                let dir = &all.dirs[dir.to_usize()];
                let Some(block) = block.filter(|_| !dir.inline) else { return };
                let entries =
                    DirEntries::new(block, false, u32::MAX, InodeNumber(dir.number), FileBlock(logical));
                for entry in entries.map_while(Result::ok) {
                    if wanted.contains(&entry.inode.0) && entry.name != b"." && entry.name != b".." {
                        let of = all.find(entry.inode.0);
                        let is_right = of.is_some_and(|n| all.parent(n) == dir.number);
                        let name = || (dir.number, entry.name.to_vec());
                        if is_right {
                            names.insert(entry.inode.0, name());
                        } else {
                            names.entry(entry.inode.0).or_insert_with(name);
                        }
                    }
                }
            })
            .await;
    }
}

fn path(names: &BTreeMap<u32, (u32, Vec<u8>)>, number: u32) -> Option<Vec<u8>> {
    if number == InodeNumber::ROOT.0 {
        return Some(b"/".to_vec());
    }
    /// Limits each path, because each finding has its own copy.
    const MOST_BYTES: usize = 4096;
    let (mut parts, mut bytes) = (Vec::new(), 0);
    let mut at = number;
    while at != InodeNumber::ROOT.0 {
        let (parent, name) = names.get(&at)?;
        parts.push(name.as_slice());
        bytes += name.len() + 1;
        at = *parent;
        if bytes > MOST_BYTES || parts.len() > DEPTH {
            return None;
        }
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    Some(path)
}
