//! The volume's own files: orphan list and orphan file, journal, resize inode, and the block of
//! multiple-mount protection.

use crate::Code;
use crate::context::{Context, root_pointers};
use crate::finding::{Report, Spot};
use extant_format::jbd2::JournalSuperblock;
use extant_format::{
    Compat, ExtentContext, ExtentNode, FileBlock, FileKind, Incompat, Inode, InodeFlags, InodeNumber, Mmp,
    OrphanBlock, RoCompat, UintExt, VolumeBlock, parse_indirect, pointers_per_block,
};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// Maximum number of map blocks to read for one file.
const NODES_MAX: usize = 1 << 16;
/// Longest orphan file that Linux accepts (`EXT4_MAX_ORPHAN_FILE_BLOCKS` in blocks of 16 KiB).
const ORPHAN_BYTES_MAX: u64 = 8 << 20;
/// Maximum length of an orphan list that is followed.
const ORPHANS_MAX: usize = 100_000;

/// Reads an inode without checking it; `None` if it cannot be read.
pub(crate) async fn read_inode(ctx: &Context, number: InodeNumber) -> Option<Inode> {
    let (block, at) = ctx.inode_place(number)?;
    let piece = ctx.source.one(block).await?;
    Inode::parse_unchecked(&piece.bytes()[at..], &ctx.sb, number).ok()
}

/// Whether e2fsck would call this inode used, though it must not be.
pub(crate) fn is_in_use(inode: &Inode) -> bool {
    inode.links() > 0 || inode.raw.i_blocks_lo.get() != 0 || inode.block_pointer(0).0 != 0
}

/// Runs of a file's blocks (first block of the file, place, count), in order. Damage, which is
/// reported elsewhere, leaves holes.
pub(crate) async fn runs(ctx: &Context, inode: &Inode) -> Vec<(u64, u64, u64)> {
    let mut runs = Runs { list: Vec::new(), ctx };
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        return runs.list;
    }
    let mut nodes = 0;
    // A map that names a node twice could go on forever.
    let mut visited = BTreeSet::new();
    if inode.flags().contains(InodeFlags::EXTENTS) {
        let mut todo = vec![(ExtentContext::root(&ctx.sb, inode.number), inode.map().to_vec())];
        while let Some((cx, bytes)) = todo.pop() {
            match ExtentNode::salvage(&bytes, &cx) {
                Ok((ExtentNode::Leaf(extents), _)) => {
                    for e in extents {
                        runs.add(e.logical.0.into(), e.physical.0, e.blocks.into());
                    }
                }
                Ok((ExtentNode::Index { depth, entries }, _)) => {
                    for n in 0..entries.len() {
                        nodes += 1;
                        if nodes < NODES_MAX
                            && visited.insert(entries[n].child.0)
                            && !ctx.limits.stopped()
                            && let Some(piece) = ctx.source.one(entries[n].child.0).await
                        {
                            todo.push((cx.child(depth, &entries, n), piece.bytes().to_vec()));
                        }
                    }
                }
                Err(_) => {}
            }
        }
    } else {
        let per_block = u64::from(pointers_per_block(ctx.sb.block_size()));
        let mut todo: Vec<_> =
            root_pointers(&ctx.sb, inode).map(|root| (root.logical, root.at, root.levels)).collect();
        todo.reverse();
        while let Some((logical, at, levels)) = todo.pop() {
            if at.0 == 0 || !ctx.sb.is_valid_block(at) || ctx.limits.stopped() {
                continue;
            }
            if levels == 0 {
                runs.add(logical, at.0, 1);
                continue;
            }
            if !visited.insert(at.0) {
                continue;
            }
            nodes += 1;
            let Some(piece) = ctx.source.one(at.0).await.filter(|_| nodes < NODES_MAX) else { continue };
            let step = per_block.pow(levels - 1);
            let below = parse_indirect(piece.bytes(), &ctx.sb, inode.number, at).enumerate();
            let first = todo.len();
            todo.extend(
                below.filter_map(|(n, to)| Some((logical + n.to_u64() * step, to.ok()?, levels - 1))),
            );
            // Jobs are taken from the end, so the first pointer goes last.
            todo[first..].reverse();
        }
    }
    runs.list.sort_unstable();
    runs.list
}

/// Runs found so far, joined where they touch.
struct Runs<'a> {
    list: Vec<(u64, u64, u64)>,
    ctx: &'a Context,
}

impl Runs<'_> {
    fn add(&mut self, logical: u64, at: u64, len: u64) {
        match self.list.last_mut() {
            Some(last) if last.0 + last.2 == logical && last.1 + last.2 == at => last.2 += len,
            _ => self.ctx.limits.push(&mut self.list, (logical, at, len)),
        }
    }
}

/// Follows the orphan list and reads the orphan file. `replayed`: the volume's journal is dirty.
pub(crate) async fn orphans(ctx: &Context, replayed: bool, report: &mut Report) -> BTreeSet<u32> {
    let mut orphans = BTreeSet::new();
    let mut next = ctx.sb.raw().s_last_orphan.get();
    let mut before = "s_last_orphan".to_owned();
    while next != 0 {
        let number = InodeNumber(next);
        let is_file = number >= ctx.sb.first_inode() && next <= ctx.sb.inodes_count();
        let inode = match is_file && !ctx.sb.is_own_inode(number) {
            true => read_inode(ctx, number).await,
            false => None,
        };
        let is_kind = |inode: &Inode| {
            matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink))
                || inode.links() == 0 && inode.kind().is_some()
        };
        let Some(inode) = inode.filter(is_kind) else {
            let expected = "an inode of a file";
            report.add(Code::OrphanList, Spot::inode(next), format!("{before} is {next}"), expected);
            break;
        };
        if orphans.len() >= ORPHANS_MAX {
            let text = format!("more than {ORPHANS_MAX} inodes on it");
            report.add(Code::OrphanList, Spot::inode(next), text, "an end");
            break;
        }
        if !orphans.insert(next) {
            report.add(Code::OrphanList, Spot::inode(next), "the list comes back to it", "an end");
            break;
        }
        before = format!("the inode after {next}");
        next = inode.raw.i_dtime.get();
    }
    match ctx.sb.compat().contains(Compat::ORPHAN_FILE) {
        true => orphan_file(ctx, replayed, &mut orphans, report).await,
        false => without_orphan_file(ctx, report).await,
    }
    orphans
}

/// Looks for traces of an orphan file on a volume without the `orphan_file` feature.
async fn without_orphan_file(ctx: &Context, report: &mut Report) {
    let raw = ctx.sb.raw();
    if ctx.sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
        let found = "orphan_present without orphan_file";
        report.add(Code::OrphanFile, Spot::default(), found, "both or neither");
    }
    let number = InodeNumber(raw.s_orphan_file_inum.get());
    // Reserved inodes are covered by other checks.
    let is_other = matches!(number.0, 0..=4 | 8) || number.0 == raw.s_prj_quota_inum.get();
    if !is_other
        && number.0 <= ctx.sb.inodes_count()
        && read_inode(ctx, number).await.is_some_and(|inode| is_in_use(&inode))
    {
        // Linux does not open a file with this number.
        let found = "it is in use, and s_orphan_file_inum names it without orphan_file";
        report.add(Code::OrphanFile, Spot::inode(number.0), found, "s_orphan_file_inum 0");
    }
}

async fn orphan_file(ctx: &Context, replayed: bool, orphans: &mut BTreeSet<u32>, report: &mut Report) {
    let sb = &ctx.sb;
    let number = sb.raw().s_orphan_file_inum.get();
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        // Linux changes an orphan file only through the journal.
        let found = "orphan_file without has_journal";
        report.add(Code::OrphanFile, Spot::inode(number), found, "both or neither");
    }
    let inode = match number != 0 && number <= sb.inodes_count() {
        true => read_inode(ctx, InodeNumber(number)).await,
        false => None,
    };
    let spot = Spot::inode(number);
    let Some(inode) = inode.filter(|inode| inode.kind() == Some(FileKind::Regular)) else {
        return report.add(Code::OrphanFile, spot, format!("inode {number}"), "a regular file");
    };
    let block_bytes = ctx.source.block_bytes().to_u64();
    if inode.size() % block_bytes != 0 {
        report.add(Code::OrphanFile, spot.clone(), format!("i_size is {}", inode.size()), "whole blocks");
    }
    let seed = ctx.seed.map(|seed| inode.checksum_seed(seed));
    let mut blocks = inode.size() / block_bytes;
    if inode.size() > ORPHAN_BYTES_MAX {
        let expected = format!("at most {ORPHAN_BYTES_MAX}");
        report.add(Code::OrphanFile, spot.clone(), format!("i_size is {}", inode.size()), expected);
        blocks = ORPHAN_BYTES_MAX / block_bytes;
    }
    let mut next = 0;
    let mut entries = 0;
    for (logical, at, len) in runs(ctx, &inode).await {
        for n in 0..len.min(blocks.saturating_sub(logical)) {
            let spot = spot.clone().at_block(at + n).at_file_block(logical + n);
            if logical + n != next {
                report.add(Code::OrphanFile, spot.clone(), "a hole before it", "no holes");
            }
            next = logical + n + 1;
            let Some(piece) = ctx.source.one(at + n).await else {
                report.add(Code::ReadError, spot, "unreadable", "a block of the orphan file");
                continue;
            };
            let block = match OrphanBlock::parse(piece.bytes(), FileBlock((logical + n).fit_u32())) {
                Ok(block) => block,
                Err(corrupt) => {
                    report.corrupt(Code::OrphanFile, spot, &corrupt);
                    continue;
                }
            };
            if let Some(seed) = seed
                && let Err(corrupt) = block.verify_checksum(VolumeBlock(at + n), seed)
            {
                report.corrupt(Code::OrphanFile, spot.clone(), &corrupt);
            }
            for (slot, orphan) in block.orphans() {
                entries += 1;
                let is_file = orphan >= sb.first_inode() && orphan.0 <= sb.inodes_count();
                if is_file && !sb.is_own_inode(orphan) {
                    orphans.insert(orphan.0);
                } else {
                    let text = format!("inode {orphan} in slot {slot}");
                    report.add(Code::OrphanFile, spot.clone(), text, "an inode of a file");
                }
            }
        }
    }
    if next < blocks {
        report.add(Code::OrphanFile, spot.clone(), format!("{next} blocks are mapped"), blocks.to_string());
    }
    let is_present = sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT);
    // Linux sets the feature when it mounts the volume for writing.
    let is_dirty = replayed || sb.incompat().contains(Incompat::RECOVER);
    if entries > 0 && !is_present {
        let text = format!("{entries} entries without orphan_present");
        report.add(Code::OrphanFile, spot, text, "the feature, or none");
    } else if entries == 0 && is_present && !is_dirty {
        report.add(
            Code::OrphanFile,
            spot,
            "orphan_present without entries",
            "an entry, or no orphan_present",
        );
    }
}

/// Checks the journal's inode and superblock.
pub(crate) async fn journal(ctx: &Context, replayed: bool, report: &mut Report) {
    let sb = &ctx.sb;
    let Some(number) = sb.journal_inode() else { return };
    let spot = Spot::inode(number.0);
    let inode = match number.0 <= sb.inodes_count() {
        true => read_inode(ctx, number).await,
        false => None,
    };
    let Some(inode) = inode else {
        return report.add(Code::JournalInode, spot, format!("inode {number}"), "an inode of the volume");
    };
    if inode.kind() != Some(FileKind::Regular) || inode.links() == 0 {
        // The mode was reported with the inodes.
        if inode.links() == 0 {
            report.add(Code::JournalInode, spot, "not in use", "a regular file");
        }
        return;
    }
    let map = runs(ctx, &inode).await;
    ctx.journal_blocks.store(map.iter().map(|run| run.2).sum(), Ordering::Relaxed);
    let block_bytes = ctx.source.block_bytes().to_u64();
    let blocks = inode.size() / block_bytes;
    let Some(&(0, first, _)) = map.first() else {
        return report.add(
            Code::JournalInode,
            spot,
            "its first block has no place",
            "a journal's superblock",
        );
    };
    let mapped: u64 = map.iter().map(|run| run.2.min(blocks.saturating_sub(run.0))).sum();
    if mapped < blocks {
        let text = format!("{mapped} blocks have a place");
        report.add(Code::JournalInode, spot.clone(), text, format!("{blocks}"));
    }
    let spot = spot.at_block(first);
    let Some(piece) = ctx.source.one(first).await else {
        return report.add(Code::ReadError, spot, "unreadable", "the journal's superblock");
    };
    let journal = match JournalSuperblock::parse(piece.bytes()) {
        Ok(journal) => journal,
        Err(corrupt) => return report.corrupt(Code::JournalSuperblock, spot, &corrupt),
    };
    if let Err(corrupt) = journal.verify_checksum() {
        report.corrupt(Code::JournalSuperblock, spot.clone(), &corrupt);
    }
    let add = |code, text: String, expected: &str| report.add(code, spot.clone(), text, expected);
    if journal.block_size() != sb.block_size() {
        let text = format!("s_blocksize is {}", journal.block_size());
        add(Code::JournalSuperblock, text, "the volume's block size");
    } else if u64::from(journal.blocks()) > blocks {
        let text = format!("s_maxlen is {}", journal.blocks());
        add(Code::JournalSuperblock, text, "at most the blocks of its file");
    }
    let unknown = journal.incompat() - extant_format::jbd2::JournalIncompat::KNOWN;
    if !unknown.is_empty() {
        add(Code::JournalSuperblock, format!("unknown features {:#x}", unknown.bits()), "none");
    }
    let own = journal.raw();
    if journal.is_v1()
        && [own.s_feature_compat, own.s_feature_incompat, own.s_feature_ro_compat, own.s_nr_users]
            .iter()
            .any(|field| field.get() != 0)
    {
        add(Code::JournalSuperblock, "version 1 with fields of version 2".into(), "zeros there");
    }
    if own.s_nr_users.get() > 1 {
        let text = format!("{} volumes use it", own.s_nr_users);
        add(Code::JournalSuperblock, text, "one, for it is a file of this volume");
    }
    if journal.errno() != 0 {
        add(Code::JournalErrno, format!("error {}", journal.errno()), "none");
    }
    let dirty = sb.incompat().contains(Incompat::RECOVER);
    if journal.start().is_some() && !dirty && !replayed {
        add(Code::JournalState, "the log is not empty, needs_recovery is clear".into(), "both or neither");
    }
}

/// Checks the reserved descriptor blocks in the resize inode's map.
pub(crate) async fn resize_inode(ctx: &Context, report: &mut Report) {
    let sb = &ctx.sb;
    let reserved = u32::from(sb.raw().s_reserved_gdt_blocks.get());
    if !sb.compat().contains(Compat::RESIZE_INODE) || sb.incompat().contains(Incompat::META_BG) {
        return;
    }
    let spot = Spot::inode(InodeNumber::RESIZE.0);
    let Some(inode) = read_inode(ctx, InodeNumber::RESIZE).await else { return };
    let block_bytes = u64::from(sb.block_size().bytes());
    let most = extant_format::indirect_capacity(sb.block_size()).saturating_mul(block_bytes);
    if inode.links() > 0 && inode.size() > most {
        let text = format!("i_size is {}", inode.size());
        return report.add(Code::ResizeInode, spot, text, format!("at most {most}"));
    }
    let double = inode.block_pointer(13);
    if inode.links() == 0
        || inode.kind() != Some(FileKind::Regular)
        || !sb.is_valid_block(double)
        || double.0 == 0
    {
        let text = "no map of the reserved blocks";
        return report.add(Code::ResizeInode, spot, text, format!("{reserved} blocks"));
    }
    if let Some(n) = (0..15).find(|&n| n != 13 && inode.block_pointer(n).0 != 0) {
        let text = format!("block {} in slot {n} of the inode", inode.block_pointer(n));
        return report.add(Code::ResizeInode, spot, text, "none");
    }
    if reserved == 0 {
        return;
    }
    let Some(top) = ctx.source.one(double.0).await else { return };
    let top = pointers(top.bytes());
    let backups = sb.backup_groups();
    let first = sb.descriptor_block(0).0 + u64::from(sb.descriptor_blocks());
    let per_group = u64::from(sb.blocks_per_group());
    let reserved: Vec<u64> = (0..reserved).map(|n| first + u64::from(n)).collect();
    let mut expected = vec![0; top.len()];
    for (n, &at) in (sb.descriptor_blocks().to_usize()..).zip(&reserved) {
        expected[n % top.len()] = at;
    }
    let differs = |found: &[u64], expected: &[u64]| {
        let slot = found.iter().zip(expected).position(|(found, expected)| found != expected)?;
        Some((format!("block {} in slot {slot}", found[slot]), expected[slot].to_string()))
    };
    if let Some((text, expected)) = differs(&top, &expected) {
        return report.add(Code::ResizeInode, spot.at_block(double.0), text, expected);
    }
    let mut wrong = None;
    ctx.source
        .scattered(&reserved, |n, block| {
            let (Some(block), None) = (block, &wrong) else { return };
            let at = reserved[n];
            let below = pointers(block);
            let mut expected: Vec<u64> =
                backups.iter().map(|group| at + u64::from(group.0) * per_group).collect();
            expected.resize(below.len(), 0);
            wrong = differs(&below, &expected).map(|(text, expected)| (at, text, expected));
        })
        .await;
    if let Some((at, text, expected)) = wrong {
        report.add(Code::ResizeInode, spot.at_block(at), text, expected);
    }
}

fn pointers(block: &[u8]) -> Vec<u64> {
    block.chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]]).into()).collect()
}

/// Checks the block of multiple-mount protection; returns whether it says that the volume is in
/// use.
pub(crate) async fn mmp(ctx: &Context, report: &mut Report) {
    if !ctx.sb.incompat().contains(Incompat::MMP) {
        return;
    }
    let at = VolumeBlock(ctx.sb.raw().s_mmp_block.get());
    let spot = Spot::block(at.0);
    if !ctx.sb.is_valid_block(at) || at.0 == 0 {
        return report.add(Code::Mmp, spot, format!("block {at}"), "a block of the volume");
    }
    let Some(piece) = ctx.source.one(at.0).await else {
        return report.add(Code::ReadError, spot, "unreadable", "multiple-mount protection");
    };
    let checked = Mmp::parse(piece.bytes(), at).and_then(|mmp| match ctx.seed {
        Some(seed) => mmp.verify_checksum(seed),
        None => Ok(()),
    });
    if let Err(corrupt) = checked {
        report.corrupt(Code::Mmp, spot, &corrupt);
    }
}
