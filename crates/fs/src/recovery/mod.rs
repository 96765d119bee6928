//! Journal recovery: reading the log, reading the volume through it, and replaying it.
//!
//! Kernel document: *Journal (jbd2)*. The walk over the log is a decision table (see [`scan`]). Its
//! result maps volume blocks to their newest copies. Opening a volume read-only overlays that map
//! in memory. [`replay`](replay::replay) writes the copies home.

mod copies;
mod history;
mod journal_file;
mod reader;
mod replay;
mod scan;
mod sums;

pub use copies::{JournalCopies, JournalCopy, journal_copies};
pub use history::OldCopy;
pub(crate) use history::history;
pub use replay::Recovery;
pub(crate) use replay::replay;

use crate::meta::Journaled;
use crate::view::View;
use crate::{Error, Result};
use extant_block::Sector;
use extant_format::jbd2::{FastCommitItem, FastCommitItems, FastCommitRecord};
use extant_format::{Compat, Corrupt, Incompat, Place, VolumeBlock};
pub(crate) use journal_file::Log;
use std::collections::BTreeMap;

/// Locations of the newer copies that the journal holds, if the volume needs recovery.
pub(crate) async fn overlay(view: &View) -> Result<BTreeMap<VolumeBlock, Journaled>> {
    let Some(log) = Log::open(view).await? else {
        let sb = view.superblock();
        if sb.incompat().contains(Incompat::RECOVER) && !sb.compat().contains(Compat::HAS_JOURNAL) {
            // Linux mounts such a volume for reading, without its journal.
            let rule = "with has_journal, for the volume needs recovery";
            let compat = sb.compat().bits().into();
            view.note(Err(Corrupt::field(Place::Superblock, "s_feature_compat", compat, rule)))?;
            return Ok(BTreeMap::new());
        }
        return Err(Error::Unsupported {
            feature: "a journal on another device, which holds changes to this volume".into(),
            hint: "; mount it with its journal first, or ignore the journal",
        });
    };
    let found = scan::scan(&log, 0, scan::OnReadError::Note).await?;
    refuse_fast_commits(&log, found.next_sequence).await?;
    Ok(found.copies)
}

/// Fails if fast commits follow the log. They are records of intent and are not replayed here.
async fn refuse_fast_commits(log: &Log, sequence: u32) -> Result<()> {
    let area = log.sb.fast_commits();
    if area.is_empty() {
        return Ok(());
    }
    let block = log.block(area.start).await?;
    let inode_size = log.view.superblock().inode_size();
    let first = FastCommitItems::new(&block, inode_size, area.start).next();
    match first {
        Some(Ok(FastCommitItem { record: FastCommitRecord::Head { sequence: found, .. }, .. }))
            if found == sequence =>
        {
            Err(Error::Unsupported {
                feature: "fast commits that wait to be replayed".into(),
                hint: "; mount it once with Linux or run e2fsck, or ignore the journal",
            })
        }
        _ => Ok(()),
    }
}

/// The first sector of a block.
fn sector(view: &View, block: VolumeBlock) -> Sector {
    Sector(block.0 << (view.superblock().block_size().log2() - 9))
}
