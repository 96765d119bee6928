//! Paths of inodes that findings are about. Made afterwards, for a few inodes, by looking for their
//! names once more.

use crate::context::Context;
use crate::finding::Report;
use crate::listing::{Directories, Item};
use extant_format::{DirEntries, FileBlock, InodeNumber};
use std::collections::{BTreeMap, BTreeSet};

/// Inodes that are looked for.
const WANTED: usize = 10_000;
/// Directories above an inode.
const DEPTH: usize = 4096;

/// Adds paths to findings.
pub(crate) async fn add(ctx: &Context, all: &Directories, report: &mut Report) {
    let mut wanted: BTreeSet<u32> = BTreeSet::new();
    for finding in report.iter_mut() {
        if let Some(number) = finding.spot.inode
            && wanted.len() < WANTED
            && !ctx.sb.is_own_inode(InodeNumber(number))
        {
            wanted.insert(number);
        }
    }
    wanted.remove(&InodeNumber::ROOT.0);
    let mut names: BTreeMap<u32, (u32, Vec<u8>)> = BTreeMap::new();
    // Once for the inodes, once for the directories above them.
    for _ in 0..2 {
        if wanted.is_empty() {
            break;
        }
        let above: Vec<u32> = wanted.iter().flat_map(|&number| ancestors(all, number)).collect();
        wanted.extend(above);
        look(ctx, all, &wanted, &mut names).await;
        let found: Vec<u32> = names.values().map(|(parent, _)| *parent).collect();
        wanted = found
            .into_iter()
            .flat_map(|number| std::iter::once(number).chain(ancestors(all, number)))
            .collect();
        wanted.retain(|number| !names.contains_key(number) && *number != InodeNumber::ROOT.0);
    }
    for finding in report.iter_mut() {
        if let Some(number) = finding.spot.inode {
            finding.path = path(&names, number);
        }
    }
}

/// Directories above a directory, as far as they are known.
fn ancestors(all: &Directories, number: u32) -> Vec<u32> {
    let mut above = Vec::new();
    let mut at = number;
    while let Ok(n) = all.dirs.binary_search_by_key(&at, |dir| dir.number) {
        at = all.dirs[n].parent;
        if at == 0 || at == InodeNumber::ROOT.0 || above.len() >= DEPTH || above.contains(&at) {
            break;
        }
        above.push(at);
    }
    above
}

async fn look(
    ctx: &Context,
    all: &Directories,
    wanted: &BTreeSet<u32>,
    names: &mut BTreeMap<u32, (u32, Vec<u8>)>,
) {
    let blocks: Vec<u64> = all.items.iter().map(|item| item.block).collect();
    ctx.source
        .scattered(&blocks, |n, block| {
            let Item { dir, logical, .. } = all.items[n];
            let dir = &all.dirs[dir as usize];
            let Some(block) = block.filter(|_| !dir.inline) else { return };
            let entries =
                DirEntries::new(block, false, u32::MAX, InodeNumber(dir.number), FileBlock(logical));
            for entry in entries.map_while(Result::ok) {
                if wanted.contains(&entry.inode.0) && entry.name != b"." && entry.name != b".." {
                    let of = all.dirs.binary_search_by_key(&entry.inode.0, |dir| dir.number);
                    let is_right = of.is_ok_and(|n| all.dirs[n].parent == dir.number);
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

fn path(names: &BTreeMap<u32, (u32, Vec<u8>)>, number: u32) -> Option<Vec<u8>> {
    if number == InodeNumber::ROOT.0 {
        return Some(b"/".to_vec());
    }
    let mut parts = Vec::new();
    let mut at = number;
    while at != InodeNumber::ROOT.0 {
        let (parent, name) = names.get(&at)?;
        parts.push(name.as_slice());
        at = *parent;
        if parts.len() > DEPTH {
            return None;
        }
    }
    /// Each finding has a copy of its path.
    const MOST_BYTES: usize = 4096;
    if parts.iter().map(|part| part.len() + 1).sum::<usize>() > MOST_BYTES {
        return None;
    }
    let mut path = Vec::new();
    for part in parts.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    Some(path)
}
