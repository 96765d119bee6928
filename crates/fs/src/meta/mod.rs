//! Metadata blocks in memory, and the one way to change them.
//!
//! A [`MetaBlock`] is a pinned block whose kind is known: the kind says how its checksum is verified when it is read and
//! filled in when a transaction commits it. Descriptors, the superblock and inodes live decoded, as [`Versioned`] values,
//! and are encoded by the commit. The mutable form of any of them comes from a journal handle only.

mod block;
mod buffers;
mod groups;
mod inode;
mod kind;
mod ranked;
mod store;
mod tid;
mod usage;
mod versioned;

pub use extant_cache::blocks::BlockBytes as BlockRef;
pub use store::RemovalStep;

pub(crate) use block::{MetaBlock, PhysicalRun};
pub(crate) use buffers::{Buffers, CHUNK_BYTES, Journaled};
pub(crate) use groups::{GroupEdit, Groups};
pub(crate) use inode::{InodeCell, InodeEdit};
pub(crate) use kind::MetaKind;
pub(crate) use ranked::{LockRank, Ranked, RankedGuard};
pub(crate) use store::{MetaStore, SuperblockEdit};
pub(crate) use tid::Tid;
pub(crate) use usage::Usage;
pub(crate) use versioned::Versioned;
