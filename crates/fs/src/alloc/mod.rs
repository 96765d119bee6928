//! Blocks and inodes of a volume: which are free, which one an operation gets, what the bitmaps say.
//!
//! A group keeps three sets: *allocated* in memory, *logged*, and *freed but not committed*. Only what is logged is in the
//! bitmap's bytes and in the descriptor's counts, so that no crash leaks a block and none shows another file's data.

mod groups;
mod holds;
mod inodes;
mod layout;
mod runs;
mod space;
mod spread;
