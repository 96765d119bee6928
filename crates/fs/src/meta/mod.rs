//! Metadata blocks in memory, and the only way to change them.
//!
//! A [`MetaBlock`] is a pinned block of known kind. The kind determines how its checksum is
//! verified on read and filled in when a transaction commits it. Descriptors, the superblock and
//! inodes are kept decoded, as [`Versioned`] values, and encoded by the commit. Only a journal
//! handle gives mutable access to any of them.

mod buffers;
mod group_descriptors;
mod inode;
mod kind;
mod meta_block;
mod ranked;
mod store;
mod tid;
mod usage;
mod versioned;

pub use extant_cache::blocks::BlockBytes as BlockRef;
pub use store::RemovalStep;

pub(crate) use buffers::{Buffers, CHUNK_BYTES, Journaled};
pub(crate) use group_descriptors::{GroupEdit, Groups};
pub(crate) use inode::{InodeCell, InodeEdit};
pub(crate) use kind::MetaKind;
pub(crate) use meta_block::{MetaBlock, PhysicalRun};
pub(crate) use ranked::{LockRank, Ranked, RankedGuard};
pub(crate) use store::{MetaStore, SuperblockEdit};
pub(crate) use tid::Tid;
pub(crate) use usage::Usage;
pub(crate) use versioned::Versioned;
