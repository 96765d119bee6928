//! Checks that need the whole tree: parents, directories that nothing reaches, and link counts.

use crate::context::Context;
use crate::finding::{Report, Spot};
use crate::listing::{Directories, DirsFound, Link};
use crate::state::Kind;
use crate::{Code, dir_sweep};
use extant_format::{Inode, InodeNumber, RoCompat, UintExt};
use std::collections::BTreeSet;

/// Determines each directory's parent, and counts the links of directories.
pub(crate) async fn parents(ctx: &Context, all: &Directories, found: &mut DirsFound) {
    several_names(ctx, all, std::mem::take(&mut found.links), &found.report).await;
    let is_directory = |number: u32| ctx.inodes.kind(InodeNumber(number)).is_directory();
    for (n, dir) in all.dirs.iter().enumerate() {
        let (parent, dotdot) = (all.parent(n), all.dotdot(n));
        let is_root = dir.number == InodeNumber::ROOT.0;
        let parent = if is_root { dir.number } else { parent };
        if dotdot != 0 && parent != 0 && dotdot != parent {
            let text = format!("inode {dotdot}");
            let spot = Spot::inode(dir.number);
            found.report.add_value(Code::DirectoryDotDot, spot, text, parent.into());
        }
        // Count a link of the actual parent, whatever `..` says: a wrong `..` will be repaired.
        let counted = if parent != 0 { parent } else { dotdot };
        if counted != 0 && is_directory(counted) {
            ctx.inodes.named(InodeNumber(counted), 1);
        }
    }
}

/// Chooses among the names of directories that have several. The list lacks the one that was met
/// first.
async fn several_names(ctx: &Context, all: &Directories, mut links: Vec<Link>, report: &Report) {
    if links.is_empty() {
        return;
    }
    let children: BTreeSet<u32> = links.iter().map(|link| link.child).collect();
    let first = children.iter().filter_map(|&child| all.find(all.parent(all.find(child)?)));
    let first: BTreeSet<u32> = first.map(|n| n.fit_u32()).collect();
    links.sort_unstable();
    dir_sweep::links(ctx, all, &first, &children, &mut links).await;
    links.sort_unstable();
    for mine in links.chunk_by(|a, b| a.child == b.child) {
        let Some(n) = all.find(mine[0].child) else { continue };
        // Prefer the name that `..` agrees with, else take the first.
        let right = mine.iter().find(|link| link.parent == all.dotdot(n)).unwrap_or(&mine[0]);
        all.set_parent(n, right.parent);
        for link in mine.iter().filter(|link| *link != right) {
            let text = format!("directory {} is also named in directory {}", link.child, right.parent);
            report.add(Code::EntryDirectoryLink, link_spot(link), text, "one name");
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
            last = all.find(number)?;
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
            match find(all.parent(at)) {
                Some(parent) => at = parent,
                None => {
                    let spot = Spot::inode(all.dirs[at].number);
                    let text = match all.dotdot(at) {
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
