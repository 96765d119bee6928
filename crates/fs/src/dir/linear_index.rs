//! In-memory index of a linear directory of several blocks: which block has a name, and which has
//! room for one.
//!
//! Without it, every lookup would read the whole directory, as on Linux. Directories with a hash
//! tree do not need it.

use super::leaf::Damaged;
use super::shape::{Blocks, Shape, Stop};
use extant_cache::accounts::{Account, Charge};
use extant_format::{FileBlock, UintExt};
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// Where the names of a directory are. If two names share a hash, a lookup only reads one more
/// block.
#[derive(Debug, Default)]
pub(crate) struct NameIndex {
    names: HashTable<(u32, FileBlock)>,
    room: RoomTree,
    /// The charge for its memory, if any.
    charge: Option<Charge>,
}

impl NameIndex {
    /// Builds the index by reading the directory.
    pub(crate) fn build(shape: &Shape, blocks: &impl Blocks) -> Result<Self, Stop> {
        let mut index = Self::default();
        for at in (0..shape.blocks).map(FileBlock) {
            let bytes = blocks.get(at)?;
            for entry in shape.leaf.entries(&bytes) {
                let entry = entry.map_err(|Damaged| shape.damaged(at, &bytes))?;
                if !entry.is_free() {
                    index.add(at, entry.name);
                }
            }
            index.room.set(at, shape.checked(at, &bytes, shape.leaf.most_room(&bytes))?);
        }
        Ok(index)
    }

    /// Charges its memory to `account` for as long as it lives.
    pub(crate) fn charge_to(&mut self, account: &Account) {
        self.charge = Some(account.charge(self.memory_bytes()));
    }

    /// Bytes charged.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charge.as_ref().map_or(0, Charge::bytes)
    }

    fn memory_bytes(&self) -> u64 {
        (self.names.allocation_size() + self.room.most.capacity() * size_of::<u32>()).to_u64()
    }

    fn add(&mut self, at: FileBlock, name: &[u8]) {
        let hash = hash_of(name);
        self.names.insert_unique(spread(hash), (hash, at), |(hash, _)| spread(*hash));
    }

    /// The blocks that may contain a name.
    pub(crate) fn candidates(&self, name: &[u8]) -> impl Iterator<Item = FileBlock> {
        let wanted = hash_of(name);
        self.names.iter_hash(spread(wanted)).filter(move |(hash, _)| *hash == wanted).map(|(_, at)| *at)
    }

    /// The first block with a record that has room for `need` bytes.
    pub(crate) fn block_with_room(&self, need: usize) -> Option<FileBlock> {
        self.room.first_with(need.fit_u32())
    }

    /// Records that a name was added to a block, whose records now have at most `room`.
    pub(crate) fn added(&mut self, at: FileBlock, name: &[u8], room: u32) {
        self.add(at, name);
        self.room.set(at, room);
        let bytes = self.memory_bytes();
        if let Some(charge) = self.charge.as_mut().filter(|charge| charge.bytes() != bytes) {
            charge.resize(bytes);
        }
    }

    /// Records that a name was removed from a block, whose records now have at most `room`.
    pub(crate) fn removed(&mut self, at: FileBlock, name: &[u8], room: u32) {
        let hash = hash_of(name);
        if let Ok(entry) = self.names.find_entry(spread(hash), |entry| *entry == (hash, at)) {
            entry.remove();
        }
        self.room.set(at, room);
    }
}

fn hash_of(name: &[u8]) -> u32 {
    (FxBuildHasher.hash_one(name) >> 32).low_u32()
}

/// The table also uses the upper bits of its hash.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The largest room of any record in each block, as a tree of maxima: node `i` covers nodes `2i`
/// and `2i + 1`.
#[derive(Debug, Default)]
struct RoomTree {
    most: Vec<u32>,
}

impl RoomTree {
    fn set(&mut self, at: FileBlock, room: u32) {
        let at = at.0.to_usize();
        let half = self.most.len() / 2;
        if at >= half {
            let wider = (at + 1).next_power_of_two();
            let mut most = vec![0; 2 * wider];
            most[wider..wider + half].copy_from_slice(&self.most[half..]);
            for i in (1..wider).rev() {
                most[i] = most[2 * i].max(most[2 * i + 1]);
            }
            self.most = most;
        }
        let mut i = self.most.len() / 2 + at;
        self.most[i] = room;
        while i > 1 {
            i /= 2;
            self.most[i] = self.most[2 * i].max(self.most[2 * i + 1]);
        }
    }

    fn first_with(&self, need: u32) -> Option<FileBlock> {
        if self.most.get(1).is_none_or(|most| *most < need) {
            return None;
        }
        let half = self.most.len() / 2;
        let mut i = 1;
        while i < half {
            i *= 2;
            if self.most[i] < need {
                i += 1;
            }
        }
        Some(FileBlock((i - half).fit_u32()))
    }
}
