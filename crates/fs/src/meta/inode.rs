//! One inode in memory.

use super::{MetaBlock, Tid, Usage, Versioned};
use extant_cache::accounts::Charge;
use extant_format::{Inode, InodeNumber, Superblock, Timestamp};
use extant_rt::{ReadGuard, RwLock, WriteGuard};
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Stamps advance on a tick of 4 ms, as Linux's do at 250 Hz: most changes of a busy inode then leave its times as they are.
const TICK_NS: u32 = 4_000_000;

/// An inode in memory: its live record, and the one that a transaction left until the commit has encoded it.
pub(crate) struct InodeCell {
    number: InodeNumber,
    /// The block of the inode table that holds the record.
    table: MetaBlock,
    /// Offset of the record in `table`, in bytes.
    at: usize,
    /// The inode's lock, held across waits: a directory's names, a file's size and map. Its order: see `names`.
    lock: RwLock,
    /// Open files and other references that keep an inode without links from being deleted.
    openers: AtomicU32,
    /// Asked for since eviction looked at it last.
    touched: AtomicBool,
    /// The contents of the file may be in memory.
    has_contents: AtomicBool,
    /// The number of the last transaction that changed which node of its map is responsible for a file block.
    reshaped: AtomicU64,
    record: Mutex<Record>,
    /// The memory that it is charged for.
    charge: OnceLock<Charge>,
    /// State that operations on the inode keep beside the record.
    attached: OnceLock<Box<dyn Any + Send + Sync>>,
}

struct Record {
    versions: Versioned<Inode>,
    /// The stamp of the last change was seen by a caller.
    observed: bool,
    /// The number belongs to another inode from this transaction on.
    superseded: Option<Tid>,
    /// Its use as far as quotas have been told, once a handle has changed it.
    charged: Option<Option<Usage>>,
}

impl InodeCell {
    /// The inode whose record begins at byte `at` of `table`, under a lock that nobody has.
    pub(crate) fn new(inode: Inode, table: MetaBlock, at: usize, lock: RwLock) -> Self {
        Self {
            number: inode.number,
            table,
            at,
            lock,
            openers: AtomicU32::new(0),
            touched: AtomicBool::new(false),
            has_contents: AtomicBool::new(false),
            reshaped: AtomicU64::new(Tid::NONE.0),
            record: Mutex::new(Record {
                versions: Versioned::new(inode),
                observed: false,
                superseded: None,
                charged: None,
            }),
            charge: OnceLock::new(),
            attached: OnceLock::new(),
        }
    }

    pub(crate) fn number(&self) -> InodeNumber {
        self.number
    }

    /// The block of the inode table that holds the record, and the record's offset in it.
    pub(crate) fn home(&self) -> (&MetaBlock, usize) {
        (&self.table, self.at)
    }

    /// The inode's lock.
    pub(crate) fn lock(&self) -> &RwLock {
        &self.lock
    }

    /// The inode's lock for writing.
    pub(crate) async fn write_lock(&self) -> WriteGuard<'_> {
        self.lock.write().await
    }

    /// The inode's lock for reading.
    pub(crate) async fn read_lock(&self) -> ReadGuard<'_> {
        self.lock.read().await
    }

    /// Whether the file may be among those with contents in memory; exact under the lock of their table.
    pub(crate) fn has_contents(&self) -> bool {
        self.has_contents.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_contents(&self, has: bool) {
        self.has_contents.store(has, Ordering::Release);
    }

    /// The last transaction of [`Self::reshape`].
    pub(crate) fn reshaped_in(&self) -> Tid {
        Tid(self.reshaped.load(Ordering::Acquire))
    }

    /// The transaction changes which node of the inode's map is responsible for a file block.
    pub(crate) fn reshape(&self, tid: Tid) {
        self.reshaped.store(tid.0, Ordering::Release);
    }

    /// Looks at the live record.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Inode) -> T) -> T {
        look(self.record.lock().versions.live())
    }

    /// As [`Self::read`], for a caller that is shown the times: the next change gets a stamp of its own.
    pub(crate) fn observe<T>(&self, look: impl FnOnce(&Inode) -> T) -> T {
        let mut record = self.record.lock();
        record.observed = true;
        look(record.versions.live())
    }

    /// State of type `T` that operations keep beside the record for as long as the inode is in memory. An inode has one
    /// such type.
    pub(crate) fn attached<T: Any + Send + Sync + Default>(&self) -> &T {
        let attached = self.attached.get_or_init(|| Box::new(T::default()));
        attached.downcast_ref().expect("attachments of inodes have one type")
    }

    /// Whether names lead to it.
    pub(crate) fn is_live(&self) -> bool {
        self.read(is_live)
    }

    /// A reference that keeps the inode from being deleted, until [`Self::close`].
    pub(crate) fn open(&self) {
        self.openers.fetch_add(1, Ordering::Relaxed);
    }

    /// As [`Self::open`], unless no name leads to the inode; returns whether it did. It does not
    /// from the change on that takes the last name, so that a deletion after that change sees every reference.
    #[must_use]
    pub(crate) fn open_live(&self) -> bool {
        let record = self.record.lock();
        let live = is_live(record.versions.live());
        if live {
            self.open();
        }
        live
    }

    /// Ends an [`Self::open`]. Returns whether it was the last of an inode without links, which is to be deleted now.
    #[must_use]
    pub(crate) fn close(&self) -> bool {
        let before = self.openers.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "inode {} is closed as often as it is opened", self.number);
        before == 1 && self.read(|inode| inode.links() == 0)
    }

    /// Open references.
    pub(crate) fn openers(&self) -> u32 {
        self.openers.load(Ordering::Acquire)
    }

    /// The live record to be changed by `tid`, and whether that is its first change of it; for journal handles.
    pub(crate) fn edit(&self, tid: Tid) -> (InodeEdit<'_>, bool) {
        let mut record = self.record.lock();
        let (_, first) = record.versions.edit(tid);
        (InodeEdit { record }, first)
    }

    /// Notes what the inode uses before the first handle changes it.
    pub(crate) fn begin_usage(&self, sb: &Superblock) {
        let Record { versions, charged, .. } = &mut *self.record.lock();
        charged.get_or_insert_with(|| Usage::of(versions.live(), sb));
    }

    /// The inode's use when this was asked before, or before the first change, and its use now.
    pub(crate) fn usage_change(&self, sb: &Superblock) -> [Option<Usage>; 2] {
        let Record { versions, charged, .. } = &mut *self.record.lock();
        let now = Usage::of(versions.live(), sb);
        [charged.replace(now).unwrap_or(now), now]
    }

    /// Writes the record as `tid` left it into `to`, which begins at it; for commits.
    pub(crate) fn encode(&self, tid: Tid, to: &mut [u8], sb: &Superblock) {
        let (inode, superseded) = {
            let mut record = self.record.lock();
            (record.versions.take(tid), record.superseded)
        };
        if superseded.is_none_or(|by| tid < by) {
            inode.write_to(to, sb);
        }
    }

    /// The transaction that changed it last, if one of this session did.
    pub(crate) fn changed_by(&self) -> Option<Tid> {
        self.record.lock().versions.changed_by()
    }

    /// Stamps a change of the contents at `now` in the live record alone: times that data changed follow the data, so that
    /// the next transaction of the inode carries them. False within the tick of the last change: nothing is to be logged.
    #[must_use]
    pub(crate) fn touch_contents(&self, now: Timestamp) -> bool {
        let mut record = InodeEdit { record: self.record.lock() };
        let stamp = record.stamp(now);
        let advances = stamp != record.changed() || stamp != record.modified();
        if advances {
            record.set_modified(stamp);
            record.set_changed(stamp);
            record.bump_version();
        }
        advances
    }

    /// Whether a change waits to be encoded by a commit.
    pub(crate) fn is_dirty(&self) -> bool {
        self.record.lock().versions.is_dirty()
    }

    /// The inode was deleted, and its number is another's from `tid` on.
    pub(crate) fn supersede(&self, tid: Tid) {
        self.record.lock().superseded = Some(tid);
    }

    /// Memory that it takes, about.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Its record's tail, and its place in the table by number.
        size_of::<Self>() as u64 + self.read(|inode| inode.tail.len() as u64) + 64
    }

    /// Keeps what its memory is charged with for as long as it lives.
    pub(crate) fn keep_charge(&self, charge: Charge) {
        let set = self.charge.set(charge);
        assert!(set.is_ok(), "charged once");
    }

    pub(crate) fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_touched(&self) -> bool {
        self.touched.swap(false, Ordering::Relaxed)
    }
}

fn is_live(inode: &Inode) -> bool {
    inode.links() > 0 && inode.kind().is_some()
}

impl fmt::Debug for InodeCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InodeCell({})", self.number)
    }
}

/// An inode's live record under change. Its checksum is filled in by the commit.
pub(crate) struct InodeEdit<'a> {
    record: MutexGuard<'a, Record>,
}

impl InodeEdit<'_> {
    /// The stamp of a change that happens at `now`: coarse, unless the last one was observed.
    pub(crate) fn stamp(&mut self, now: Timestamp) -> Timestamp {
        let last = self.record.versions.live().changed();
        let stamp = stamp(now, last, self.record.observed);
        self.record.observed = false;
        stamp
    }
}

impl Deref for InodeEdit<'_> {
    type Target = Inode;
    fn deref(&self) -> &Inode {
        self.record.versions.live()
    }
}

impl DerefMut for InodeEdit<'_> {
    fn deref_mut(&mut self) -> &mut Inode {
        self.record.versions.live_mut()
    }
}

impl fmt::Debug for InodeEdit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// The stamp of a change at `now` of an inode whose last change is stamped `last`; `observed` if that was seen
/// since: two versions that a caller told apart never carry the same time (multigrain timestamps,
/// Documentation/filesystems/multigrain-ts.rst).
fn stamp(now: Timestamp, last: Timestamp, observed: bool) -> Timestamp {
    let tick = Timestamp { nanos: now.nanos - now.nanos % TICK_NS, ..now };
    if tick > last {
        return tick;
    }
    // A last stamp finer than the tick is not taken back within it; a clock that was set back is followed.
    let within = last <= now;
    match (within, observed) {
        (true, true) => now,
        (true, false) => last,
        (false, _) => tick,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(nanos: u32) -> Timestamp {
        Timestamp { seconds: 100, nanos }
    }

    #[test]
    fn stamps_are_coarse_until_one_is_observed() {
        let first = stamp(at(9_500_000), at(0), false);
        assert_eq!(first, at(8_000_000));
        assert_eq!(stamp(at(9_600_000), first, false), first);
        let fine = stamp(at(9_700_000), first, true);
        assert_eq!(fine, at(9_700_000));
        assert_eq!(stamp(at(9_800_000), fine, false), fine, "never backwards within a tick");
        assert_eq!(stamp(at(12_100_000), fine, false), at(12_000_000));
    }

    #[test]
    fn a_clock_that_was_set_back_is_followed() {
        let later = Timestamp { seconds: 200, nanos: 0 };
        assert_eq!(stamp(at(9_500_000), later, true), at(8_000_000));
    }
}
