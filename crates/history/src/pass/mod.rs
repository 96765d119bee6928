//! Linux's writeback passes, behind [`WriteBackPass`](extant_cache::pass::WriteBackPass).

mod linux_2_6_33;

pub use linux_2_6_33::Linux2633;
