//! Marks in the superblock that a volume is open for writing.

use crate::Result;
use crate::journal::Opening;
use crate::meta::MetaStore;
use crate::writer::Writer;
use extant_block::{Bio, BioFlags, Buf, Op, Sector, Segment};
use extant_cache::Disk;
use extant_format::{Compat, Incompat, RoCompat, STATE_ERROR, STATE_VALID, UintExt};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Marks a volume as in use and, when it is closed, as clean.
///
/// An offline batch marks the volume just before its first commit, so a batch without changes
/// leaves every byte as it was. File data may be written earlier. After a crash before the mark,
/// the volume is as before the batch, except for blocks that were overwritten in place.
#[derive(Debug)]
pub(super) struct Marks {
    disk: Disk,
    /// `s_state` as found in the volume and its journal.
    state: u16,
    /// The superblock's block with the marks, but without changes of any transaction.
    opened: Buf,
    opened_at: Sector,
    are_written: AtomicBool,
}

impl Marks {
    /// Sets the marks in memory. `mounted` is the time of a mount that counts as one; `None` for an
    /// offline batch.
    pub(super) fn new(store: &MetaStore, disk: &Disk, state: u16, mounted: Option<i64>) -> Arc<Self> {
        let has_journal = has_journal(store);
        {
            let mut sb = store.superblock_unlogged();
            let orphan_file = sb.compat().contains(Compat::ORPHAN_FILE);
            if has_journal {
                let present = if orphan_file { RoCompat::ORPHAN_PRESENT } else { RoCompat::empty() };
                sb.add_features(Compat::empty(), Incompat::RECOVER, present);
            }
            let raw = sb.raw_mut();
            raw.s_state = if has_journal { state } else { state & !STATE_VALID }.into();
            if let Some(now) = mounted {
                let (low, high) = seconds(now);
                (raw.s_mtime, raw.s_mtime_hi) = (low.into(), high);
                (raw.s_wtime, raw.s_wtime_hi) = (low.into(), high);
                raw.s_mnt_count = raw.s_mnt_count.get().wrapping_add(1).into();
            }
        }
        let (opened_at, opened) = superblock(store);
        Arc::new(Self { disk: disk.clone(), state, opened, opened_at, are_written: AtomicBool::new(false) })
    }

    /// Writes the marks, durably, unless that was done before.
    ///
    /// # Errors
    /// The device failed.
    pub(super) async fn write(&self) -> Result<()> {
        if self.are_written.load(Ordering::Acquire) {
            return Ok(());
        }
        let bio = superblock_bio(self.opened_at, Buf::from_slice(&self.opened), BioFlags::FUA);
        extant_block::execute(&**self.disk.device(), bio).await.1?;
        self.are_written.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether the marks are on the device, as before the first commit of a batch.
    pub(super) fn are_written(&self) -> bool {
        self.are_written.load(Ordering::Acquire)
    }

    /// Marks the volume as clean, durably, after everything else is durable. Writes nothing if the
    /// marks were never written.
    pub(super) async fn close(&self, writer: &Writer) -> Result<()> {
        if !self.are_written.load(Ordering::Acquire) {
            return Ok(());
        }
        let store = &*writer.store;
        let (now, has_journal) = (writer.journal.wall_clock(), has_journal(store));
        let (blocks, inodes) = store.groups().free_totals();
        {
            let mut sb = store.superblock_unlogged();
            let (wide, per_cluster) =
                (sb.incompat().contains(Incompat::BIT64), u64::from(sb.blocks_per_cluster()));
            // A damaged group may count more free inodes than there are.
            let inodes = inodes.min(sb.inodes_count().into());
            let raw = sb.raw_mut();
            let blocks = blocks * per_cluster;
            raw.s_free_blocks_count_lo = blocks.low_u32().into();
            if wide {
                raw.s_free_blocks_count_hi = (blocks >> 32).low_u32().into();
            }
            raw.s_free_inodes_count = inodes.fit_u32().into();
            let (low, high) = seconds(now);
            (raw.s_wtime, raw.s_wtime_hi) = (low.into(), high);
            if has_journal {
                raw.s_feature_incompat = (raw.s_feature_incompat.get() & !Incompat::RECOVER.bits()).into();
                if writer.orphans.is_empty() {
                    let bits = raw.s_feature_ro_compat.get() & !RoCompat::ORPHAN_PRESENT.bits();
                    raw.s_feature_ro_compat = bits.into();
                }
            } else {
                let error = raw.s_state.get() & STATE_ERROR;
                raw.s_state = (self.state | error).into();
            }
        }
        let (at, block) = superblock(store);
        let bio = superblock_bio(at, block, BioFlags::PREFLUSH | BioFlags::FUA);
        writer.journal.write_behind_flush(bio).await
    }
}

impl Opening for Marks {
    fn mark(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.write())
    }
}

/// The superblock's block as it is in memory, and its place on the device.
fn superblock(store: &MetaStore) -> (Sector, Buf) {
    let (home, range) = store.superblock_home();
    let mut block = Buf::from_slice(&home.bytes());
    let mut sb = store.superblock_unlogged();
    sb.update_checksum();
    block[range].copy_from_slice(sb.as_bytes());
    (Sector(home.number().0 * (block.len().to_u64() / Sector::BYTES)), block)
}

/// A write of the superblock outside any transaction.
fn superblock_bio(start: Sector, block: Buf, flags: BioFlags) -> Bio {
    let mut bio = Bio::new(Op::Write, start, vec![Segment::from(block)]);
    bio.flags = flags | BioFlags::SYNC | BioFlags::META;
    bio
}

fn has_journal(store: &MetaStore) -> bool {
    store.shape().compat().contains(Compat::HAS_JOURNAL)
}

/// The low and high parts of a superblock time.
fn seconds(at: i64) -> (u32, u8) {
    let at = at.cast_unsigned();
    (at.low_u32(), (at >> 32).low_u8())
}
