//! A plan: what a repair changes, and why.

use super::guard::Guard;
use super::undo::{Edit, Target, UndoError, UndoFile, UndoState};
use crate::{Checked, Code, Finding, Spot};
use extant_block::{Buf, Device, Sector, flush, write};
use std::collections::{BTreeMap, BTreeSet};

/// Which findings to repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Findings whose repair follows from other structures and loses nothing that can be read.
    Safe,
    /// All findings that can be repaired.
    All,
}

/// One repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The kind of finding that the step repairs.
    pub code: Code,
    /// Where the finding is.
    pub spot: Spot,
    /// The name in a directory entry, if it is about one.
    pub name: Option<Vec<u8>>,
    /// Path of the inode, where it is known.
    pub path: Option<Vec<u8>>,
    /// What was found.
    pub found: String,
    /// What the step does.
    pub action: String,
    /// What the step loses; empty for nothing.
    pub lost: String,
    /// Blocks that the step changes.
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

/// The changes that repair a volume.
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
    /// Remarks for the reader.
    pub notes: Vec<String>,
    /// Why no repair can be made, apart from findings that are left.
    pub obstacle: Option<String>,
    pub(super) unit_bytes: usize,
    pub(super) edits: BTreeMap<u64, Change>,
    /// Blocks that every use of the volume changes, with checksums of their contents. The repair
    /// does not change them; the undo file uses them to detect that the volume was used after the
    /// repair.
    pub(super) witnesses: BTreeMap<u64, u32>,
    /// The blocks of the superblock and of multiple-mount protection. Other hosts read them to see
    /// whether the volume is in use.
    pub(super) last: BTreeSet<u64>,
}

/// The new contents of a block.
#[derive(Clone, Debug)]
pub(super) struct Change {
    /// Checksum of the block's contents when the repair was planned.
    pub(super) old: u32,
    pub(super) new: Vec<u8>,
}

impl Plan {
    /// Whether, once the plan is carried out, a check finds nothing that a repair could change.
    /// Only then may the plan be carried out.
    pub fn is_complete(&self) -> bool {
        self.obstacle.is_none() && self.after.incomplete.is_none() && self.left().next().is_none()
    }

    /// Findings that remain after the plan, except those that no repair changes.
    pub fn left(&self) -> impl Iterator<Item = &Finding> {
        self.after.findings.iter().filter(|finding| !super::is_told_only(finding.code))
    }

    /// Number of blocks that change.
    pub fn blocks(&self) -> usize {
        self.edits.len()
    }

    /// The length of the undo file.
    pub fn undo_bytes(&self) -> u64 {
        UndoFile::bytes_for(self.edits.len() + self.witnesses.len(), self.unit_bytes)
    }

    /// Writes the undo file; `undo` must have room for [`Self::undo_bytes`]. The volume is not
    /// changed.
    ///
    /// # Errors
    /// The undo file does not become durable, or the volume was changed after it was planned.
    pub async fn prepare(
        &self,
        volume: &dyn Device,
        target: Target,
        undo: &dyn Device,
    ) -> Result<UndoFile, UndoError> {
        assert!(self.is_complete(), "an incomplete plan is not carried out");
        let changed =
            self.edits.iter().map(|(&block, change)| Edit { block, old: change.old, new: Some(&change.new) });
        let kept = self.witnesses.iter().map(|(&block, &old)| Edit { block, old, new: None });
        let edits: Vec<_> = changed.chain(kept).collect();
        UndoFile::create(undo, volume, target.offset_bytes, self.unit_bytes, &edits).await
    }

    /// Writes the new blocks; [`Self::prepare`] must have written the undo file. Before each write,
    /// `guard` must still hold the volume. Blocks that let other hosts in are written last, once
    /// the others are durable.
    ///
    /// # Errors
    /// A device fails, or another host has taken the volume. [`UndoFile::undo`] then puts the
    /// volume back.
    pub async fn apply(
        &self,
        volume: &dyn Device,
        file: &mut UndoFile,
        undo: &dyn Device,
        guard: &Guard,
    ) -> Result<(), UndoError> {
        let unit = u64::try_from(self.unit_bytes).unwrap_or(u64::MAX);
        for comes_last in [false, true] {
            for (&block, change) in
                self.edits.iter().filter(|(block, _)| self.last.contains(block) == comes_last)
            {
                guard.check()?;
                write(volume, Sector::containing(block * unit), Buf::from_slice(&change.new)).await?;
            }
            flush(volume).await?;
        }
        file.set_state(undo, UndoState::Done).await
    }
}
