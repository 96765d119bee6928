//! Inodes in memory.

mod cell;
mod times;

pub(crate) use cell::{InodeCell, InodeEdit};
