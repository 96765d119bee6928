//! Inodes by number, and their life cycle: read, created, orphaned, deleted.
//!
//! An inode in memory is an [`InodeCell`](crate::meta::InodeCell), which holds the decoded record.
//! Operations change it through a journal handle, and commits encode it into the inode table. Until
//! then it stays in the table of inodes in memory ([`Inodes`]).

mod orphans;
mod table;
mod times;

pub(crate) use crate::meta::InodeCell;
pub(crate) use orphans::{Orphan, Orphans};
pub(crate) use table::{Inodes, unmarked};
pub(crate) use times::Clock;

#[cfg(test)]
mod tests;
