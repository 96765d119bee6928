//! The life of a version: reserved, dirty, frozen, committed, checkpointed. Each state is a type
//! that leads only to the next.
//!
//! | state | type | what may be done |
//! |-|-|-|
//! | reserved | [`EditToken`](super::EditToken) | edit |
//! | dirty | [`BlockEdit`](super::BlockEdit), then the block's live version | edit again, take |
//! | frozen | [`Frozen`] | write into the log |
//! | committed | [`Committed`] | write home |
//! | checkpointed | none: the version is dropped | forget its place in the log |
//!
//! A version's life, in order:
//! ```
//! # use extant_cache::blocks::{BlockRef, Committed, Durable, EditToken, Frozen};
//! # fn f(block: BlockRef, token: &mut impl EditToken, durable: &Durable) {
//! block.edit(token)[0] = 1;
//! let frozen: Frozen = block.take(1, |bytes| bytes[1] = 2);
//! let for_the_log = frozen.bytes().clone();
//! let committed: Committed = frozen.committed(durable);
//! let for_its_own_place = committed.bytes().clone();
//! committed.checkpointed();
//! # }
//! ```
//!
//! Mistakes do not compile. A block can only be changed with a token:
//! ```compile_fail,E0061
//! # fn f(block: &extant_cache::blocks::BlockRef) {
//! block.edit()[0] = 1;
//! # }
//! ```
//! A reader's version never changes:
//! ```compile_fail,E0594
//! # fn f(block: &extant_cache::blocks::BlockRef) {
//! let mut bytes = block.bytes();
//! bytes[0] = 1;
//! # }
//! ```
//! An edit does not outlive its pin:
//! ```compile_fail,E0505
//! # use extant_cache::blocks::{BlockRef, EditToken};
//! # fn f(block: BlockRef, token: &mut impl EditToken) {
//! let mut edit = block.edit(token);
//! drop(block);
//! edit[0] = 1;
//! # }
//! ```
//! An edit does not wait: it stays on its thread, so a task that can move between threads cannot
//! hold one across an `await`:
//! ```compile_fail,E0277
//! # use extant_cache::blocks::{BlockRef, EditToken};
//! # fn held_across_an_await(value: impl Send) {}
//! # fn f(block: &BlockRef, token: &mut impl EditToken) {
//! held_across_an_await(block.edit(token));
//! # }
//! ```
//! Such a task may edit before an `await`:
//! ```
//! # use extant_cache::blocks::{BlockRef, EditToken};
//! # fn spawn(task: impl Future + Send) {}
//! # fn f(block: &'static BlockRef, token: &'static mut (impl EditToken + Send)) {
//! spawn(async move {
//!     block.edit(token)[0] = 1;
//!     std::future::ready(()).await;
//! });
//! # }
//! ```
//! A frozen version cannot be edited:
//! ```compile_fail,E0594
//! # fn f(frozen: extant_cache::blocks::Frozen) {
//! frozen.bytes()[0] = 1;
//! # }
//! ```
//! A frozen version cannot be forged:
//! ```compile_fail,E0451
//! # use extant_cache::blocks::{BlockRef, Frozen};
//! # fn f(block: BlockRef, bytes: std::sync::Arc<extant_block::Buf>) {
//! let frozen = Frozen { block, epoch: 1, bytes };
//! # }
//! ```
//! A frozen version cannot be written home, where a crash would expose it without its transaction:
//! ```compile_fail,E0308
//! # use extant_cache::blocks::{Committed, Frozen};
//! # fn write_home(version: &Committed) {}
//! # fn f(frozen: Frozen) {
//! write_home(&frozen);
//! # }
//! ```
//! Committing a version takes a durable epoch, not the promise of one:
//! ```compile_fail,E0061
//! # fn f(frozen: extant_cache::blocks::Frozen) {
//! let committed = frozen.committed();
//! # }
//! ```
//! The evidence comes from writing the epoch's commit block ([`Disk::write_commit`]), and cannot be
//! forged:
//! ```compile_fail,E0423
//! let durable = extant_cache::blocks::Durable(1);
//! ```
//! A version is committed once:
//! ```compile_fail,E0382
//! # use extant_cache::blocks::{Durable, Frozen};
//! # fn f(frozen: Frozen, durable: &Durable) {
//! let (first, second) = (frozen.committed(durable), frozen.committed(durable));
//! # }
//! ```
//! A committed version is written home and checkpointed once, so it has no copies:
//! ```compile_fail,E0599
//! # fn f(committed: extant_cache::blocks::Committed) {
//! let other = committed.clone();
//! # }
//! ```
//! A committed version cannot go back into the log:
//! ```compile_fail,E0308
//! # use extant_cache::blocks::{Committed, Frozen};
//! # fn log(version: &Frozen) {}
//! # fn f(committed: Committed) {
//! log(&committed);
//! # }
//! ```
//! A checkpointed version is gone:
//! ```compile_fail,E0382
//! # fn f(committed: extant_cache::blocks::Committed) {
//! committed.checkpointed();
//! committed.bytes();
//! # }
//! ```

use super::block::{BlockRef, own};
use crate::Disk;
use extant_block::{Bio, BioFlags, Buf, IoError, Op, Sector, Segment};
use std::sync::Arc;

/// The version of a block that an epoch left, with its checksum. It may be written to the log.
#[derive(Debug)]
#[must_use = "a version that was taken is lost if it is not committed"]
pub struct Frozen {
    block: BlockRef,
    epoch: u64,
    bytes: Arc<Buf>,
}

impl BlockRef {
    /// The version that `epoch` left, after `seal` has filled in checksums. Each dirty epoch is
    /// taken once, in order, and only after its last edit has ended.
    ///
    /// # Panics
    /// There was no edit in that epoch, or its version has already been taken.
    pub fn take(&self, epoch: u64, seal: impl FnOnce(&mut [u8])) -> Frozen {
        let mut versions = self.0.versions();
        assert!(versions.taken < epoch, "block {}: epoch {epoch} was taken before", self.0.number);
        versions.taken = epoch;
        if versions.epoch == epoch {
            seal(own(&mut versions.live));
            return Frozen { block: self.clone(), epoch, bytes: versions.live.clone() };
        }
        match versions.frozen.take() {
            Some((left, mut version)) if left == epoch => {
                seal(own(&mut version));
                Frozen { block: self.clone(), epoch, bytes: version }
            }
            _ => panic!("block {}: epoch {epoch} left no version", self.0.number),
        }
    }
}

impl Frozen {
    /// The bytes for the log.
    pub fn bytes(&self) -> &Arc<Buf> {
        &self.bytes
    }

    /// The log now holds the version durably.
    ///
    /// # Panics
    /// A different epoch is durable.
    pub fn committed(self, durable: &Durable) -> Committed {
        assert_eq!(self.epoch, durable.0, "block {}: its own epoch is durable", self.block.number());
        Committed { block: self.block, bytes: self.bytes }
    }
}

/// Evidence that all of an epoch is durable in the log.
#[derive(Debug)]
pub struct Durable(u64);

/// Creates a write of `block` at `start`, with a flush before it and FUA. Once it succeeds, the
/// block and everything written before it are durable. For [`Disk::write_behind_flush`].
pub fn durable_write(start: Sector, block: Buf) -> Bio {
    let mut bio = Bio::new(Op::Write, start, vec![Segment::from(block)]);
    bio.flags = BioFlags::PREFLUSH | BioFlags::FUA | BioFlags::SYNC | BioFlags::META;
    bio
}

impl Disk {
    /// Writes the commit block of `epoch` at `start`, as a [`durable_write`]. This also makes the
    /// log blocks written before it durable. `failures` is as in [`Disk::write_behind_flush`].
    ///
    /// # Errors
    /// As [`Disk::write_behind_flush`]; nothing is then known to be durable.
    pub async fn write_commit(
        &self,
        epoch: u64,
        start: Sector,
        block: Buf,
        failures: u64,
    ) -> Result<Durable, IoError> {
        self.write_behind_flush(durable_write(start, block), failures).await.map(|()| Durable(epoch))
    }
}

/// A version that is durable in the log. It may be written home. It keeps the block in memory until
/// then, because the device's copy is older.
#[derive(Debug)]
pub struct Committed {
    block: BlockRef,
    bytes: Arc<Buf>,
}

impl Committed {
    /// The bytes to write to the block's home location.
    pub fn bytes(&self) -> &Arc<Buf> {
        &self.bytes
    }

    /// The block's number.
    pub fn number(&self) -> u64 {
        self.block.number()
    }

    /// The version is home and flushed, or no longer valid: the block may be evicted.
    pub fn checkpointed(self) {}
}
