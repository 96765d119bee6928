//! The structures, named as in the kernel's header without `fuse_`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
            #[repr(C)]
            #[expect(missing_docs, reason = "the kernel's header describes its fields")]
            pub struct $name { $(pub $field: $type),* }
        )*
    };
}

structs! {
    /// Precedes every request.
    RequestHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, extensions: u16,
        padding: u16,
    }
    /// Precedes every reply and notification.
    ReplyHeader { len: u32, error: i32, unique: u64 }
    /// What `stat` shows.
    Attr {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
    /// The inode that a name leads to.
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    }
    /// Attributes, and how long they are valid.
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr }
    ForgetIn { nlookup: u64 }
    ForgetOne { nodeid: u64, nlookup: u64 }
    BatchForgetIn { count: u32, dummy: u32 }
    GetattrIn { flags: u32, dummy: u32, fh: u64 }
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { newdir: u64 }
    Rename2In { newdir: u64, flags: u32, padding: u32 }
    LinkIn { oldnodeid: u64 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
    WriteOut { size: u32, padding: u32 }
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
    FsyncIn { fh: u64, flags: u32, padding: u32 }
    /// The form with `SETXATTR_EXT`.
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32 }
    GetxattrIn { size: u32, padding: u32 }
    GetxattrOut { size: u32, padding: u32 }
    AccessIn { mask: u32, padding: u32 }
    /// The part that every kernel sends.
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32 }
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, max_stack_depth: u32, request_timeout: u16, unused0: u16, unused: [u32; 5],
    }
    InterruptIn { unique: u64 }
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32 }
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32 }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// Precedes each name in a directory listing.
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32 }
    InvalInodeOut { ino: u64, off: i64, len: i64 }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut { offset: u64 }
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
    CopyFileRangeOut { copied_bytes: u64 }
    StatxIn { getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32 }
    StatxTime { tv_sec: i64, tv_nsec: u32, reserved: i32 }
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: StatxTime, btime: StatxTime,
        ctime: StatxTime, mtime: StatxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32,
        spare2: [u64; 14],
    }
    StatxOut { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx }
    /// Precedes an extension of a request.
    ExtensionHeader { size: u32, kind: u32 }
    /// `struct fstrim_range`.
    TrimRange { start: u64, len: u64, minlen: u64 }
    /// `struct fsxattr`.
    FsXattr { xflags: u32, extsize: u32, nextents: u32, projid: u32, cowextsize: u32, pad: [u8; 8] }
}

/// Operation codes.
#[expect(missing_docs, reason = "named as in the kernel's header")]
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT; those from bit 32 on are in `flags2`.
#[expect(missing_docs, reason = "named as in the kernel's header")]
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
}

/// Bits of [`SetattrIn::valid`].
#[expect(missing_docs, reason = "named as in the kernel's header")]
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags of the reply to OPEN.
#[expect(missing_docs, reason = "named as in the kernel's header")]
pub mod fopen {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// Flag of OPEN: the file becomes empty.
pub const O_TRUNC: u32 = 0o1000;
/// Command of IOCTL: free space is discarded (linux/fs.h).
pub const FITRIM: u32 = 0xc018_5879;
/// The data cache of an inode, or its attributes, are no longer valid.
pub const NOTIFY_INVAL_INODE: i32 = 2;
/// Extension: the group that a new inode may need.
pub const EXT_GROUPS: u32 = 32;
/// Flag of FSYNC and FSYNCDIR: only what is needed to read the data back.
pub const FSYNC_FDATASYNC: u32 = 1;
