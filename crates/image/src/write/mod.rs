//! Writes a planned volume to a device.

mod emit;
mod heads;
mod in_place;
mod inode_records;
mod new_file;
mod occupied;
mod output;
mod pump;
mod tables;
mod target;

pub(crate) use heads::Heads;
pub(crate) use new_file::{Naming, NewFile, behind_links, directory_of};
pub use occupied::{Occupant, contents};
pub(crate) use output::Output;
pub use pump::Progress;
pub(crate) use pump::{Emit, Pieces, pump};
pub(crate) use tables::{GroupInodes, block_bitmap, count_usage, descriptors};
pub(crate) use target::Claimed;

use crate::layout::{Contents, FileMap, Params, Plan};
use crate::source::{Origin, Stores};
use extant_format::InodeNumber;
use extant_format::Timestamp;
use tables::Tables;

/// State shared by all writers.
pub(crate) struct Image {
    pub(crate) contents: Contents,
    pub(crate) params: Params,
    pub(crate) plan: Plan,
    pub(crate) stores: Stores,
    /// Later source times were clamped to this one.
    pub(crate) clamp: Option<Timestamp>,
    tables: Tables,
}

impl Image {
    pub(crate) fn new(
        contents: Contents,
        params: Params,
        plan: Plan,
        stores: Stores,
        clamp: Option<Timestamp>,
    ) -> Self {
        let tables = Tables::new(&contents, &params, &plan);
        Self { contents, params, plan, stores, clamp, tables }
    }

    /// Superblocks and descriptors.
    fn heads(&self) -> Heads<'_> {
        Heads { geometry: &self.plan.geometry, sb: &self.tables.sb, descriptors: &self.tables.descriptors }
    }

    /// Length of the image in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.plan.geometry.sb.blocks_count() << self.params.block.log2()
    }

    /// Where file contents come from.
    fn origin(&self) -> Origin<'_> {
        Origin {
            tree: &self.contents.inodes.tree,
            stores: &self.stores,
            clamp: self.clamp,
            time_range: self.params.time_range(),
        }
    }

    /// The map of an inode, other than the resize inode.
    fn map_of(&self, inode: InodeNumber) -> FileMap {
        let special = match inode {
            InodeNumber::JOURNAL => &self.plan.own.journal,
            n if n == self.contents.orphan_inode => &self.plan.own.orphan_file,
            _ => return self.plan.map_of(&self.contents, &self.params, inode),
        };
        special.clone().expect("asked for maps that the plan has only")
    }

    pub(crate) fn superblock(&self) -> &extant_format::Superblock {
        &self.tables.sb
    }
}
