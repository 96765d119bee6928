//! Superblock, journal and group descriptors, through which everything else is found.

use super::editor::Editor;
use super::flips;
use super::plan::Policy;
use crate::Code;
use crate::finding::Finding;
use crate::open::ENCODING;
use crate::own_files;
use extant_format::jbd2::JournalSuperblock;
use extant_format::{
    Compat, FileKind, Group, GroupFlags, Incompat, Inode, InodeFlags, InodeNumber, RoCompat,
    SUPERBLOCK_BYTES, Superblock, VolumeBlock, XattrName, Xattrs, crc32c,
};

/// Repairs the superblock.
pub(super) async fn superblock(editor: &mut Editor<'_>, finding: &Finding) {
    if let Some(mended) = flipped_superblock(editor).await {
        editor.write_superblock_bytes(&mended).await;
        return editor.say("flip back the bit that the checksum names", "");
    }
    match finding.code {
        Code::SuperblockDamaged => {
            // A backup was read instead.
            if editor.sb.incompat().contains(Incompat::RECOVER) {
                let incompat = editor.sb.incompat() - Incompat::RECOVER;
                editor.sb.raw_mut().s_feature_incompat = incompat.bits().into();
            }
            editor.write_superblock().await;
        }
        Code::SuperblockField => {
            let has_folded = editor.survey.all.dirs.iter().any(|dir| dir.casefold);
            fields(&mut editor.sb, has_folded);
            editor.write_superblock().await;
        }
        // Fields that follow from others were corrected when the superblock was read.
        _ => editor.write_superblock().await,
    }
}

/// Returns the superblock's bytes with one bit flipped, if that makes it right.
async fn flipped_superblock(editor: &Editor<'_>) -> Option<Vec<u8>> {
    let mut bytes = editor.superblock_bytes().await?.to_vec();
    let message = SUPERBLOCK_BYTES - 4;
    let stored = bytes[message..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let off = crc32c(!0, &bytes[..message]) ^ stored;
    if off == 0 {
        return None;
    }
    match flips::of_message(off, message) {
        Some(flip) => bytes[flip.byte] ^= flip.mask,
        None if off.is_power_of_two() => {
            let sum = crc32c(!0, &bytes[..message]);
            bytes[message..].copy_from_slice(&sum.to_le_bytes());
        }
        None => return None,
    }
    let sb = Superblock::parse(&bytes).ok()?;
    (sb.has_metadata_csum() && sb.verify_checksum().is_ok()).then_some(bytes)
}

/// Corrects fields that are out of range.
fn fields(sb: &mut Superblock, has_folded: bool) {
    let (blocks, half) = (sb.blocks_count(), sb.blocks_count() / 2);
    let (is_big, has_resize) =
        (sb.ro_compat().contains(RoCompat::BIGALLOC), sb.compat().contains(Compat::RESIZE_INODE));
    let has_meta = sb.incompat().contains(Incompat::META_BG);
    let descriptors = sb.descriptor_blocks();
    let folds = sb.incompat().contains(Incompat::CASEFOLD);
    let without_folding = sb.incompat() - Incompat::CASEFOLD;
    let most_extra = sb.inode_size().saturating_sub(128);
    let is_too_many = sb.reserved_blocks() > half;
    let is_dynamic = sb.rev_level() > 0;
    let last = sb.inodes_count();
    let first = sb.first_inode().0;
    let raw = sb.raw_mut();
    if is_too_many {
        // mke2fs reserves as many by default.
        let reserved = blocks / 20;
        raw.s_r_blocks_count_lo = u32::try_from(reserved & u64::from(u32::MAX)).unwrap_or(0).into();
        raw.s_r_blocks_count_hi = u32::try_from(reserved >> 32).unwrap_or(0).into();
    }
    if !is_big {
        raw.s_clusters_per_group = raw.s_blocks_per_group;
        raw.s_log_cluster_size = raw.s_log_block_size;
    }
    if !has_resize {
        raw.s_reserved_gdt_blocks = 0.into();
    }
    if has_meta && raw.s_first_meta_bg.get() > descriptors {
        raw.s_first_meta_bg = descriptors.into();
    }
    for field in [&mut raw.s_min_extra_isize, &mut raw.s_want_extra_isize] {
        if most_extra > 0 && (field.get() > most_extra || field.get() % 4 != 0) {
            *field = 32.into();
        }
    }
    if is_dynamic && first > last {
        raw.s_first_ino = 11.into();
    }
    if folds && raw.s_encoding.get() != ENCODING {
        // mke2fs sets both, so the feature alone is the damage if nothing uses it.
        match raw.s_encoding.get() == 0 && !has_folded {
            true => raw.s_feature_incompat = without_folding.bits().into(),
            false => raw.s_encoding = ENCODING.into(),
        }
    }
    // The flag for tests with a development version.
    raw.s_flags = (raw.s_flags.get() & !4).into();
}

/// Corrects features and hints that follow from what is on the volume.
pub(super) async fn features(editor: &mut Editor<'_>, finding: &Finding) {
    let (compat, incompat, ro) = (editor.sb.compat(), editor.sb.incompat(), editor.sb.ro_compat());
    let (mut new_compat, mut new_incompat, mut new_ro) = (compat, incompat, ro);
    let sb = &mut editor.sb;
    match finding.code {
        Code::SuperblockFeatures => {
            if ro.contains(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM) {
                new_ro -= RoCompat::GDT_CSUM;
            }
            if incompat.contains(Incompat::BIT64) {
                new_incompat |= Incompat::EXTENTS;
            }
            if !ro.contains(RoCompat::METADATA_CSUM) {
                new_incompat -= Incompat::CSUM_SEED;
            }
            if incompat.contains(Incompat::META_BG) && compat.contains(Compat::RESIZE_INODE) {
                new_compat -= Compat::RESIZE_INODE;
                sb.raw_mut().s_reserved_gdt_blocks = 0.into();
            }
            if sb.rev_level() == 0 {
                sb.raise_revision();
            }
        }
        Code::SuperblockHint => {
            // On x86, Linux uses signed characters, and the names were most likely hashed there.
            let flags = sb.raw().s_flags.get();
            sb.raw_mut().s_flags = (flags | 1).into();
        }
        Code::SuperblockUuid => {
            if sb.has_metadata_csum() {
                return;
            }
            let mut rng = editor.rt.rng("uuid of a repaired volume");
            let mut uuid = (u128::from(rng.next_u64()) << 64 | u128::from(rng.next_u64())).to_be_bytes();
            // Random, by RFC 9562.
            uuid[6] = uuid[6] & 0x0f | 0x40;
            uuid[8] = uuid[8] & 0x3f | 0x80;
            sb.raw_mut().s_uuid = uuid;
        }
        _ => {
            let Some(number) = finding.spot.inode else { return };
            let Some(mut inode) = editor.inode(InodeNumber(number)).await else { return };
            let mut unproven = InodeFlags::empty();
            for (flag, feature) in [
                (InodeFlags::EXTENTS, Incompat::EXTENTS),
                (InodeFlags::INLINE_DATA, Incompat::INLINE_DATA),
                (InodeFlags::EA_INODE, Incompat::EA_INODE),
                (InodeFlags::ENCRYPT, Incompat::ENCRYPT),
            ] {
                if !inode.flags().contains(flag) || incompat.contains(feature) {
                    continue;
                }
                match proves(editor, &inode, flag).await {
                    true => new_incompat |= feature,
                    false => unproven |= flag,
                }
            }
            if !unproven.is_empty() {
                inode.raw.i_flags = (inode.flags() - unproven).bits().into();
                editor.set_inode(&inode).await;
                editor.say("clear the flag, for nothing in the inode is of that kind", "");
            }
            if let Some(at) = inode.xattr_block_in(&editor.sb).filter(|_| !compat.contains(Compat::EXT_ATTR))
            {
                // Linux reads the block whatever the superblock says.
                match super::xattrs::is_block(editor, at.0).await {
                    true => new_compat |= Compat::EXT_ATTR,
                    false => {
                        inode.set_xattr_block(VolumeBlock(0));
                        editor.set_inode(&inode).await;
                        editor.say("clear its number, for the block holds no attributes", "");
                    }
                }
            }
            if inode.kind() == Some(FileKind::Regular) && inode.size() > u64::from(u32::MAX >> 1) {
                new_ro |= RoCompat::LARGE_FILE;
            }
        }
    }
    let raw = editor.sb.raw_mut();
    raw.s_feature_compat = new_compat.bits().into();
    raw.s_feature_incompat = new_incompat.bits().into();
    raw.s_feature_ro_compat = new_ro.bits().into();
    editor.write_superblock().await;
}

/// Whether an inode really has the structure that a flag indicates. If so, the volume has lost the
/// feature; if not, damage has set the flag.
async fn proves(editor: &Editor<'_>, inode: &Inode, flag: InodeFlags) -> bool {
    match flag {
        InodeFlags::EXTENTS => inode.map()[..2] == extant_format::EXTENT_MAGIC.to_le_bytes(),
        InodeFlags::INLINE_DATA => {
            let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
            xattrs.get(XattrName::INLINE_DATA).is_some()
        }
        InodeFlags::EA_INODE => {
            inode.kind() == Some(FileKind::Regular) && super::xattrs::is_value(editor, inode).await
        }
        _ => true,
    }
}

/// Writes the journal's newer copies of blocks home, and empties the log. Gives transactions up
/// only if the policy allows it.
pub(super) async fn replay(editor: &mut Editor<'_>) -> bool {
    let finding = Finding {
        code: Code::JournalState,
        spot: crate::Spot::default(),
        name: None,
        path: None,
        found: "the journal is dirty".into(),
        expected: "an empty log".into(),
        value: None,
        suspected: false,
    };
    let device = editor.device.clone();
    let replayed = extant_fs::recover(editor.rt, device.clone(), extant_fs::OpenOptions::default()).await;
    let why = match replayed {
        Ok(_) => {
            let now = editor.superblock_bytes().await.and_then(|bytes| Superblock::parse(&bytes).ok());
            if now.is_some_and(|sb| !sb.incompat().contains(Incompat::RECOVER)) {
                editor.mark(1024 / editor.block_len());
                editor.say("replay the journal, as a mount does", "");
                return editor.end_step(&finding);
            }
            "the volume needs recovery again afterwards".to_owned()
        }
        Err(error) => {
            let why = error.to_string();
            if !matches!(error, extant_fs::Error::Corrupt(_) | extant_fs::Error::Io(_)) {
                editor.obstacle = Some(format!("the journal cannot be replayed: {why}"));
                return false;
            }
            why
        }
    };
    if editor.policy == Policy::Safe {
        editor.obstacle = Some(format!("the journal cannot be replayed as a mount does: {why}"));
        return false;
    }
    // A mount would refuse this journal, but what can be read from its log is still newer.
    let Ok(found) = extant_fs::journal_copies(device.clone()).await else { return false };
    for (home, copy) in found.copies {
        let Some(mut bytes) = editor.block(copy.block.0).await else { continue };
        if copy.escaped {
            bytes[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
        }
        editor.set_block(home.0, &bytes).await;
    }
    if let Some(sb) = editor.superblock_bytes().await.and_then(|bytes| Superblock::parse(&bytes).ok()) {
        editor.sb = sb;
    }
    empty_log(editor).await;
    editor.say("replay what can be read of the journal", "what could not be read of it");
    editor.end_step(&finding)
}

/// Makes the journal's log empty and the volume say so.
async fn empty_log(editor: &mut Editor<'_>) {
    if let Some((at, mut journal, mut block)) = log(editor).await {
        // Choose a sequence number at which blocks of old transactions cannot look like the next
        // ones.
        let next = journal.sequence().wrapping_add(journal.blocks());
        journal.set_position(None, next);
        journal.set_errno(0);
        journal.write_to(&mut block);
        editor.set_block(at, &block).await;
    }
    let incompat = editor.sb.incompat() - Incompat::RECOVER;
    editor.sb.raw_mut().s_feature_incompat = incompat.bits().into();
    editor.write_superblock().await;
}

/// Returns the journal's superblock: its block, its fields, and its bytes.
async fn log(editor: &Editor<'_>) -> Option<(u64, JournalSuperblock, Vec<u8>)> {
    let number = editor.sb.journal_inode()?;
    let inode = editor.inode(number).await?;
    let runs = own_files::runs(editor.ctx, &inode).await;
    let &(0, at, _) = runs.first()? else { return None };
    let block = editor.block(at).await?;
    let journal = JournalSuperblock::parse(&block).ok()?;
    Some((at, journal, block))
}

/// Repairs the journal.
pub(super) async fn journal(editor: &mut Editor<'_>, finding: &Finding) {
    let (compat, incompat) = (editor.sb.compat(), editor.sb.incompat());
    match finding.code {
        Code::JournalState => {
            let raw = editor.sb.raw();
            let has_log = raw.s_journal_inum.get() != 0
                || raw.s_journal_dev.get() != 0
                || raw.s_journal_uuid != [0; 16];
            let raw = editor.sb.raw_mut();
            if compat.contains(Compat::HAS_JOURNAL) && !has_log {
                let without = compat - Compat::HAS_JOURNAL;
                raw.s_feature_compat = without.bits().into();
                raw.s_feature_incompat = (incompat - Incompat::RECOVER).bits().into();
            } else if !compat.contains(Compat::HAS_JOURNAL) {
                raw.s_feature_incompat = (incompat - Incompat::RECOVER).bits().into();
                raw.s_journal_inum = 0.into();
            } else {
                // The log contains what was written last, so replay it, as e2fsck does.
                raw.s_feature_incompat = (incompat | Incompat::RECOVER).bits().into();
                editor.write_superblock().await;
                return editor.say("replay the journal", "what was written without it");
            }
            editor.write_superblock().await;
        }
        Code::JournalErrno => {
            if let Some((at, mut journal, mut block)) = log(editor).await {
                journal.set_errno(0);
                journal.write_to(&mut block);
                editor.set_block(at, &block).await;
            }
        }
        Code::JournalLog => empty_log(editor).await,
        Code::JournalSuperblock => journal_superblock(editor).await,
        _ => journal_inode(editor).await,
    }
}

/// Writes a new superblock to a journal, whose log is then empty.
async fn journal_superblock(editor: &mut Editor<'_>) {
    let Some(number) = editor.sb.journal_inode() else { return };
    let Some(inode) = editor.inode(number).await else { return };
    let runs = own_files::runs(editor.ctx, &inode).await;
    let Some(&(0, at, _)) = runs.first() else { return journal_inode(editor).await };
    let blocks = u32::try_from(inode.size() / editor.block_len()).unwrap_or(0);
    let size = editor.sb.block_size();
    let Some(mut block) = editor.block(at).await else { return };
    if JournalSuperblock::parse(&block).is_err() {
        // A damaged map may lead to a block of another file.
        if take_journal_map(editor, true).await || editor.is_contested(at) {
            return;
        }
    }
    if let Ok(mut journal) = JournalSuperblock::parse(&block)
        && journal.block_size() == size
        && journal.blocks() <= blocks
        && (journal.incompat() - extant_format::jbd2::JournalIncompat::KNOWN).is_empty()
        && has_one_user(&journal)
    {
        let next = journal.sequence().wrapping_add(journal.blocks());
        journal.set_position(None, next);
        journal.write_to(&mut block);
        editor.set_block(at, &block).await;
    }
    let now = editor.block(at).await.and_then(|block| JournalSuperblock::parse(&block).ok());
    let is_right = now.is_some_and(|journal| {
        journal.verify_checksum().is_ok() && journal.start().is_none() && has_one_user(&journal)
    });
    if !is_right {
        let Some(mut block) = editor.block(at).await else { return };
        if !super::own::new_journal(&mut block, size, blocks) {
            return journal_inode(editor).await;
        }
        editor.set_block(at, &block).await;
    }
    let incompat = editor.sb.incompat() - Incompat::RECOVER;
    editor.sb.raw_mut().s_feature_incompat = incompat.bits().into();
    editor.write_superblock().await;
}

/// Whether the fields that only a journal shared by several volumes uses are as in an internal
/// journal.
fn has_one_user(journal: &JournalSuperblock) -> bool {
    let raw = journal.raw();
    let later = [raw.s_feature_compat, raw.s_feature_incompat, raw.s_feature_ro_compat, raw.s_nr_users];
    raw.s_nr_users.get() <= 1 && !(journal.is_v1() && later.iter().any(|field| field.get() != 0))
}

/// Takes the journal's map from its copy in the superblock; without one, gives the journal up.
async fn journal_inode(editor: &mut Editor<'_>) {
    if let Some(number) = editor.sb.journal_inode()
        && let Some(mut inode) = editor.inode(number).await
        && inode.flags().contains(InodeFlags::INLINE_DATA)
    {
        inode.raw.i_flags = (inode.flags() - InodeFlags::INLINE_DATA).bits().into();
        editor.set_inode(&inode).await;
        return editor.say("clear the mark of inline data, for its data are in blocks", "");
    }
    if take_journal_map(editor, false).await {
        return;
    }
    give_journal_up(editor).await;
    editor.say("give the journal up; tune2fs -j makes a new one", "changes not yet replayed");
}

/// Takes the journal's map from its copy in the superblock, if it differs; with `proven`, only if
/// the copy leads to a journal.
async fn take_journal_map(editor: &mut Editor<'_>, proven: bool) -> bool {
    let raw = *editor.sb.raw();
    let has_backup = raw.s_jnl_backup_type == 1 && raw.s_jnl_blocks[0].get() != 0;
    let number = InodeNumber::JOURNAL;
    if !has_backup || editor.sb.journal_inode() != Some(number) || number.0 > editor.sb.inodes_count() {
        return false;
    }
    let Some(mut inode) = editor.inode(number).await else { return false };
    let before = inode.raw;
    for (to, from) in inode.raw.i_block.chunks_exact_mut(4).zip(&raw.s_jnl_blocks) {
        to.copy_from_slice(&from.get().to_le_bytes());
    }
    inode.raw.i_mode = 0o100_600.into();
    inode.raw.i_links_count = 1.into();
    inode.raw.i_dtime = 0.into();
    let magic = raw.s_jnl_blocks[0].get() & 0xffff;
    let is_tree = magic == u32::from(extant_format::EXTENT_MAGIC);
    let mut flags = inode.flags() - InodeFlags::EXTENTS;
    if is_tree {
        flags |= InodeFlags::EXTENTS;
    }
    inode.raw.i_flags = flags.bits().into();
    inode.set_size(u64::from(raw.s_jnl_blocks[15].get()) << 32 | u64::from(raw.s_jnl_blocks[16].get()));
    let is_same = before.i_block == inode.raw.i_block && before.i_mode == inode.raw.i_mode;
    let map = own_files::runs(editor.ctx, &inode).await;
    let mapped: u64 = map.iter().map(|run| run.2).sum();
    if is_same || mapped * editor.block_len() < inode.size() || inode.size() == 0 {
        return false;
    }
    if proven {
        let Some(&(0, first, _)) = map.first() else { return false };
        let block = editor.block(first).await;
        if block.is_none_or(|block| JournalSuperblock::parse(&block).is_err()) {
            return false;
        }
    }
    editor.set_inode(&inode).await;
    editor.say("take the journal's map from the superblock's copy", "");
    true
}

/// Removes the journal's file from a volume, which is complete without a journal.
async fn give_journal_up(editor: &mut Editor<'_>) {
    let Some(number) = editor.sb.journal_inode() else { return };
    if number.0 <= editor.sb.inodes_count() && editor.sb.is_own_inode(number) {
        let inode = extant_format::Inode::new(number, &editor.sb);
        editor.set_inode(&inode).await;
    }
    let (compat, incompat) = (editor.sb.compat(), editor.sb.incompat());
    let raw = editor.sb.raw_mut();
    raw.s_feature_compat = (compat - Compat::HAS_JOURNAL).bits().into();
    raw.s_feature_incompat = (incompat - Incompat::RECOVER).bits().into();
    raw.s_journal_inum = 0.into();
    raw.s_jnl_backup_type = 0;
    raw.s_jnl_blocks = [0.into(); 17];
    editor.write_superblock().await;
}

/// Gives up an empty journal whose blocks are needed for files.
pub(super) async fn give_empty_journal_up(editor: &mut Editor<'_>) {
    let is_empty = match log(editor).await {
        Some((_, journal, _)) => journal.start().is_none(),
        None => false,
    };
    if !is_empty || editor.sb.incompat().contains(Incompat::RECOVER) {
        return;
    }
    give_journal_up(editor).await;
    let action = "give the empty journal up, for its blocks are a file's and there are no others";
    editor.say(format!("{action}; tune2fs -j makes a new one"), "");
}

/// Repairs a group's descriptor.
pub(super) async fn descriptor(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(group) = finding.spot.group.map(Group) else { return };
    let Some(info) = usize::try_from(group.0).ok().and_then(|n| editor.ctx.groups.get(n).copied()) else {
        return;
    };
    if !info.bitmaps || !info.table {
        return;
    }
    let mut gd = info.gd;
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
    let is_unsealed = !editor.sb.has_group_csum() || finding.code == Code::DescriptorChecksum;
    if is_unsealed || gd.unused_inodes > editor.sb.inodes_per_group() {
        // The flags and the count of unused inodes cannot be trusted, so have the whole table read.
        (gd.flags, gd.unused_inodes) = (gd.flags - uninit, 0);
    }
    let per_block = editor.sb.descriptors_per_block();
    let at = editor.sb.descriptor_block(group.0 / per_block).0;
    if finding.code == Code::DescriptorChecksum {
        let place = usize::try_from(group.0 % per_block).unwrap_or(0) * editor.sb.descriptor_size();
        let Some(block) = editor.block(at).await else { return };
        let is_sealed =
            extant_format::GroupDescriptor::verify_checksum(&block[place..], &editor.sb, group).is_ok();
        if is_sealed {
            return;
        }
    }
    editor.set_descriptor(group, &gd).await;
    if info.is_copy() {
        editor.say("take the backup's", "");
    }
}
