//! Mount options that apply to every inode of a volume open for writing.

use extant_format::{Inode, InodeFlags};

/// Which changes are durable when the call that makes them returns. Those of files and directories
/// with the flags `S` and `D` (chattr(1)) always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// No others.
    #[default]
    Flagged,
    /// Those of names in all directories, as if each had the flag `D` (mount option `dirsync`).
    Names,
    /// All, as if every inode had the flag `S` (mount option `sync`). Times of access that change
    /// because something is read are left to the next commit, as on Linux.
    All,
}

/// The options.
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
