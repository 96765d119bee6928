//! From bio to disk.
//!
//! A [`Bio`] carries one operation on a run of sectors; a [`Device`] completes it. Devices stack: a queue, a stripe or a
//! fault injector is a device over a device. This crate never knows about pages, inodes or ext.
//!
//! ```
//! use extant_block::{Buf, Device, MemDevice, Sector, read, write};
//! # use std::sync::Arc;
//! let disk = MemDevice::new(1 << 20);
//! let done = write(&disk, Sector(8), Buf::from_slice(&[7; 4096]));
//! # let rt = extant_rt::Rt::real(Default::default());
//! rt.block_on(done).unwrap().unwrap();
//! let data = rt.block_on(read(&disk, Sector(8), 4096)).unwrap().unwrap();
//! assert_eq!(data[0], 7);
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
