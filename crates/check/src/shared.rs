//! Blocks that are claimed more than once: a second pass over maps that names all owners.

use crate::Code;
use crate::context::{Context, root_pointers};
use crate::finding::{Report, Spot};
use extant_format::{
    ExtentContext, ExtentNode, Inode, InodeFlags, InodeNumber, RoCompat, VolumeBlock, parse_indirect,
};
use std::collections::{BTreeMap, BTreeSet};

/// Owners named of one contested run.
const OWNERS: usize = 16;
/// Runs that are reported one by one.
const RUNS: usize = 4096;
/// Blocks of maps that are read per inode.
const NODES: usize = 1 << 16;

/// Joins contested runs; returns blocks as ranges.
pub(crate) fn join(ctx: &Context, contested: &mut [(u64, u64)]) -> Vec<(u64, u64)> {
    contested.sort_unstable();
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for &(start, len) in contested.iter() {
        match ranges.last_mut() {
            Some(last) if last.1 >= start => last.1 = last.1.max(start + len),
            _ => ranges.push((start, start + len)),
        }
    }
    ranges.iter().map(|&(start, end)| (ctx.claims.block(start), ctx.claims.block(end))).collect()
}

/// Reads all maps again and reports who claims contested blocks.
pub(crate) async fn name_owners(
    ctx: &Context,
    ranges: &[(u64, u64)],
    xattr_blocks: &[(u64, u32)],
    report: &mut Report,
) {
    if ranges.is_empty() {
        return;
    }
    let mut owners: BTreeMap<usize, BTreeSet<u32>> = BTreeMap::new();
    for &(block, number) in xattr_blocks {
        touch(ranges, block, 1, number, &mut owners);
    }
    let inode_bytes = usize::from(ctx.sb.inode_size());
    for (group, info) in ctx.groups.iter().enumerate().filter(|(_, info)| info.table) {
        let first = group as u32 * ctx.sb.inodes_per_group();
        let bytes = u64::from(ctx.sb.inodes_per_group()) * inode_bytes as u64;
        let blocks = bytes.div_ceil(ctx.source.block_bytes() as u64);
        let most = u64::from(ctx.source.most());
        let start = info.gd.inode_table.0;
        let runs = (0..blocks).step_by(most as usize).map(|at| (start + at, most.min(blocks - at) as u32));
        let mut inodes = Vec::new();
        let mut n = 0;
        ctx.source
            .sweep(runs, |piece| {
                for bytes in piece.bytes().chunks_exact(inode_bytes) {
                    n += 1;
                    let number = InodeNumber(first + n);
                    if bytes[0x1a..0x1c] == [0; 2]
                        && number >= ctx.sb.first_inode()
                        && !ctx.orphans.contains(&number.0)
                    {
                        continue;
                    }
                    if let Ok(inode) = Inode::parse_unchecked(bytes, &ctx.sb, number)
                        && number != InodeNumber::RESIZE
                    {
                        inodes.push(inode);
                    }
                }
            })
            .await;
        for inode in inodes {
            one(ctx, &inode, ranges, &mut owners).await;
        }
    }
    for (n, &(start, end)) in ranges.iter().enumerate().take(RUNS) {
        let mut names: Vec<String> = owners
            .get(&n)
            .map(|owners| owners.iter().take(OWNERS).map(|owner| format!("inode {owner}")).collect())
            .unwrap_or_default();
        let own: Vec<(u64, u64)> = ctx.own.within(start, end).collect();
        // Read-only volumes may share blocks between files on purpose.
        if own.is_empty() && ctx.sb.ro_compat().contains(RoCompat::SHARED_BLOCKS) {
            continue;
        }
        let code = if own.is_empty() { Code::BlockShared } else { Code::BlockOverlap };
        if !own.is_empty() {
            names.push("the volume's own structures".into());
        }
        let blocks = if end - start == 1 { start.to_string() } else { format!("{start}-{}", end - 1) };
        let by = if names.is_empty() { "several structures".into() } else { names.join(", ") };
        let spot = match owners.get(&n).and_then(BTreeSet::first) {
            Some(&owner) => Spot::inode(owner).at_block(start),
            None => Spot::block(start),
        };
        report.add(code, spot, format!("blocks {blocks} claimed by {by}"), "one owner");
    }
}

fn touch(
    ranges: &[(u64, u64)],
    start: u64,
    len: u64,
    owner: u32,
    owners: &mut BTreeMap<usize, BTreeSet<u32>>,
) {
    let end = start.saturating_add(len);
    let first = ranges.partition_point(|range| range.1 <= start);
    for (n, _) in ranges.iter().enumerate().skip(first).take_while(|(_, range)| range.0 < end) {
        let of_range = owners.entry(n).or_default();
        if of_range.len() <= OWNERS {
            of_range.insert(owner);
        }
    }
}

async fn one(
    ctx: &Context,
    inode: &Inode,
    ranges: &[(u64, u64)],
    owners: &mut BTreeMap<usize, BTreeSet<u32>>,
) {
    use extant_format::FileKind;
    let number = inode.number;
    let is_own = ctx.sb.is_own_inode(number);
    let has_map = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory))
        || is_own
        || inode.kind() == Some(FileKind::Symlink) && inode.size() >= 60;
    if !has_map || inode.flags().contains(InodeFlags::INLINE_DATA) {
        return;
    }
    let mut nodes = 0;
    if inode.flags().contains(InodeFlags::EXTENTS) {
        let mut todo = vec![(ExtentContext::root(&ctx.sb, number), inode.map().to_vec())];
        while let Some((cx, bytes)) = todo.pop() {
            match ExtentNode::salvage(&bytes, &cx) {
                Ok((ExtentNode::Leaf(extents), _)) => {
                    for extent in extents {
                        touch(ranges, extent.physical.0, extent.blocks.into(), number.0, owners);
                    }
                }
                Ok((ExtentNode::Index { depth, entries }, _)) => {
                    for n in 0..entries.len() {
                        let child = entries[n].child;
                        if !ctx.sb.is_valid_block(child) {
                            continue;
                        }
                        touch(ranges, child.0, 1, number.0, owners);
                        nodes += 1;
                        if nodes < NODES
                            && let Some(piece) = ctx.source.one(child.0).await
                        {
                            todo.push((cx.child(depth, &entries, n), piece.bytes().to_vec()));
                        }
                    }
                }
                Err(_) => {}
            }
        }
        return;
    }
    let mut todo: Vec<(VolumeBlock, u32)> =
        root_pointers(&ctx.sb, inode).map(|root| (root.at, root.levels)).collect();
    while let Some((at, levels)) = todo.pop() {
        if at.0 == 0 || !ctx.sb.is_valid_block(at) {
            continue;
        }
        touch(ranges, at.0, 1, number.0, owners);
        nodes += 1;
        if levels > 0
            && nodes < NODES * 64
            && let Some(piece) = ctx.source.one(at.0).await
        {
            let below = parse_indirect(piece.bytes(), &ctx.sb, number, at).flatten();
            todo.extend(below.filter(|at| at.0 > 0).map(|at| (at, levels - 1)));
        }
    }
}
