//! Bitmaps, counts, quota files and backups, rebuilt from what inodes claim.

use super::editor::Editor;
use super::{Policy, is_safe};
use crate::finding::Finding;
use crate::state::Kind;
use crate::{Code, Spot};
use extant_format::{
    Group, GroupDescriptor, GroupFlags, InodeNumber, STATE_ERROR, STATE_VALID, Superblock,
    block_bitmap_checksum, inode_bitmap_checksum, set_bits,
};

/// Repairs all of these. Each step is recorded for the findings of a group or of the superblock.
pub(super) async fn repair(editor: &mut Editor<'_>, findings: &[&Finding]) -> bool {
    let allowed = |finding: &&&Finding| editor.policy == Policy::All || is_safe(finding.code);
    let findings: Vec<&Finding> = findings.iter().filter(allowed).copied().collect();
    let mut changed = false;
    for finding in findings.iter().filter(|f| matches!(f.code, Code::QuotaUsage | Code::QuotaFile)) {
        super::own::quota(editor, finding).await;
        changed |= editor.end_step(finding);
    }
    let per_group = editor.sb.inodes_per_group();
    let group_of = |spot: &Spot| {
        let of_inode = spot.inode.and_then(|number| number.checked_sub(1)).map(|n| n / per_group);
        spot.group.or(of_inode)
    };
    let is_backup =
        |finding: &Finding| matches!(finding.code, Code::BackupSuperblock | Code::BackupDescriptors);
    for group in 0..u32::try_from(editor.ctx.groups.len()).unwrap_or(u32::MAX) {
        let mine =
            |f: &&&Finding| group_of(&f.spot) == Some(group) && !is_backup(f) && f.code != Code::QuotaUsage;
        let Some(finding) = findings.iter().find(mine) else { continue };
        one_group(editor, Group(group)).await;
        changed |= editor.end_step(finding);
    }
    let of_volume = |f: &&&Finding| group_of(&f.spot).is_none() && !is_backup(f);
    if let Some(finding) = findings.iter().find(of_volume) {
        superblock(editor, &findings).await;
        changed |= editor.end_step(finding);
    }
    if !changed {
        for finding in findings.iter().filter(|finding| is_backup(finding)) {
            backup(editor, finding).await;
            changed |= editor.end_step(finding);
        }
    }
    changed
}

/// Whether the inode bitmap must mark an inode as in use.
fn is_used(editor: &Editor<'_>, number: InodeNumber) -> bool {
    let is_reserved = number < editor.sb.first_inode() && number != InodeNumber::ROOT;
    is_reserved || editor.ctx.inodes.kind(number) != Kind::Unused
}

/// Returns a bitmap in which the bits beyond the group are set.
fn padded(mut bitmap: Vec<u8>, bits: u32) -> Vec<u8> {
    let all = u32::try_from(bitmap.len() * 8).unwrap_or(u32::MAX);
    set_bits(&mut bitmap, bits, all);
    bitmap
}

fn block_bitmap(editor: &Editor<'_>, group: Group) -> Vec<u8> {
    let mut bitmap = vec![0; editor.block_bytes()];
    if let Some(words) = editor.ctx.claims.words(group.0) {
        for (chunk, word) in bitmap.chunks_mut(8).zip(words) {
            chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        }
    }
    padded(bitmap, editor.sb.group_clusters(group))
}

/// Rewrites a group's bitmaps and descriptor.
async fn one_group(editor: &mut Editor<'_>, group: Group) {
    let Some(info) = usize::try_from(group.0).ok().and_then(|n| editor.ctx.groups.get(n).copied()) else {
        return;
    };
    let Some(stored) = editor.descriptor(group).await else { return };
    if !info.bitmaps || !info.table {
        return;
    }
    let sb = editor.sb.clone();
    let (per_group, clusters) = (sb.inodes_per_group(), sb.group_clusters(group));
    let blocks = block_bitmap(editor, group);
    let first = group.0 * per_group + 1;
    let mut inodes = vec![0; editor.block_bytes()];
    let (mut used, mut last) = (0, 0);
    for n in 0..per_group {
        if is_used(editor, InodeNumber(first + n)) {
            set_bits(&mut inodes, n, n + 1);
            used += 1;
            last = n + 1;
        }
    }
    let inodes = padded(inodes, per_group);
    let free_blocks = extant_format::count_free(&blocks, clusters);
    let totals = usize::try_from(group.0).ok().and_then(|n| editor.survey.totals.get(n));
    let mut gd = GroupDescriptor {
        free_blocks,
        free_inodes: per_group - used,
        used_dirs: totals.map_or(0, |totals| totals.directories),
        ..stored
    };
    gd.unused_inodes = gd.unused_inodes.min(per_group - last);
    if used > 0 {
        gd.flags -= GroupFlags::INODE_UNINIT;
    }
    // What a bitmap that was never written implies.
    let implied = crate::groups::implied(editor.ctx, group.0);
    if gd.flags.contains(GroupFlags::BLOCK_UNINIT) && padded(implied, clusters) != blocks {
        gd.flags -= GroupFlags::BLOCK_UNINIT;
    }
    if let Some(seed) = editor.seed() {
        if !gd.flags.contains(GroupFlags::BLOCK_UNINIT) {
            gd.block_bitmap_csum = block_bitmap_checksum(seed, &blocks, &sb);
        }
        if !gd.flags.contains(GroupFlags::INODE_UNINIT) {
            gd.inode_bitmap_csum = inode_bitmap_checksum(seed, &inodes, &sb);
        }
    }
    let has = |flag| sb.has_group_csum() && gd.flags.contains(flag);
    if !has(GroupFlags::BLOCK_UNINIT) {
        editor.set_block(info.gd.block_bitmap.0, &blocks).await;
    }
    if !has(GroupFlags::INODE_UNINIT) {
        editor.set_block(info.gd.inode_bitmap.0, &inodes).await;
    }
    if gd != stored {
        editor.set_descriptor(group, &gd).await;
    }
    editor.say("rebuild bitmaps and counts of the group", "");
}

/// Rewrites the superblock's counts and state.
async fn superblock(editor: &mut Editor<'_>, findings: &[&Finding]) {
    let mut free_clusters = 0;
    let mut free_inodes = 0_u64;
    for (group, totals) in (0..).zip(&editor.survey.totals) {
        let bitmap = block_bitmap(editor, Group(group));
        free_clusters +=
            u64::from(extant_format::count_free(&bitmap, editor.sb.group_clusters(Group(group))));
        free_inodes += u64::from(editor.sb.inodes_per_group() - totals.used);
    }
    let free = free_clusters * u64::from(editor.sb.blocks_per_cluster());
    let has = |code: Code| findings.iter().any(|finding| finding.code == code);
    let is_wrong_time = has(Code::SuperblockFuture);
    let is_wrong_overhead = has(Code::SuperblockOverhead);
    let now = editor.now.and_then(|now| u32::try_from(now).ok());
    let is_64 = editor.sb.incompat().contains(extant_format::Incompat::BIT64);
    let raw = editor.sb.raw_mut();
    let low = |n: u64| u32::try_from(n & u64::from(u32::MAX)).unwrap_or(0);
    raw.s_free_blocks_count_lo = low(free).into();
    if is_64 {
        raw.s_free_blocks_count_hi = low(free >> 32).into();
    }
    raw.s_free_inodes_count = low(free_inodes).into();
    raw.s_state = ((raw.s_state.get() | STATE_VALID) & !STATE_ERROR).into();
    if is_wrong_overhead {
        // Linux computes the overhead if the field is 0.
        raw.s_overhead_clusters = 0.into();
    }
    if let Some(now) = now.filter(|_| is_wrong_time) {
        if raw.s_mtime.get() > now {
            (raw.s_mtime, raw.s_mtime_hi) = (now.into(), 0);
        }
        if raw.s_wtime.get() > now || raw.s_wtime_hi > 0 {
            (raw.s_wtime, raw.s_wtime_hi) = (now.into(), 0);
        }
        raw.s_mtime_hi = 0;
    }
    clear_errors(&mut editor.sb);
    editor.write_superblock().await;
    editor.say("recompute counts and state", "");
}

/// Marks the volume clean once nothing is left to repair.
pub(super) async fn finish(editor: &mut Editor<'_>) -> bool {
    let state = editor.sb.raw().s_state.get();
    if state & STATE_VALID != 0 && state & STATE_ERROR == 0 {
        return false;
    }
    let finding = Finding {
        code: Code::ErrorRecord,
        spot: Spot::default(),
        name: None,
        path: None,
        found: format!("the state is {state:#x}, not clean"),
        expected: "clean".into(),
        value: None,
        suspected: false,
    };
    superblock(editor, &[]).await;
    editor.end_step(&finding)
}

/// Clears the record of errors.
pub(super) fn clear_errors(sb: &mut Superblock) {
    let raw = sb.raw_mut();
    raw.s_error_count = 0.into();
    (raw.s_first_error_time, raw.s_first_error_time_hi) = (0.into(), 0);
    (raw.s_last_error_time, raw.s_last_error_time_hi) = (0.into(), 0);
    (raw.s_first_error_ino, raw.s_last_error_ino) = (0.into(), 0.into());
    (raw.s_first_error_block, raw.s_last_error_block) = (0.into(), 0.into());
    (raw.s_first_error_line, raw.s_last_error_line) = (0.into(), 0.into());
    (raw.s_first_error_func, raw.s_last_error_func) = ([0; 32], [0; 32]);
    (raw.s_first_error_errcode, raw.s_last_error_errcode) = (0, 0);
}

/// Writes a backup of the superblock, or of a block of descriptors.
async fn backup(editor: &mut Editor<'_>, finding: &Finding) {
    let (Some(group), Some(at)) = (finding.spot.group, finding.spot.block) else { return };
    if finding.code == Code::BackupSuperblock {
        let mut copy = editor.sb.clone();
        let number = u16::try_from(group & 0xffff).unwrap_or(0);
        copy.raw_mut().s_block_group_nr = number.into();
        copy.update_checksum();
        let Some(mut block) = editor.block(at).await else { return };
        let bytes = copy.as_bytes();
        block[..bytes.len()].copy_from_slice(bytes);
        return editor.set_block(at, &block).await;
    }
    let count = editor.sb.descriptor_blocks();
    for index in 0..count {
        if editor.sb.descriptor_copies(index).iter().any(|copy| copy.block.0 == at) {
            let primary = editor.sb.descriptor_block(index).0;
            let Some(block) = editor.block(primary).await else { return };
            return editor.set_block(at, &block).await;
        }
    }
}
