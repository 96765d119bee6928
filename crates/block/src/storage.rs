//! A device made of a program's own reads and writes at byte offsets.

use crate::device::OneClaim;
use crate::{Bio, BioFlags, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector, wide};
use extant_rt::Rt;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Zeros written at a time.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// Bytes that can be read, and perhaps written, at any offset. A program implements this to get a
/// [`Device`] of its own.
///
/// Calls may block, and come from several threads at once. Offsets and lengths are multiples of 512
/// and lie within the storage.
///
/// ```
/// use extant_block::Storage;
/// use std::io::{self, IoSliceMut};
/// use std::sync::Mutex;
///
/// struct Memory(Mutex<Vec<u8>>);
///
/// impl Storage for Memory {
///     fn size(&self) -> u64 {
///         self.0.lock().unwrap().len() as u64
///     }
///     fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
///         to.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..to.len()]);
///         Ok(())
///     }
///     fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
///         self.0.lock().unwrap()[at as usize..][..bytes.len()].copy_from_slice(bytes);
///         Ok(())
///     }
/// }
/// ```
pub trait Storage: Send + Sync + 'static {
    /// Size in bytes. An incomplete sector of 512 bytes at the end is not used.
    fn size(&self) -> u64;

    /// Fills `to` with the bytes from offset `at` on.
    ///
    /// # Errors
    /// Some bytes could not be read. If the error has an operating system's number, it is kept.
    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()>;

    /// Stores `bytes` at offset `at`. The default is for storage that is only read.
    ///
    /// # Errors
    /// Some bytes could not be written.
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let _ = (at, bytes);
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    /// Makes everything written so far durable: it survives a power cut. The default is for storage
    /// that is durable at once, or never.
    ///
    /// # Errors
    /// Something written earlier may be lost.
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Frees the storage of bytes that are no longer needed, where that helps.
    ///
    /// # Errors
    /// Discards are not supported (the default), or this one failed.
    fn discard(&self, at: u64, len: u64) -> io::Result<()> {
        let _ = (at, len);
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// A program's own storage as a device.
///
/// As created, it makes each call on the thread that needs the bytes, which suits memory and
/// anything else that answers in microseconds. [`StorageDevice::on_threads_of`] is for storage that
/// waits for a disk or a network. One writer at a time can claim it.
pub struct StorageDevice {
    inner: Arc<Inner>,
    threads: Option<Rt>,
    claim: OneClaim,
}

struct Inner {
    limits: Limits,
    storage: Box<dyn Storage>,
}

impl StorageDevice {
    /// A device over `storage`; `name` stands for it in errors.
    pub fn new(name: &str, storage: impl Storage) -> Self {
        let limits = Limits { volatile_cache: true, ..Limits::new(name, storage.size() / 512 * 512) };
        let inner = Arc::new(Inner { limits, storage: Box::new(storage) });
        Self { inner, threads: None, claim: OneClaim::default() }
    }

    /// Makes the calls on the world's blocking threads, several at a time.
    pub fn on_threads_of(mut self, rt: &Rt) -> Self {
        self.threads = Some(rt.clone());
        self
    }
}

impl Device for StorageDevice {
    fn limits(&self) -> &Limits {
        &self.inner.limits
    }

    fn submit(&self, bio: Bio) {
        match &self.threads {
            None => self.inner.end(bio),
            Some(rt) => {
                let inner = self.inner.clone();
                drop(rt.spawn_blocking("storage I/O", move || inner.end(bio)));
            }
        }
    }

    fn reads_here(&self) -> bool {
        self.threads.is_none()
    }

    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        let Some(mut at) = start.byte_offset() else { return false };
        to.iter_mut().all(|to| {
            let from = at;
            at = at.saturating_add(wide(to.len()));
            let read = || self.inner.storage.read_at(from, to).is_ok();
            at <= self.inner.limits.capacity_bytes && catch_unwind(AssertUnwindSafe(read)).unwrap_or(false)
        })
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.claim.take_for(&self.inner.limits)
    }
}

impl Inner {
    fn end(&self, mut bio: Bio) {
        // If the program's code panics, the bio must still end, or its waiter would wait forever.
        let result = catch_unwind(AssertUnwindSafe(|| run(&self.limits, &*self.storage, &mut bio)))
            .unwrap_or_else(|_| Err(IoErrorKind::Storage("the program's storage panicked".into())));
        bio.end_as(&self.limits.name, result);
    }
}

fn run(limits: &Limits, storage: &dyn Storage, bio: &mut Bio) -> Result<(), IoErrorKind> {
    let (start, end) = limits.admit(bio)?;
    if bio.flags.contains(BioFlags::PREFLUSH) || bio.op == Op::Flush {
        storage.flush().map_err(kind_of)?;
    }
    let mut at = start;
    match bio.op {
        Op::Flush => {}
        Op::Read => {
            for segment in &mut bio.segments {
                let to = segment.as_mut_slice().expect("admitted");
                storage.read_at(at, to).map_err(kind_of)?;
                at += wide(to.len());
            }
        }
        Op::Write => {
            for segment in &bio.segments {
                storage.write_at(at, segment.as_slice()).map_err(kind_of)?;
                at += wide(segment.len());
            }
        }
        Op::WriteZeroes => {
            while at < end {
                let len = (end - at).min(wide(ZEROES.len()));
                storage.write_at(at, &ZEROES[..len as usize]).map_err(kind_of)?;
                at += len;
            }
        }
        Op::Discard => storage.discard(start, end - start).map_err(kind_of)?,
    }
    match bio.flags.contains(BioFlags::FUA) {
        true => storage.flush().map_err(kind_of),
        false => Ok(()),
    }
}

fn kind_of(error: io::Error) -> IoErrorKind {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::Unsupported, _) => IoErrorKind::Unsupported,
        (io::ErrorKind::ReadOnlyFilesystem, _) => IoErrorKind::ReadOnly,
        (io::ErrorKind::TimedOut, _) => IoErrorKind::TimedOut,
        (_, Some(errno)) => IoErrorKind::Os(errno),
        (_, None) => IoErrorKind::Storage(error.to_string()),
    }
}

impl fmt::Debug for StorageDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorageDevice({})", self.inner.limits.name)
    }
}
