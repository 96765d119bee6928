//! Metadata blocks in memory.

mod buffers;

pub use buffers::BlockRef;
pub(crate) use buffers::{Buffers, CHUNK_BYTES, Journaled};
