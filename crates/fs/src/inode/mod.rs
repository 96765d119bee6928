//! Inodes by number, and their life: read, created, orphaned, deleted.
//!
//! An inode in memory is a [`InodeCell`](crate::meta::InodeCell), which holds the record decoded. Operations change it
//! through a journal handle, commits encode it into the inode table; until then it stays in the table by number
//! ([`Inodes`]).

mod orphans;
mod table;
mod times;

pub(crate) use crate::meta::InodeCell;
pub(crate) use orphans::{Orphan, Orphans};
pub(crate) use table::Inodes;
pub(crate) use times::Clock;

#[cfg(test)]
mod tests;
