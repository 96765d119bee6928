//! Passes of write-back as Linux had them, behind [`WriteBackPass`](extant_cache::pass::WriteBackPass).

mod linux_2_6_33;

pub use linux_2_6_33::Linux2633;
