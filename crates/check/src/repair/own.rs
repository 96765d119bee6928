//! The volume's own files: orphans, quota, reserved descriptor blocks, bad blocks, and the block of
//! multiple-mount protection.

use super::editor::Editor;
use super::maps;
use crate::finding::Finding;
use crate::quota_files;
use extant_format::jbd2::{JournalIncompat, JournalSuperblock};
use extant_format::{
    BlockSize, Compat, FileBlock, FileKind, Incompat, Inode, InodeFlags, InodeNumber, Mmp, OrphanBlock,
    QUOTA_BLOCK_BYTES, QUOTA_LEAF_ENTRIES, QUOTA_TREE_DEPTH, QuotaEntry, QuotaHeader, QuotaKind, RoCompat,
    VolumeBlock, finish_orphan_block, pointers_per_block, write_quota_leaf, write_quota_tree_node,
};
use std::collections::BTreeMap;

/// Clears the orphan list. That deletes inodes without links; the others keep their size.
pub(super) async fn orphan_list(editor: &mut Editor<'_>, finding: &Finding) {
    if editor.sb.raw().s_last_orphan.get() != 0 {
        editor.sb.raw_mut().s_last_orphan = 0.into();
        editor.write_superblock().await;
    }
    let mut numbers: Vec<u32> = editor.ctx.orphans.iter().copied().collect();
    numbers.extend(finding.spot.inode.filter(|number| (1..=editor.sb.inodes_count()).contains(number)));
    let now = editor.now.and_then(|now| u32::try_from(now).ok());
    let deleted = now.unwrap_or(u32::MAX >> 1).max(editor.sb.inodes_count());
    for number in numbers {
        let count = editor.sb.inodes_count();
        editor
            .with_inode(InodeNumber(number), |inode, _| {
                let dtime = inode.raw.i_dtime.get();
                if inode.links() > 0 {
                    inode.raw.i_dtime = 0.into();
                } else if (inode.mode() != 0 || dtime != 0) && dtime <= count {
                    inode.raw.i_dtime = deleted.into();
                }
            })
            .await;
    }
}

/// Empties the orphan file. If it is damaged, removes the feature. If its number names an ordinary
/// file, keeps that file.
pub(super) async fn orphan_file(editor: &mut Editor<'_>) {
    let number = InodeNumber(editor.sb.raw().s_orphan_file_inum.get());
    let without_mark = (editor.sb.ro_compat() - RoCompat::ORPHAN_PRESENT).bits();
    if !editor.sb.compat().contains(Compat::ORPHAN_FILE) {
        editor.sb.raw_mut().s_feature_ro_compat = without_mark.into();
        editor.sb.raw_mut().s_orphan_file_inum = 0.into();
        editor.write_superblock().await;
        return editor.say("clear what the superblock says of an orphan file, for there is none", "");
    }
    let is_number = number >= editor.sb.first_inode() && number.0 <= editor.sb.inodes_count();
    let inode = if is_number { editor.inode(number).await } else { None };
    let (places, contents) = match &inode {
        Some(inode) => orphan_blocks(editor, inode).await,
        None => (Vec::new(), Contents::Other),
    };
    if places.iter().flatten().any(|&at| editor.is_contested(at)) {
        return;
    }
    editor.sb.raw_mut().s_feature_ro_compat = without_mark.into();
    let is_whole = !places.is_empty() && places.iter().all(Option::is_some);
    let is_regular = |inode: &Inode| inode.kind() == Some(FileKind::Regular);
    let has_journal = editor.sb.compat().contains(Compat::HAS_JOURNAL);
    let is_own = contents != Contents::Other;
    let sound = inode.as_ref().filter(|inode| is_whole && is_own && is_regular(inode) && has_journal);
    let Some(inode) = sound else {
        let compat = editor.sb.compat() - Compat::ORPHAN_FILE;
        editor.sb.raw_mut().s_feature_compat = compat.bits().into();
        editor.sb.raw_mut().s_orphan_file_inum = 0.into();
        editor.write_superblock().await;
        if contents == Contents::Orphans || is_own && inode.as_ref().is_some_and(is_regular) {
            editor.set_inode(&Inode::new(number, &editor.sb.clone())).await;
        }
        return editor.say("do without an orphan file", "");
    };
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    for at in places.into_iter().flatten() {
        let mut block = vec![0; editor.block_bytes()];
        finish_orphan_block(&mut block, VolumeBlock(at), seed);
        editor.set_block(at, &block).await;
    }
    let orphans: Vec<u32> = editor.ctx.orphans.iter().copied().collect();
    for number in orphans {
        editor
            .with_inode(InodeNumber(number), |inode, _| {
                if inode.links() > 0 {
                    inode.raw.i_dtime = 0.into();
                }
            })
            .await;
    }
    editor.write_superblock().await;
}

/// The contents of the file that the superblock names as the orphan file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    /// At least one block of an orphan file.
    Orphans,
    /// Only zeros, as a lost orphan file may have.
    Zeros,
    /// Nothing, or data of another kind.
    Other,
}

/// Blocks of an orphan file, in order, and the kind of their contents.
async fn orphan_blocks(editor: &mut Editor<'_>, inode: &Inode) -> (Vec<Option<u64>>, Contents) {
    /// More blocks than Linux accepts with any block size.
    const MOST: u64 = 8192;
    let map = maps::read(editor, inode).await;
    let blocks = u32::try_from((inode.size() / editor.block_len()).min(MOST)).unwrap_or(0);
    let places: Vec<_> = (0..blocks).map(|logical| map.place(logical)).collect();
    let mut contents = Contents::Zeros;
    for &at in places.iter().flatten() {
        let Some(block) = editor.block(at).await else { continue };
        if OrphanBlock::parse(&block, FileBlock(0)).is_ok() {
            return (places, Contents::Orphans);
        }
        if block.iter().any(|&byte| byte != 0) {
            contents = Contents::Other;
        }
    }
    match places.iter().any(Option::is_some) {
        true => (places, contents),
        false => (places, Contents::Other),
    }
}

/// Writes the block of multiple-mount protection anew.
pub(super) async fn mmp(editor: &mut Editor<'_>) {
    let at = VolumeBlock(editor.sb.raw().s_mmp_block.get());
    if editor.is_contested(at.0) {
        // The file that shares the block gets a copy first.
        return;
    }
    if at.0 != 0 && editor.sb.is_valid_block(at) && editor.block(at.0).await.is_some() {
        let mut block = vec![0; editor.block_bytes()];
        let interval = editor.sb.raw().s_mmp_update_interval.get().max(5);
        Mmp::clean(at, interval).write_to(&mut block, editor.seed());
        return editor.set_block(at.0, &block).await;
    }
    let incompat = editor.sb.incompat() - Incompat::MMP;
    let raw = editor.sb.raw_mut();
    raw.s_feature_incompat = incompat.bits().into();
    raw.s_mmp_block = 0.into();
    raw.s_mmp_update_interval = 0.into();
    editor.write_superblock().await;
    editor.say("do without multiple-mount protection; tune2fs -O mmp adds it", "");
}

/// Fills a block with the superblock of an empty journal; false if it would be too small.
pub(super) fn new_journal(block: &mut [u8], size: BlockSize, blocks: u32) -> bool {
    /// `JBD2_MIN_JOURNAL_BLOCKS`.
    const LEAST: u32 = 1024;
    if blocks < LEAST {
        return false;
    }
    block.fill(0);
    JournalSuperblock::new(size, blocks, 0, JournalIncompat::empty(), [0; 16], 1).write_to(block);
    true
}

/// Rebuilds the map of reserved descriptor blocks from the geometry.
pub(super) async fn resize_inode(editor: &mut Editor<'_>) {
    let sb = editor.sb.clone();
    let number = InodeNumber::RESIZE;
    if !sb.compat().contains(Compat::RESIZE_INODE) {
        editor.set_inode(&Inode::new(number, &sb)).await;
        return editor.say("clear it, for nothing refers to it", "");
    }
    let Some(mut inode) = editor.inode(number).await else { return };
    let per_block = u64::from(pointers_per_block(sb.block_size()));
    let old = inode.block_pointer(13);
    let is_free = |at: VolumeBlock| {
        at.0 != 0
            && sb.is_valid_block(at)
            && !editor.ctx.own.contains(at.0)
            && !editor.ctx.claims.is_shared(at.0, 1).0
    };
    let top_at = if is_free(old) { old.0 } else { editor.allocate(0).unwrap_or(0) };
    let Ok(pointer) = u32::try_from(top_at) else { return };
    if top_at == 0 {
        return;
    }
    let mut top = vec![0; editor.block_bytes()];
    let first = sb.descriptor_block(0).0 + u64::from(sb.descriptor_blocks());
    let groups = sb.backup_groups();
    let reserved = u32::from(sb.raw().s_reserved_gdt_blocks.get());
    let put = |block: &mut [u8], slot: u64, at: u64| {
        let (Ok(slot), Ok(at)) = (usize::try_from(slot), u32::try_from(at)) else { return };
        block[slot * 4..slot * 4 + 4].copy_from_slice(&at.to_le_bytes());
    };
    for n in 0..reserved {
        let at = first + u64::from(n);
        put(&mut top, u64::from(sb.descriptor_blocks() + n) % per_block, at);
        let mut below = vec![0; editor.block_bytes()];
        for (slot, group) in (0..).zip(&groups) {
            put(&mut below, slot, at + u64::from(group.0) * u64::from(sb.blocks_per_group()));
        }
        editor.set_block(at, &below).await;
    }
    editor.set_block(top_at, &top).await;
    inode.raw.i_block = [0; 60];
    inode.raw.i_block[52..56].copy_from_slice(&pointer.to_le_bytes());
    inode.raw.i_mode = (FileKind::Regular.mode_bits() | 0o600).into();
    inode.raw.i_links_count = 1.into();
    inode.raw.i_flags = (inode.flags() - InodeFlags::EXTENTS).bits().into();
    inode.raw.i_dtime = 0.into();
    inode.set_size((per_block * per_block + per_block + 12) * editor.block_len());
    let blocks = 1 + u64::from(reserved) * (1 + u64::try_from(groups.len()).unwrap_or(0));
    inode.set_blocks_512(blocks * editor.block_len() / 512, &sb);
    editor.set_inode(&inode).await;
}

/// Drops invalid blocks from the list of bad blocks.
pub(super) async fn bad_blocks(editor: &mut Editor<'_>) {
    let Some(mut inode) = editor.inode(InodeNumber::BAD_BLOCKS).await else { return };
    maps::mend(editor, &mut inode).await;
    let map = maps::read(editor, &inode).await;
    let is_own = |at: u64| editor.ctx.own.contains(at);
    let nodes = map.nodes.iter().any(|&at| is_own(at));
    let extents = map.extents.iter();
    let blocks: Vec<u64> = extents.flat_map(|e| e.physical.0..e.physical.0 + u64::from(e.blocks)).collect();
    if nodes || blocks.iter().any(|&at| is_own(at)) {
        // The list is short, so write it again without these blocks.
        let mut kept = maps::Map::default();
        for (n, at) in (0..).zip(blocks.into_iter().filter(|&at| !is_own(at))) {
            kept.replace(n, at);
        }
        inode.raw.i_block = [0; 60];
        if !maps::write(editor, &mut inode, &kept).await {
            return;
        }
        inode.set_size(kept.end() * editor.block_len());
    }
    editor.set_inode(&inode).await;
}

/// The kind of a quota file.
fn quota_kind(editor: &Editor<'_>, number: u32) -> Option<QuotaKind> {
    let raw = editor.sb.raw();
    let files = [
        (QuotaKind::User, raw.s_usr_quota_inum.get()),
        (QuotaKind::Group, raw.s_grp_quota_inum.get()),
        (QuotaKind::Project, raw.s_prj_quota_inum.get()),
    ];
    files.into_iter().find(|file| file.1 == number).map(|file| file.0)
}

/// Clears the numbers of quota files on a volume without the quota feature.
async fn forget_quota_inode(editor: &mut Editor<'_>, number: u32) {
    let raw = editor.sb.raw_mut();
    for field in [&mut raw.s_usr_quota_inum, &mut raw.s_grp_quota_inum, &mut raw.s_prj_quota_inum] {
        if field.get() == number {
            *field = 0.into();
        }
    }
    editor.write_superblock().await;
    editor.say("clear the number of a quota file, for the volume has none", "");
}

/// Writes a quota file anew: usage as counted, limits as far as they can be read.
pub(super) async fn quota(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(number) = finding.spot.inode else { return };
    if !editor.sb.ro_compat().contains(RoCompat::QUOTA) {
        return forget_quota_inode(editor, number).await;
    }
    let Some(kind) = quota_kind(editor, number) else { return };
    let Some(mut inode) = quota_inode(editor, kind, number).await else { return };
    let stored = quota_files::contents(editor.ctx, &inode).await;
    let (mut entries, wrong) = quota_files::entries(&stored, editor.block_bytes(), kind, &inode);
    let is_damaged = wrong.is_some() && !stored.is_empty();
    for entry in entries.values_mut() {
        (entry.space_bytes, entry.inodes) = (0, 0);
    }
    for (&id, &(space_bytes, inodes)) in editor.survey.usage.of(kind) {
        let entry = entries.entry(id).or_insert(QuotaEntry { id, ..QuotaEntry::default() });
        (entry.space_bytes, entry.inodes) = (space_bytes, inodes);
    }
    let header = stored.get(&0).and_then(|block| QuotaHeader::parse(block, inode.number).ok());
    let bytes = quota_file(kind, header, &entries);
    let block = editor.block_bytes();
    let mut map = maps::read(editor, &inode).await;
    let mut is_grown = false;
    for (logical, piece) in (0..).zip(bytes.chunks(block)) {
        let at = match map.place(logical) {
            Some(at) => at,
            None => {
                let Some(at) = editor.allocate(0) else { return };
                map.replace(logical, at);
                is_grown = true;
                at
            }
        };
        let mut padded = vec![0; block];
        padded[..piece.len()].copy_from_slice(piece);
        editor.set_block(at, &padded).await;
    }
    if is_grown && !maps::write(editor, &mut inode, &map).await {
        return;
    }
    let size = u64::try_from(bytes.len()).unwrap_or(0).next_multiple_of(editor.block_len());
    inode.set_size(size.max(map.end() * editor.block_len()));
    editor.set_inode(&inode).await;
    let lost = if is_damaged { "limits of ids whose entries nothing leads to any more" } else { "" };
    editor.say("write the file anew, with usage as counted", lost);
}

/// Returns the inode of a quota file; creates the file if there is none.
async fn quota_inode(editor: &mut Editor<'_>, kind: QuotaKind, number: u32) -> Option<Inode> {
    let usual = match kind {
        QuotaKind::User => InodeNumber::USER_QUOTA,
        QuotaKind::Group => InodeNumber::GROUP_QUOTA,
        QuotaKind::Project => InodeNumber(number),
    };
    let is_valid = number == usual.0 || InodeNumber(number) >= editor.sb.first_inode();
    let number = match number <= editor.sb.inodes_count() && is_valid {
        true => InodeNumber(number),
        false => usual,
    };
    if number.0 > editor.sb.inodes_count() {
        editor.sb.raw_mut().s_prj_quota_inum = 0.into();
        editor.write_superblock().await;
        return None;
    }
    let found = editor.inode(number).await?;
    let raw = editor.sb.raw_mut();
    match kind {
        QuotaKind::User => raw.s_usr_quota_inum = number.0.into(),
        QuotaKind::Group => raw.s_grp_quota_inum = number.0.into(),
        QuotaKind::Project => raw.s_prj_quota_inum = number.0.into(),
    }
    editor.write_superblock().await;
    if found.kind() == Some(FileKind::Regular) && found.links() > 0 {
        return Some(found);
    }
    let mut inode = Inode::new(number, &editor.sb);
    inode.raw.i_mode = (FileKind::Regular.mode_bits() | 0o600).into();
    inode.raw.i_links_count = 1.into();
    inode.raw.i_flags = InodeFlags::IMMUTABLE.bits().into();
    if editor.sb.incompat().contains(Incompat::EXTENTS) {
        let flags = inode.flags() | InodeFlags::EXTENTS;
        inode.raw.i_flags = flags.bits().into();
        maps::write(editor, &mut inode, &maps::Map::default()).await;
    }
    Some(inode)
}

/// Builds a quota file with these entries.
fn quota_file(kind: QuotaKind, old: Option<QuotaHeader>, entries: &BTreeMap<u32, QuotaEntry>) -> Vec<u8> {
    let mut file = QuotaBuilder { blocks: vec![vec![0; QUOTA_BLOCK_BYTES]], leaf: None };
    let list: Vec<QuotaEntry> = entries.values().copied().collect();
    file.node(&list, 0);
    let free_leaf = file.end_leaf();
    let header = QuotaHeader {
        kind,
        // A week, as Linux and quota tools set it.
        space_grace_s: old.map_or(604_800, |old| old.space_grace_s),
        inode_grace_s: old.map_or(604_800, |old| old.inode_grace_s),
        blocks: u32::try_from(file.blocks.len()).unwrap_or(u32::MAX),
        free_block: None,
        free_leaf,
    };
    header.write_to(&mut file.blocks[0]);
    file.blocks.concat()
}

struct QuotaBuilder {
    blocks: Vec<Vec<u8>>,
    leaf: Option<(FileBlock, Vec<QuotaEntry>)>,
}

impl QuotaBuilder {
    fn new_block(&mut self) -> FileBlock {
        self.blocks.push(vec![0; QUOTA_BLOCK_BYTES]);
        FileBlock(u32::try_from(self.blocks.len() - 1).unwrap_or(u32::MAX))
    }

    fn at(&mut self, block: FileBlock) -> Option<&mut Vec<u8>> {
        self.blocks.get_mut(usize::try_from(block.0).ok()?)
    }

    /// Adds the tree for entries whose ids have the first bytes in common.
    fn node(&mut self, entries: &[QuotaEntry], level: usize) -> FileBlock {
        let own = self.new_block();
        let byte = |entry: &QuotaEntry| entry.id.to_be_bytes()[level];
        let mut children = Vec::new();
        for group in entries.chunk_by(|a, b| byte(a) == byte(b)) {
            let child = match level + 1 < QUOTA_TREE_DEPTH {
                true => self.node(group, level + 1),
                false => self.add(group[0]),
            };
            children.push((byte(&group[0]), child));
        }
        if let Some(block) = self.at(own) {
            write_quota_tree_node(block, children);
        }
        own
    }

    fn add(&mut self, entry: QuotaEntry) -> FileBlock {
        if self.leaf.as_ref().is_some_and(|leaf| leaf.1.len() == QUOTA_LEAF_ENTRIES) {
            self.end_leaf();
        }
        let (at, mut entries) = match self.leaf.take() {
            Some(leaf) => leaf,
            None => (self.new_block(), Vec::new()),
        };
        entries.push(entry);
        self.leaf = Some((at, entries));
        at
    }

    /// Writes the open leaf; returns its block if it has free entries.
    fn end_leaf(&mut self) -> Option<FileBlock> {
        let (at, entries) = self.leaf.take()?;
        let has_room = entries.len() < QUOTA_LEAF_ENTRIES;
        if let Some(block) = self.at(at) {
            write_quota_leaf(block, [None, None], &entries);
        }
        has_room.then_some(at)
    }
}
