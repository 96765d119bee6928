//! Calls that create files and link names.

use super::{Node, Sys};
use crate::{Error, Result, Time};
use extant_format::{DeviceNumber, FileKind, UintExt};

/// A device node, named pipe or socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device with major and minor number.
    Char(u32, u32),
    /// Block device with major and minor number.
    Block(u32, u32),
}

/// A file to create, of any kind except a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewFile<'a> {
    /// An empty regular file.
    Regular,
    /// A symbolic link that leads to this target.
    Symlink(&'a [u8]),
    /// A device node, named pipe or socket.
    Special(Special),
}

/// A regular file with all that it gets. It inherits neither an access list nor a group.
#[derive(Clone, Copy, Debug)]
pub struct SmallFile<'a> {
    /// Permission bits, setuid, setgid and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Access time.
    pub accessed: Time,
    /// Modification time.
    pub modified: Time,
    /// The contents, at most [`SmallFiles::FILE_BYTES`](crate::SmallFiles::FILE_BYTES).
    pub contents: &'a [u8],
}

impl<'a> SmallFile<'a> {
    pub(crate) fn to_fs(self) -> Result<extant_fs::SmallFile<'a>> {
        super::check_times([self.accessed, self.modified])?;
        Ok(extant_fs::SmallFile {
            permissions: (self.mode & 0o7777).low_u16(),
            uid: self.uid,
            gid: self.gid,
            accessed: self.accessed.into(),
            modified: self.modified.into(),
            contents: self.contents,
        })
    }
}

/// Limits of device numbers (Linux: `MINORBITS` 20).
const MAJOR_MAX: u32 = (1 << 12) - 1;
const MINOR_MAX: u32 = (1 << 20) - 1;

impl Special {
    fn kind(self) -> Result<(FileKind, DeviceNumber)> {
        let none = DeviceNumber { major: 0, minor: 0 };
        let (kind, device) = match self {
            Self::Fifo => (FileKind::Fifo, none),
            Self::Socket => (FileKind::Socket, none),
            Self::Char(major, minor) => (FileKind::CharDevice, DeviceNumber { major, minor }),
            Self::Block(major, minor) => (FileKind::BlockDevice, DeviceNumber { major, minor }),
        };
        if device.major > MAJOR_MAX || device.minor > MINOR_MAX {
            return Err(Error::Invalid(format!(
                "device {}:{}: majors end at {MAJOR_MAX}, minors at {MINOR_MAX}",
                device.major, device.minor
            )));
        }
        Ok((kind, device))
    }
}

impl Sys {
    pub(crate) async fn create(&self, dir: &Node, name: &[u8], mode: u32) -> Result<Node> {
        Ok(Node::Live(dir.live_without(self, name).await?.create(&self.caller, name, mode.low_u16()).await?))
    }

    /// Creates a file without a name.
    pub(crate) async fn unnamed(&self, dir: &Node, new: NewFile<'_>, mode: u32) -> Result<Node> {
        let (dir, caller, mode) = (dir.live()?, &*self.caller, mode.low_u16());
        Ok(Node::Live(match new {
            NewFile::Regular => dir.create_unnamed(caller, mode).await?,
            NewFile::Symlink(target) => dir.symlink_unnamed(caller, target).await?,
            NewFile::Special(special) => {
                let (kind, device) = special.kind()?;
                dir.mknod_unnamed(caller, kind, mode, device).await?
            }
        }))
    }

    /// Begins to make small files together.
    pub(crate) fn small_files(&self) -> Result<extant_fs::SmallFiles> {
        self.volume.small_files(&self.caller)
    }

    pub(crate) async fn mkdir(&self, dir: &Node, name: &[u8], mode: u32) -> Result<()> {
        dir.live_without(self, name).await?.mkdir(&self.caller, name, mode.low_u16()).await.map(drop)
    }

    pub(crate) async fn symlink(&self, dir: &Node, name: &[u8], target: &[u8]) -> Result<()> {
        dir.live_without(self, name).await?.symlink(&self.caller, name, target).await.map(drop)
    }

    pub(crate) async fn mknod(&self, dir: &Node, name: &[u8], special: Special, mode: u32) -> Result<()> {
        let (kind, device) = special.kind()?;
        let dir = dir.live_without(self, name).await?;
        dir.mknod(&self.caller, name, kind, mode.low_u16(), device).await.map(drop)
    }

    pub(crate) async fn link(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        dir.live()?.link(&self.caller, node.live()?, name).await
    }

    pub(crate) async fn link_over(&self, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        dir.live()?.link_over(&self.caller, node.live()?, name).await
    }
}
