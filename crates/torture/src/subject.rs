//! The interface to file systems under test: file operations that return an errno.

use crate::{Durability, Fallocate, Op, RenameMode, Special, Time, XattrMode};
pub use rustix::io::Errno;

/// The result of one operation.
pub type Outcome<T> = Result<T, Errno>;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Kind {
    File,
    Dir,
    Symlink,
    Fifo,
    Socket,
    Char,
    Block,
}

/// The part of `lstat`'s result that is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Inode number.
    pub inode: u64,
    /// Kind of file.
    pub kind: Kind,
    /// Permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u64,
    /// Size in bytes.
    pub size: u64,
    /// Device numbers of a device node, zero otherwise.
    pub device: (u32, u32),
    /// Modification time.
    pub mtime: Time,
    /// Flags of a file or directory, restricted to `FLAGS`.
    pub flags: u32,
    /// Project ID, if volume and subject report it.
    pub project: Option<u32>,
}

/// `chattr` flags that are compared: synchronous, immutable, append-only, no dump, no access times,
/// data=journal, synchronous directory.
pub(crate) const FLAGS: u32 = 0x1_40f8;

/// A file system under test.
///
/// Paths are relative to its root, which is the empty path. Symbolic links in the last component
/// are not followed, except by `chmod`, `truncate`, `write` and other calls that open the file.
#[allow(missing_docs)] // same as the system calls of these names
pub trait Subject {
    fn create(&mut self, path: &str, mode: u32, exclusive: bool) -> Outcome<()>;
    fn mkdir(&mut self, path: &str, mode: u32) -> Outcome<()>;
    fn symlink(&mut self, target: &str, path: &str) -> Outcome<()>;
    fn mknod(&mut self, path: &str, special: Special, mode: u32) -> Outcome<()>;
    fn link(&mut self, from: &str, to: &str) -> Outcome<()>;
    fn unlink(&mut self, path: &str) -> Outcome<()>;
    fn rmdir(&mut self, path: &str) -> Outcome<()>;
    fn rename(&mut self, from: &str, to: &str, mode: RenameMode) -> Outcome<()>;
    fn chmod(&mut self, path: &str, mode: u32) -> Outcome<()>;
    fn chown(&mut self, path: &str, uid: u32, gid: u32) -> Outcome<()>;
    fn utimens(&mut self, path: &str, atime: Time, mtime: Time) -> Outcome<()>;
    fn set_xattr(&mut self, path: &str, name: &str, value: &[u8], mode: XattrMode) -> Outcome<()>;
    fn remove_xattr(&mut self, path: &str, name: &str) -> Outcome<()>;
    fn set_flags(&mut self, path: &str, flags: u32) -> Outcome<()>;
    fn truncate(&mut self, path: &str, size: u64) -> Outcome<()>;
    fn open_truncated(&mut self, path: &str) -> Outcome<()>;
    /// Returns bytes written, which is short if the volume is full.
    fn write(
        &mut self,
        path: &str,
        offset: u64,
        data: &[u8],
        direct: bool,
        durability: Durability,
    ) -> Outcome<u64>;
    /// Like `write` at byte 0, through an open with `O_TRUNC`.
    fn rewrite(&mut self, path: &str, data: &[u8], durability: Durability) -> Outcome<u64>;
    fn fallocate(&mut self, path: &str, mode: Fallocate, offset: u64, len: u64) -> Outcome<()>;
    /// Returns bytes copied, which is short if a file or space ends.
    fn copy_range(&mut self, from: &str, at: u64, to: &str, to_at: u64, len: u64) -> Outcome<u64>;
    fn set_project(&mut self, path: &str, project: u32) -> Outcome<()>;
    fn hold(&mut self, slot: u8, path: &str) -> Outcome<()>;
    fn tmpfile(&mut self, slot: u8, dir: &str, mode: u32) -> Outcome<()>;
    fn link_held(&mut self, slot: u8, to: &str) -> Outcome<()>;
    fn link_held_over(&mut self, slot: u8, to: &str) -> Outcome<()>;
    fn write_held(&mut self, slot: u8, offset: u64, data: &[u8]) -> Outcome<u64>;
    fn release(&mut self, slot: u8) -> Outcome<()>;
    /// See [`Op::Put`].
    fn put(&mut self, path: &str, mode: u32, data: &[u8], waits: bool) -> Outcome<u64>;
    fn fsync(&mut self, path: &str) -> Outcome<()>;
    fn fdatasync(&mut self, path: &str) -> Outcome<()>;
    fn sync(&mut self) -> Outcome<()>;
    /// Advances only a virtual clock.
    fn sleep(&mut self, millis: u64);

    fn stat(&mut self, path: &str) -> Outcome<Stat>;
    /// Names in a directory, without the dots, in any order.
    fn list(&mut self, path: &str) -> Outcome<Vec<String>>;
    /// The whole contents.
    fn read(&mut self, path: &str) -> Outcome<Vec<u8>>;
    fn read_held(&mut self, slot: u8) -> Outcome<Vec<u8>>;
    fn read_link(&mut self, path: &str) -> Outcome<String>;
    /// Extended attributes that `is_compared` selects, with their values, sorted by name.
    fn xattrs(&mut self, path: &str) -> Outcome<Vec<(String, Vec<u8>)>>;
}

/// The attribute that holds file capabilities.
pub(crate) const CAPABILITY: &str = "security.capability";

/// Whether an attribute is a user's, an administrator's, an access control list, or file
/// capabilities.
pub(crate) fn is_compared(attribute: &str) -> bool {
    let prefixes = ["user.", "trusted.", "system.posix_acl_"];
    attribute == CAPABILITY || prefixes.iter().any(|prefix| attribute.starts_with(prefix))
}

/// Runs an operation. Returns the number that a write returned, zero for others.
pub fn apply(subject: &mut dyn Subject, op: &Op) -> Outcome<u64> {
    let done = match op {
        Op::Create { path, mode, exclusive } => subject.create(path, *mode, *exclusive),
        Op::Mkdir { path, mode } => subject.mkdir(path, *mode),
        Op::Symlink { target, path } => subject.symlink(target, path),
        Op::Mknod { path, special, mode } => subject.mknod(path, *special, *mode),
        Op::Link { from, to } => subject.link(from, to),
        Op::Unlink { path } => subject.unlink(path),
        Op::Rmdir { path } => subject.rmdir(path),
        Op::Rename { from, to, mode } => subject.rename(from, to, *mode),
        Op::Chmod { path, mode } => subject.chmod(path, *mode),
        Op::Chown { path, uid, gid } => subject.chown(path, *uid, *gid),
        Op::Utimens { path, atime, mtime } => subject.utimens(path, *atime, *mtime),
        Op::SetXattr { path, name, value, mode } => subject.set_xattr(path, name, value, *mode),
        Op::RemoveXattr { path, name } => subject.remove_xattr(path, name),
        Op::SetFlags { path, flags } => subject.set_flags(path, *flags),
        Op::OpenTruncated { path } => subject.open_truncated(path),
        Op::Truncate { path, size } => subject.truncate(path, *size),
        Op::Write { path, offset, direct, durability, .. } => {
            return subject.write(path, *offset, &op.data().expect("a write"), *direct, *durability);
        }
        Op::Rewrite { path, durability, .. } => {
            return subject.rewrite(path, &op.data().expect("a write"), *durability);
        }
        Op::Fallocate { path, mode, offset, len } => subject.fallocate(path, *mode, *offset, *len),
        Op::CopyRange { from, at, to, to_at, len } => {
            return subject.copy_range(from, *at, to, *to_at, *len);
        }
        Op::SetProject { path, project } => subject.set_project(path, *project),
        Op::Hold { slot, path } => subject.hold(*slot, path),
        Op::Tmpfile { slot, dir, mode } => subject.tmpfile(*slot, dir, *mode),
        Op::LinkHeldOver { slot, to } => subject.link_held_over(*slot, to),
        Op::LinkHeld { slot, to } => subject.link_held(*slot, to),
        Op::WriteHeld { slot, offset, .. } => {
            return subject.write_held(*slot, *offset, &op.data().expect("a write"));
        }
        Op::Release { slot } => subject.release(*slot),
        Op::Put { path, mode, waits, .. } => {
            return subject.put(path, *mode, &op.data().expect("a write"), *waits);
        }
        Op::Fsync { path } => subject.fsync(path),
        Op::Fdatasync { path } => subject.fdatasync(path),
        Op::Sync => subject.sync(),
        Op::Sleep { millis } => {
            subject.sleep(*millis);
            Ok(())
        }
    };
    done.map(|()| 0)
}
