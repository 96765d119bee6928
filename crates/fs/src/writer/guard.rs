//! Callers' operations, and the consequences of their errors: `errors=` and the superblock's error
//! record.
//!
//! Kernel documents: *Super Block* (`s_state`, `s_error_count` and what follows), *Journal (jbd2)*
//! (`s_errno`).

use super::Writer;
use super::errors::{ErrorPolicy, Errors};
use crate::journal::Credits;
use crate::{Error, Result};
use extant_block::{Bio, BioFlags, Op, Sector, Segment};
use extant_format::{Corrupt, ErrorCode, ErrorRecord, Place, Problem, Superblock, UintExt};
use futures_util::future::BoxFuture;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::Ordering;

impl Writer {
    /// Whether a journal failure ends even reads ([`Error::Halted`]).
    pub(crate) fn may_halt(&self) -> bool {
        self.errors.policy == ErrorPolicy::Panic
    }

    /// Runs a caller's operation, then applies the error policy to the error it returned and to
    /// errors noted on the way. The operation holds nothing once it has ended.
    ///
    /// # Errors
    /// Those of the operation; [`Error::Halted`].
    pub(crate) async fn guarded<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        if self.may_halt()
            && let Some(cause) = self.journal.failure().filter(|cause| !matches!(cause, Error::ReadOnly))
        {
            return Err(Error::Halted(cause.to_string()));
        }
        let done = operation.await;
        let error = done.as_ref().err().cloned();
        if error.is_some() || self.has_noted() {
            self.heed_all(error).await;
        }
        done
    }

    /// Does both [`Self::heed`] and [`Self::heed_noted`]. Boxed, like every rarely taken await in
    /// `fs`: a future reserves space for each await, and is moved several times before its first
    /// poll. The type is erased because the code for a named type is generated again for each
    /// operation that uses it.
    fn heed_all(&self, error: Option<Error>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(error) = error {
                self.heed(&error).await;
            }
            if self.has_noted() {
                self.heed_noted().await;
            }
        })
    }

    /// Whether there are errors that [`Self::heed_noted`] has not handled.
    pub(crate) fn has_noted(&self) -> bool {
        let errors = &self.errors;
        errors.has_noted.load(Ordering::Relaxed)
            || self.alloc.problem_count() > errors.problems.load(Ordering::Relaxed)
    }

    /// Handles errors that were noted on the way without failing their operation.
    pub(crate) async fn heed_noted(&self) {
        let errors = &self.errors;
        // Load first: every operation of every thread passes here, and a swap would move the cache
        // line to each.
        if errors.has_noted.load(Ordering::Relaxed) && errors.has_noted.swap(false, Ordering::Acquire) {
            let mut noted = Noted { errors, left: std::mem::take(&mut *errors.noted.lock()).into() };
            while let Some(error) = noted.left.front().cloned() {
                self.heed(&error).await;
                noted.left.pop_front();
            }
        }
        let met = self.alloc.problem_count();
        let heeded = errors.problems.load(Ordering::Relaxed);
        if met > heeded && errors.problems.swap(met, Ordering::Relaxed) == heeded {
            let mut progress = Progress { errors, upto: heeded };
            for error in self.alloc.problems().into_iter().skip(heeded) {
                self.heed(&error).await;
                progress.upto += 1;
            }
        }
    }

    /// Applies the policy to an error. A damaged structure is recorded or ends writing. The end of
    /// writing is recorded once, if the device still accepts writes. The caller has no handle.
    pub(crate) async fn heed(&self, error: &Error) {
        if matches!(error, Error::Corrupt(_)) && self.journal.failure().is_none() {
            match self.errors.policy {
                ErrorPolicy::Continue => {
                    // If the journal accepts no handles any more, its end is recorded instead.
                    if let Ok(mut handle) = self.journal.start(Credits(1)).await {
                        handle.superblock().record_error(&record(error, &place(error), self));
                    }
                }
                ErrorPolicy::ReadOnly | ErrorPolicy::Panic => self.journal.latch(error.clone()),
            }
        }
        match self.journal.failure() {
            // It was closed, or is in use by another host.
            None | Some(Error::ReadOnly | Error::InUse { .. }) => {}
            Some(cause) => {
                if !self.errors.end_is_recorded.swap(true, Ordering::Relaxed) {
                    let mut recording = Recording { errors: &self.errors, is_done: false };
                    self.journal.record_failure().await;
                    // If the device does not accept the record, it is lost.
                    let _ = self.record_in_place(&cause).await;
                    recording.is_done = true;
                }
            }
        }
    }

    /// Records an error in the on-disk superblock. The one in memory may have changes that no
    /// transaction has made durable.
    async fn record_in_place(&self, cause: &Error) -> Result<()> {
        let (home, range) = self.store.superblock_home();
        let blocks = self.store.blocks();
        let (device, block_bytes) = (&**blocks.device(), blocks.block_bytes());
        let start = Sector(home.number().0 * (block_bytes.to_u64() / Sector::BYTES));
        let mut block = extant_block::read(device, start, block_bytes).await?;
        let mut sb = Superblock::parse(&block[range.clone()])?;
        sb.record_error(&record(cause, &place(cause), self));
        sb.update_checksum();
        block[range].copy_from_slice(sb.as_bytes());
        let mut bio = Bio::new(Op::Write, start, vec![Segment::from(block)]);
        bio.flags = BioFlags::FUA | BioFlags::SYNC | BioFlags::META;
        extant_block::execute(device, bio).await.1.map_err(Error::from)
    }
}

/// Noted errors being handled. If the caller is dropped, the rest is left to the next one.
struct Noted<'e> {
    errors: &'e Errors,
    left: VecDeque<Error>,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if !self.left.is_empty() {
            drop(self.errors.noted.lock().splice(0..0, self.left.drain(..)));
            self.errors.has_noted.store(true, Ordering::Release);
        }
    }
}

/// How many of the allocator's problems have been handled. If the caller is dropped, the rest is
/// left to the next one.
struct Progress<'e> {
    errors: &'e Errors,
    upto: usize,
}

impl Drop for Progress<'_> {
    fn drop(&mut self) {
        self.errors.problems.fetch_min(self.upto, Ordering::Relaxed);
    }
}

/// Recording the end of writing. If the caller is dropped, the next one does it.
struct Recording<'e> {
    errors: &'e Errors,
    is_done: bool,
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.errors.end_is_recorded.store(false, Ordering::Relaxed);
        }
    }
}

fn place(error: &Error) -> String {
    match error {
        Error::Corrupt(corrupt) => corrupt.place.to_string(),
        Error::Io(_) => "device".to_owned(),
        _ => "journal".to_owned(),
    }
}

fn record<'a>(error: &Error, place: &'a str, writer: &Writer) -> ErrorRecord<'a> {
    let (code, (inode, block)) = match error {
        Error::Corrupt(corrupt) => match corrupt.problem {
            Problem::Checksum { .. } => (ErrorCode::Checksum, whereabouts(corrupt)),
            _ => (ErrorCode::Corrupt, whereabouts(corrupt)),
        },
        _ => (ErrorCode::Io, (0, 0)),
    };
    ErrorRecord { seconds: writer.journal.wall_clock(), inode, block, place, code }
}

/// The inode and the block of a damaged structure; 0 if there is none.
fn whereabouts(corrupt: &Corrupt) -> (u32, u64) {
    match corrupt.place {
        Place::Inode(inode)
        | Place::ExtentNode(inode, None)
        | Place::DirectoryBlock(inode, _)
        | Place::HtreeNode(inode, _)
        | Place::Symlink(inode)
        | Place::InlineData(inode)
        | Place::InodeXattrs(inode)
        | Place::Acl(inode)
        | Place::XattrInode(inode)
        | Place::Quota(inode, _) => (inode.0, 0),
        Place::ExtentNode(inode, Some(block))
        | Place::IndirectBlock(inode, block)
        | Place::XattrBlock(inode, block) => (inode.0, block.0),
        Place::Mmp(block) => (0, block.0),
        _ => (0, 0),
    }
}
