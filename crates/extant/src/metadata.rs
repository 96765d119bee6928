//! Attributes of files.

use extant_format::{DeviceNumber, FileKind, InodeFlags, InodeNumber, Timestamp};
use extant_fs::Attributes;
use std::fmt;
use std::time::Duration;

/// Kind of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    File,
    /// Directory.
    Dir,
    /// Symbolic link.
    Symlink,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

impl From<FileKind> for FileType {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Regular => Self::File,
            FileKind::Directory => Self::Dir,
            FileKind::Symlink => Self::Symlink,
            FileKind::Fifo => Self::Fifo,
            FileKind::Socket => Self::Socket,
            FileKind::CharDevice => Self::CharDevice,
            FileKind::BlockDevice => Self::BlockDevice,
        }
    }
}

impl FileType {
    /// Whether it is a regular file.
    pub fn is_file(self) -> bool {
        self == Self::File
    }

    /// Whether it is a directory.
    pub fn is_dir(self) -> bool {
        self == Self::Dir
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(self) -> bool {
        self == Self::Symlink
    }
}

/// A point in time as stored on a volume; it may lie before 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds of that second, below 1,000,000,000.
    pub nanos: u32,
}

impl From<Timestamp> for Time {
    fn from(time: Timestamp) -> Self {
        Self { seconds: time.seconds, nanos: time.nanos }
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Self {
        Self { seconds: time.seconds, nanos: time.nanos }
    }
}

impl From<Duration> for Time {
    /// The time this long after the start of 1970.
    fn from(since: Duration) -> Self {
        Self { seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
    }
}

#[expect(clippy::disallowed_types, reason = "a conversion reads no clock")]
mod system_time {
    use super::Time;
    use std::time::{Duration, SystemTime};

    impl From<SystemTime> for Time {
        fn from(time: SystemTime) -> Self {
            match time.duration_since(SystemTime::UNIX_EPOCH) {
                Ok(since) => since.into(),
                Err(before) => {
                    // Nanoseconds count forward, even before 1970.
                    let (before, nanos) = (Self::from(before.duration()), before.duration().subsec_nanos());
                    match nanos {
                        0 => Self { seconds: -before.seconds, nanos: 0 },
                        _ => Self { seconds: -before.seconds - 1, nanos: 1_000_000_000 - nanos },
                    }
                }
            }
        }
    }

    impl From<Time> for SystemTime {
        /// A time that the host cannot represent becomes 1970.
        fn from(time: Time) -> Self {
            let seconds = Duration::from_secs(time.seconds.unsigned_abs());
            let second = match time.seconds < 0 {
                true => SystemTime::UNIX_EPOCH.checked_sub(seconds),
                false => SystemTime::UNIX_EPOCH.checked_add(seconds),
            };
            let time = second.and_then(|second| second.checked_add(Duration::from_nanos(time.nanos.into())));
            time.unwrap_or(SystemTime::UNIX_EPOCH)
        }
    }
}

/// A snapshot of a file's attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metadata(Attributes);

impl From<Attributes> for Metadata {
    fn from(attributes: Attributes) -> Self {
        Self(attributes)
    }
}

impl Metadata {
    /// Inode number.
    pub fn inode(&self) -> InodeNumber {
        self.0.inode
    }

    /// Kind of the file.
    pub fn file_type(&self) -> FileType {
        self.0.kind.into()
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type().is_dir()
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.file_type().is_file()
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.file_type().is_symlink()
    }

    /// Size in bytes, including bytes that are written but not yet recorded in the inode.
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Whether the size is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Space in use, in units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.0.blocks
    }

    /// Permission bits, with setuid, setgid and sticky.
    pub fn mode(&self) -> u32 {
        self.0.permissions.into()
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Number of names of the inode; 1 for a directory with more than 64,999 subdirectories.
    pub fn links(&self) -> u32 {
        self.0.links.into()
    }

    /// Flags, as `lsattr` shows them.
    pub fn flags(&self) -> InodeFlags {
        self.0.flags
    }

    /// Project ID, on volumes with the `project` feature.
    pub fn project(&self) -> Option<u32> {
        self.0.project
    }

    /// Time of the last change of the contents.
    pub fn modified(&self) -> Time {
        self.0.modified.into()
    }

    /// Time of the last read, as far as the volume keeps it.
    pub fn accessed(&self) -> Time {
        self.0.accessed.into()
    }

    /// Time of the last change of contents or attributes.
    pub fn changed(&self) -> Time {
        self.0.changed.into()
    }

    /// Creation time, if the volume's inodes have room for it.
    pub fn created(&self) -> Option<Time> {
        self.0.created.map(Time::from)
    }

    /// Major and minor number, for a device node.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.0.device.map(|DeviceNumber { major, minor }| (major, minor))
    }
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Its inode number.
    pub inode: InodeNumber,
    /// Its kind, if the directory records it.
    pub file_type: Option<FileType>,
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, inode, file_type } = self;
        f.debug_struct("DirEntry")
            .field("name", &format_args!("\"{}\"", name.escape_ascii()))
            .field("inode", inode)
            .field("file_type", file_type)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_types, reason = "a conversion reads no clock")]
    fn times_of_the_host_and_back() {
        for (seconds, nanos) in
            [(0, 0), (0, 1), (1_700_000_000, 999_999_999), (-1, 0), (-1, 1), (-2, 999_999_999)]
        {
            let time = Time { seconds, nanos };
            let host = std::time::SystemTime::from(time);
            assert_eq!(Time::from(host), time);
        }
        let before = std::time::SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(Time::from(before), Time { seconds: -2, nanos: 500_000_000 });
    }

    #[test]
    fn names_are_shown_as_text() {
        let entry =
            DirEntry { name: b"a\x1bb".to_vec(), inode: InodeNumber(12), file_type: Some(FileType::File) };
        let shown = format!("{entry:?}");
        assert!(shown.starts_with("DirEntry { name: \"a\\x1bb\", inode: "), "{shown}");
    }
}
