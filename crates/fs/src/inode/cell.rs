//! One inode in memory.

use crate::meta::{MetaBlock, Tid, Versioned};
use extant_format::{Inode, InodeNumber, Superblock};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// An inode in memory: its live record, and the one that a transaction left until the commit has encoded it.
pub(crate) struct InodeCell {
    number: InodeNumber,
    /// The block of the inode table that holds the record.
    table: MetaBlock,
    /// Offset of the record in `table`, in bytes.
    at: usize,
    record: Mutex<Versioned<Inode>>,
}

impl InodeCell {
    /// The inode whose record begins at byte `at` of `table`.
    pub(crate) fn new(inode: Inode, table: MetaBlock, at: usize) -> Self {
        Self { number: inode.number, table, at, record: Mutex::new(Versioned::new(inode)) }
    }

    pub(crate) fn number(&self) -> InodeNumber {
        self.number
    }

    /// The block of the inode table that holds the record, and the record's offset in it.
    pub(crate) fn home(&self) -> (&MetaBlock, usize) {
        (&self.table, self.at)
    }

    /// Looks at the live record.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Inode) -> T) -> T {
        look(self.record.lock().live())
    }

    /// The live record to be changed by `tid`, and whether that is its first change of it; for journal handles.
    pub(crate) fn edit(&self, tid: Tid) -> (InodeEdit<'_>, bool) {
        let mut record = self.record.lock();
        let (_, first) = record.edit(tid);
        (InodeEdit { record }, first)
    }

    /// Writes the record as `tid` left it into `to`, which begins at it; for commits.
    pub(crate) fn encode(&self, tid: Tid, to: &mut [u8], sb: &Superblock) {
        let record = self.record.lock().take(tid);
        record.write_to(to, sb);
    }
}

impl fmt::Debug for InodeCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InodeCell({})", self.number)
    }
}

/// An inode's live record under change. Its checksum is filled in by the commit.
#[derive(Debug)]
pub(crate) struct InodeEdit<'a> {
    record: MutexGuard<'a, Versioned<Inode>>,
}

impl Deref for InodeEdit<'_> {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        self.record.live()
    }
}

impl DerefMut for InodeEdit<'_> {
    fn deref_mut(&mut self) -> &mut Inode {
        self.record.live_mut()
    }
}
