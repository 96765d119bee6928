//! Replies.

use super::structs::*;
use extant_block::Buf;
use zerocopy::IntoBytes;

/// Successful answers.
#[derive(Debug)]
#[expect(missing_docs, reason = "the kernel's header describes them")]
pub enum Reply {
    /// The request is done.
    Done,
    Init(InitOut),
    Attr(AttrOut),
    Statx(Box<StatxOut>),
    Entry(EntryOut),
    Opened(OpenOut),
    Created(EntryOut, OpenOut),
    Data(Vec<u8>),
    /// The first bytes of a buffer that a device has filled.
    Buf(Buf, usize),
    /// Directory entries, and the inodes that they introduce to the kernel.
    Listing(Vec<u8>, Vec<u64>),
    Written(u32),
    Statfs(StatfsOut),
    Xattr(Xattr),
    Ioctl(IoctlOut, Vec<u8>),
    Offset(u64),
    Copied(u64),
}

/// The answer to GETXATTR and LISTXATTR.
#[derive(Debug)]
pub enum Xattr {
    /// The caller asked for the length only.
    Length(u32),
    /// The value, or the names.
    Value(Vec<u8>),
}

impl Reply {
    /// Calls `write` with the parts that follow the header.
    pub fn with_parts<T>(&self, write: impl FnOnce([&[u8]; 2]) -> T) -> T {
        match self {
            Self::Done => write([&[], &[]]),
            Self::Init(out) => write([out.as_bytes(), &[]]),
            Self::Attr(out) => write([out.as_bytes(), &[]]),
            Self::Statx(out) => write([out.as_bytes(), &[]]),
            Self::Entry(out) => write([out.as_bytes(), &[]]),
            Self::Opened(out) => write([out.as_bytes(), &[]]),
            Self::Created(entry, opened) => write([entry.as_bytes(), opened.as_bytes()]),
            Self::Data(bytes) | Self::Listing(bytes, _) | Self::Xattr(Xattr::Value(bytes)) => {
                write([bytes, &[]])
            }
            Self::Buf(buf, bytes) => write([&buf[..*bytes], &[]]),
            Self::Written(size) => write([WriteOut { size: *size, padding: 0 }.as_bytes(), &[]]),
            Self::Statfs(out) => write([out.as_bytes(), &[]]),
            Self::Xattr(Xattr::Length(size)) => {
                write([GetxattrOut { size: *size, padding: 0 }.as_bytes(), &[]])
            }
            Self::Ioctl(out, bytes) => write([out.as_bytes(), bytes]),
            Self::Offset(offset) => write([LseekOut { offset: *offset }.as_bytes(), &[]]),
            Self::Copied(copied_bytes) => {
                write([CopyFileRangeOut { copied_bytes: *copied_bytes }.as_bytes(), &[]])
            }
        }
    }
}
