//! What a dirty journal would change, for readers that have their own view of a volume.

use super::overlay;
use crate::view::View;
use crate::{Damage, Error, OpenOptions, Result};
use extant_block::Device;
use extant_format::VolumeBlock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The newest copy of a block in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalCopy {
    /// Volume block that holds the copy.
    pub block: VolumeBlock,
    /// The copy's first four bytes were zeroed because they matched the journal's magic number.
    pub escaped: bool,
}

/// Blocks that a dirty journal holds newer copies of.
#[derive(Clone, Debug, Default)]
pub struct JournalCopies {
    /// The copies, by the block's home location.
    pub copies: BTreeMap<VolumeBlock, JournalCopy>,
    /// Damage in the log, in the order it was found.
    pub problems: Vec<Error>,
}

/// Reads the log of the volume on `device`, whether or not the superblock says that it is dirty.
/// Nothing is written.
///
/// # Errors
/// The volume or its journal cannot be opened, or the journal holds something that only Linux can
/// replay.
pub async fn journal_copies(device: Arc<dyn Device>) -> Result<JournalCopies> {
    let options = OpenOptions { damage: Damage::Report, ..OpenOptions::default() };
    let view = View::open_to_read(device, options).await?;
    let before = view.problems().list().len();
    let copies = overlay(&view).await?;
    let copies = copies
        .into_iter()
        .map(|(home, found)| (home, JournalCopy { block: found.copy, escaped: found.escaped }))
        .collect();
    // Leave out problems found before the log was reached.
    let problems = view.problems().list().get(before..).unwrap_or_default().to_vec();
    Ok(JournalCopies { copies, problems })
}
