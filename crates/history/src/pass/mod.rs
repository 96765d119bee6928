//! Linux's writeback passes, behind [`WriteBackPass`](extant_cache::pass::WriteBackPass).

mod ext4_2_6_33;

pub use ext4_2_6_33::Linux2633;
