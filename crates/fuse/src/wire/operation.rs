//! Requests.

use super::structs::*;
use zerocopy::FromBytes;

/// Why a request cannot be answered; it gets an error reply or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The request is shorter than its header, or its length differs from the one in the header.
    Length,
    /// The body is shorter than the operation's structure, or a name in it is not terminated.
    Body(u64),
}

/// One request.
#[derive(Debug)]
pub struct Request<'a> {
    /// The header, with the caller and the inode.
    pub header: RequestHeader,
    /// The operation; `None` for an opcode that this crate does not know.
    pub operation: Option<Operation<'a>>,
    /// The caller's supplementary group that matters for a new inode, if the kernel sent one.
    pub group: Option<u32>,
}

/// What LSEEK looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// `SEEK_DATA`.
    Data,
    /// `SEEK_HOLE`.
    Hole,
    /// Anything else; the kernel handles these itself.
    Other(u32),
}

/// An operation, with borrowed names and data. The inode is in the header.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the kernel's header describes them")]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget(ForgetIn),
    /// Records of [`ForgetOne`], as many as the body contains.
    BatchForget {
        records: &'a [u8],
    },
    Getattr(GetattrIn),
    Statx(StatxIn),
    Setattr(SetattrIn),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod {
        args: MknodIn,
        name: &'a [u8],
    },
    Mkdir {
        args: MkdirIn,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename {
        newdir: u64,
        flags: u32,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    Link {
        args: LinkIn,
        name: &'a [u8],
    },
    Open(OpenIn),
    Create {
        args: CreateIn,
        name: &'a [u8],
    },
    Tmpfile(CreateIn),
    Read(ReadIn),
    Write {
        args: WriteIn,
        data: &'a [u8],
    },
    Flush,
    Release(ReleaseIn),
    Fsync(FsyncIn),
    Opendir(OpenIn),
    Readdir {
        args: ReadIn,
        plus: bool,
    },
    Releasedir(ReleaseIn),
    Fsyncdir(FsyncIn),
    Statfs,
    Setxattr {
        flags: u32,
        name: &'a [u8],
        value: &'a [u8],
    },
    Getxattr {
        size: u32,
        name: &'a [u8],
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Access(AccessIn),
    Init {
        args: InitIn,
        flags: u64,
    },
    Interrupt(InterruptIn),
    Destroy,
    Ioctl {
        args: IoctlIn,
        data: &'a [u8],
    },
    Fallocate(FallocateIn),
    Lseek {
        args: LseekIn,
        seek: Seek,
    },
    /// `wide`: the reply counts in 64 bits.
    CopyFileRange {
        args: CopyFileRangeIn,
        wide: bool,
    },
    Syncfs,
    NotifyReply,
}

impl<'a> Request<'a> {
    /// Parses a request as read from the device.
    ///
    /// # Errors
    /// See [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (header, rest) = RequestHeader::read_from_prefix(bytes).map_err(|_| Malformed::Length)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Length);
        }
        let malformed = Malformed::Body(header.unique);
        let body_bytes = rest.len().checked_sub(usize::from(header.extensions) * 8).ok_or(malformed)?;
        let (body, extensions) = rest.split_at(body_bytes);
        let operation = Operation::parse(header.opcode, Body(body)).ok_or(malformed)?;
        Ok(Self { header, operation: operation.known(), group: group_of(extensions) })
    }
}

/// Returns the group in a request's extensions.
fn group_of(mut extensions: &[u8]) -> Option<u32> {
    while let Ok((header, rest)) = ExtensionHeader::read_from_prefix(extensions) {
        if header.kind == EXT_GROUPS {
            let (count, groups) = u32::read_from_prefix(rest).ok()?;
            return (count > 0).then(|| u32::read_from_prefix(groups).ok()).flatten().map(|(group, _)| group);
        }
        extensions = extensions.get((header.size as usize).max(8)..)?;
    }
    None
}

/// A parsed operation, or an unknown opcode.
enum Parsed<'a> {
    Known(Operation<'a>),
    Unknown,
}

impl<'a> Parsed<'a> {
    fn known(self) -> Option<Operation<'a>> {
        match self {
            Self::Known(operation) => Some(operation),
            Self::Unknown => None,
        }
    }
}

/// The part of a body that has not been parsed yet.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// Takes a name that ends with NUL.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        let name = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Some(name)
    }

    fn bytes(&mut self, count: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count as usize)?;
        self.0 = rest;
        Some(bytes)
    }
}

impl<'a> Operation<'a> {
    /// Whether the operation creates an inode that the caller will own.
    pub(crate) const fn makes_inode(&self) -> bool {
        const WHITEOUT: u32 = 4;
        match self {
            Self::Symlink { .. }
            | Self::Mknod { .. }
            | Self::Mkdir { .. }
            | Self::Create { .. }
            | Self::Tmpfile(_) => true,
            Self::Rename { flags, .. } => *flags & WHITEOUT != 0,
            _ => false,
        }
    }

    /// Parses a body; `None` if it is too short.
    fn parse(code: u32, mut body: Body<'a>) -> Option<Parsed<'a>> {
        let body = &mut body;
        Some(Parsed::Known(match code {
            opcode::LOOKUP => Self::Lookup { name: body.name()? },
            opcode::FORGET => Self::Forget(body.take()?),
            opcode::BATCH_FORGET => {
                let BatchForgetIn { count, .. } = body.take()?;
                Self::BatchForget { records: body.bytes(count.checked_mul(size_of::<ForgetOne>() as u32)?)? }
            }
            opcode::GETATTR => Self::Getattr(body.take()?),
            opcode::STATX => Self::Statx(body.take()?),
            opcode::SETATTR => Self::Setattr(body.take()?),
            opcode::READLINK => Self::Readlink,
            opcode::SYMLINK => Self::Symlink { name: body.name()?, target: body.name()? },
            opcode::MKNOD => Self::Mknod { args: body.take()?, name: body.name()? },
            opcode::MKDIR => Self::Mkdir { args: body.take()?, name: body.name()? },
            opcode::UNLINK => Self::Unlink { name: body.name()? },
            opcode::RMDIR => Self::Rmdir { name: body.name()? },
            opcode::RENAME => {
                let RenameIn { newdir } = body.take()?;
                Self::Rename { newdir, flags: 0, name: body.name()?, new_name: body.name()? }
            }
            opcode::RENAME2 => {
                let Rename2In { newdir, flags, .. } = body.take()?;
                Self::Rename { newdir, flags, name: body.name()?, new_name: body.name()? }
            }
            opcode::LINK => Self::Link { args: body.take()?, name: body.name()? },
            opcode::OPEN => Self::Open(body.take()?),
            opcode::CREATE => Self::Create { args: body.take()?, name: body.name()? },
            opcode::TMPFILE => Self::Tmpfile(body.take()?),
            opcode::READ => Self::Read(body.take()?),
            opcode::WRITE => {
                let args: WriteIn = body.take()?;
                Self::Write { args, data: body.bytes(args.size)? }
            }
            opcode::FLUSH => Self::Flush,
            opcode::RELEASE => Self::Release(body.take()?),
            opcode::FSYNC => Self::Fsync(body.take()?),
            opcode::OPENDIR => Self::Opendir(body.take()?),
            opcode::READDIR => Self::Readdir { args: body.take()?, plus: false },
            opcode::READDIRPLUS => Self::Readdir { args: body.take()?, plus: true },
            opcode::RELEASEDIR => Self::Releasedir(body.take()?),
            opcode::FSYNCDIR => Self::Fsyncdir(body.take()?),
            opcode::STATFS => Self::Statfs,
            opcode::SETXATTR => {
                let SetxattrIn { size, flags, .. } = body.take()?;
                Self::Setxattr { flags, name: body.name()?, value: body.bytes(size)? }
            }
            opcode::GETXATTR => {
                let GetxattrIn { size, .. } = body.take()?;
                Self::Getxattr { size, name: body.name()? }
            }
            opcode::LISTXATTR => {
                let GetxattrIn { size, .. } = body.take()?;
                Self::Listxattr { size }
            }
            opcode::REMOVEXATTR => Self::Removexattr { name: body.name()? },
            opcode::ACCESS => Self::Access(body.take()?),
            opcode::INIT => {
                let args: InitIn = body.take()?;
                let more = if u64::from(args.flags) & init::INIT_EXT != 0 { body.take()? } else { 0u32 };
                Self::Init { args, flags: u64::from(more) << 32 | u64::from(args.flags) }
            }
            opcode::INTERRUPT => Self::Interrupt(body.take()?),
            opcode::DESTROY => Self::Destroy,
            opcode::IOCTL => {
                let args: IoctlIn = body.take()?;
                Self::Ioctl { args, data: body.bytes(args.in_size)? }
            }
            opcode::FALLOCATE => Self::Fallocate(body.take()?),
            opcode::LSEEK => {
                let args: LseekIn = body.take()?;
                let seek = match args.whence {
                    3 => Seek::Data,
                    4 => Seek::Hole,
                    other => Seek::Other(other),
                };
                Self::Lseek { args, seek }
            }
            opcode::COPY_FILE_RANGE => Self::CopyFileRange { args: body.take()?, wide: false },
            opcode::COPY_FILE_RANGE_64 => Self::CopyFileRange { args: body.take()?, wide: true },
            opcode::SYNCFS => Self::Syncfs,
            opcode::NOTIFY_REPLY => Self::NotifyReply,
            _ => return Some(Parsed::Unknown),
        }))
    }
}
