//! Faults injected between a file system and its disk, as mutants that the harness must catch: a
//! flush is skipped, a log block arrives after its commit, checkpoint writes are lost.

use extant_block::{Bio, BioFlags, Buf, Device, IoError, Limits, Op, Sector};
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A change to the requests sent to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Meddling {
    /// No flush is sent, neither alone nor with a write.
    NoFlush,
    /// Preflushes are dropped from writes.
    NoPreflush,
    /// FUA is dropped from writes.
    NoFua,
    /// Log blocks reach the disk after their commit block.
    LateLog,
    /// Commit blocks are lost.
    NoCommit,
    /// The last block of every log write is lost.
    ShortLog,
    /// Revoke blocks are lost; the log keeps its old contents there.
    NoRevoke,
    /// Committed blocks are not checkpointed.
    NoHome,
    /// Committed blocks are checkpointed one block too far.
    MisdirectedHome,
    /// A block is checkpointed before its transaction is committed.
    EarlyHome,
    /// The journal's superblock is not written.
    NoLogStart,
    /// The volume's superblock is not written.
    NoFlag,
    /// Data is lost.
    NoData,
    /// Data is acknowledged immediately, and written after the next flush.
    LateData,
    /// Only the first half of data is written.
    HalfData,
    /// Data is written one block too early.
    MisdirectedData,
}

impl Meddling {
    /// All variants.
    pub const ALL: [Self; 16] = [
        Self::NoFlush,
        Self::NoPreflush,
        Self::NoFua,
        Self::LateLog,
        Self::NoCommit,
        Self::ShortLog,
        Self::NoRevoke,
        Self::NoHome,
        Self::MisdirectedHome,
        Self::EarlyHome,
        Self::NoLogStart,
        Self::NoFlag,
        Self::NoData,
        Self::LateData,
        Self::HalfData,
        Self::MisdirectedData,
    ];
}

/// Kind of the first block of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Superblock,
    LogSuperblock,
    Log,
    Revoke,
    Commit,
    /// Metadata at its home location.
    Home,
    Data,
}

/// A device that does not do what it is asked to do.
pub struct Meddler {
    inner: Arc<dyn Device>,
    meddling: Meddling,
    block_bytes: u64,
    journal: Vec<Range<u64>>,
    /// Copies of delayed writes.
    held: Mutex<Vec<(Sector, Buf)>>,
}

impl Meddler {
    /// Wraps `inner`, which holds a volume whose journal occupies these runs of blocks, in order.
    pub fn new(
        inner: Arc<dyn Device>,
        meddling: Meddling,
        block_bytes: u64,
        journal: Vec<Range<u64>>,
    ) -> Self {
        Self { inner, meddling, block_bytes, journal, held: Mutex::default() }
    }

    fn class(&self, bio: &Bio) -> Class {
        let block = bio.start.0 * Sector::BYTES / self.block_bytes;
        if block == 1024 / self.block_bytes && bio.bytes <= self.block_bytes {
            return Class::Superblock;
        }
        let head = bio.segments.first().map_or(&[][..], |segment| segment.as_slice());
        let is_log = self.journal.iter().any(|run| run.contains(&block));
        match head.get(..8) {
            _ if !is_log && bio.flags.contains(BioFlags::META) => Class::Home,
            _ if !is_log => Class::Data,
            _ if self.journal[0].start == block => Class::LogSuperblock,
            Some([0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2]) => Class::Commit,
            Some([0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 5]) => Class::Revoke,
            _ => Class::Log,
        }
    }

    /// Acknowledges a write now; [`Meddler::release`] performs it.
    fn hold(&self, bio: Bio) {
        let bytes: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice()).copied().collect();
        self.held.lock().push((bio.start, Buf::from_slice(&bytes)));
        bio.end(Ok(()));
    }

    fn release(&self) {
        for (start, bytes) in std::mem::take(&mut *self.held.lock()) {
            self.inner.submit(Bio::new(Op::Write, start, vec![bytes.into()]));
        }
    }

    /// Writes only the first `bytes`; acknowledges the whole.
    fn cut(&self, bio: Bio, bytes: u64) {
        let kept = bytes / Sector::BYTES * Sector::BYTES;
        if kept > 0 {
            let all: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice()).copied().collect();
            let segment = Buf::from_slice(&all[..kept as usize]).into();
            let mut shorter = Bio::new(Op::Write, bio.start, vec![segment]);
            shorter.flags = bio.flags;
            self.inner.submit(shorter);
        }
        bio.end(Ok(()));
    }

    fn write(&self, mut bio: Bio) {
        let block_sectors = self.block_bytes / Sector::BYTES;
        match (self.meddling, self.class(&bio)) {
            (Meddling::NoCommit, Class::Commit)
            | (Meddling::NoRevoke, Class::Revoke)
            | (Meddling::NoHome, Class::Home)
            | (Meddling::NoLogStart, Class::LogSuperblock)
            | (Meddling::NoFlag, Class::Superblock)
            | (Meddling::NoData, Class::Data) => bio.end(Ok(())),
            (Meddling::LateLog, Class::Log | Class::Revoke) => self.hold(bio),
            (Meddling::LateData, Class::Data) => self.hold(bio),
            (Meddling::ShortLog, Class::Log) => {
                let kept = bio.bytes.saturating_sub(self.block_bytes);
                self.cut(bio, kept);
            }
            (Meddling::HalfData, Class::Data) => {
                let kept = bio.bytes / 2;
                self.cut(bio, kept);
            }
            (Meddling::MisdirectedHome, Class::Home)
                if (bio.start.0 + block_sectors) * Sector::BYTES + bio.bytes
                    <= self.limits().capacity_bytes =>
            {
                bio.start = Sector(bio.start.0 + block_sectors);
                self.inner.submit(bio);
            }
            (Meddling::MisdirectedData, Class::Data) => {
                bio.start = Sector(bio.start.0 - block_sectors);
                self.inner.submit(bio);
            }
            (Meddling::EarlyHome, Class::Log) => {
                self.write_home(&bio);
                self.inner.submit(bio);
            }
            _ => self.inner.submit(bio),
        }
    }

    /// Writes the blocks listed by a descriptor at the start of `bio` to their home locations. When
    /// a log wraps, bios may start with other blocks.
    fn write_home(&self, bio: &Bio) {
        let all: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice()).copied().collect();
        let mut blocks = all.chunks_exact(self.block_bytes as usize);
        let is_descriptor = |block: &&[u8]| block.starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 1]);
        let Some(descriptor) = blocks.next().filter(is_descriptor) else { return };
        for (home, contents) in crate::states::tags(descriptor).into_iter().zip(blocks) {
            let at = Sector(home * self.block_bytes / Sector::BYTES);
            self.inner.submit(Bio::new(Op::Write, at, vec![Buf::from_slice(contents).into()]));
        }
    }
}

impl Device for Meddler {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let flushes = bio.op == Op::Flush || bio.flags.contains(BioFlags::PREFLUSH);
        if matches!(self.meddling, Meddling::NoFlush | Meddling::NoPreflush) {
            bio.flags.remove(BioFlags::PREFLUSH);
        }
        if self.meddling == Meddling::NoFua {
            bio.flags.remove(BioFlags::FUA);
        }
        match bio.op {
            Op::Flush if self.meddling == Meddling::NoFlush => bio.end(Ok(())),
            Op::Read => {
                // A volume must be able to read what it wrote, even if that write is held back.
                self.release();
                self.inner.submit(bio);
            }
            Op::Write => {
                let flags = bio.flags;
                self.write(bio);
                if flushes || flags.contains(BioFlags::FUA) {
                    self.release();
                }
            }
            _ => {
                self.inner.submit(bio);
                self.release();
            }
        }
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}

impl fmt::Debug for Meddler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Meddler({:?})", self.meddling)
    }
}
