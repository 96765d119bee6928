//! The inodes in memory, by number.

use crate::Result;
use crate::alloc::{Allocator, LoggedInode, NewInode, Parent, Wanted};
use crate::journal::{Handle, Journal};
use crate::meta::{InodeCell, MetaKind, MetaStore, Tid};
use extant_cache::accounts::{Account, Shrink};
use extant_format::{
    Corrupt, GroupFlags, Inode, InodeFlags, InodeNumber, Place, UintExt, VolumeBlock, inode_offset,
};
use extant_rt::RwLock;
use parking_lot::Mutex;
use rustc_hash::FxBuildHasher;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock, Weak};

const SHARDS: usize = 16;
/// Adjacent inodes of a table share a shard.
const NEIGHBOURS: u32 = 16;
/// Eviction queue entries examined on each insertion.
const LOOKED_AT: usize = 4;
/// Queue entries of each shard examined by one call to `shrink`. A full call takes about 100 µs.
const SHRINK_LOOKS: usize = 128;

/// Inodes in memory. Those that are referenced, or changed and not yet encoded by a commit, stay.
/// Of the others at most the agreed number is kept.
///
/// Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Inodes {
    table: Arc<Table>,
}

#[derive(Debug)]
struct Table {
    store: Arc<MetaStore>,
    shards: [Mutex<Shard>; SHARDS],
    kept_per_shard: usize,
    /// The account that inodes in memory are charged to, if any.
    account: OnceLock<Account>,
}

#[derive(Debug, Default)]
struct Shard {
    cells: HashMap<u32, Arc<InodeCell>, FxBuildHasher>,
    /// Second-chance eviction order. May list a number whose cell is gone.
    queue: VecDeque<u32>,
}

/// The error for an inode that has links although its bitmap says it is free.
pub(crate) fn unmarked(number: InodeNumber, links: u16) -> Corrupt {
    let rule = "0, for the bitmap says that the inode is free; run e2fsck";
    Corrupt::field(Place::Inode(number), "i_links_count", links.into(), rule)
}

/// Fails if no name may refer to the inode.
fn check_named(inode: &Inode, place: Place) -> std::result::Result<(), Corrupt> {
    let bad = |rule| Err(Corrupt::field(place, "inode", inode.number.0.into(), rule));
    if inode.flags().contains(InodeFlags::EA_INODE) {
        return bad("none that holds a value of an attribute");
    }
    match inode.links() > 0 && inode.kind().is_some() {
        true => Ok(()),
        false => bad("one that is in use"),
    }
}

impl Inodes {
    /// Creates a table that keeps up to `kept` unused inodes.
    pub(crate) fn new(store: Arc<MetaStore>, kept: usize) -> Self {
        let (shards, account) = Default::default();
        let kept_per_shard = kept.div_ceil(SHARDS);
        Self { table: Arc::new(Table { store, shards, kept_per_shard, account }) }
    }

    /// Charges inodes loaded from now on to `account`, which may ask for unused ones to be dropped.
    /// Called once.
    pub(crate) fn charge_to(&self, account: Account) {
        account.set_shrinker(Arc::downgrade(&self.table) as Weak<dyn Shrink>);
        let set = self.table.account.set(account);
        assert!(set.is_ok(), "one account");
    }

    /// The account that inodes in memory are charged to, if any.
    #[cfg(test)]
    pub(crate) fn account(&self) -> Option<&Account> {
        self.table.account.get()
    }

    fn store(&self) -> &MetaStore {
        &self.table.store
    }

    fn new_lock(&self) -> RwLock {
        RwLock::new(self.store().locks())
    }

    fn shard(&self, number: InodeNumber) -> &Mutex<Shard> {
        self.table.shard(number)
    }

    /// Returns the inode if it is in memory. Never waits.
    pub(crate) fn cached(&self, number: InodeNumber) -> Option<Arc<InodeCell>> {
        let cell = self.shard(number).lock().cells.get(&number.0).cloned()?;
        cell.touch();
        Some(cell)
    }

    /// Returns the inode, reading it if necessary. It may be free, or deleted and still open: see
    /// [`InodeCell::is_live`].
    ///
    /// # Errors
    /// I/O errors; a number beyond the volume; a wrong checksum.
    pub(crate) async fn get(&self, number: InodeNumber) -> Result<Arc<InodeCell>> {
        if let Some(cell) = self.cached(number) {
            return Ok(cell);
        }
        let (table, at) = self.home(number)?;
        let group = self.store().shape().locate_inode(number).expect("it has a home").0;
        let table = self.store().read(table, MetaKind::InodeTable(group)).await?;
        let mut shard = self.shard(number).lock();
        // Another reader may have been first, and its cell may have changed since.
        if let Some(cell) = shard.cells.get(&number.0) {
            return Ok(cell.clone());
        }
        // Under the shard's lock, because then the bytes are those of the last commit that encoded
        // the inode, and no cell has newer ones.
        let inode = Inode::parse(&table.bytes()[at..], self.store().shape(), number)?;
        Ok(self.table.insert(&mut shard, InodeCell::new(inode, table, at, self.new_lock())))
    }

    /// Like [`Self::get`], for an inode that a name or a program refers to.
    ///
    /// # Errors
    /// As there; an inode that is free or reserved for the volume itself.
    pub(crate) async fn get_live(&self, number: InodeNumber, place: Place) -> Result<Arc<InodeCell>> {
        if self.store().shape().is_own_inode(number) {
            return Err(Corrupt::field(place, "inode", number.0.into(), "none of the volume's own").into());
        }
        let cell = match self.cached(number) {
            Some(cell) => cell,
            None => {
                self.check_was_used(number, place)?;
                self.get(number).await?
            }
        };
        cell.read(|inode| check_named(inode, place))?;
        Ok(cell)
    }

    /// Checks an inode that was read from the volume as [`Self::get_live`] does.
    ///
    /// # Errors
    /// An inode that is free or holds a value of an attribute.
    pub(crate) fn check_live(&self, inode: &Inode, place: Place) -> Result<()> {
        self.check_was_used(inode.number, place)?;
        Ok(check_named(inode, place)?)
    }

    /// Fails for an inode beyond those ever used (`bg_itable_unused`): there the table may hold
    /// anything.
    fn check_was_used(&self, number: InodeNumber, place: Place) -> Result<()> {
        let sb = self.store().shape();
        let Some((group, index)) = sb.locate_inode(number).filter(|_| sb.has_group_csum()) else {
            return Ok(());
        };
        let descriptor = self.store().groups().get(group);
        let used = sb.inodes_per_group().saturating_sub(descriptor.unused_inodes);
        match descriptor.flags.contains(GroupFlags::INODE_UNINIT) || index >= used {
            true => Err(Corrupt::field(place, "inode", number.0.into(), "one that is in use").into()),
            false => Ok(()),
        }
    }

    /// Takes a free number for a new inode. A number whose record has links is in use whatever the
    /// bitmap says: it is skipped and the damage recorded.
    ///
    /// # Errors
    /// As [`Allocator::inode_waiting`].
    pub(crate) async fn take_number(
        &self,
        allocator: &Allocator,
        journal: &Journal,
        wanted: Wanted,
        parent: Parent,
    ) -> Result<NewInode> {
        loop {
            let new = allocator.inode_waiting(journal, wanted, parent).await?;
            match self.links_of(&new) {
                0 => return Ok(new),
                links => {
                    let corrupt = unmarked(new.number(), links);
                    allocator.lose_inode(new, corrupt.into());
                }
            }
        }
    }

    /// The link count of the number's last inode: 0, unless the bitmap is wrong.
    fn links_of(&self, new: &NewInode) -> u16 {
        // Under the lock: if an inode has no cell, the table has its latest record.
        let shard = self.shard(new.number()).lock();
        match shard.cells.get(&new.number().0) {
            Some(cell) => cell.read(Inode::links),
            None => new.recorded_links(),
        }
    }

    /// Chooses the generation of a new inode. It differs from that of the number's last owner,
    /// which the running transaction may have deleted.
    pub(crate) fn generation(&self, new: &NewInode) -> u32 {
        let shard = self.shard(new.number()).lock();
        let last = shard.cells.get(&new.number().0);
        new.generation(last.map(|last| last.read(|inode| inode.raw.i_generation.get())))
    }

    /// Logs a new inode and fills in its record, which starts out zeroed except for the generation.
    pub(crate) fn create(
        &self,
        handle: &mut Handle,
        allocator: &Allocator,
        new: NewInode,
        fill: impl FnOnce(&mut Inode),
    ) -> Arc<InodeCell> {
        let generation = self.generation(&new);
        let LoggedInode { number, table, at } = allocator.log_inode(handle, new);
        let sb = self.store().shape();
        let mut inode = Inode::new(number, sb);
        inode.raw.i_generation = generation.into();
        let cell = {
            let mut shard = self.shard(number).lock();
            // The number's last owner may have been deleted in the same transaction, and must not
            // be encoded over the new one.
            if let Some(old) = shard.cells.get(&number.0) {
                old.supersede(handle.tid());
            }
            self.table.insert(&mut shard, InodeCell::new(inode, table, at, self.new_lock()))
        };
        fill(&mut handle.inode(&cell));
        cell
    }

    /// Drops a deleted inode from the table. The next lookup of its number reads it from the
    /// volume.
    pub(crate) fn forget(&self, cell: &Arc<InodeCell>) {
        let mut shard = self.shard(cell.number()).lock();
        // Keep it until a commit has encoded it, or its number is reused.
        if shard.cells.get(&cell.number().0).is_some_and(|held| Arc::ptr_eq(held, cell)) && !cell.is_dirty() {
            shard.cells.remove(&cell.number().0);
            // A sync that began before the deletion may hold the cell and log its times. It must
            // not do so over the number's next owner, which would find no cell here to supersede.
            cell.supersede(Tid::NONE);
        }
    }

    /// Drops unused inodes, up to about `bytes`; returns the bytes freed.
    #[cfg(test)]
    pub(crate) fn shrink(&self, bytes: u64) -> u64 {
        self.table.shrink(bytes)
    }

    /// Number of inodes in memory.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.shards.iter().map(|shard| shard.lock().cells.len()).sum()
    }

    fn home(&self, number: InodeNumber) -> Result<(VolumeBlock, usize)> {
        let sb = self.store().shape();
        let Some((group, offset)) = inode_offset(sb, number) else {
            let rule = "an inode of the volume";
            return Err(Corrupt::field(Place::Inode(number), "inode number", number.0.into(), rule).into());
        };
        let block = self.store().groups().get(group).inode_table.0 + (offset >> sb.block_size().log2());
        Ok((VolumeBlock(block), (offset & u64::from(sb.block_size().bytes() - 1)).to_usize()))
    }
}

impl Table {
    fn shard(&self, number: InodeNumber) -> &Mutex<Shard> {
        &self.shards[(number.0 / NEIGHBOURS).to_usize() % SHARDS]
    }

    fn insert(&self, shard: &mut Shard, cell: InodeCell) -> Arc<InodeCell> {
        if let Some(account) = self.account.get() {
            cell.keep_charge(account.charge(cell.memory_bytes()));
        }
        let cell = Arc::new(cell);
        shard.queue.push_back(cell.number().0);
        shard.cells.insert(cell.number().0, cell.clone());
        for _ in 0..LOOKED_AT {
            if shard.cells.len() <= self.kept_per_shard && shard.queue.len() <= 2 * self.kept_per_shard {
                break;
            }
            shard.evict_one();
        }
        cell
    }
}

impl Shard {
    /// Examines the oldest queue entry; returns the bytes freed.
    fn evict_one(&mut self) -> u64 {
        let Some(oldest) = self.queue.pop_front() else { return 0 };
        match self.cells.get(&oldest) {
            None => 0,
            // The table's reference is the only one, and new ones come from the table, which is
            // locked.
            Some(cell) if Arc::strong_count(cell) == 1 && !cell.is_dirty() && !cell.take_touched() => {
                let bytes = cell.memory_bytes();
                self.cells.remove(&oldest);
                bytes
            }
            Some(_) => {
                self.queue.push_back(oldest);
                0
            }
        }
    }
}

impl Shrink for Table {
    fn shrink(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            for _ in 0..shard.queue.len().min(SHRINK_LOOKS) {
                if freed >= bytes {
                    return freed;
                }
                freed += shard.evict_one();
            }
        }
        freed
    }
}
