//! Reclaims blocks from everything that may hold spare ones, before `ENOSPC` is returned.
//!
//! Files return excess reservations by writing back delayed data, deleted inodes give up their
//! blocks, and a commit releases what was freed, once no home write is in flight.
//!
//! A group whose bitmap is damaged or unreadable is skipped in favour of others, as on Linux. If
//! only such groups have room, the volume is not full, so the operation fails with the error of the
//! first one. Linux returns `ENOSPC` there.

use super::{Allocator, NewInode, Parent, Privilege, Reservation, Shared, Wanted};
use crate::journal::Journal;
use crate::{Error, Result};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// Rounds in which every part is asked: what one gives back may let another give back more.
const ROUNDS: u32 = 3;
/// Maximum number of rounds. Those beyond `ROUNDS` run only while freed blocks would suffice.
const ROUNDS_MAX: u32 = 16;

/// A part of the volume that may hold more blocks than it needs.
pub(crate) trait GivesBack: Debug + Send + Sync {
    /// Gives back what it can. It handles its own failures; the caller only checks for room
    /// afterwards.
    fn give_back(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// A part of the volume that may have been short of space.
pub(crate) trait WantsSpace: Debug + Send + Sync {
    /// Called when blocks become allocatable. Called without locks; must not wait.
    fn space_returned(&self);
}

impl Allocator {
    /// Registers `seeker` to be notified when freed blocks become allocatable.
    pub(crate) fn add_seeker(&self, seeker: Arc<dyn WantsSpace>) {
        self.shared.seekers.lock().push(seeker);
    }

    /// Registers `giver` to be asked before a reservation fails. Givers are asked in the order in
    /// which they were added.
    pub(crate) fn add_giver(&self, giver: Arc<dyn GivesBack>) {
        self.shared.givers.lock().push(giver);
    }

    /// Like [`Allocator::reserve`], but makes room first if necessary. The caller holds neither a
    /// handle nor a page.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if the blocks are in use; the error of a damaged group if such groups
    /// have enough room; why the journal gave up.
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
                // A trim holds free blocks while the device discards them.
                journal.discards_ended().await;
            }
            match self.shared.space.promise(data.saturating_add(meta), privilege) {
                Ok(promised) => return Ok(promised),
                Err(_) if round < ROUNDS => {}
                // Others concurrently free blocks and take them.
                Err(short) if short.is_for_now() && round < ROUNDS_MAX => {}
                Err(short) if short.is_for_damage() => return Err(self.shared.no_blocks()),
                Err(_) => break,
            }
        }
        Err(Error::NoSpace)
    }

    /// Like [`Allocator::inode`], but if none is free, tries again after a commit that makes freed
    /// ones available.
    ///
    /// # Errors
    /// As [`Allocator::inode`], or the error of a damaged group if that has free inodes; why the
    /// journal gave up.
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
    /// The error if no usable group has room: that of a damaged group, if there is one.
    pub(super) fn no_blocks(&self) -> Error {
        self.unusable.lock().blocks.clone().unwrap_or(Error::NoSpace)
    }

    fn no_inodes(&self) -> Error {
        let has_lost = self.inodes.lock().lost() > 0;
        let why = self.unusable.lock().inodes.clone().filter(|_| has_lost);
        why.unwrap_or(Error::NoInodes)
    }
}
