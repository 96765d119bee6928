//! From bio to disk.
//!
//! A [`Bio`] carries one operation on a run of sectors; a [`Device`] completes it. Three hold data: [`FileDevice`] (a file
//! or disk of the host, over io_uring), [`NbdDevice`] (an export of an NBD server) and [`MemDevice`]. The others are
//! devices over devices: [`Queue`] merges and sorts under an [`elevator`], [`Stripe`] and [`Linear`] put several together,
//! [`Record`] keeps a log for crash testing, [`Fault`] fails on purpose, [`Trace`] writes blktrace's format.
//!
//! This crate never knows about pages, inodes or ext.
//!
//! ```
//! use extant_block::elevator::Deadline;
//! use extant_block::{Buf, MemDevice, Queue, QueueConfig, Sector, flush, read, write};
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

mod bio;
pub mod blktrace;
mod buf;
mod device;
pub mod elevator;
mod error;
mod fault;
mod file;
mod linear;
mod mem;
mod nbd;
mod plug;
mod queue;
mod record;
mod split;
mod stripe;
mod trace;

pub use bio::{Bio, BioFlags, Completion, Op, Sector, Segment, StreamId};
pub use buf::{BUF_ALIGN, Buf};
pub use device::{Device, Limits, discard, execute, flush, read, write, write_segments};
pub use error::{IoError, IoErrorKind};
pub use fault::{Fault, FaultConfig, Injected};
pub use file::{FileDevice, FileOptions};
pub use linear::{Linear, Part};
pub use mem::MemDevice;
pub use nbd::{NbdAddress, NbdDevice, NbdError, NbdOptions, NbdTarget};
pub use plug::Plug;
pub use queue::{Queue, QueueConfig, StreamInfo, StreamStats};
pub use record::{Change, Crash, Log, LogEvent, Record};
pub use split::LayoutError;
pub use stripe::Stripe;
pub use trace::Trace;
