//! Checks that need the whole tree: parents, directories that nothing reaches, and link counts.

use crate::Code;
use crate::context::Context;
use crate::finding::{Report, Spot};
use crate::listing::{Directories, DirsFound, Link};
use crate::state::Kind;
use extant_format::{Inode, InodeNumber, RoCompat, UintExt};

/// Determines each directory's parent among the entries that name it.
pub(crate) fn parents(ctx: &Context, all: &mut Directories, found: &mut DirsFound) {
    for &(index, target) in &found.dotdots {
        all.dirs[index.to_usize()].dotdot = target;
    }
    // Neighbouring directories mostly have neighbours in them, which the stable sort makes use of.
    found.links.sort();
    let mut rest = &found.links[..];
    // Both lists are sorted by directory.
    let mut n = 0;
    while let Some(first) = rest.first() {
        let count = rest.iter().take_while(|link| link.child == first.child).count();
        let (mine, others) = rest.split_at(count);
        rest = others;
        while all.dirs.get(n).is_some_and(|dir| dir.number < first.child) {
            n += 1;
        }
        let Some(dir) = all.dirs.get_mut(n).filter(|dir| dir.number == first.child) else { continue };
        // Prefer the name that `..` agrees with, else take the first.
        let right = mine.iter().find(|link| link.parent == dir.dotdot).unwrap_or(first);
        dir.parent = right.parent;
        ctx.inodes.named(InodeNumber(dir.number), 1);
        for link in mine.iter().filter(|link| *link != right) {
            let text = format!("directory {} is also named in directory {}", link.child, right.parent);
            found.report.add(Code::EntryDirectoryLink, link_spot(link), text, "one name");
        }
    }
    let is_directory = |number: u32| ctx.inodes.kind(InodeNumber(number)).is_directory();
    for dir in &all.dirs {
        let spot = Spot::inode(dir.number);
        let is_root = dir.number == InodeNumber::ROOT.0;
        let parent = if is_root { dir.number } else { dir.parent };
        if dir.dotdot != 0 && parent != 0 && dir.dotdot != parent {
            let text = format!("inode {}", dir.dotdot);
            found.report.add_value(Code::DirectoryDotDot, spot.clone(), text, parent.into());
        }
        // Count a link of the actual parent, whatever `..` says: a wrong `..` will be repaired.
        let counted = if parent != 0 { parent } else { dir.dotdot };
        if counted != 0 && is_directory(counted) {
            ctx.inodes.named(InodeNumber(counted), 1);
        }
    }
}

fn link_spot(link: &Link) -> Spot {
    Spot::inode(link.parent).at_file_block(link.logical.into()).at_offset(link.offset.to_usize())
}

/// Finds directories that cannot be reached from the root.
pub(crate) fn reachability(ctx: &Context, all: &Directories, report: &mut Report) {
    if !ctx.inodes.kind(InodeNumber::ROOT).is_directory() {
        if report.count(Code::RootMissing) == 0 {
            report.add(Code::RootMissing, Spot::inode(2), "not in use", "a directory");
        }
        return;
    }
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        Unknown,
        OnPath,
        Reached,
        Lost,
    }
    // Neighbours often have the same parent.
    let mut last = 0;
    let mut find = |number: u32| {
        if all.dirs.get(last).is_none_or(|dir| dir.number != number) {
            last = all.dirs.binary_search_by_key(&number, |dir| dir.number).ok()?;
        }
        Some(last)
    };
    let mut marks = vec![Mark::Unknown; all.dirs.len()];
    if let Some(root) = find(InodeNumber::ROOT.0) {
        marks[root] = Mark::Reached;
    }
    let mut path = Vec::new();
    for start in 0..all.dirs.len() {
        let mut at = start;
        let end = loop {
            match marks[at] {
                Mark::Unknown => {}
                Mark::OnPath => {
                    let spot = Spot::inode(all.dirs[at].number);
                    report.add(Code::DirectoryLoop, spot, "below itself", "below the root");
                    break Mark::Lost;
                }
                known => break known,
            }
            marks[at] = Mark::OnPath;
            path.push(at);
            match find(all.dirs[at].parent) {
                Some(parent) => at = parent,
                None => {
                    let spot = Spot::inode(all.dirs[at].number);
                    let text = match all.dirs[at].dotdot {
                        0 => "no entry names it".to_owned(),
                        dotdot => format!("no entry names it; .. is inode {dotdot}"),
                    };
                    report.add(Code::DirectoryUnreachable, spot, text, "a name");
                    break Mark::Lost;
                }
            }
        };
        for at in path.drain(..) {
            marks[at] = end;
        }
    }
}

/// Number of inodes to look at together.
const WINDOW: usize = 64 << 10;

/// Reports inodes whose link count differs from their number of names.
pub(crate) async fn links(ctx: &Context, report: &Report) {
    let mut unbalanced = ctx.inodes.unbalanced();
    loop {
        let mut places: Vec<(u64, usize, InodeNumber, u16)> = unbalanced
            .by_ref()
            .filter_map(|(number, balance)| {
                let (block, at) = ctx.inode_place(number)?;
                Some((block, at, number, balance))
            })
            .take(WINDOW)
            .collect();
        if places.is_empty() || ctx.limits.stopped() {
            return;
        }
        places.sort_unstable();
        let blocks: Vec<u64> = places.iter().map(|place| place.0).collect();
        ctx.source
            .scattered(&blocks, |n, block| {
                let (_, at, number, balance) = places[n];
                let inode =
                    block.and_then(|block| Inode::parse_unchecked(&block[at..], &ctx.sb, number).ok());
                if let Some(inode) = inode {
                    link_count(ctx, &inode, balance, report);
                }
            })
            .await;
    }
}

fn link_count(ctx: &Context, inode: &Inode, balance: u16, report: &Report) {
    let (number, links) = (inode.number, inode.links());
    let names = links.wrapping_sub(balance);
    let spot = Spot::inode(number.0);
    let is_directory = ctx.inodes.kind(number) == Kind::File(2);
    if is_directory {
        // Unreachable subdirectories were reported, and their names are unknown. A directory with
        // more subdirectories than fit the field keeps a link count of 1.
        if links == 1 && ctx.sb.ro_compat().contains(RoCompat::DIR_NLINK) {
            return;
        }
    } else if names == 0 {
        let text = format!("in use, {} links, {} bytes", links, inode.size());
        return report.add(Code::InodeUnattached, spot, text, "a name");
    }
    report.add_value(Code::LinkCount, spot, format!("i_links_count is {links}"), names.into());
}
