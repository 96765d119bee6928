//! One inode in memory.

use super::{MetaBlock, Tid, Usage, Versioned};
use extant_cache::accounts::Charge;
use extant_format::{Inode, InodeNumber, Superblock, Timestamp, UintExt};
use extant_rt::{ReadGuard, RwLock, WriteGuard};
use parking_lot::{Mutex, MutexGuard};
use std::any::Any;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Time stamps advance in ticks of 4 ms, as on Linux at 250 Hz. Most changes to a busy inode thus
/// leave its times unchanged.
const TICK_NS: u32 = 4_000_000;

/// An inode in memory: its live record, and an older version that a commit has yet to encode.
pub(crate) struct InodeCell {
    number: InodeNumber,
    /// The inode table block that holds the record.
    table: MetaBlock,
    /// Offset of the record in `table`, in bytes.
    at: usize,
    /// The inode's lock, held across awaits. Protects a directory's names, or a file's size and
    /// map. For the lock order see `names`.
    lock: RwLock,
    /// Number of open files and other references that keep an inode without links from being
    /// deleted.
    openers: AtomicU32,
    /// Used since eviction last looked at it.
    touched: AtomicBool,
    /// The page cache may have contents of the file.
    has_contents: AtomicBool,
    /// The last transaction that changed which file blocks a node of the map covers.
    reshaped: AtomicU64,
    record: Mutex<Record>,
    /// The charge for its memory.
    charge: OnceLock<Charge>,
    /// State that operations on the inode keep alongside the record.
    attached: OnceLock<Box<dyn Any + Send + Sync>>,
}

struct Record {
    versions: Versioned<Inode>,
    /// A caller has seen the stamp of the last change.
    observed: bool,
    /// From this transaction on, the number belongs to another inode.
    superseded: Option<Tid>,
    /// Its usage as last reported to quotas; set once a handle has changed the inode.
    charged: Option<Option<Usage>>,
}

impl InodeCell {
    /// Creates a cell for the inode whose record is at byte `at` of `table`, with a lock that is
    /// free.
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

    /// The inode table block that holds the record, and the record's offset in it.
    pub(crate) fn home(&self) -> (&MetaBlock, usize) {
        (&self.table, self.at)
    }

    /// The inode's lock.
    pub(crate) fn lock(&self) -> &RwLock {
        &self.lock
    }

    /// Takes the inode's lock for writing.
    pub(crate) async fn write_lock(&self) -> WriteGuard<'_> {
        self.lock.write().await
    }

    /// Takes the inode's lock for reading.
    pub(crate) async fn read_lock(&self) -> ReadGuard<'_> {
        self.lock.read().await
    }

    /// Whether the file may have contents in memory. Exact under the lock of the table of files.
    pub(crate) fn has_contents(&self) -> bool {
        self.has_contents.load(Ordering::Acquire)
    }

    pub(crate) fn set_has_contents(&self, has: bool) {
        self.has_contents.store(has, Ordering::Release);
    }

    /// The last transaction passed to [`Self::reshape`].
    pub(crate) fn reshaped_in(&self) -> Tid {
        Tid(self.reshaped.load(Ordering::Acquire))
    }

    /// Records that `tid` changes which file blocks a node of the inode's map covers.
    pub(crate) fn reshape(&self, tid: Tid) {
        self.reshaped.store(tid.0, Ordering::Release);
    }

    /// Calls `look` with the live record.
    pub(crate) fn read<T>(&self, look: impl FnOnce(&Inode) -> T) -> T {
        look(self.record.lock().versions.live())
    }

    /// Like [`Self::read`], for a caller that gets to see the times: the next change will get a
    /// distinct stamp.
    pub(crate) fn observe<T>(&self, look: impl FnOnce(&Inode) -> T) -> T {
        let mut record = self.record.lock();
        record.observed = true;
        look(record.versions.live())
    }

    /// State of type `T` that operations keep alongside the record while the inode is in memory.
    /// All state attached to one inode has the same type.
    pub(crate) fn attached<T: Any + Send + Sync + Default>(&self) -> &T {
        let attached = self.attached.get_or_init(|| Box::new(T::default()));
        attached.downcast_ref().expect("attachments of inodes have one type")
    }

    /// Whether the inode has a name.
    pub(crate) fn is_live(&self) -> bool {
        self.read(is_live)
    }

    /// Adds a reference that keeps the inode from being deleted, until [`Self::close`].
    pub(crate) fn open(&self) {
        self.openers.fetch_add(1, Ordering::Relaxed);
    }

    /// Like [`Self::open`], unless the inode has no name; returns whether it opened it. Once the
    /// last name is removed it always fails, so a later deletion sees every reference.
    #[must_use]
    pub(crate) fn open_live(&self) -> bool {
        let record = self.record.lock();
        let live = is_live(record.versions.live());
        if live {
            self.open();
        }
        live
    }

    /// Opens the inode only if something else has it open, and returns whether it did. The inode
    /// cannot be deleted until it is closed.
    #[must_use]
    pub(crate) fn open_held(&self) -> bool {
        let more = |openers: u32| (openers > 0).then(|| openers + 1);
        self.openers.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// Ends an [`Self::open`]. Returns true if it was the last one and the inode has no links, so
    /// that it must be deleted now.
    #[must_use]
    pub(crate) fn close(&self) -> bool {
        let before = self.openers.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "inode {} is closed as often as it is opened", self.number);
        before == 1 && self.read(|inode| inode.links() == 0)
    }

    /// Number of open references.
    pub(crate) fn openers(&self) -> u32 {
        self.openers.load(Ordering::Acquire)
    }

    /// Begins an edit of the live record by `tid`. Also returns whether it is the transaction's
    /// first edit of it. For journal handles.
    pub(crate) fn edit(&self, tid: Tid) -> (InodeEdit<'_>, bool) {
        let mut record = self.record.lock();
        let (_, first) = record.versions.edit(tid);
        (InodeEdit { record }, first)
    }

    /// Notes the inode's usage before a handle first changes it.
    pub(crate) fn begin_usage(&self, sb: &Superblock) {
        let Record { versions, charged, .. } = &mut *self.record.lock();
        charged.get_or_insert_with(|| Usage::of(versions.live(), sb));
    }

    /// Returns the usage at the last call, or before the first change, and the usage now.
    pub(crate) fn usage_change(&self, sb: &Superblock) -> [Option<Usage>; 2] {
        let Record { versions, charged, .. } = &mut *self.record.lock();
        let now = Usage::of(versions.live(), sb);
        [charged.replace(now).unwrap_or(now), now]
    }

    /// Encodes the record, as `tid` left it, into the start of `to`. For commits.
    pub(crate) fn encode(&self, tid: Tid, to: &mut [u8], sb: &Superblock) {
        let (inode, superseded) = {
            let mut record = self.record.lock();
            (record.versions.take(tid), record.superseded)
        };
        if superseded.is_none_or(|by| tid < by) {
            inode.write_to(to, sb);
        }
    }

    /// The transaction that last changed it, if any has since it was loaded.
    pub(crate) fn changed_by(&self) -> Option<Tid> {
        self.record.lock().versions.changed_by()
    }

    /// Stamps a change of the contents at `now`, in the live record only: times changed by data are
    /// logged with the data, in the inode's next transaction. Returns false within the same tick as
    /// the last change, when nothing needs to be logged.
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

    /// Whether a commit has yet to encode a change.
    pub(crate) fn is_dirty(&self) -> bool {
        self.record.lock().versions.is_dirty()
    }

    /// Records that the inode was deleted and its number belongs to another from `tid` on.
    pub(crate) fn supersede(&self, tid: Tid) {
        self.record.lock().superseded = Some(tid);
    }

    /// Approximate memory use, in bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // Includes the record's tail and the entry in the table of inodes.
        size_of::<Self>().to_u64() + self.read(|inode| inode.tail.len().to_u64()) + 64
    }

    /// Holds the charge for its memory for as long as the cell lives.
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

/// An inode's live record being edited. The commit fills in its checksum.
pub(crate) struct InodeEdit<'a> {
    record: MutexGuard<'a, Record>,
}

impl InodeEdit<'_> {
    /// The stamp for a change at `now`: coarse, unless the last stamp was observed.
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

/// The stamp for a change at `now`. `last` is the stamp of the last change; `observed` says whether
/// a caller has seen it. Two versions that a caller could tell apart never carry the same time
/// (multigrain timestamps, Documentation/filesystems/multigrain-ts.rst).
fn stamp(now: Timestamp, last: Timestamp, observed: bool) -> Timestamp {
    let tick = Timestamp { nanos: now.nanos - now.nanos % TICK_NS, ..now };
    if tick > last {
        return tick;
    }
    // A last stamp finer than the tick must not go backwards within it. But follow a clock that was
    // set back.
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
