//! Linux's read-ahead.

mod linux_2_6_6;

pub use linux_2_6_6::ReadAhead;
