//! Mount options that apply to every inode of a volume open for writing.

use extant_format::{Inode, InodeFlags};

/// Which changes are durable when the call that makes them returns. Changes to files and
/// directories with the flags `S` and `D` (chattr(1)) always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// Only changes to files and directories with these flags.
    #[default]
    Flagged,
    /// Also changes of names, as if every directory had the flag `D` (mount option `dirsync`).
    Names,
    /// All changes, as if every inode had the flag `S` (mount option `sync`). As on Linux, the
    /// times of access that reading changes wait for the next commit.
    All,
}

/// The mount options that a writer looks at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MountFlags {
    pub(crate) synchronous: Synchronous,
    /// See [`WriteOptions::ignores_acls`](crate::WriteOptions::ignores_acls).
    pub(crate) ignores_acls: bool,
}

impl MountFlags {
    /// Whether a change of an inode must be durable when it returns, because the inode has one of
    /// `flags` or counts as having it (Linux's `IS_SYNC` and `IS_DIRSYNC`).
    pub(crate) fn syncs(self, inode: &Inode, flags: InodeFlags) -> bool {
        let of_all = match self.synchronous {
            Synchronous::Flagged => InodeFlags::empty(),
            Synchronous::Names => InodeFlags::DIRSYNC,
            Synchronous::All => InodeFlags::SYNC.union(InodeFlags::DIRSYNC),
        };
        (inode.flags() | of_all).intersects(flags)
    }
}
