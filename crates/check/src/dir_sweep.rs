//! The sweep over directories' blocks, in disk order.

use crate::Code;
use crate::context::Context;
use crate::dir_block::{Block, Entry, Scratch, hash_of};
use crate::finding::{Finding, Report, Spot};
use crate::found::{Dir, Run};
use crate::listing::{DIR_PLACE_BYTES, Directories, DirsFound, INLINE, Item, Link, Root};
use crate::source::{Piece, Source};
use extant_format::{
    CharSign, DirEntries, FileBlock, Incompat, InlineData, InlineDirectory, Inode, InodeNumber, UintExt,
    Xattrs,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Lists the blocks of all directories in disk order; reports holes. Both lists are sorted.
///
/// A block that several directories share is read for each of them, up to a limit.
pub(crate) fn list(ctx: &Context, dirs: Vec<Dir>, runs: &[Run], report: &Report) -> Directories {
    let mut items = Vec::new();
    let mut purse = ctx.limits.purse();
    let mut keep = |item: Item| purse.push(&mut items, item);
    let mut rest = runs;
    for (index, dir) in dirs.iter().enumerate() {
        let index = index.fit_u32();
        while rest.first().is_some_and(|run| run.number < dir.number) {
            rest = &rest[1..];
        }
        if dir.inline {
            if let Some((block, _)) = ctx.inode_place(InodeNumber(dir.number)) {
                keep(Item { block, dir: index, logical: INLINE });
            }
            continue;
        }
        let mut next = 0;
        while let Some((run, others)) = rest.split_first().filter(|(run, _)| run.number == dir.number) {
            rest = others;
            if run.logical >= dir.blocks {
                continue;
            }
            hole(dir, next, run.logical, report);
            let blocks = run.blocks.min(dir.blocks - run.logical);
            let mut n = 0;
            while n < blocks && !ctx.limits.stopped() {
                let at = run.block + u64::from(n);
                let (is_shared, alike) = ctx.claims.is_shared(at, (blocks - n).into());
                if !is_shared || ctx.limits.repeat(alike) {
                    for more in 0..alike {
                        keep(Item {
                            block: at + more,
                            dir: index,
                            logical: run.logical + n + more.fit_u32(),
                        });
                        if ctx.limits.stopped() {
                            break;
                        }
                    }
                }
                n += alike.fit_u32();
            }
            next = next.max(run.logical + blocks);
        }
        hole(dir, next, dir.blocks, report);
        if ctx.limits.stopped() {
            break;
        }
    }
    // Neighbouring directories mostly lie in order, which the stable sort makes use of.
    items.sort();
    // If this exceeds the limit, the check stops and soon drops the places.
    ctx.limits.take(DIR_PLACE_BYTES * dirs.len().to_u64());
    Directories::new(dirs, items)
}

fn hole(dir: &Dir, from: u32, to: u32, report: &Report) {
    if from < to && !dir.damaged {
        let spot = Spot::inode(dir.number).at_file_block(from.into());
        let text = format!("{} blocks without a place", to - from);
        report.add(Code::DirectoryHole, spot, text, "a block with entries");
    }
}

/// Reads the roots of indexes, which say how names are hashed.
pub(crate) async fn read_roots(ctx: &Context, all: &mut Directories, report: &mut Report) {
    let is_root = |item: &&Item| item.logical == 0 && all.dirs[item.dir.to_usize()].indexed;
    let items: Vec<Item> = all.items.iter().filter(is_root).copied().collect();
    let blocks: Vec<u64> = items.iter().map(|item| item.block).collect();
    let mut roots = BTreeMap::new();
    ctx.source
        .scattered(&blocks, |n, block| {
            let dir = &all.dirs[items[n].dir.to_usize()];
            // An unreadable block is reported when its entries are read.
            let Some(block) = block else { return };
            let spot = Spot::inode(dir.number).at_file_block(0);
            match Root::read(ctx, dir, block) {
                Ok(root) => {
                    if ctx.limits.take(64 + 8 * root.entries.len().to_u64()) {
                        roots.insert(items[n].dir, root);
                    }
                }
                Err(corrupt) => report.corrupt(Code::HtreeRoot, spot, &corrupt),
            }
        })
        .await;
    all.roots = roots;
}

/// Runs of blocks of directories, each with the items there.
pub(crate) fn runs(
    source: Source,
    all: Arc<Directories>,
) -> impl Iterator<Item = (Range<usize>, u64, u32)> + Send {
    let mut next = 0;
    std::iter::from_fn(move || {
        let (start, blocks, count) = source.first_run(all.items[next..].iter().map(|item| item.block))?;
        let first = next;
        next += count;
        Some((first..next, start, blocks))
    })
}

/// Checks blocks that have been read.
pub(crate) fn look(
    ctx: &Context,
    all: &Directories,
    items: &[Item],
    piece: &Piece,
    sign: CharSign,
    scratch: &mut Scratch,
    found: &mut DirsFound,
) {
    for &item in items {
        let dir = &all.dirs[item.dir.to_usize()];
        match piece.block(item.block) {
            None => {
                let spot = Spot::inode(dir.number).at_block(item.block);
                found.report.add(Code::ReadError, spot, "unreadable", "entries");
            }
            Some(block) if item.logical == INLINE => inline(ctx, all, item, dir, block, scratch, found),
            Some(block) => {
                let root = dir.indexed.then(|| all.roots.get(&item.dir)).flatten();
                if !ctx.limits.stopped() {
                    Block { ctx, all, item, dir, root, sign, found, scratch }.check(block);
                }
            }
        }
    }
}

/// Entries in an inode.
fn inline(
    ctx: &Context,
    all: &Directories,
    item: Item,
    dir: &Dir,
    block: &[u8],
    scratch: &mut Scratch,
    found: &mut DirsFound,
) {
    let filetype = ctx.sb.incompat().contains(Incompat::FILETYPE);
    with_inline(ctx, dir, block, |directory| {
        ctx.inodes.named(InodeNumber(dir.number), 1);
        all.set_dotdot(item.dir.to_usize(), directory.parent.0);
        for area in directory.areas {
            let item = Item { logical: 0, ..item };
            let (sign, scratch) = (CharSign::Unsigned, &mut *scratch);
            let mut block = Block { ctx, all, item, dir, root: None, sign, found: &mut *found, scratch };
            for entry in DirEntries::new(area, filetype, u32::MAX, InodeNumber(dir.number), FileBlock(0)) {
                match entry {
                    Ok(entry) => block.keep(&Entry::from(entry)),
                    Err(corrupt) => {
                        let spot = Spot::inode(dir.number);
                        block.found.report.corrupt(Code::DirectoryBlock, spot, &corrupt);
                    }
                }
            }
            block.entries(area);
            block.duplicates(area);
            block.clear();
        }
    });
}

/// Parses the entries in an inode, whose block this is. Errors in it were reported with the inode.
fn with_inline(ctx: &Context, dir: &Dir, block: &[u8], each: impl FnOnce(InlineDirectory<'_>)) {
    let number = InodeNumber(dir.number);
    let Some((_, at)) = ctx.inode_place(number) else { return };
    let Ok(inode) = Inode::parse_unchecked(&block[at..], &ctx.sb, number) else { return };
    let xattrs = Xattrs::parse_inode(&inode.tail, number).unwrap_or(Xattrs::EMPTY);
    let Ok(data) = InlineData::parse(inode.map(), &xattrs, inode.size(), number) else { return };
    if let Ok(directory) = data.as_directory() {
        each(directory);
    }
}

/// Looks in these directories for all entries that name certain other directories, and adds those
/// that are not among `links`, which are sorted. Which directory was met first depends on the order
/// of the tasks; the number of links, and with it the memory that is counted, does not.
pub(crate) async fn links(
    ctx: &Context,
    all: &Directories,
    dirs: &BTreeSet<u32>,
    children: &BTreeSet<u32>,
    links: &mut Vec<Link>,
) {
    let known = links.len();
    let items: Vec<Item> = all.items.iter().filter(|item| dirs.contains(&item.dir)).copied().collect();
    let blocks: Vec<u64> = items.iter().map(|item| item.block).collect();
    ctx.source
        .scattered(&blocks, |n, block| {
            let (item, Some(block)) = (items[n], block) else { return };
            let dir = &all.dirs[item.dir.to_usize()];
            let logical = if item.logical == INLINE { 0 } else { item.logical };
            let mut look = |area: &[u8]| {
                let entries =
                    DirEntries::new(area, false, u32::MAX, InodeNumber(dir.number), FileBlock(logical));
                // Entries behind a damaged one were judged only in an inode.
                let judged = entries.take_while(|entry| entry.is_ok() || dir.inline);
                for entry in judged.flatten() {
                    let is_dot = entry.name == b"." || entry.name == b"..";
                    let child = entry.inode.0;
                    if !is_dot && child != dir.number && children.contains(&child) {
                        let offset = entry.offset.fit_u32();
                        let link = Link { child, parent: dir.number, logical, offset };
                        if links[..known].binary_search(&link).is_err() {
                            ctx.limits.push(links, link);
                        }
                    }
                }
            };
            if item.logical != INLINE {
                return look(block);
            }
            with_inline(ctx, dir, block, |directory| directory.areas.into_iter().for_each(&mut look));
        })
        .await;
}

/// Looks for names that occur in several blocks of a directory.
pub(crate) async fn duplicates_across(
    ctx: &Context,
    all: &Directories,
    mut names: Vec<(u32, u64)>,
    report: &Report,
) {
    names.sort_unstable();
    let mut suspects: Vec<(u32, u64)> =
        names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    drop(names);
    suspects.dedup();
    let is_suspect = |item: &&Item| {
        let first = suspects.partition_point(|suspect| suspect.0 < item.dir);
        suspects.get(first).is_some_and(|suspect| suspect.0 == item.dir)
    };
    let mut items: Vec<Item> = all.items.iter().filter(is_suspect).copied().collect();
    items.sort_unstable_by_key(|item| (item.dir, item.logical));
    let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let (mut current, mut kept_bytes) = (None, 0);
    let stream = ctx.source.stream(items.iter().map(|item| (item.block, 1)));
    let mut next = items.iter();
    while let (Some(((), piece)), Some(item)) = (stream.next().await, next.next()) {
        if current.replace(item.dir) != Some(item.dir) {
            seen.clear();
            ctx.limits.give_back(std::mem::take(&mut kept_bytes));
        }
        let Some(block) = piece.block(item.block).filter(|_| item.logical != INLINE) else { continue };
        let dir = all.dirs[item.dir.to_usize()].number;
        for entry in DirEntries::new(block, false, u32::MAX, InodeNumber(dir), FileBlock(item.logical))
            .map_while(Result::ok)
        {
            let is_dot = entry.name == b"." || entry.name == b"..";
            let suspect = (item.dir, hash_of(entry.name));
            if entry.inode.0 == 0 || is_dot || suspects.binary_search(&suspect).is_err() {
                continue;
            }
            let Some(&first) = seen.get(entry.name) else {
                let bytes = entry.name.len().to_u64() + 64;
                if ctx.limits.take(bytes) {
                    kept_bytes += bytes;
                    seen.insert(entry.name.to_vec(), item.logical);
                }
                continue;
            };
            if first != item.logical {
                let spot = Spot::inode(dir).at_block(item.block).at_file_block(item.logical.into());
                report.push(Finding {
                    code: Code::EntryDuplicateAcross,
                    spot: spot.at_offset(entry.offset),
                    name: Some(entry.name.to_vec()),
                    path: None,
                    found: format!("also in block {first} of the directory"),
                    expected: "each name once".into(),
                    value: None,
                    suspected: false,
                });
            }
        }
    }
    ctx.limits.give_back(kept_bytes);
}
