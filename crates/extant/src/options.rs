//! How volumes and files are opened.

use crate::{Caller, ErrorPolicy, RemovalStep, Synchronous};
use crate::{Error, Part, Result};

/// How to open a volume. The default only reads.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) write: bool,
    pub(crate) cache_bytes: u64,
    pub(crate) direct: bool,
    pub(crate) caller: Option<Caller>,
    pub(crate) offline: bool,
    pub(crate) discard: bool,
    pub(crate) synchronous: Synchronous,
    pub(crate) fixed_time: Option<i64>,
    pub(crate) errors: Option<ErrorPolicy>,
    pub(crate) removal_step: RemovalStep,
    pub(crate) override_locks: bool,
    pub(crate) part: Part,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            write: false,
            cache_bytes: 64 << 20,
            direct: false,
            caller: None,
            offline: false,
            discard: false,
            synchronous: Synchronous::default(),
            fixed_time: None,
            errors: None,
            removal_step: RemovalStep::default(),
            override_locks: false,
            part: Part::Whole,
        }
    }
}

impl OpenOptions {
    /// Read-only, 64 MiB of cache, no permission checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for writing: replays a dirty journal first, and marks the volume as in use until it is
    /// closed.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Memory for file contents and metadata, in bytes.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Opens an image for writing although another program, such as a virtual machine, holds a lock
    /// on it ([`Error::Locked`]).
    ///
    /// For use when that program is known to only read, or to have ended. An image mounted by the
    /// host's kernel, or opened by another writer of this crate, is still refused. Applies to
    /// [`Volume::open`](crate::Volume::open).
    #[must_use]
    pub fn override_locks(mut self, override_locks: bool) -> Self {
        self.override_locks = override_locks;
        self
    }

    /// The part of the image or disk that holds the volume, such as a partition. Applies to
    /// [`Volume::open`](crate::Volume::open).
    #[must_use]
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    /// Bypasses the host's page cache (`O_DIRECT`) if the image's file system or disk allows it.
    ///
    /// For a volume that stays open with its own cache: a sync of one file then does not wait for
    /// other files' data that the host has buffered, and nothing is cached twice.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Checks permissions for this caller, even on a volume open for reading. Without a caller
    /// nothing is checked, and new files belong to root.
    #[must_use]
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Discards freed blocks once the freeing is durable; in an image file they become holes.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// Which changes are durable when the call that makes them returns. By default, only changes to
    /// files and directories with the flags `S` and `D` are. With the other values, small files
    /// that would be made together are made one by one.
    #[must_use]
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// For a batch of edits: never commits because of age, so that the same edits to the same
    /// volume produce the same bytes.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Uses this time, in seconds since 1970, for all time stamps instead of the clock's
    /// (`SOURCE_DATE_EPOCH`).
    #[must_use]
    pub fn fixed_time(mut self, seconds: Option<i64>) -> Self {
        self.fixed_time = seconds;
        self
    }

    /// How a volume open for writing reacts to a damaged structure; by default as its superblock
    /// says (`tune2fs -e`).
    ///
    /// Either way the error is recorded in the superblock, and the next e2fsck does a full check.
    #[must_use]
    pub fn errors(mut self, policy: ErrorPolicy) -> Self {
        self.errors = Some(policy);
        self
    }

    /// For tests: the size of one step of freeing a file's blocks.
    #[doc(hidden)]
    #[must_use]
    pub fn removal_step(mut self, step: RemovalStep) -> Self {
        self.removal_step = step;
        self
    }
}

/// How to open a file, like `std::fs::OpenOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) append: bool,
    pub(crate) truncate: bool,
    create: bool,
    create_new: bool,
    pub(crate) sync: bool,
    pub(crate) datasync: bool,
    mode: Option<u32>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident),*) => {
        $(
            $(#[$doc])*
            pub fn $name(&mut self, $name: bool) -> &mut Self {
                self.$name = $name;
                self
            }
        )*
    };
}

impl FileOptions {
    /// Options that allow nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// For reading.
        read,
        /// For writing.
        write,
        /// Every write appends (`O_APPEND`).
        append,
        /// Empties the file (`O_TRUNC`).
        truncate,
        /// Creates the file if it does not exist (`O_CREAT`).
        create,
        /// Creates the file; fails if it exists (`O_EXCL`).
        create_new,
        /// A write returns once it is durable (`O_SYNC`).
        sync,
        /// A write returns once it can be read back after a power cut (`O_DSYNC`).
        datasync
    }

    /// Mode of a newly created file, not subject to a umask; 0644 by default.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Refuses the combinations that `std::fs::OpenOptions` refuses.
    pub(crate) fn check(&self) -> Result<()> {
        let Self { read, write, append, truncate, create, create_new, .. } = *self;
        let sentence = match (write, append) {
            (false, false) if !read => "a file is opened for reading, writing or appending",
            (false, false) if truncate || create || create_new => {
                "to create or empty a file it must be opened for writing"
            }
            (_, true) if truncate && !create_new => "a file opened for appending cannot be emptied",
            _ => return Ok(()),
        };
        Err(Error::Invalid(sentence.into()))
    }

    pub(crate) fn creates(&self) -> bool {
        self.create || self.create_new
    }

    pub(crate) fn creates_new(&self) -> bool {
        self.create_new
    }

    pub(crate) fn mode_bits(&self) -> u32 {
        self.mode.unwrap_or(0o644)
    }

    pub(crate) fn to_fs(self) -> extant_fs::FileOptions {
        let Self { append, sync, datasync, .. } = self;
        extant_fs::FileOptions { append, sync, datasync, ..Default::default() }
    }

    pub(crate) fn writes(&self) -> bool {
        self.write || self.append || self.truncate
    }
}

/// Selects one of an inode's two access control lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The list that access checks use.
    Access,
    /// The list that new files in a directory inherit.
    Default,
}

impl AclKind {
    pub(crate) const fn attribute(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }
}
