//! Orphans: inodes that a crash would leave deleted but not freed, or with blocks past their size.
//!
//! An inode becomes an orphan in the transaction that removes its last name, begins to shrink it,
//! or maps blocks past its size. It stays one until the transaction that completes this, and may be
//! one for several causes. Kernel document: *Orphan file*. The older list runs through
//! `s_last_orphan` and the `i_dtime` of each member; a volume with an orphan file uses it when the
//! file is full. A volume without a journal has neither.

use super::Inodes;
use crate::Result;
use crate::journal::Handle;
use crate::meta::{InodeCell, MetaBlock, MetaKind, MetaStore};
use extant_format::{
    Corrupt, FileBlock, InodeNumber, OrphanBlock, Place, UintExt, VolumeBlock, orphans_per_block, set_orphan,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Why an inode is an orphan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Orphan {
    /// It has no name.
    Unnamed,
    /// Blocks past its size are being freed. Also used for orphans left by a crash.
    Shrinking,
    /// Blocks past its size were written and mapped before earlier ones.
    Ahead,
}

impl Orphan {
    const ALL: [Self; 3] = [Self::Unnamed, Self::Shrinking, Self::Ahead];
}

/// The orphans of a volume.
#[derive(Debug)]
pub(crate) struct Orphans {
    /// False without a journal: no orphan is recorded then.
    recorded: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    members: BTreeMap<InodeNumber, Member>,
    /// Why each is an orphan.
    causes: BTreeSet<(InodeNumber, Orphan)>,
    /// The list, oldest first. Each member's `i_dtime` names the one before it; `s_last_orphan`
    /// names the last.
    list: BTreeMap<u64, Arc<InodeCell>>,
    joined: u64,
    blocks: Vec<Block>,
    /// Index of the block that last had a free slot.
    hint: usize,
}

#[derive(Clone, Copy, Debug)]
enum Member {
    Listed(u64),
    Filed { block: usize, slot: usize },
}

#[derive(Debug)]
struct Block {
    block: MetaBlock,
    free: usize,
}

impl Orphans {
    /// Credits for [`Self::add`] or [`Self::remove`] beyond the inode itself: a block of the orphan
    /// file, or the superblock, or the next inode on the list.
    pub(crate) const CREDITS: u32 = 1;

    /// Loads the orphans that a volume was left with. Also returns the inodes themselves. `file`
    /// has the blocks of the orphan file.
    ///
    /// # Errors
    /// The list or the file is damaged, or an inode on it cannot be read.
    pub(crate) async fn load(
        store: &MetaStore,
        inodes: &Inodes,
        file: &[VolumeBlock],
    ) -> Result<(Self, Vec<Arc<InodeCell>>)> {
        let sb = store.superblock();
        let mut state = State::default();
        let mut found = Vec::new();
        let mut next = InodeNumber(sb.raw().s_last_orphan.get());
        let mut newest_first = Vec::new();
        while next.0 != 0 {
            let place = Place::Inode(next);
            if state.members.insert(next, Member::Listed(0)).is_some() {
                let corrupt =
                    Corrupt::field(place, "i_dtime", next.0.into(), "an orphan list without a loop");
                return Err(corrupt.into());
            }
            if next == InodeNumber::ROOT || sb.is_own_inode(next) {
                return Err(Corrupt::field(
                    place,
                    "orphan",
                    next.0.into(),
                    "an inode that is not the volume's own",
                )
                .into());
            }
            let cell = inodes.get(next).await?;
            next = InodeNumber(cell.read(|inode| inode.raw.i_dtime.get()));
            newest_first.push(cell);
        }
        for cell in newest_first.into_iter().rev() {
            state.join_list(cell.clone());
            found.push(cell);
        }
        if let Some(number) = sb.orphan_file() {
            let generation = inodes.get(number).await?.read(|inode| inode.raw.i_generation.get());
            for (n, &at) in file.iter().enumerate() {
                let index = FileBlock(n.fit_u32());
                let kind = MetaKind::Orphan { inode: number, generation, block: index };
                let block = store.read(at, kind).await?;
                let bytes = block.bytes();
                let members: Vec<_> = OrphanBlock::parse(&bytes, index)?.orphans().collect();
                state.blocks.push(Block { block, free: orphans_per_block(bytes.len()) - members.len() });
                for (slot, number) in members {
                    if number == InodeNumber::ROOT || sb.is_own_inode(number) {
                        let rule = "an inode that is not the volume's own";
                        let place = Place::OrphanFile(index);
                        return Err(Corrupt::field(place, "orphan", number.0.into(), rule).into());
                    }
                    if state.members.insert(number, Member::Filed { block: n, slot }).is_some() {
                        let rule = "an inode that is recorded once";
                        let place = Place::OrphanFile(index);
                        return Err(Corrupt::field(place, "orphan", number.0.into(), rule).into());
                    }
                    found.push(inodes.get(number).await?);
                }
            }
        }
        state.causes.extend(state.members.keys().map(|&number| (number, Orphan::Shrinking)));
        Ok((Self { recorded: sb.journal_inode().is_some(), state: Mutex::new(state) }, found))
    }

    /// Records an inode as an orphan for `cause`. The caller must not be editing an inode.
    pub(crate) fn add(&self, handle: &mut Handle, cell: &Arc<InodeCell>, cause: Orphan) {
        let number = cell.number();
        let state = &mut *self.state.lock();
        if !self.recorded {
            return;
        }
        state.causes.insert((number, cause));
        if state.members.contains_key(&number) {
            return;
        }
        let hint = state.hint;
        let count = state.blocks.len();
        let with_room = (0..count).map(|n| (hint + n) % count).find(|&n| state.blocks[n].free > 0);
        if let Some(n) = with_room {
            let block = &mut state.blocks[n];
            let mut bytes = handle.edit(&block.block);
            let slot = free_slot(&bytes).expect("it is counted");
            set_orphan(&mut bytes, slot, number);
            block.free -= 1;
            state.hint = n;
            state.members.insert(number, Member::Filed { block: n, slot });
            // A value here would be taken for a link of the list.
            handle.inode(cell).raw.i_dtime = 0.into();
            return;
        }
        let before = state.list.last_key_value().map_or(0, |(_, cell)| cell.number().0);
        handle.inode(cell).raw.i_dtime = before.into();
        handle.superblock().raw_mut().s_last_orphan = number.0.into();
        state.join_list(cell.clone());
    }

    /// Removes a cause. If it was the last, the inode is no longer an orphan. The caller must not
    /// be editing an inode.
    pub(crate) fn remove(&self, handle: &mut Handle, cell: &Arc<InodeCell>, cause: Orphan) {
        let number = cell.number();
        let state = &mut *self.state.lock();
        let is_gone = state.causes.remove(&(number, cause));
        if is_gone && !Orphan::ALL.iter().any(|&other| state.causes.contains(&(number, other))) {
            state.leave(handle, cell);
        }
    }

    /// Ends an inode's time as an orphan, whatever the causes, and sets its `i_dtime` to 0. The
    /// caller must not be editing an inode.
    pub(crate) fn finish(&self, handle: &mut Handle, cell: &Arc<InodeCell>) {
        let state = &mut *self.state.lock();
        for cause in Orphan::ALL {
            state.causes.remove(&(cell.number(), cause));
        }
        state.leave(handle, cell);
    }

    /// Whether the volume records its orphans.
    pub(crate) fn are_recorded(&self) -> bool {
        self.recorded
    }

    /// Whether an inode is recorded as an orphan.
    pub(crate) fn contains(&self, number: InodeNumber) -> bool {
        self.state.lock().members.contains_key(&number)
    }

    /// Whether there are no orphans; a clean volume has none.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().members.is_empty()
    }
}

impl State {
    fn join_list(&mut self, cell: Arc<InodeCell>) {
        self.joined += 1;
        self.members.insert(cell.number(), Member::Listed(self.joined));
        self.list.insert(self.joined, cell);
    }

    fn leave(&mut self, handle: &mut Handle, cell: &Arc<InodeCell>) {
        match self.members.remove(&cell.number()) {
            None => return,
            Some(Member::Filed { block, slot }) => {
                let entry = &mut self.blocks[block];
                set_orphan(&mut handle.edit(&entry.block), slot, InodeNumber(0));
                entry.free += 1;
                self.hint = block;
            }
            Some(Member::Listed(at)) => {
                self.list.remove(&at);
                let before = self.list.range(..at).next_back().map_or(0, |(_, cell)| cell.number().0);
                match self.list.range(at..).next() {
                    Some((_, after)) => handle.inode(after).raw.i_dtime = before.into(),
                    None => handle.superblock().raw_mut().s_last_orphan = before.into(),
                }
            }
        }
        handle.inode(cell).raw.i_dtime = 0.into();
    }
}

fn free_slot(block: &[u8]) -> Option<usize> {
    (0..orphans_per_block(block.len())).find(|slot| block[slot * 4..slot * 4 + 4] == [0; 4])
}
