//! Inodes in memory.

mod times;
