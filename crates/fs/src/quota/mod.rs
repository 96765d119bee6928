//! Quotas of users, groups and projects (feature `quota`): what each uses, exact at every commit.
//!
//! Usage follows the records of inodes: each commit charges the difference that its transaction makes to them, and writes the
//! quota blocks that this changes with it (the journal's `accounts`). Data count once they are allocated. Operations that may bring a
//! new owner reserve room for its entry before ([`Quotas::reserve`]), so that a commit never has to make any.
//!
//! Limits are kept as they are and not enforced, which is how Linux mounts such a volume unless it is told otherwise
//! (`usrquota`, `grpquota`, `prjquota`).

mod grow;
mod tree;

use crate::inode::InodeCell;
use crate::journal::{Accounts, UsageChange};
use crate::meta::{MetaBlock, MetaKind, PhysicalRun};
use crate::view::View;
use crate::writer::Writer;
use crate::{Result, RunState};
use extant_format::{
    Corrupt, FileBlock, Inode, InodeNumber, Place, QUOTA_BLOCK_BYTES, QuotaKind, RoCompat, VolumeBlock,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tree::QuotaTree;

/// Longest quota file that is kept in memory: some 60,000 owners take 4 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The quotas of a volume that is open for writing.
#[derive(Debug)]
pub(crate) struct Quotas {
    files: Vec<QuotaFile>,
}

/// The quota file of one kind.
#[derive(Debug)]
struct QuotaFile {
    kind: QuotaKind,
    cell: Arc<InodeCell>,
    /// Held while the file grows.
    growing: async_lock::Mutex<()>,
    state: Mutex<FileState>,
}

#[derive(Debug)]
struct FileState {
    tree: QuotaTree,
    /// The volume's blocks that hold it, in order.
    blocks: Vec<MetaBlock>,
    /// Owners without an entry that may get one.
    expected: BTreeSet<u32>,
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
}

impl Quotas {
    /// Reads the quota files; `None` on a volume without the feature.
    ///
    /// # Errors
    /// A quota file that is damaged, that has holes or is longer than 64 MiB; the device's.
    pub(crate) async fn load(view: &View, writer: &Writer) -> Result<Option<Arc<Self>>> {
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
        Ok(Some(Arc::new(Self { files })))
    }

    /// Makes room for entries of these owners. Their usage is charged by the commit that finds it changed.
    ///
    /// # Errors
    /// [`Error::NoSpace`](crate::Error::NoSpace) where a quota file has to grow and cannot.
    pub(crate) async fn reserve(&self, writer: &Writer, owners: Owners) -> Result<()> {
        for file in &self.files {
            let id = match file.kind {
                QuotaKind::User => owners.uid,
                QuotaKind::Group => owners.gid,
                QuotaKind::Project => owners.project,
            };
            if !file.expect(id) {
                Box::pin(file.grow_for(writer, id)).await?;
                let blocks = self.blocks();
                writer.journal.accounts_grew(blocks);
            }
        }
        Ok(())
    }
}

impl Accounts for Quotas {
    fn blocks(&self) -> u32 {
        self.files.iter().map(|file| file.state.lock().blocks.len() as u32).sum()
    }

    fn settle(&self, changes: &[UsageChange]) -> Vec<(MetaBlock, Box<[u8]>)> {
        self.files.iter().flat_map(|file| file.settle(changes)).collect()
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
        while let Some(run) = runs.next().await? {
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
        let state = Mutex::new(FileState { tree, blocks, expected: BTreeSet::new() });
        Ok(Self { kind, cell, growing: async_lock::Mutex::new(()), state })
    }

    /// Whether an entry of `id` is there or has room.
    fn expect(&self, id: u32) -> bool {
        let mut state = self.state.lock();
        if state.tree.has(id) || state.expected.contains(&id) {
            return true;
        }
        let fits = state.tree.has_room_for(state.expected.len() + 1);
        if fits {
            state.expected.insert(id);
        }
        fits
    }

    fn settle(&self, changes: &[UsageChange]) -> Vec<(MetaBlock, Box<[u8]>)> {
        let mut sums: BTreeMap<u32, Charge> = BTreeMap::new();
        for (usage, sign) in changes.iter().flat_map(|[before, after]| [(before, -1), (after, 1)]) {
            let Some(usage) = usage else { continue };
            let sum = sums.entry(usage.owner(self.kind)).or_default();
            sum.inodes += sign;
            // Beyond this, records are damaged.
            let space = i64::try_from(usage.space_bytes).unwrap_or(i64::MAX);
            sum.space_bytes = sum.space_bytes.saturating_add(sign * space);
        }
        let mut state = self.state.lock();
        let FileState { tree, blocks, expected } = &mut *state;
        for (id, charge) in sums.into_iter().filter(|(_, charge)| *charge != Charge::default()) {
            // An owner of which a wrong file says nothing has no room in it either: e2fsck must make it anew.
            if tree.has(id) || expected.remove(&id) {
                tree.charge(id, charge);
            }
        }
        let changed = tree.take_changed(blocks.first().map_or(1, |block| block.bytes().len()));
        changed.into_iter().map(|(at, bytes)| (blocks[at].clone(), bytes)).collect()
    }
}

/// A change of what an owner uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Charge {
    space_bytes: i64,
    inodes: i64,
}
