//! One device: the order of its dirty files, its flushes, its errors, and the bios on their way to
//! it. This module knows nothing about files.

pub(crate) mod bio_batch;
pub(crate) mod completion_queue;
pub(crate) mod dirty_file_order;
pub(crate) mod flush;
pub(crate) mod health;
pub(crate) mod sync_priority;
