//! How volumes and files are opened.

use crate::{Caller, ErrorPolicy, RemovalStep};
use crate::{Error, Result};

/// How a volume is opened. The default reads, and changes nothing.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(crate) write: bool,
    pub(crate) cache_bytes: u64,
    pub(crate) direct: bool,
    pub(crate) caller: Option<Caller>,
    pub(crate) offline: bool,
    pub(crate) discard: bool,
    pub(crate) fixed_time: Option<i64>,
    pub(crate) errors: Option<ErrorPolicy>,
    pub(crate) removal_step: RemovalStep,
    pub(crate) override_locks: bool,
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
            fixed_time: None,
            errors: None,
            removal_step: RemovalStep::default(),
            override_locks: false,
        }
    }
}

impl OpenOptions {
    /// Reading only, 64 MiB of cache, no permission checks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for writing: a dirty journal is replayed first, and the volume is marked as in use until it is closed.
    #[must_use]
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Memory for contents and metadata, in bytes.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Opens an image for writing although another program holds a lock on it, as a virtual machine does ([`Error::Locked`]): where
    /// it is known that this program only reads, or does not run any more. What the host's kernel has mounted, and what another
    /// writer of this crate has open, is refused all the same. For [`Volume::open`](crate::Volume::open).
    #[must_use]
    pub fn override_locks(mut self, override_locks: bool) -> Self {
        self.override_locks = override_locks;
        self
    }

    /// Bypasses the host's page cache where the image lies on a file system or disk that allows it (`O_DIRECT`): for a
    /// volume that stays open with a cache of its own. Then a sync of one file does not wait for data of others that the
    /// host holds back, and nothing is cached twice.
    #[must_use]
    pub fn direct(mut self, direct: bool) -> Self {
        self.direct = direct;
        self
    }

    /// Checks permissions as for this caller, also on a volume that is open for reading; without one nothing is checked and new files
    /// belong to root.
    #[must_use]
    pub fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Discards space that is freed, once it is free for good: the blocks of a file that holds the volume become holes.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// For a batch of edits: nothing is committed because of its age, so that the same edits of the same volume give the
    /// same bytes.
    #[must_use]
    pub fn offline(mut self, offline: bool) -> Self {
        self.offline = offline;
        self
    }

    /// Time stamps are this, in seconds since 1970, instead of the clock's; what `SOURCE_DATE_EPOCH` asks for.
    #[must_use]
    pub fn fixed_time(mut self, seconds: Option<i64>) -> Self {
        self.fixed_time = seconds;
        self
    }

    /// The answer of a volume that is open for writing to a damaged structure; without this, the one that its superblock
    /// names (`tune2fs -e`). The error is recorded there in any case, and the next e2fsck looks at everything.
    #[must_use]
    pub fn errors(mut self, policy: ErrorPolicy) -> Self {
        self.errors = Some(policy);
        self
    }

    /// For tests: what one step of freeing a file's blocks takes.
    #[doc(hidden)]
    #[must_use]
    pub fn removal_step(mut self, step: RemovalStep) -> Self {
        self.removal_step = step;
        self
    }
}

/// How a file is opened, as `std::fs::OpenOptions`.
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
    /// Nothing is allowed yet.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// For reading.
        read,
        /// For writing.
        write,
        /// Every write goes to the end (`O_APPEND`).
        append,
        /// Empties the file (`O_TRUNC`).
        truncate,
        /// Creates the file if there is none (`O_CREAT`).
        create,
        /// Creates the file, and fails if there is one (`O_EXCL`).
        create_new,
        /// A write returns when it is durable (`O_SYNC`).
        sync,
        /// A write returns when it can be read back after a power cut (`O_DSYNC`).
        datasync
    }

    /// Mode of a file that is created, without the umask; 0644 by default.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = Some(mode);
        self
    }

    /// Refuses what `std::fs::OpenOptions` refuses.
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

/// Which of the two access control lists of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclKind {
    /// The one that is checked.
    Access,
    /// The one that files made in a directory begin with.
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
