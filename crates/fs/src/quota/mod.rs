//! Quotas of users, groups and projects (feature `quota`): what each uses, exact at every commit.
//!
//! Usage follows the records of inodes: each commit charges the difference that its transaction makes to them, and writes the
//! quota blocks that this changes with it (the journal's `accounts`). Data count once they are allocated. Operations that may bring a
//! new owner make room for its entry before ([`Quotas::make_room`]), so that a commit never has to make any.
//!
//! Limits are kept as they are and not enforced, which is how Linux mounts such a volume unless it is told otherwise
//! (`usrquota`, `grpquota`, `prjquota`).

mod grow;
mod tree;

use crate::inode::InodeCell;
use crate::journal::{Accounts, Charge, NEW_OWNER_BLOCKS, Owner};
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::view::View;
use crate::writer::Writer;
use crate::{Result, RunState};
use extant_format::{
    Corrupt, FileBlock, Inode, InodeNumber, Place, QUOTA_BLOCK_BYTES, QuotaKind, RoCompat, VolumeBlock,
};
use extant_rt::RwLock;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use tree::QuotaTree;

/// Longest quota file that is kept in memory: some 60,000 owners take 4 MiB. Tests reach the bound with fewer.
const FILE_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// The quotas of a volume that is open for writing.
#[derive(Debug)]
pub(crate) struct Quotas {
    files: Vec<QuotaFile>,
    /// Of the volume, which keeps problems.
    writer: Weak<Writer>,
}

/// The quota file of one kind.
#[derive(Debug)]
struct QuotaFile {
    kind: QuotaKind,
    cell: Arc<InodeCell>,
    /// Held while the file grows.
    growing: RwLock,
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    tree: QuotaTree,
    /// The volume's blocks that hold it, in order.
    blocks: Vec<MetaBlock>,
    /// Owners without an entry that may get one.
    expected: BTreeMap<u32, Expected>,
}

/// Room for the entry of a new owner.
#[derive(Debug, Default)]
struct Expected {
    /// Operations that may bring the owner.
    holders: u32,
    /// One has: a commit makes the entry.
    is_charged: bool,
}

/// Room for entries of owners, until it is dropped: after the handle that charges them.
#[derive(Debug)]
#[must_use = "room that is given up before its owners are charged may be another's"]
pub(crate) struct Room<'q> {
    quotas: &'q Quotas,
    owners: Owners,
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.quotas.files.iter().for_each(|file| file.give_up(self.owners.of_kind(file.kind)));
    }
}

/// Owners of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) project: u32,
}

impl Owners {
    /// Those that an inode has.
    pub(crate) fn of(inode: &Inode) -> Self {
        Self { uid: inode.uid(), gid: inode.gid(), project: inode.project().unwrap_or(0) }
    }

    fn of_kind(&self, kind: QuotaKind) -> u32 {
        match kind {
            QuotaKind::User => self.uid,
            QuotaKind::Group => self.gid,
            QuotaKind::Project => self.project,
        }
    }
}

impl Quotas {
    /// Reads the quota files; `None` on a volume without the feature.
    ///
    /// # Errors
    /// A quota file that is damaged, that has holes or is longer than 64 MiB; the device's.
    pub(crate) async fn load(view: &View, writer: &Arc<Writer>) -> Result<Option<Arc<Self>>> {
        let sb = writer.store.shape();
        if !sb.ro_compat().contains(RoCompat::QUOTA) {
            return Ok(None);
        }
        let raw = sb.raw();
        let mut files = Vec::new();
        for (kind, number) in [
            (QuotaKind::User, raw.s_usr_quota_inum),
            (QuotaKind::Group, raw.s_grp_quota_inum),
            (QuotaKind::Project, raw.s_prj_quota_inum),
        ] {
            if number.get() != 0 {
                files.push(QuotaFile::load(view, writer, kind, InodeNumber(number.get())).await?);
            }
        }
        Ok(Some(Arc::new(Self { files, writer: Arc::downgrade(writer) })))
    }

    /// Makes room for entries of these owners. Their usage is charged by the commit that finds it changed. The caller does
    /// not hold the lock of shared attribute blocks: room on the volume is made by deletions, which take it.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) where a quota file has to grow and cannot, [`Error::Quota`](crate::Error::Quota) where it is as long as one may be.
    pub(crate) async fn make_room(&self, writer: &Writer, owners: Owners) -> Result<Room<'_>> {
        for (n, file) in self.files.iter().enumerate() {
            let id = owners.of_kind(file.kind);
            if file.expect(id) {
                continue;
            }
            let grown = Box::pin(file.grow_for(writer, id)).await;
            writer.journal.accounts_grew(self.blocks());
            if let Err(error) = grown {
                self.files[..n].iter().for_each(|file| file.give_up(owners.of_kind(file.kind)));
                return Err(error);
            }
        }
        Ok(Room { quotas: self, owners })
    }

    fn of(&self, kind: QuotaKind) -> Option<&QuotaFile> {
        self.files.iter().find(|file| file.kind == kind)
    }
}

impl Accounts for Quotas {
    fn blocks(&self) -> u32 {
        self.files.iter().map(|file| file.state.lock().blocks.len() as u32).sum()
    }

    fn blocks_of(&self, (kind, id): Owner) -> u32 {
        self.of(kind).map_or(0, |file| file.blocks_of(id))
    }

    fn settle(&self, charges: &mut dyn Iterator<Item = (Owner, Charge)>) -> Vec<(MetaBlock, Box<[u8]>)> {
        for ((kind, id), charge) in charges {
            let Some(file) = self.of(kind) else { continue };
            // A wrong file says nothing of the owner, and has no room either: e2fsck must make it anew.
            if !file.charge(id, charge)
                && charge != Charge::default()
                && let Some(writer) = self.writer.upgrade()
            {
                let rule = "owners with an entry, as all with files should have: run e2fsck";
                let place = Place::Quota(file.cell.number(), FileBlock(0));
                writer.keep_problem(Corrupt::field(place, "dqb_id", id.into(), rule).into());
            }
        }
        self.files.iter().flat_map(QuotaFile::take_changed).collect()
    }
}

impl QuotaFile {
    async fn load(view: &View, writer: &Writer, kind: QuotaKind, number: InodeNumber) -> Result<Self> {
        let cell = writer.inodes.get(number).await?;
        let inode = cell.read(Inode::clone);
        let size = inode.size();
        let place = Place::Quota(number, FileBlock(0));
        if size > FILE_BYTES_MAX || !size.is_multiple_of(QUOTA_BLOCK_BYTES as u64) {
            return Err(Corrupt::field(place, "i_size", size, "whole blocks of 1 KiB, at most 64 MiB").into());
        }
        let mut blocks = Vec::new();
        let mut image = Vec::new();
        let mut runs = view.runs(&inode);
        while let Some(run) = runs.next().await.map_err(|lost| lost.error)? {
            let RunState::Written(start) = run.state else {
                return Err(Corrupt::field(place, "i_block", 0, "a map without holes").into());
            };
            writer.alloc.check_claim(PhysicalRun::new(start, run.blocks), Place::Inode(number))?;
            for at in (start.0..start.0 + run.blocks).map(VolumeBlock) {
                let block = writer.store.read(at, MetaKind::Raw).await?;
                image.extend_from_slice(&block.bytes());
                blocks.push(block);
            }
        }
        image.truncate(size as usize);
        let tree = QuotaTree::parse(image, kind, number)?;
        let growing = RwLock::new(writer.store.locks());
        let state = Mutex::new(FileState { tree, blocks, expected: BTreeMap::new() });
        Ok(Self { kind, cell, growing, state })
    }

    /// Whether an entry of `id` is there or has room, which is kept until [`Self::give_up`].
    fn expect(&self, id: u32) -> bool {
        let FileState { tree, expected, .. } = &mut *self.state.lock();
        if tree.has(id) {
            return true;
        }
        let fits = expected.contains_key(&id) || tree.has_room_for(expected.len() + 1);
        if fits {
            expected.entry(id).or_default().holders += 1;
        }
        fits
    }

    /// Ends an [`Self::expect`]. Entries are never taken away, so that the two find the same.
    fn give_up(&self, id: u32) {
        let mut state = self.state.lock();
        if let Some(room) = state.expected.get_mut(&id) {
            room.holders -= 1;
            if room.holders == 0 && !room.is_charged {
                state.expected.remove(&id);
            }
        }
    }

    fn blocks_of(&self, id: u32) -> u32 {
        let FileState { tree, expected, .. } = &mut *self.state.lock();
        match expected.get_mut(&id) {
            Some(room) => {
                room.is_charged = true;
                NEW_OWNER_BLOCKS
            }
            None => u32::from(tree.has(id)),
        }
    }

    /// Charges an owner; false if it has no entry and no room for one. A new owner whose charges cancel gets an entry, too: only
    /// that ends its room, on which a later transaction may count as well.
    fn charge(&self, id: u32, charge: Charge) -> bool {
        let FileState { tree, expected, .. } = &mut *self.state.lock();
        let is_new = expected.remove(&id).is_some();
        let is_known = tree.has(id) || is_new;
        if is_known && (is_new || charge != Charge::default()) {
            tree.charge(id, charge);
        }
        is_known
    }

    /// The new contents of blocks that were changed since the last call.
    fn take_changed(&self) -> Vec<(MetaBlock, Box<[u8]>)> {
        let FileState { tree, blocks, .. } = &mut *self.state.lock();
        let changed = tree.take_changed(blocks.first().map_or(1, |block| block.bytes().len()));
        changed.into_iter().map(|(at, bytes)| (blocks[at].clone(), bytes)).collect()
    }
}
