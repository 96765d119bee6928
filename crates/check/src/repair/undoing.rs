//! Undoes a repair, and distinguishes one that was interrupted from a volume that was changed
//! since.

use super::guard::Guard;
use super::undo::{SECTOR_BYTES, Target, UndoError, UndoFile, UndoState, sector, sector_sums};
use extant_block::{Device, flush, read, write};

/// What was done about a repair that may have been interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The repair had not been interrupted.
    Whole,
    /// All blocks were new, and only the undo file did not say so.
    Finished,
    /// The repair was undone.
    Undone,
}

/// How a volume's blocks compare with an undo file.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The first block that is not as it was before the repair.
    not_old: Option<u64>,
    /// The first block that is not as the repair leaves it.
    not_new: Option<u64>,
    /// The first block with a sector that is neither old nor new.
    foreign: Option<u64>,
}

impl UndoFile {
    /// Numbers of the rows to compare. The block of a guard is left out, because it is being
    /// written meanwhile.
    fn counting(&self, target: Target) -> impl Iterator<Item = usize> {
        let without = target.counter_at.map(|byte| byte / self.unit());
        (0..self.rows.len()).filter(move |&n| Some(self.rows[n].block) != without)
    }

    async fn look(&self, volume: &dyn Device, undo: &dyn Device, target: Target) -> Result<Seen, UndoError> {
        let mut seen = Seen::default();
        for n in self.counting(target) {
            let row = &self.rows[n];
            let old = self.old(undo, n).await?;
            let now = read(volume, sector(row.block * self.unit()), self.unit_bytes).await?;
            let is_old = now.chunks(SECTOR_BYTES).zip(old.chunks(SECTOR_BYTES)).map(|(now, old)| now == old);
            let is_new = sector_sums(&now).into_iter().zip(&row.new).map(|(now, &new)| now == new);
            let (mut all_old, mut all_new, mut all_ours) = (true, true, true);
            for (is_old, is_new) in is_old.zip(is_new) {
                all_old &= is_old;
                all_new &= is_new;
                all_ours &= is_old || is_new;
            }
            for (first, holds) in
                [(&mut seen.not_old, all_old), (&mut seen.not_new, all_new), (&mut seen.foreign, all_ours)]
            {
                if !holds {
                    first.get_or_insert(row.block);
                }
            }
        }
        Ok(seen)
    }

    /// Puts all old blocks back, so that every byte of the volume is as before the repair. Can be
    /// interrupted and run again. Returns false if the volume already was as before the repair.
    ///
    /// # Errors
    /// The undo file is damaged or belongs to another volume, or the volume was changed after the
    /// repair; nothing is written in these cases. A device that fails, or another host that takes
    /// the volume from `guard`, leaves the rest to the next run.
    pub async fn undo(
        &mut self,
        volume: &dyn Device,
        undo: &dyn Device,
        target: Target,
        guard: &Guard,
    ) -> Result<bool, UndoError> {
        self.belongs_to(volume, target).await?;
        let seen = self.look(volume, undo, target).await?;
        let is_old = seen.not_old.is_none();
        let changed = match self.state {
            UndoState::Open | UndoState::Undoing => seen.foreign,
            UndoState::Done | UndoState::Undone => seen.not_new.filter(|_| !is_old),
        };
        if let Some(block) = changed {
            return Err(UndoError::Changed(block));
        }
        if !is_old {
            self.set_state(undo, UndoState::Undoing).await?;
            for n in self.counting(target) {
                let old = self.old(undo, n).await?;
                guard.check()?;
                write(volume, sector(self.rows[n].block * self.unit()), old).await?;
            }
        }
        // The old contents may so far be only in a cache.
        flush(volume).await?;
        if self.state != UndoState::Undone {
            self.set_state(undo, UndoState::Undone).await?;
        }
        Ok(!is_old)
    }

    /// Puts the old contents of the guard's block back, if the repair changed that block because it
    /// was damaged. The guard must have been released, and nothing else may be written afterwards.
    /// Returns whether there was anything to put back.
    ///
    /// # Errors
    /// A device fails, or the undo file is damaged.
    pub async fn put_counter_back(
        &self,
        volume: &dyn Device,
        undo: &dyn Device,
        target: Target,
    ) -> Result<bool, UndoError> {
        let wanted = target.counter_at.map(|byte| byte / self.unit());
        let Some(n) = self.rows.iter().position(|row| Some(row.block) == wanted) else { return Ok(false) };
        let old = self.old(undo, n).await?;
        write(volume, sector(self.rows[n].block * self.unit()), old).await?;
        flush(volume).await?;
        Ok(true)
    }

    /// Undoes the repair if it was interrupted, as [`Self::undo`] does.
    ///
    /// # Errors
    /// The errors of [`Self::undo`].
    pub async fn resume(
        &mut self,
        volume: &dyn Device,
        undo: &dyn Device,
        target: Target,
        guard: &Guard,
    ) -> Result<Resumed, UndoError> {
        if matches!(self.state, UndoState::Done | UndoState::Undone) {
            return Ok(Resumed::Whole);
        }
        self.belongs_to(volume, target).await?;
        let is_new =
            self.state == UndoState::Open && self.look(volume, undo, target).await?.not_new.is_none();
        if is_new {
            flush(volume).await?;
            self.set_state(undo, UndoState::Done).await?;
            return Ok(Resumed::Finished);
        }
        self.undo(volume, undo, target, guard).await?;
        Ok(Resumed::Undone)
    }
}
