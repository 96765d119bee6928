//! Quotas of users, groups and projects (feature `quota`). The usage of each is exact at every
//! commit.
//!
//! Usage follows the inode records. Each commit charges the difference that its transaction makes
//! to them, and writes the changed quota blocks along with it (the journal's `accounts`). Data
//! count once allocated. Operations that may introduce a new owner first make room for its entry
//! ([`Quotas::make_room`]), so a commit never has to.
//!
//! Limits are preserved but not enforced. Linux does the same when it mounts such a volume without
//! `usrquota`, `grpquota` or `prjquota`.

mod grow;
mod quota_tree;

use crate::inode::InodeCell;
use crate::journal::{Accounts, Charge, NEW_OWNER_BLOCKS, Owner};
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::view::View;
use crate::writer::Writer;
use crate::{Result, RunState};
use extant_format::{
    Corrupt, FileBlock, Inode, InodeNumber, Place, QUOTA_BLOCK_BYTES, QuotaKind, RoCompat, UintExt,
    VolumeBlock,
};
use extant_rt::RwLock;
use parking_lot::Mutex;
use quota_tree::QuotaTree;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Longest quota file kept in memory. About 60,000 owners take 4 MiB. Tests use a lower limit.
const FILE_BYTES_MAX: u64 = if cfg!(test) { 1 << 20 } else { 64 << 20 };

/// The quotas of a volume open for writing.
#[derive(Debug)]
pub(crate) struct Quotas {
    files: Vec<QuotaFile>,
    /// The volume's writer, which records problems.
    writer: Weak<Writer>,
}

/// The quota file of one kind.
#[derive(Debug)]
struct QuotaFile {
    kind: QuotaKind,
    cell: Arc<InodeCell>,
    /// Locked while the file grows.
    growing: RwLock,
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    tree: QuotaTree,
    /// The volume blocks of the file, in order.
    blocks: Vec<MetaBlock>,
    /// Owners that may get an entry but have none yet.
    expected: BTreeMap<u32, Expected>,
}

/// Reserved room for the entry of a new owner.
#[derive(Debug, Default)]
struct Expected {
    /// Operations that may introduce the owner.
    holders: u32,
    /// An operation did: a commit will create the entry.
    is_charged: bool,
}

/// Reserved room for entries of owners. Drop it after the handle that charges them.
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

/// The owners of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owners {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) project: u32,
}

impl Owners {
    /// The owners recorded in an inode.
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
    /// A quota file that is damaged, has holes or is longer than 64 MiB; errors from the device.
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

    /// Makes room for entries of these owners. Their usage is charged by the commit in which it
    /// changes. The caller must not hold the lock of shared attribute blocks: deletions that free
    /// space on the volume take it.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) if a quota file has to grow and cannot,
    /// [`Error::Quota`](crate::Error::Quota) if it has reached its maximum length.
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
        self.files.iter().map(|file| file.state.lock().blocks.len().fit_u32()).sum()
    }

    fn blocks_of(&self, (kind, id): Owner) -> u32 {
        self.of(kind).map_or(0, |file| file.blocks_of(id))
    }

    fn settle(&self, charges: &mut dyn Iterator<Item = (Owner, Charge)>) -> Vec<(MetaBlock, Box<[u8]>)> {
        for ((kind, id), charge) in charges {
            let Some(file) = self.of(kind) else { continue };
            // The file lacks this owner, and has no room either. Only e2fsck can rebuild it.
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
        if size > FILE_BYTES_MAX || !size.is_multiple_of(QUOTA_BLOCK_BYTES.to_u64()) {
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
        image.truncate(size.to_usize());
        let tree = QuotaTree::parse(image, kind, number)?;
        let growing = RwLock::new(writer.store.locks());
        let state = Mutex::new(FileState { tree, blocks, expected: BTreeMap::new() });
        Ok(Self { kind, cell, growing, state })
    }

    /// Whether `id` has an entry or room for one. Room is kept until [`Self::give_up`].
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

    /// Ends an [`Self::expect`]. Entries are never removed, so both calls see the same state.
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

    /// Charges an owner; returns false if it has neither an entry nor room for one. A new owner
    /// gets an entry even if its charges cancel out: its reserved room ends here, and a later
    /// transaction may have counted on it.
    fn charge(&self, id: u32, charge: Charge) -> bool {
        let FileState { tree, expected, .. } = &mut *self.state.lock();
        let is_new = expected.remove(&id).is_some();
        let is_known = tree.has(id) || is_new;
        if is_known && (is_new || charge != Charge::default()) {
            tree.charge(id, charge);
        }
        is_known
    }

    /// The new contents of blocks changed since the last call.
    fn take_changed(&self) -> Vec<(MetaBlock, Box<[u8]>)> {
        let FileState { tree, blocks, .. } = &mut *self.state.lock();
        let changed = tree.take_changed(blocks.first().map_or(1, |block| block.bytes().len()));
        changed.into_iter().map(|(at, bytes)| (blocks[at].clone(), bytes)).collect()
    }
}
