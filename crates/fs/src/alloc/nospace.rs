//! Reclaim of blocks before `ENOSPC` is returned, from everything that may hold free ones.
//!
//! Files give back what they reserved too much, by writing back what is delayed; inodes that were deleted give up their
//! blocks; a commit releases what was freed, once no home write is in flight.
//!
//! A group whose bitmap is damaged or cannot be read is passed over, as on Linux, and others are used. Where none of these has
//! room and it has, the volume is not full: the answer is the error of the first such group. Linux answers with `ENOSPC`.

use super::{Allocator, NewInode, Parent, Privilege, Reservation, Shared, Wanted};
use crate::journal::Journal;
use crate::{Error, Result};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Rounds of asking: what one gives back may let another give back more.
const ROUNDS: u32 = 3;
/// Rounds at most, where what was freed would do each time.
const ROUNDS_MAX: u32 = 16;

/// A part of the volume that may hold more blocks than it needs.
pub(crate) trait GivesBack: Debug + Send + Sync {
    /// Gives back what it can. Failures are its own affair: the caller only sees whether there is room afterwards.
    fn give_back(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A part of the volume that may have had too little space.
pub(crate) trait WantsSpace: Debug + Send + Sync {
    /// Blocks can be allocated that could not before. Called without locks; it must not wait.
    fn space_returned(&self);
}

impl Allocator {
    /// Has `seeker` told when blocks that were freed can be allocated again.
    pub(crate) fn add_seeker(&self, seeker: Arc<dyn WantsSpace>) {
        self.shared.seekers.lock().push(seeker);
    }

    /// Has `giver` asked before a reservation fails; in the order in which they were added.
    pub(crate) fn add_giver(&self, giver: Arc<dyn GivesBack>) {
        self.shared.givers.lock().push(giver);
    }

    /// As [`Allocator::reserve`], after making room if need be. The caller holds neither a handle nor a page.
    ///
    /// # Errors
    /// [`Error::NoSpace`] where the blocks are in use; the error of a damaged group, where it has enough of them; why the
    /// journal gave up.
    pub(crate) async fn reserve_waiting(
        &self,
        journal: &Journal,
        data: u64,
        meta: u64,
        privilege: Privilege,
    ) -> Result<Reservation> {
        match self.reserve(data, meta, privilege) {
            Err(Error::NoSpace) => Box::pin(self.reclaim(journal, data, meta, privilege)).await,
            other => other,
        }
    }

    async fn reclaim(
        &self,
        journal: &Journal,
        data: u64,
        meta: u64,
        privilege: Privilege,
    ) -> Result<Reservation> {
        for round in 0.. {
            let givers = self.shared.givers.lock().clone();
            for giver in givers {
                giver.give_back().await;
            }
            if self.pending() > 0 {
                journal.commit(journal.running()).await?;
                journal.released().await?;
                self.settle_inodes(journal.committed());
            }
            if round == ROUNDS {
                // A trim keeps free blocks for as long as the device discards them.
                journal.discards_ended().await;
            }
            match self.shared.space.promise(data.saturating_add(meta), privilege) {
                Ok(promised) => return Ok(promised),
                Err(_) if round < ROUNDS => {}
                // Others free blocks beside this, and take them.
                Err(short) if short.is_for_now() && round < ROUNDS_MAX => {}
                Err(short) if short.is_for_damage() => return Err(self.shared.no_blocks()),
                Err(_) => break,
            }
        }
        Err(Error::NoSpace)
    }

    /// As [`Allocator::inode`], after a commit if inodes were freed that only this makes free to take.
    ///
    /// # Errors
    /// As there, or the error of a damaged group, where that has free ones; why the journal gave up.
    pub(crate) async fn inode_waiting(
        &self,
        journal: &Journal,
        wanted: Wanted,
        parent: Parent,
    ) -> Result<NewInode> {
        match self.inode(wanted, parent).await {
            Err(Error::NoSpace) => Box::pin(self.reclaim_inode(journal, wanted, parent)).await,
            other => other,
        }
    }

    async fn reclaim_inode(&self, journal: &Journal, wanted: Wanted, parent: Parent) -> Result<NewInode> {
        let givers = self.shared.givers.lock().clone();
        for giver in givers {
            giver.give_back().await;
        }
        if !self.shared.freed_inodes.lock().is_empty() {
            journal.commit(journal.running()).await?;
            self.settle_inodes(journal.committed());
        }
        self.inode(wanted, parent).await.map_err(|error| match error {
            Error::NoSpace => self.shared.no_inodes(),
            other => other,
        })
    }
}

impl Shared {
    /// The error where no usable group has room, and damaged ones may have it.
    pub(super) fn no_blocks(&self) -> Error {
        self.unusable.lock().blocks.clone().unwrap_or(Error::NoSpace)
    }

    fn no_inodes(&self) -> Error {
        let has_lost = self.inodes.lock().lost() > 0;
        let why = self.unusable.lock().inodes.clone().filter(|_| has_lost);
        why.unwrap_or(Error::NoInodes)
    }
}
