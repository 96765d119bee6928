//! The sweep over groups: block bitmaps against claims, and counts.

use crate::Code;
use crate::context::Context;
use crate::finding::{Report, Spot};
use crate::found::GroupTotals;
use extant_format::{Compat, Group, GroupFlags, UintExt, VolumeBlock, verify_block_bitmap};

/// Free clusters and inodes of the whole volume, as counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) free_clusters: u64,
    pub(crate) free_inodes: u64,
}

/// Maximum number of runs of blocks in one finding.
const RUNS: usize = 8;

/// Compares bitmaps and counts of all groups with what the inodes claim.
pub(crate) async fn sweep(ctx: &Context, totals: &[GroupTotals], report: &mut Report) -> Counted {
    let mut counted = Counted::default();
    let mut wanted: Vec<(u64, u32)> = Vec::new();
    for (group, info) in ctx.groups.iter().enumerate() {
        let group = group.fit_u32();
        let free = free_clusters(ctx, group);
        counted.free_clusters += u64::from(free);
        counts(ctx, group, free, &totals[group.to_usize()], report);
        counted.free_inodes += u64::from(ctx.sb.inodes_per_group() - totals[group.to_usize()].used);
        if info.has(&ctx.sb, GroupFlags::BLOCK_UNINIT) {
            uninit(ctx, group, report);
        } else if info.bitmaps {
            wanted.push((info.gd.block_bitmap.0, group));
        }
    }
    wanted.sort_unstable();
    let blocks: Vec<u64> = wanted.iter().map(|wanted| wanted.0).collect();
    ctx.source
        .scattered(&blocks, |n, block| {
            let (at, group) = wanted[n];
            match block {
                Some(block) => compare(ctx, group, at, block, report),
                None => {
                    let spot = Spot::group(group).at_block(at);
                    report.add(Code::ReadError, spot, "unreadable", "a block bitmap");
                }
            }
        })
        .await;
    counted
}

fn free_clusters(ctx: &Context, group: u32) -> u32 {
    let all = ctx.sb.group_clusters(Group(group));
    let used: u32 = ctx.claims.words(group).map_or(0, |words| words.map(u64::count_ones).sum());
    all.saturating_sub(used)
}

fn counts(ctx: &Context, group: u32, free: u32, totals: &GroupTotals, report: &mut Report) {
    let gd = &ctx.groups[group.to_usize()].gd;
    let differs = |code, what: &str, stored: u32, counted: u32| {
        // Without 64bit the fields have 16 bits.
        let mask = if ctx.sb.descriptor_size() >= 64 { u32::MAX } else { 0xffff };
        if stored != counted & mask {
            report.add(code, Spot::group(group), format!("{stored} {what}"), counted.to_string());
        }
    };
    differs(Code::DescriptorFreeBlocks, "free clusters", gd.free_blocks, free);
    let free_inodes = ctx.sb.inodes_per_group() - totals.used;
    differs(Code::DescriptorFreeInodes, "free inodes", gd.free_inodes, free_inodes);
    differs(Code::DescriptorDirectories, "directories", gd.used_dirs, totals.directories);
}

/// Checks that a group whose block bitmap was never written contains only the volume's own blocks.
fn uninit(ctx: &Context, group: u32, report: &mut Report) {
    let first = ctx.sb.group_first_block(Group(group)).0;
    let end = first + u64::from(ctx.sb.group_blocks(Group(group)));
    // The usual case on a large volume.
    if ctx.claims.words(group).is_none() && ctx.own.within(first, end).next().is_none() {
        return;
    }
    differences(ctx, group, &implied(ctx, group), report);
}

/// Returns the bitmap implied by a block bitmap that was never written, without the bits beyond the
/// group.
pub(crate) fn implied(ctx: &Context, group: u32) -> Vec<u8> {
    let bits = ctx.sb.group_clusters(Group(group));
    let mut bitmap = vec![0; ctx.source.block_bytes()];
    let first = ctx.sb.group_first_block(Group(group));
    let start = ctx.claims.cluster(first);
    let end = first.0 + u64::from(ctx.sb.group_blocks(Group(group)));
    for (from, to) in ctx.own.implied(first.0, end) {
        let from = ctx.claims.cluster(VolumeBlock(from)) - start;
        let to = ctx.claims.cluster(VolumeBlock(to - 1)) - start + 1;
        extant_format::set_bits(&mut bitmap, from.fit_u32().min(bits), to.fit_u32().min(bits));
    }
    bitmap
}

fn compare(ctx: &Context, group: u32, at: u64, bitmap: &[u8], report: &mut Report) {
    let spot = Spot::group(group).at_block(at);
    let gd = &ctx.groups[group.to_usize()].gd;
    if let Err(corrupt) = verify_block_bitmap(bitmap, &ctx.sb, Group(group), gd) {
        report.corrupt(Code::BlockBitmapChecksum, spot.clone(), &corrupt);
    }
    let bits = ctx.sb.group_clusters(Group(group));
    let whole = bits.to_usize().div_ceil(8);
    let partial = !bits.is_multiple_of(8) && bitmap[whole - 1] | (u8::MAX >> (8 - bits % 8)) != u8::MAX;
    if partial || bitmap[whole..].iter().any(|&byte| byte != u8::MAX) {
        report.add(Code::BlockBitmapPadding, spot, "clear bits", "set ones");
    }
    differences(ctx, group, bitmap, report);
}

/// Reports runs that differ between a bitmap and the claims.
fn differences(ctx: &Context, group: u32, bitmap: &[u8], report: &mut Report) {
    let bits = u64::from(ctx.sb.group_clusters(Group(group)));
    let mut claims = ctx.claims.words(group);
    let (mut in_use, mut leaked) = (Runs::default(), Runs::default());
    for (at, chunk) in (0..bits).step_by(64).zip(bitmap.chunks(8)) {
        let mut stored = [0; 8];
        stored[..chunk.len()].copy_from_slice(chunk);
        let stored = u64::from_le_bytes(stored);
        let claimed = claims.as_mut().and_then(Iterator::next).unwrap_or(0);
        if stored == claimed {
            continue;
        }
        let left = bits - at;
        let mask = if left >= 64 { u64::MAX } else { (1 << left) - 1 };
        in_use.add(at, claimed & !stored & mask);
        leaked.add(at, stored & !claimed & mask);
    }
    let first = ctx.claims.cluster(ctx.sb.group_first_block(Group(group)));
    for (runs, code, text, expected) in [
        (in_use, Code::BlockBitmapFree, "marked as free", "used"),
        (leaked, Code::BlockBitmapLeaked, "marked as used", "free, for nothing claims them"),
    ] {
        if runs.count > 0 {
            let shown: Vec<String> = runs
                .first
                .iter()
                .map(|&(start, len)| {
                    let (from, to) = (ctx.claims.block(first + start), ctx.claims.block(first + start + len));
                    if to - from == 1 { from.to_string() } else { format!("{from}-{}", to - 1) }
                })
                .collect();
            let more = if runs.truncated { ", ..." } else { "" };
            let text = format!("{} clusters {text}: {}{more}", runs.count, shown.join(", "));
            report.add(code, Spot::group(group), text, expected);
        }
    }
}

/// Runs of set bits.
#[derive(Debug, Default)]
struct Runs {
    count: u64,
    first: Vec<(u64, u64)>,
    truncated: bool,
}

impl Runs {
    fn add(&mut self, at: u64, mut word: u64) {
        self.count += u64::from(word.count_ones());
        while word != 0 {
            let from = word.trailing_zeros();
            let len = (word >> from).trailing_ones();
            word &= !((u64::MAX >> (64 - len)) << from);
            let start = at + u64::from(from);
            let joins = self.first.last().is_some_and(|&(last, run)| last + run == start);
            if joins && !self.truncated {
                let (_, run) = self.first.last_mut().expect("seen above");
                *run += u64::from(len);
            } else if self.first.len() < RUNS {
                self.first.push((start, len.into()));
            } else {
                self.truncated = true;
            }
        }
    }
}

/// Checks the superblock's counts.
pub(crate) fn superblock(ctx: &Context, counted: Counted, is_clean: bool, report: &mut Report) {
    let sb = &ctx.sb;
    let per_cluster = u64::from(sb.blocks_per_cluster());
    // While a volume is in use, only the groups' counts are kept up to date.
    if is_clean {
        let free = sb.free_blocks();
        if free != counted.free_clusters * per_cluster {
            let expected = (counted.free_clusters * per_cluster).to_string();
            report.add(Code::SuperblockFreeBlocks, Spot::default(), format!("{free} free blocks"), expected);
        }
        let free = u64::from(sb.raw().s_free_inodes_count.get());
        if free != counted.free_inodes {
            let expected = counted.free_inodes.to_string();
            report.add(Code::SuperblockFreeInodes, Spot::default(), format!("{free} free inodes"), expected);
        }
    }
    overhead(ctx, report);
}

/// Compares the overhead with the value that Linux computes (`ext4_calculate_overhead`): blocks
/// before the first, the volume's own, and the journal's.
fn overhead(ctx: &Context, report: &mut Report) {
    let stored = u64::from(ctx.sb.raw().s_overhead_clusters.get());
    if stored == 0 || ctx.sb.blocks_per_cluster() > 1 {
        return;
    }
    let own = ctx.own.blocks() + ctx.sb.first_data_block().0;
    let journal = match ctx.sb.compat().contains(Compat::HAS_JOURNAL) {
        true => ctx.journal_blocks.load(std::sync::atomic::Ordering::Relaxed),
        false => 0,
    };
    let expected = own + journal;
    // mke2fs and Linux disagree about reserved descriptor blocks and the journal's own map.
    let reserved = u64::from(ctx.sb.raw().s_reserved_gdt_blocks.get());
    let spare = (reserved + 1) * (ctx.sb.backup_groups().len().to_u64() + 2) + 16;
    if stored.abs_diff(expected) > spare {
        let text = format!("s_overhead_clusters is {stored}");
        report.add(Code::SuperblockOverhead, Spot::default(), text, format!("about {expected}"));
    }
}
