//! A plan: what a repair changes, and why.

use super::undo::{UndoError, UndoFile, UndoState};
use crate::{Checked, Code, Finding, Spot};
use extant_block::{Buf, Device, Sector, flush, write};
use std::collections::{BTreeMap, BTreeSet};

/// Which findings are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Those whose repair follows from other structures and loses nothing that can be read.
    Safe,
    /// All that can be.
    All,
}

/// One repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The kind of finding that asks for it.
    pub code: Code,
    /// Where.
    pub spot: Spot,
    /// The name in a directory entry, if it is about one.
    pub name: Option<Vec<u8>>,
    /// Path of the inode, where it is known.
    pub path: Option<Vec<u8>>,
    /// What was found.
    pub found: String,
    /// What is done.
    pub action: String,
    /// What that loses; empty for nothing.
    pub lost: String,
    /// Blocks that it changes.
    pub blocks: BTreeSet<u64>,
}

impl Step {
    pub(super) fn new(finding: &Finding, action: impl Into<String>, lost: &str) -> Self {
        Self {
            code: finding.code,
            spot: finding.spot.clone(),
            name: finding.name.clone(),
            path: finding.path.clone(),
            found: finding.found.clone(),
            action: action.into(),
            lost: lost.to_owned(),
            blocks: BTreeSet::new(),
        }
    }
}

/// What would be changed to put a volume right.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The check of the volume as it is.
    pub before: Checked,
    /// The check of the volume as the plan leaves it.
    pub after: Checked,
    /// The repairs, in order.
    pub steps: Vec<Step>,
    /// How often the volume was checked.
    pub checks: u32,
    /// What a reader should know besides.
    pub notes: Vec<String>,
    pub(super) uuid: [u8; 16],
    pub(super) block_bytes: usize,
    /// New contents of blocks.
    pub(super) edits: BTreeMap<u64, Vec<u8>>,
}

impl Plan {
    /// Whether a check finds nothing that a repair could change once the plan is carried out. Only
    /// then it can be.
    pub fn is_complete(&self) -> bool {
        self.after.incomplete.is_none() && self.left().next().is_none()
    }

    /// Findings that the plan does not repair, except those that no repair changes.
    pub fn left(&self) -> impl Iterator<Item = &Finding> {
        self.after.findings.iter().filter(|finding| !super::is_told_only(finding.code))
    }

    /// Number of blocks that change.
    pub fn blocks(&self) -> usize {
        self.edits.len()
    }

    /// The length of the undo file.
    pub fn undo_bytes(&self) -> u64 {
        UndoFile::bytes_for(self.edits.len(), self.block_bytes)
    }

    /// Writes the new blocks, behind an undo file: `undo` has room for [`Self::undo_bytes`].
    ///
    /// # Errors
    /// A device fails. Before the undo file is complete the volume is not changed; after that
    /// [`UndoFile::undo`] puts it back.
    pub async fn apply(&self, volume: &dyn Device, undo: &dyn Device) -> Result<(), UndoError> {
        assert!(self.is_complete(), "an incomplete plan is not carried out");
        let edits = self.edits.iter().map(|(&block, bytes)| (block, &bytes[..]));
        let mut file = UndoFile::create(undo, volume, self.uuid, self.block_bytes, edits).await?;
        let unit = u64::try_from(self.block_bytes).unwrap_or(u64::MAX);
        for (&block, bytes) in &self.edits {
            write(volume, Sector::containing(block * unit), Buf::from_slice(bytes)).await?;
        }
        flush(volume).await?;
        file.set_state(undo, UndoState::Done).await
    }
}
