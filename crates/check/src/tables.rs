//! The sweep over inode tables: what is read, in which order, and the groups' inode bitmaps.

use crate::Code;
use crate::context::Context;
use crate::finding::Spot;
use crate::found::Found;
use crate::inode_sweep::{self, Inodes};
use crate::limits::PAGE_SLOTS;
use crate::map::Files;
use crate::source::{Feed, Piece};
use extant_format::{
    Group, GroupFlags, Incompat, Inode, InodeNumber, UintExt, bit, bits_are_clear, verify_inode_bitmap,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is read together: bitmaps of some groups, or a part of a group's table.
pub(crate) enum Part {
    /// The groups, each with the block of its inode bitmap.
    Bitmaps(Vec<(u64, u32)>),
    Inodes(Inodes),
}

/// The sweep over all inode tables, as far as its tasks share it.
pub(crate) struct Tables {
    groups: Vec<GroupState>,
    /// Inodes that descriptors say are unused, and bitmaps say are not.
    late: Mutex<Vec<Late>>,
}

struct GroupState {
    /// Parts that have not been looked at.
    left: AtomicU32,
    bitmap: Mutex<Option<Box<[u8]>>>,
}

struct Late {
    group: u32,
    first: u32,
    end: u32,
    bitmap: Box<[u8]>,
}

/// Inodes of each group to look at, from the start of its table: those in use by its descriptor.
fn told(ctx: &Context, group: u32) -> u32 {
    let info = &ctx.groups[group.to_usize()];
    let all = ctx.sb.inodes_per_group();
    if !info.table || info.has(&ctx.sb, GroupFlags::INODE_UNINIT) {
        return 0;
    }
    match ctx.sb.has_group_csum() {
        true => all - info.gd.unused_inodes.min(all),
        false => all,
    }
}

fn has_bitmap(ctx: &Context, group: u32) -> bool {
    let info = &ctx.groups[group.to_usize()];
    info.bitmaps && !info.has(&ctx.sb, GroupFlags::INODE_UNINIT)
}

fn per_block(ctx: &Context) -> u32 {
    (ctx.source.block_bytes() / usize::from(ctx.sb.inode_size())).fit_u32()
}

/// Splits these inodes of a group into parts. Each has its first block and number of blocks.
fn inodes_of(ctx: &Context, group: u32, first: u32, end: u32) -> impl Iterator<Item = (Part, u64, u32)> {
    let per_block = per_block(ctx);
    let table = ctx.groups[group.to_usize()].gd.inode_table.0;
    let (from, to) = (first / per_block, end.div_ceil(per_block));
    let most = ctx.source.most();
    (from..to).step_by(most.to_usize()).map(move |block| {
        let blocks = most.min(to - block);
        let start = block * per_block;
        let (first, end) = (first.max(start), end.min(start + blocks * per_block));
        (Part::Inodes(Inodes { group, start, first, end }), table + u64::from(block), blocks)
    })
}

/// Groups whose bitmaps and tables lie together are read together.
fn groups_together(ctx: &Context) -> u32 {
    match ctx.sb.incompat().contains(Incompat::FLEX_BG) {
        true => 1 << ctx.sb.raw().s_log_groups_per_flex.min(6),
        false => 1,
    }
}

/// All parts, in the order of the disk as far as possible, and of inodes in any case.
pub(crate) fn parts(ctx: Arc<Context>) -> impl Iterator<Item = (Part, u64, u32)> {
    let (all, together) = (ctx.groups.len().fit_u32(), groups_together(&ctx));
    (0..all).step_by(together.to_usize()).flat_map(move |first| {
        let groups = first..(first + together).min(all);
        let mut bitmaps: Vec<(u64, u32)> = groups
            .clone()
            .filter(|&group| has_bitmap(&ctx, group))
            .map(|group| (ctx.groups[group.to_usize()].gd.inode_bitmap.0, group))
            .collect();
        bitmaps.sort_unstable();
        let mut parts = Vec::new();
        let mut rest = &bitmaps[..];
        while let Some((start, blocks, count)) = ctx.source.first_run(rest.iter().map(|one| one.0)) {
            let (mine, others) = rest.split_at(count);
            parts.push((Part::Bitmaps(mine.to_vec()), start, blocks));
            rest = others;
        }
        parts.extend(groups.flat_map(|group| inodes_of(&ctx, group, 0, told(&ctx, group))));
        parts
    })
}

impl Tables {
    pub(crate) fn new(ctx: &Context) -> Self {
        let most = ctx.source.most() * per_block(ctx);
        let groups = (0..ctx.groups.len().fit_u32()).map(|group| {
            let parts = told(ctx, group).div_ceil(most) + u32::from(has_bitmap(ctx, group));
            GroupState { left: AtomicU32::new(parts), bitmap: Mutex::default() }
        });
        Self { groups: groups.collect(), late: Mutex::default() }
    }

    /// Number of parts.
    pub(crate) fn parts(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.left.load(Ordering::Relaxed))).sum()
    }

    /// Looks at a part that has been read; the inodes are parsed into `inode`.
    pub(crate) fn look(
        &self,
        ctx: &Context,
        part: Part,
        piece: &Piece,
        inode: &mut Inode,
        files: &mut Files,
        found: &mut Found,
    ) {
        match part {
            Part::Bitmaps(bitmaps) => {
                for (at, group) in bitmaps {
                    let bitmap = bitmap(ctx, group, at, piece.block(at), found);
                    *self.groups[group.to_usize()].bitmap.lock() = bitmap;
                    self.part_is_done(ctx, group, found);
                }
            }
            Part::Inodes(inodes) => {
                inode_sweep::look_at(ctx, inodes, piece, inode, files, found);
                self.part_is_done(ctx, inodes.group, found);
            }
        }
    }

    /// Compares a group's bitmap with its inodes once all of them are known.
    fn part_is_done(&self, ctx: &Context, group: u32, found: &mut Found) {
        let state = &self.groups[group.to_usize()];
        // What the other tasks have done for the group is seen by the last of them.
        if state.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let Some(bitmap) = state.bitmap.lock().take() else { return };
        if !ctx.groups[group.to_usize()].table || ctx.limits.stopped() {
            return;
        }
        let (told, all) = (told(ctx, group), ctx.sb.inodes_per_group());
        compare(ctx, group, 0..told, &bitmap, found);
        if bits_are_clear(&bitmap, told, all) {
            return;
        }
        if let Some(last) = (told..all).rev().find(|&n| bit(&bitmap, n)) {
            let text = format!("{} unused inodes", ctx.groups[group.to_usize()].gd.unused_inodes);
            let expected = format!("at most {}, by the inode bitmap", all - last - 1);
            found.report.add(Code::DescriptorUnused, Spot::group(group), text, expected);
            if ctx.limits.take(bitmap.len().to_u64()) {
                self.late.lock().push(Late { group, first: told, end: last + 1, bitmap });
            }
        }
    }

    /// Looks at inodes that only the bitmaps say are in use.
    pub(crate) async fn late(self, ctx: &Context, files: &mut Files, found: &mut Found) {
        let mut late = self.late.into_inner();
        late.sort_unstable_by_key(|late| late.group);
        let mut inode = Inode::new(InodeNumber::ROOT, &ctx.sb);
        for late in late {
            let parts = inodes_of(ctx, late.group, late.first, late.end);
            let feed = Feed::new(ctx.source.clone(), parts);
            while let Some((part, piece)) = feed.next().await {
                if let Part::Inodes(inodes) = part {
                    inode_sweep::look_at(ctx, inodes, &piece, &mut inode, files, found);
                }
                drop(piece);
                if files.is_full() {
                    files.drain(ctx, found).await;
                }
            }
            if ctx.limits.stopped() {
                return;
            }
            compare(ctx, late.group, late.first..late.end, &late.bitmap, found);
        }
        files.drain(ctx, found).await;
        found.claiming.finish(&ctx.claims);
    }
}

/// Checks an inode bitmap by itself; `None` if it cannot be read.
fn bitmap(ctx: &Context, group: u32, at: u64, block: Option<&[u8]>, found: &mut Found) -> Option<Box<[u8]>> {
    let spot = Spot::group(group).at_block(at);
    let Some(block) = block else {
        found.report.add(Code::ReadError, spot, "unreadable", "an inode bitmap");
        return None;
    };
    let gd = &ctx.groups[group.to_usize()].gd;
    if let Err(corrupt) = verify_inode_bitmap(block, &ctx.sb, Group(group), gd) {
        found.report.corrupt(Code::InodeBitmapChecksum, spot.clone(), &corrupt);
    }
    let (bits, padding) = block.split_at(ctx.sb.inodes_per_group().to_usize().div_ceil(8));
    if padding.iter().any(|&byte| byte != 0xff) {
        found.report.add(Code::InodeBitmapPadding, spot, "clear bits", "set ones");
    }
    Some(bits.into())
}

/// Compares a range of a group's bitmap with its inodes. All of them have been checked before.
fn compare(ctx: &Context, group: u32, range: Range<u32>, bitmap: &[u8], found: &mut Found) {
    let first = group * ctx.sb.inodes_per_group();
    let first_free = ctx.sb.first_inode();
    let mut page = range.start / PAGE_SLOTS * PAGE_SLOTS;
    while page < range.end {
        let mut used = ctx.inodes.used(group, page);
        for n in page..page.saturating_add(PAGE_SLOTS).min(range.end) {
            let is_used = used.as_mut().and_then(Iterator::next).unwrap_or(false);
            let number = InodeNumber(first + n + 1);
            let is_used = is_used || number < first_free && number != InodeNumber::ROOT;
            if n < range.start || is_used == bit(bitmap, n) {
                continue;
            }
            let spot = Spot::inode(number.0);
            match is_used {
                true => found.report.add(Code::InodeBitmapFree, spot, "marked as free", "used"),
                false => found.report.add(Code::InodeBitmapLeaked, spot, "marked as used", "free"),
            }
        }
        page += PAGE_SLOTS;
    }
}
