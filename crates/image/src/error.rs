//! Reasons for which a build fails.

use std::io;
use std::path::Path;
use thiserror::Error;

/// Why a build or a mkfs failed. Nothing is left under the output's name then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A source could not be read.
    #[error("cannot {action} {path}: {error}")]
    Source {
        /// The operation, as in "open".
        action: &'static str,
        /// Path of the file or directory, quoted.
        path: String,
        /// The system's answer.
        error: io::Error,
    },
    /// A file changed between the walk and the copy.
    #[error("{path} changed while it was read: {change}; build from a snapshot or stop its writers")]
    Changed {
        /// Path of the file, quoted.
        path: String,
        /// The difference.
        change: String,
    },
    /// A name that ext cannot store.
    #[error("the name of {path} has {bytes} bytes; ext stores names of 1 to 255 bytes")]
    NameTooLong {
        /// Full path, quoted.
        path: String,
        /// Length of the name.
        bytes: usize,
    },
    /// A symbolic link whose target does not fit a block.
    #[error("the target of symbolic link {path} has {bytes} bytes; this volume stores at most {limit}")]
    TargetTooLong {
        /// Path of the link, quoted.
        path: String,
        /// Length of the target.
        bytes: u64,
        /// Longest that fits.
        limit: u64,
    },
    /// More hard links than ext can count.
    #[error("{path} has {links} hard links; this type of volume counts at most {limit}")]
    TooManyLinks {
        /// One of the paths, quoted.
        path: String,
        /// How many there are.
        links: u64,
        /// Most that fit.
        limit: u64,
    },
    /// A file that is larger than the volume's type can map.
    #[error(
        "{path} has {bytes} bytes; this volume's files have at most {limit}: use ext4 or a larger block size"
    )]
    FileTooLarge {
        /// Path of the file, quoted.
        path: String,
        /// Its size.
        bytes: u64,
        /// Most that fits.
        limit: u64,
    },
    /// Attributes that fit neither the inode nor a block.
    #[error(
        "the extended attributes of {path} need {bytes} bytes besides those in its inode, and a block holds {limit}{}",
        if *ea_inode { "" } else { "; -O ea_inode keeps long values in inodes of their own, but GRUB and Linux before 4.13 \
        cannot read such a volume" }
    )]
    XattrsTooLarge {
        /// Path, quoted.
        path: String,
        /// Bytes needed.
        bytes: u64,
        /// Bytes there are.
        limit: u64,
        /// Whether the volume has the feature `ea_inode`.
        ea_inode: bool,
    },
    /// A directory with more names than its index can hold.
    #[error(
        "{path} has {names} names, more than the index of a directory holds with blocks of {block_bytes} bytes{}",
        if *large_dir { "; use larger blocks" } else { "; use larger blocks, or -O large_dir, but GRUB and Linux before 4.13 \
        cannot read such a volume" }
    )]
    DirectoryFull {
        /// Path, quoted.
        path: String,
        /// Names in it.
        names: usize,
        /// The volume's block size.
        block_bytes: u32,
        /// Whether the volume has the feature `large_dir`.
        large_dir: bool,
    },
    /// An access list in text that cannot be turned into numbers.
    #[error("the access control list of {path}: {problem}")]
    AccessList {
        /// Path, quoted.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// An attribute with a name that Linux cannot have.
    #[error(
        "the extended attribute {name} of {path} cannot be stored: names have at most 255 bytes, none of them 0"
    )]
    XattrName {
        /// Path, quoted.
        path: String,
        /// The attribute's name, quoted.
        name: String,
    },
    /// An attribute with a longer value than Linux hands out.
    #[error(
        "the extended attribute {name} of {path} has {bytes} bytes; Linux reads values of at most {limit}"
    )]
    XattrTooLong {
        /// Path, quoted.
        path: String,
        /// The attribute's name, quoted.
        name: String,
        /// Bytes of the value.
        bytes: u64,
        /// Most that are read.
        limit: u64,
    },
    /// A symbolic link with an empty target, which Linux does not have either.
    #[error("the target of symbolic link {path} is empty")]
    TargetEmpty {
        /// Path of the link, quoted.
        path: String,
    },
    /// A device whose numbers Linux does not have.
    #[error("{path} is device {major}:{minor}; the numbers go up to 4095:1048575")]
    DeviceNumber {
        /// Path, quoted.
        path: String,
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// A malformed access control list.
    #[error("{path}: {name} is not an access control list: {reason}")]
    Acl {
        /// Path, quoted.
        path: String,
        /// The attribute.
        name: String,
        /// The fault.
        reason: String,
    },
    /// More names than fit 32 bits.
    #[error("the source has more names than a volume can have inodes")]
    TooManyEntries,
    /// An owner outside every range of the map.
    #[error("{path}: no range of the owner map covers its {what} {id}; add one for it")]
    Unmapped {
        /// Path, quoted.
        path: String,
        /// "user" or "group", perhaps of an access list.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// A malformed tar archive.
    #[error("{archive}: {problem}, at byte {offset}, {place}")]
    Tar {
        /// Name of the archive.
        archive: String,
        /// Where, in bytes of the uncompressed archive.
        offset: u64,
        /// "in entry …" or "after entry …".
        place: String,
        /// The fault.
        problem: String,
    },
    /// A malformed image of a container: an OCI layout, or an archive of `docker save`.
    #[error("{layout}: {problem}")]
    Oci {
        /// Path of the image.
        layout: String,
        /// The fault.
        problem: String,
    },
    /// A layout or archive holds several images.
    #[error("{image}: it holds several images ({images})")]
    SeveralImages {
        /// Path of the layout or archive.
        image: String,
        /// By what they can be chosen.
        images: String,
    },
    /// A layer of an image that cannot be applied by itself.
    #[error("{path}: {problem}")]
    Layer {
        /// The place in it, quoted.
        path: String,
        /// What stands against it, and what to do.
        problem: String,
    },
    /// A compressed archive holds more than the volume.
    #[error(
        "{archive}: with {path} its contents come to more than {limit} bytes, and the volume has {given}"
    )]
    Overfull {
        /// Name of the archive.
        archive: String,
        /// The file that is too much, quoted.
        path: String,
        /// The limit.
        limit: u64,
        /// Size of the volume in bytes.
        given: u64,
    },
    /// The contents do not fit the size that was asked for.
    #[error("the contents need {needed} bytes; a volume of {given} bytes is too small")]
    TooSmall {
        /// A size that would do.
        needed: u64,
        /// The size asked for.
        given: u64,
    },
    /// More inodes are needed than were asked for, or than fit.
    #[error(
        "the contents need {needed} inodes, the volume has {given}; ask for more inodes, fewer bytes per inode, or, where the \
         volume has as many as its size allows, a larger volume"
    )]
    TooFewInodes {
        /// Inodes needed, reserved ones included.
        needed: u64,
        /// Inodes there are.
        given: u64,
    },
    /// Options that contradict each other or go beyond what ext can do.
    #[error("{0}")]
    Options(String),
    /// The image could not be written.
    #[error("cannot {action} {path}: {error}")]
    Output {
        /// The operation.
        action: &'static str,
        /// The image, or the directory that it lies in.
        path: String,
        /// The system's answer.
        error: io::Error,
    },
    /// The image could not be written.
    #[error("cannot write the image: {0}")]
    Device(#[from] extant_block::IoError),
    /// The volume that is added to cannot be opened or changed.
    #[error("{path}: {error}")]
    Volume {
        /// The image, or the path on the volume, quoted.
        path: String,
        /// The error.
        error: extant_fs::Error,
    },
    /// A task of the build panicked: a defect.
    #[error("{0}")]
    World(#[from] extant_rt::RtError),
}

impl BuildError {
    pub(crate) fn source(action: &'static str, path: &[u8], error: impl Into<io::Error>) -> Self {
        Self::Source { action, path: quoted(path), error: error.into() }
    }

    pub(crate) fn volume(path: &[u8], error: extant_fs::Error) -> Self {
        Self::Volume { path: quoted(path), error }
    }

    pub(crate) fn output(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Self::Output { action, path: quoted_path(path), error: error.into() }
    }
}

/// A name of any bytes, in quotes and fit for a terminal (see [`extant_fs::quote`]).
pub fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", extant_fs::quote(bytes).replace('"', "\\\""))
}

pub(crate) fn quoted_path(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    quoted(path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    #[test]
    fn characters_that_steer_or_hide_text_are_escaped() {
        assert_eq!(super::quoted("a\u{202e}b\"\x1b".as_bytes()), r#""a\u{202e}b\"\u{1b}""#);
        assert_eq!(super::quoted(b"\xff\\"), r#""\xff\\""#);
    }
}
