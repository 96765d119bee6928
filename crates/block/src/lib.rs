//! From bio to disk.
//!
//! A [`Bio`] carries one operation on a run of sectors; a [`Device`] completes it. Four devices
//! hold data: [`FileDevice`] (a file or disk of the host, over io_uring), [`NbdDevice`] (an export
//! of an NBD server), [`MemDevice`], and [`StorageDevice`] (a program's own [`Storage`]). The
//! others are layered over devices: [`Stripe`] and [`Linear`] combine several, [`Deferred`] keeps
//! changes in memory until they are applied, [`Mended`] fails reads of known damage and serves
//! restored contents, [`Record`] keeps a log for crash tests, [`Fault`] injects errors, [`Trace`]
//! writes the blktrace format, and [`Exclusive`] ties writes to their writer's claim.
//!
//! This crate knows nothing about pages, inodes or ext, and it does no scheduling: the request
//! queue and elevators are in `extant-iosched`.
//!
//! ```
//! use extant_block::{Buf, MemDevice, Sector, flush, read, write};
//!
//! let rt = extant_rt::Rt::real(Default::default());
//! let disk = MemDevice::new(1 << 20);
//! rt.block_on(async {
//!     write(&disk, Sector(8), Buf::from_slice(&[7; 4096])).await?;
//!     flush(&disk).await?;
//!     assert_eq!(read(&disk, Sector(8), 4096).await?[0], 7);
//!     Ok::<(), extant_block::IoError>(())
//! })??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bio;
pub mod blktrace;
mod buf;
mod deferred;
mod device;
mod error;
mod exclusive;
mod fault;
mod file;
mod lend;
mod linear;
mod mem;
mod mended;
mod nbd;
mod op;
mod record;
mod split;
mod storage;
mod stripe;
mod trace;

pub use bio::{Bio, BioFlags, Completion, Segment, StreamId, end_all};
pub use buf::{BUF_ALIGN, Buf};
pub use deferred::Deferred;
pub use device::{
    Claim, Device, Limits, discard, execute, flush, read, read_all, until_end, write, write_segments,
};
pub use error::{IoError, IoErrorKind};
pub use exclusive::Exclusive;
pub use fault::{Fault, FaultConfig, Injected};
pub use file::{FileDevice, FileOptions, ForeignLocks};
pub use lend::{is_lendable, lend, lend_to_read};
pub use linear::{Linear, Part};
pub use mem::MemDevice;
pub use mended::{Mended, Spans};
pub use nbd::{NbdAddress, NbdDevice, NbdError, NbdOptions, NbdTarget};
pub use op::{Op, Sector};
pub use record::{Change, Crash, Log, LogEvent, Record};
pub use split::{LayoutError, Piece, split};
pub use storage::{Storage, StorageDevice};
pub use stripe::{Chunks, Stripe};
pub use trace::Trace;

/// Widens a length in memory to 64 bits; no machine has longer addresses.
pub(crate) fn wide(len: usize) -> u64 {
    len as u64
}
