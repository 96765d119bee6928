//! Linux's block allocators behind one trait ([`BlockAllocator`]).
//!
//! They shaped the layouts of existing volumes: ext2 preallocates seven blocks ([`Ext2`]), ext3
//! reserves a window for each growing file ([`Ext3`]), and ext4 predicts a file's size
//! ([`Linux2633`]) or keeps small files together ([`Mballoc`]). None of them knows about time or
//! I/O, and none places metadata: pointer blocks between a file's blocks are left out.

mod bitmap;
mod buddy;
mod ext2;
mod ext3;
mod goal;
mod linux_2_6_33;
mod mballoc;
pub mod on_disk;
#[cfg(test)]
mod samples;
mod seam;
mod search_cost;
#[cfg(test)]
mod tests;

pub use ext2::Ext2;
pub use ext3::Ext3;
pub use linux_2_6_33::Linux2633;
pub use mballoc::{Mballoc, StripeRule};
pub use seam::{AllocatesAt, BlockAllocator, FileId, FreeSpace, Geometry, Request, Work};
pub use search_cost::Cost;
