//! One block: its versions, and the rules for changing them.

use extant_block::{Buf, IoError};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// How long an edit may hold a block before a debug build reports a deadlock. Edits never wait.
const EDIT_TAKES_AT_MOST: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Block {
    pub(super) number: u64,
    /// Requested since eviction last looked at it.
    used: AtomicBool,
    state: Mutex<BlockState>,
}

#[derive(Debug)]
enum BlockState {
    Reading(Vec<Waker>),
    Failed(ReadFailed),
    Held(Versions),
}

/// Why a block could not be read.
#[derive(Clone, Debug)]
pub(super) struct ReadFailed {
    pub(super) error: IoError,
    /// Other blocks were read in the same bio; the fault may be theirs.
    pub(super) others: bool,
}

#[derive(Debug)]
pub(super) struct Versions {
    pub(super) live: Arc<Buf>,
    /// Epoch of the last edit; 0 if there was none.
    pub(super) epoch: u64,
    /// The newest epoch whose version has been taken.
    pub(super) taken: u64,
    /// An older epoch's version that had not been taken when a newer epoch began.
    pub(super) frozen: Option<(u64, Arc<Buf>)>,
    /// The role under which the contents were verified, or 0.
    role: u64,
}

impl Block {
    pub(super) fn reading(number: u64) -> Self {
        Self { number, used: AtomicBool::new(false), state: Mutex::new(BlockState::Reading(Vec::new())) }
    }

    pub(super) fn held(number: u64, bytes: Buf) -> Self {
        Self {
            number,
            used: AtomicBool::new(false),
            state: Mutex::new(BlockState::Held(Versions::new(bytes))),
        }
    }

    pub(super) fn take_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    /// Completes the read; called once.
    pub(super) fn loaded(&self, result: Result<Buf, ReadFailed>) {
        let state = match result {
            Ok(bytes) => BlockState::Held(Versions::new(bytes)),
            Err(failed) => BlockState::Failed(failed),
        };
        let before = std::mem::replace(&mut *self.state.lock(), state);
        if let BlockState::Reading(wakers) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Ready once the read has ended.
    pub(super) fn poll_loaded(&self, waker: &Waker) -> Poll<Result<(), ReadFailed>> {
        match &mut *self.state.lock() {
            BlockState::Reading(wakers) => {
                if !wakers.iter().any(|known| known.will_wake(waker)) {
                    wakers.push(waker.clone());
                }
                Poll::Pending
            }
            BlockState::Failed(failed) => Poll::Ready(Err(failed.clone())),
            BlockState::Held(_) => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn versions(&self) -> MappedMutexGuard<'_, Versions> {
        let state = if cfg!(debug_assertions) {
            let number = self.number;
            let locked = self.state.try_lock_for(EDIT_TAKES_AT_MOST);
            locked.unwrap_or_else(|| panic!("block {number} is asked for by the one who edits it"))
        } else {
            self.state.lock()
        };
        MutexGuard::map(state, |state| match state {
            BlockState::Held(versions) => versions,
            BlockState::Reading(_) | BlockState::Failed(_) => {
                unreachable!("references are to blocks that were read")
            }
        })
    }
}

impl Versions {
    fn new(bytes: Buf) -> Self {
        Self { live: Arc::new(bytes), epoch: 0, taken: 0, frozen: None, role: 0 }
    }
}

/// Exclusive access to the bytes of `version`; replaces it by a copy if a reader holds a reference.
pub(super) fn own(version: &mut Arc<Buf>) -> &mut Buf {
    if Arc::get_mut(version).is_none() {
        *version = Arc::new(version.duplicate());
    }
    Arc::get_mut(version).expect("the copy has one reference")
}

/// A block in memory, pinned while this lives. Each clone is another pin.
#[derive(Clone)]
pub struct BlockRef(pub(super) Arc<Block>);

/// The editor's side: supplies the epoch, and is notified when the epoch first touches a block.
pub trait EditToken {
    /// The epoch of the edit: at least 1, and never lower than that of an earlier edit of the same
    /// block.
    fn epoch(&self) -> u64;
    /// `block` was not dirty in this epoch before. Called with the block locked: do not read or
    /// edit it here.
    fn first_touch(&mut self, block: &BlockRef);
}

impl BlockRef {
    /// A reference to a block that has been read.
    pub(super) fn of(block: Arc<Block>) -> Option<Self> {
        if !matches!(*block.state.lock(), BlockState::Held(_)) {
            return None;
        }
        block.used.store(true, Ordering::Relaxed);
        Some(Self(block))
    }

    /// The block's number on the volume.
    pub fn number(&self) -> u64 {
        self.0.number
    }

    /// Whether both refer to the same block in memory. A block that was forgotten and recreated is
    /// a different one.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The current live version. It contains all of an edit or none of it; an edit in progress is
    /// short, so this waits for it. The caller must not be the editor.
    pub fn bytes(&self) -> BlockBytes {
        let live = self.0.versions().live.clone();
        BlockBytes { range: 0..live.len(), buf: live }
    }

    /// The epoch of the last edit; 0 if there was none.
    pub fn epoch(&self) -> u64 {
        self.0.versions().epoch
    }

    /// Starts a change of the live version, published when the result is dropped.
    ///
    /// Other readers and editors of this block wait for it, so the holder must not wait for
    /// anything. Edit several blocks at once only in ascending order of their numbers.
    pub fn edit<'a>(&'a self, token: &mut impl EditToken) -> BlockEdit<'a> {
        let mut versions = self.0.versions();
        let epoch = token.epoch();
        if versions.epoch != epoch {
            assert!(epoch > versions.epoch, "block {}: epochs ascend", self.0.number);
            if versions.epoch > versions.taken {
                let left = (versions.epoch, versions.live.clone());
                let older = versions.frozen.replace(left);
                assert!(older.is_none(), "block {}: one epoch at a time waits to be taken", self.0.number);
            }
            versions.epoch = epoch;
            token.first_touch(self);
        }
        own(&mut versions.live);
        BlockEdit { versions }
    }

    /// Runs `check` on the contents, unless they were already verified as `role` (a caller-defined
    /// number, not 0).
    ///
    /// # Errors
    /// The error of `check`.
    pub fn verify_as<E>(&self, role: u64, check: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let bytes = {
            let versions = self.0.versions();
            if versions.role == role {
                return Ok(());
            }
            versions.live.clone()
        };
        check(&bytes)?;
        self.set_role(role);
        Ok(())
    }

    /// Marks the contents as verified for `role`, because the caller created them.
    pub fn set_role(&self, role: u64) {
        self.0.versions().role = role;
    }
}

impl fmt::Debug for BlockRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockRef({})", self.0.number)
    }
}

/// A version of a block, or part of it. Its contents never change.
#[derive(Clone, Debug)]
pub struct BlockBytes {
    buf: Arc<Buf>,
    range: Range<usize>,
}

impl BlockBytes {
    /// The first `len` bytes.
    #[must_use]
    pub fn truncated(self, len: usize) -> Self {
        let len = len.min(self.range.len());
        self.part(0..len)
    }

    /// The bytes in `range`.
    ///
    /// # Panics
    /// There are fewer bytes than `range.end`, or `range` is reversed.
    #[must_use]
    pub fn part(mut self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "a part of {} bytes",
            self.range.len()
        );
        self.range = self.range.start + range.start..self.range.start + range.end;
        self
    }
}

impl From<Buf> for BlockBytes {
    fn from(buf: Buf) -> Self {
        Self { range: 0..buf.len(), buf: Arc::new(buf) }
    }
}

impl Deref for BlockBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[self.range.clone()]
    }
}

/// A change of a block's live version; see [`BlockRef::edit`].
pub struct BlockEdit<'a> {
    versions: MappedMutexGuard<'a, Versions>,
}

impl Deref for BlockEdit<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.versions.live
    }
}

impl DerefMut for BlockEdit<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        own(&mut self.versions.live)
    }
}

impl fmt::Debug for BlockEdit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BlockEdit({} bytes)", self.len())
    }
}
