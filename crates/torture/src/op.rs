//! Operations on a volume as values: to generate, record, replay and print.

use crate::pattern;
use extant::{RenameMode, Special, XattrMode};
use std::fmt;

/// When a write becomes durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// At the next sync.
    #[default]
    None,
    /// When the call returns, as with `O_DSYNC`.
    Data,
    /// When the call returns, including attributes, as with `O_SYNC`.
    All,
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "",
            Self::Data => " O_DSYNC",
            Self::All => " O_SYNC",
        })
    }
}

/// Modes of `fallocate(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallocate {
    /// Allocates, and may grow the file.
    Allocate,
    /// `FALLOC_FL_KEEP_SIZE`.
    KeepSize,
    /// `FALLOC_FL_ZERO_RANGE`.
    Zero,
    /// `FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE`.
    ZeroKeepSize,
    /// `FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE`.
    Punch,
    /// `FALLOC_FL_COLLAPSE_RANGE`.
    Collapse,
    /// `FALLOC_FL_INSERT_RANGE`.
    Insert,
}

/// A point in time as stored by files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of the second.
    pub nanos: u32,
}

/// The times of a file that [`Op::Put`] makes.
pub const PUT_TIME: Time = Time { seconds: 1_600_000_000, nanos: 5 };

/// An operation. Paths are relative to the root of the volume, which is the empty path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are the arguments of the system call of the same name
pub enum Op {
    Create {
        path: String,
        mode: u32,
        exclusive: bool,
    },
    Mkdir {
        path: String,
        mode: u32,
    },
    Symlink {
        target: String,
        path: String,
    },
    Mknod {
        path: String,
        special: Special,
        mode: u32,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        mode: RenameMode,
    },
    Chmod {
        path: String,
        mode: u32,
    },
    Chown {
        path: String,
        uid: u32,
        gid: u32,
    },
    Utimens {
        path: String,
        atime: Time,
        mtime: Time,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
        mode: XattrMode,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    /// Sets the flags of [`Stat::flags`](crate::Stat::flags), like `chattr`.
    SetFlags {
        path: String,
        flags: u32,
    },
    Truncate {
        path: String,
        size: u64,
    },
    /// Opens the file with `O_TRUNC` and closes it.
    OpenTruncated {
        path: String,
    },
    /// Writes [`pattern`]`(tag, offset, len)`.
    Write {
        path: String,
        offset: u64,
        len: u64,
        tag: u32,
        direct: bool,
        durability: Durability,
    },
    /// Opens with `O_TRUNC`, and writes [`pattern`]`(tag, 0, len)` to the same open file.
    Rewrite {
        path: String,
        len: u64,
        tag: u32,
        durability: Durability,
    },
    Fallocate {
        path: String,
        mode: Fallocate,
        offset: u64,
        len: u64,
    },
    /// `copy_file_range(2)`.
    CopyRange {
        from: String,
        at: u64,
        to: String,
        to_at: u64,
        len: u64,
    },
    /// Sets a file's project (`FS_IOC_FSSETXATTR`).
    SetProject {
        path: String,
        project: u32,
    },
    /// Keeps a file open in a slot, so that it outlives its names.
    Hold {
        slot: u8,
        path: String,
    },
    /// Keeps a new file without a name open in a slot (`O_TMPFILE`).
    Tmpfile {
        slot: u8,
        dir: String,
        mode: u32,
    },
    /// Links a held file under a name, its first or another one.
    LinkHeld {
        slot: u8,
        to: String,
    },
    /// Links a held file over an existing name. Linux needs a temporary name and a rename for that.
    LinkHeldOver {
        slot: u8,
        to: String,
    },
    /// Writes to a held file.
    WriteHeld {
        slot: u8,
        offset: u64,
        len: u64,
        tag: u32,
    },
    /// Closes a held file.
    Release {
        slot: u8,
    },
    /// Makes a file with all of its contents, this mode, [`PUT_TIME`], and root as its owner, which
    /// is there as a whole or not at all. The directory passes on neither a group nor an access
    /// list. A file that `waits` is made by the next operation, which is another one of this kind.
    Put {
        path: String,
        mode: u32,
        len: u64,
        tag: u32,
        waits: bool,
    },
    Fsync {
        path: String,
    },
    Fdatasync {
        path: String,
    },
    Sync,
    /// Does nothing for this long.
    Sleep {
        millis: u64,
    },
}

impl Op {
    /// A buffered write.
    pub fn write(path: &str, offset: u64, len: u64, tag: u32) -> Self {
        let (direct, durability) = (false, Durability::None);
        Self::Write { path: path.into(), offset, len, tag, direct, durability }
    }

    /// The paths it names.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let two = match self {
            Self::Link { from, to } | Self::Rename { from, to, .. } | Self::CopyRange { from, to, .. } => {
                [Some(from), Some(to)]
            }
            Self::Create { path, .. }
            | Self::Mkdir { path, .. }
            | Self::Symlink { path, .. }
            | Self::Mknod { path, .. }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Utimens { path, .. }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::SetFlags { path, .. }
            | Self::Truncate { path, .. }
            | Self::OpenTruncated { path }
            | Self::Write { path, .. }
            | Self::Rewrite { path, .. }
            | Self::Fallocate { path, .. }
            | Self::SetProject { path, .. }
            | Self::Hold { path, .. }
            | Self::Put { path, .. }
            | Self::Fsync { path }
            | Self::Fdatasync { path } => [Some(path), None],
            Self::Tmpfile { dir, .. } => [Some(dir), None],
            Self::LinkHeld { to, .. } | Self::LinkHeldOver { to, .. } => [Some(to), None],
            Self::WriteHeld { .. } | Self::Release { .. } | Self::Sync | Self::Sleep { .. } => [None, None],
        };
        two.into_iter().flatten().map(String::as_str)
    }

    /// Bytes stored by a write; `None` for other operations.
    pub fn data(&self) -> Option<Vec<u8>> {
        match *self {
            Self::Write { offset, len, tag, .. } | Self::WriteHeld { offset, len, tag, .. } => {
                Some(pattern(tag, offset, len as usize))
            }
            Self::Rewrite { len, tag, .. } | Self::Put { len, tag, .. } => {
                Some(pattern(tag, 0, len as usize))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let p = |path: &str| format!("/{path}");
        match self {
            Self::Create { path, mode, exclusive } => {
                write!(f, "{} {} {mode:o}", if *exclusive { "create" } else { "open-create" }, p(path))
            }
            Self::Mkdir { path, mode } => write!(f, "mkdir {} {mode:o}", p(path)),
            Self::Symlink { target, path } => write!(f, "symlink {target:?} {}", p(path)),
            Self::Mknod { path, special, mode } => write!(f, "mknod {} {special:?} {mode:o}", p(path)),
            Self::Link { from, to } => write!(f, "link {} {}", p(from), p(to)),
            Self::Unlink { path } => write!(f, "unlink {}", p(path)),
            Self::Rmdir { path } => write!(f, "rmdir {}", p(path)),
            Self::Rename { from, to, mode } => {
                write!(f, "rename {} {}", p(from), p(to))?;
                if *mode == RenameMode::Replace { Ok(()) } else { write!(f, " {mode:?}") }
            }
            Self::Chmod { path, mode } => write!(f, "chmod {} {mode:o}", p(path)),
            Self::Chown { path, uid, gid } => write!(f, "chown {} {uid}:{gid}", p(path)),
            Self::Utimens { path, atime, mtime } => write!(
                f,
                "utimens {} {}.{:09} {}.{:09}",
                p(path),
                atime.seconds,
                atime.nanos,
                mtime.seconds,
                mtime.nanos
            ),
            Self::SetXattr { path, name, value, mode } => {
                write!(f, "setxattr {} {name} {} bytes {mode:?}", p(path), value.len())
            }
            Self::RemoveXattr { path, name } => write!(f, "removexattr {} {name}", p(path)),
            Self::SetFlags { path, flags } => write!(f, "chattr {} {flags:#x}", p(path)),
            Self::Truncate { path, size } => write!(f, "truncate {} {size}", p(path)),
            Self::OpenTruncated { path } => write!(f, "open-truncated {}", p(path)),
            Self::Write { path, offset, len, tag, direct, durability } => {
                let word = if *direct { "dwrite" } else { "write" };
                write!(f, "{word} {} {offset}+{len} #{tag}{durability}", p(path))
            }
            Self::Rewrite { path, len, tag, durability } => {
                write!(f, "write {} O_TRUNC 0+{len} #{tag}{durability}", p(path))
            }
            Self::Fallocate { path, mode, offset, len } => {
                write!(f, "fallocate {} {mode:?} {offset}+{len}", p(path))
            }
            Self::CopyRange { from, at, to, to_at, len } => {
                write!(f, "copy-range {} {at}+{len} to {} {to_at}", p(from), p(to))
            }
            Self::SetProject { path, project } => write!(f, "project {} {project}", p(path)),
            Self::Hold { slot, path } => write!(f, "hold {slot} {}", p(path)),
            Self::Tmpfile { slot, dir, mode } => write!(f, "tmpfile {slot} {} {mode:o}", p(dir)),
            Self::LinkHeld { slot, to } => write!(f, "link-held {slot} {}", p(to)),
            Self::LinkHeldOver { slot, to } => write!(f, "link-held-over {slot} {}", p(to)),
            Self::WriteHeld { slot, offset, len, tag } => {
                write!(f, "write-held {slot} {offset}+{len} #{tag}")
            }
            Self::Release { slot } => write!(f, "release {slot}"),
            Self::Put { path, mode, len, tag, waits } => {
                write!(f, "put {} {mode:o} {len} #{tag}{}", p(path), if *waits { " waits" } else { "" })
            }
            Self::Fsync { path } => write!(f, "fsync {}", p(path)),
            Self::Fdatasync { path } => write!(f, "fdatasync {}", p(path)),
            Self::Sync => f.write_str("sync"),
            Self::Sleep { millis } => write!(f, "sleep {millis} ms"),
        }
    }
}
