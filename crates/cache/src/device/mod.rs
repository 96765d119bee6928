//! One device: the order of its dirty files, its flushes, its errors, and the bios on their way to
//! it. Nothing here knows what a file is.

pub(crate) mod bio_batch;
pub(crate) mod completion_queue;
pub(crate) mod flush;
pub(crate) mod health;
pub(crate) mod sync_priority;
pub(crate) mod turn_order;
