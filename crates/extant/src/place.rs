//! Where a volume lies: in a file, on a disk of the host, on an NBD server, or in a part of one of
//! these.

mod partitions;

pub use partitions::{Partition, partitions};

use extant_block::{
    Device, FileDevice, FileOptions, ForeignLocks, IoError, LayoutError, Limits, Linear, NbdDevice, NbdError,
    NbdOptions, NbdTarget, Sector,
};
use extant_fs::Error;
use extant_rt::Rt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

/// The part of an image or disk that holds the volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// The bytes from an offset on. Offset and size are whole sectors.
    Bytes {
        /// Where the volume begins.
        offset_bytes: u64,
        /// Maximum number of bytes it may take; without a limit, it extends to the end.
        limit_bytes: Option<u64>,
    },
    /// A partition of a GPT or MBR table, by its number, or by its name in a GPT.
    Partition(String),
}

/// Why an image, or the part of it that was asked for, cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// The host refuses the file.
    #[error("{0}")]
    Host(#[from] std::io::Error),
    /// The server, or the address, cannot be used.
    #[error("{0}")]
    Nbd(#[from] NbdError),
    /// Reading the partition table failed.
    #[error("the partition table cannot be read: {0}")]
    Io(#[from] IoError),
    /// The world of the volume has ended.
    #[error(transparent)]
    World(#[from] extant_rt::RtError),
    /// There is no partition table.
    #[error("there is no partition table, so no partition {wanted} either")]
    NoTable {
        /// The partition that was asked for.
        wanted: String,
    },
    /// There is a table without such a partition, or with several of that name.
    #[error("there is {} partition {wanted}; the table has {}", if *.several { "more than one" } else { "no" }, listed(.there))]
    NoPartition {
        /// The partition that was asked for.
        wanted: String,
        /// Whether the name is not unique.
        several: bool,
        /// What there is.
        there: Vec<Partition>,
    },
    /// The part lies behind the end, or does not consist of whole sectors.
    #[error("the part from byte {offset_bytes} on {why}; there are {capacity_bytes} bytes")]
    OutOfRange {
        /// Where the part begins.
        offset_bytes: u64,
        /// What is wrong with it.
        why: &'static str,
        /// Size of the image or disk.
        capacity_bytes: u64,
    },
    /// The table is damaged, and so is its copy.
    #[error("the partition table is damaged: {0}")]
    Damaged(&'static str),
}

impl From<LayoutError> for PlaceError {
    fn from(error: LayoutError) -> Self {
        Self::Host(std::io::Error::other(error))
    }
}

fn listed(partitions: &[Partition]) -> String {
    if partitions.is_empty() {
        return "none".into();
    }
    let each = partitions.iter().map(|partition| {
        let name = match &partition.name {
            Some(name) => format!(" ({})", extant_fs::quote(name.as_bytes())),
            None => String::new(),
        };
        format!("{}{name}", partition.number)
    });
    each.collect::<Vec<_>>().join(", ")
}

/// Whether an image's name is the address of an NBD export: `nbd://HOST[:PORT]/EXPORT` or
/// `nbd+unix:///EXPORT?socket=PATH`.
pub fn is_address(image: &Path) -> bool {
    let name = image.as_os_str().as_bytes();
    [&b"nbd://"[..], b"nbds://", b"nbd+unix://", b"nbds+unix://"]
        .iter()
        .any(|scheme| name.starts_with(scheme))
}

/// Opens an image, a block device or an NBD export, or a part of it.
///
/// A partition that ends behind the image's end is cut there if it is opened for reading.
///
/// # Errors
/// See [`PlaceError`]. [`FileDevice::open`] says what is refused as busy.
pub async fn open_place(
    rt: &Rt,
    image: &Path,
    part: &Part,
    options: FileOptions,
    foreign: ForeignLocks,
) -> Result<Arc<dyn Device>, PlaceError> {
    Ok(open_place_at(rt, image, part, options, foreign).await?.0)
}

/// Like [`open_place`]; also returns at which byte of the image, device or export the part begins.
///
/// # Errors
/// As [`open_place`].
pub async fn open_place_at(
    rt: &Rt,
    image: &Path,
    part: &Part,
    options: FileOptions,
    foreign: ForeignLocks,
) -> Result<(Arc<dyn Device>, u64), PlaceError> {
    if is_address(image) {
        let target: NbdTarget = image.to_string_lossy().parse()?;
        let nbd = NbdOptions { read_only: !options.write, ..NbdOptions::default() };
        let device: Arc<dyn Device> = Arc::new(NbdDevice::connect(rt, &target, nbd).await?);
        let range = Range::of(&device, part, options.write).await?;
        return range.on(device);
    }
    let open = |options| -> Result<Arc<dyn Device>, PlaceError> {
        let device = FileDevice::open(image, options)?.with_foreign_locks(foreign);
        Ok(Arc::new(device.driven_by(rt)))
    };
    if *part == Part::Whole {
        return Ok((open(options)?, 0));
    }
    // Where the part begins decides whether it can be read past the host's page cache.
    let cached = open(FileOptions { direct: false, ..options })?;
    let range = Range::of(&cached, part, options.write).await?;
    if options.direct && range.start.is_multiple_of(DIRECT_BYTES) && range.bytes.is_multiple_of(DIRECT_BYTES)
    {
        drop(cached);
        return range.on(open(options)?);
    }
    range.on(cached)
}

/// Offsets that suit `O_DIRECT` everywhere.
const DIRECT_BYTES: u64 = 4096;

/// A part in bytes; `None` for the whole of a device.
struct Range {
    start: u64,
    bytes: u64,
    whole: bool,
}

impl Range {
    /// Finds a part of a device.
    async fn of(device: &Arc<dyn Device>, part: &Part, write: bool) -> Result<Self, PlaceError> {
        let limits = device.limits();
        let capacity_bytes = limits.capacity_bytes;
        match part {
            Part::Whole => Ok(Self { start: 0, bytes: capacity_bytes, whole: true }),
            &Part::Bytes { offset_bytes, limit_bytes } => {
                Self::checked(limits, offset_bytes, limit_bytes, write)
            }
            Part::Partition(wanted) => {
                let there = partitions(&**device).await?;
                let Some(there) = there else { return Err(PlaceError::NoTable { wanted: wanted.clone() }) };
                let found = partitions::find(&there, wanted);
                match found[..] {
                    [found] => Self::checked(limits, found.start_bytes, Some(found.size_bytes), write),
                    _ => Err(PlaceError::NoPartition {
                        wanted: extant_fs::quote(wanted.as_bytes()),
                        several: !found.is_empty(),
                        there,
                    }),
                }
            }
        }
    }

    fn checked(limits: &Limits, start: u64, bytes: Option<u64>, write: bool) -> Result<Self, PlaceError> {
        let capacity_bytes = limits.capacity_bytes;
        let wrong = |why| PlaceError::OutOfRange { offset_bytes: start, why, capacity_bytes };
        if start >= capacity_bytes {
            return Err(wrong("begins behind the end"));
        }
        let most = capacity_bytes - start;
        let unit = u64::from(limits.block_bytes).max(Sector::BYTES);
        if !start.is_multiple_of(unit) || bytes.is_some_and(|bytes| !bytes.is_multiple_of(unit)) {
            return Err(wrong("does not consist of whole sectors"));
        }
        match bytes {
            Some(0) => Err(wrong("is empty")),
            Some(bytes) if bytes > most && write => Err(wrong("ends behind the end")),
            bytes => Ok(Self { start, bytes: bytes.map_or(most, |bytes| bytes.min(most)), whole: false }),
        }
    }

    fn on(self, device: Arc<dyn Device>) -> Result<(Arc<dyn Device>, u64), PlaceError> {
        if self.whole {
            return Ok((device, 0));
        }
        let name = device.limits().name.clone();
        let start = Sector::containing(self.start);
        let part = extant_block::Part { device, start, sectors: self.bytes / Sector::BYTES };
        Ok((Arc::new(Linear::new(&name, vec![part])?), self.start))
    }
}

/// The error for an image, or a part of it, that cannot be opened.
pub(crate) fn place_error(path: &Path, error: PlaceError) -> Error {
    match error {
        PlaceError::Host(error) => host_error(path, &error),
        PlaceError::Io(error) => Error::Io(error),
        error => {
            Error::Invalid(format!("{}: {error}", extant_fs::quote(path.as_os_str().as_encoded_bytes())))
        }
    }
}

/// Converts the host's error for opening a file to an error of this crate.
pub(crate) fn host_error(path: &Path, error: &std::io::Error) -> Error {
    use std::io::ErrorKind as Kind;
    use std::os::unix::ffi::OsStrExt;
    let name = extant_fs::quote(path.as_os_str().as_bytes());
    match error.kind() {
        Kind::NotFound => Error::NotFound(name),
        Kind::AlreadyExists => Error::Exists(name),
        Kind::PermissionDenied => Error::Access(name),
        Kind::ReadOnlyFilesystem => Error::ReadOnly,
        Kind::NotADirectory => Error::NotADirectory(name),
        Kind::IsADirectory => Error::IsADirectory(name),
        Kind::ResourceBusy => Error::Busy(format!("{name}: {error}")),
        _ => match error.raw_os_error() {
            Some(errno) => Error::Host { place: name, errno, message: error.to_string() },
            None => Error::Invalid(format!("{name}: {error}")),
        },
    }
}
