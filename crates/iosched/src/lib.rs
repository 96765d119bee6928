//! The request queue and its I/O schedulers.
//!
//! A [`Queue`] is a device layered over another: it splits, merges and sorts bios into requests and
//! limits how many of them are in flight. An [`elevator`] decides their order: in order of arrival,
//! mq-deadline, or CFQ with any idling rule. A [`Plug`] collects bios so that they reach the queue
//! together.
//!
//! This crate does not know the page cache, and its elevators never see a bio, a task or a clock.
//!
//! ```
//! use extant_block::{Buf, MemDevice, Sector, flush, read, write};
//! use extant_iosched::elevator::Deadline;
//! use extant_iosched::{Queue, QueueConfig};
//! use std::sync::Arc;
//!
//! let rt = extant_rt::Rt::real(Default::default());
//! let disk = Arc::new(MemDevice::new(1 << 20));
//! let queue = Queue::new(&rt, disk, Box::new(Deadline::new()), QueueConfig::default());
//! rt.block_on(async {
//!     write(&queue, Sector(8), Buf::from_slice(&[7; 4096])).await?;
//!     flush(&queue).await?;
//!     assert_eq!(read(&queue, Sector(8), 4096).await?[0], 7);
//!     Ok::<(), extant_block::IoError>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod cost;
pub mod elevator;
mod event;
mod plug;
mod queue;

pub use cost::Cost;
pub use event::Event;
pub use plug::Plug;
pub use queue::{Batching, Queue, QueueConfig, StreamInfo, StreamStats};
