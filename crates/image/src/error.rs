//! Build errors.

use std::io;
use std::path::Path;
use thiserror::Error;

/// Why a build or mkfs failed. Nothing is left under the output's name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A source could not be read.
    #[error("cannot {action} {path}: {error}")]
    Source {
        /// The operation, e.g. "open".
        action: &'static str,
        /// Path of the file or directory, quoted.
        path: String,
        /// The system's error.
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
    /// A symbolic link whose target does not fit in a block.
    #[error("the target of symbolic link {path} has {bytes} bytes; this volume stores at most {limit}")]
    TargetTooLong {
        /// Path of the link, quoted.
        path: String,
        /// Length of the target.
        bytes: u64,
        /// Longest target that fits.
        limit: u64,
    },
    /// More hard links than ext can count.
    #[error("{path} has {links} hard links; this type of volume counts at most {limit}")]
    TooManyLinks {
        /// One of the paths, quoted.
        path: String,
        /// Number of links.
        links: u64,
        /// Maximum that fits.
        limit: u64,
    },
    /// A file larger than this type of volume can map.
    #[error(
        "{path} has {bytes} bytes; this volume's files have at most {limit}: use ext4 or a larger block size"
    )]
    FileTooLarge {
        /// Path of the file, quoted.
        path: String,
        /// The file's size.
        bytes: u64,
        /// Maximum that fits.
        limit: u64,
    },
    /// Attributes that fit neither in the inode nor in a block.
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
        /// Bytes available.
        limit: u64,
        /// Whether the volume has the `ea_inode` feature.
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
        /// Number of names.
        names: usize,
        /// The volume's block size.
        block_bytes: u32,
        /// Whether the volume has the `large_dir` feature.
        large_dir: bool,
    },
    /// An access list in text that cannot be turned into numbers.
    #[error("the access control list of {path}: {problem}")]
    AccessList {
        /// Path, quoted.
        path: String,
        /// What is wrong with the list.
        problem: String,
    },
    /// An attribute name that Linux does not allow.
    #[error(
        "the extended attribute {name} of {path} cannot be stored: names have at most 255 bytes, none of them 0"
    )]
    XattrName {
        /// Path, quoted.
        path: String,
        /// The attribute's name, quoted.
        name: String,
    },
    /// An attribute value longer than Linux can return.
    #[error(
        "the extended attribute {name} of {path} has {bytes} bytes; Linux reads values of at most {limit}"
    )]
    XattrTooLong {
        /// Path, quoted.
        path: String,
        /// The attribute's name, quoted.
        name: String,
        /// Length of the value.
        bytes: u64,
        /// Maximum that can be read.
        limit: u64,
    },
    /// A file capability that Linux cannot read.
    #[error("the extended attribute security.capability of {path} holds no file capability")]
    Capability {
        /// Path, quoted.
        path: String,
    },
    /// An owner whose number does not stand for any user or group.
    #[error("{path} has the {what} id 4294967295, which Linux does not allow; map it to another")]
    NoOwner {
        /// Path, quoted.
        path: String,
        /// "user" or "group".
        what: &'static str,
    },
    /// A symbolic link with an empty target, which Linux does not allow either.
    #[error("the target of symbolic link {path} is empty")]
    TargetEmpty {
        /// Path of the link, quoted.
        path: String,
    },
    /// A device number outside Linux's range.
    #[error("{path} is device {major}:{minor}; the numbers go up to 4095:1048575")]
    DeviceNumber {
        /// Path, quoted.
        path: String,
        /// The major number.
        major: u32,
        /// The minor number.
        minor: u32,
    },
    /// A malformed access control list.
    #[error("{path}: {name} is not an access control list: {reason}")]
    Acl {
        /// Path, quoted.
        path: String,
        /// The attribute's name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// More names than fit 32 bits.
    #[error("the source has more names than a volume can have inodes")]
    TooManyEntries,
    /// An owner not covered by any range of the map.
    #[error("{path}: no range of the owner map covers its {what} {id}; add one for it")]
    Unmapped {
        /// Path, quoted.
        path: String,
        /// "user" or "group", possibly of an access list.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// A malformed tar archive.
    #[error("{archive}: {problem}, at byte {offset}, {place}")]
    Tar {
        /// Name of the archive.
        archive: String,
        /// Offset in bytes of the uncompressed archive.
        offset: u64,
        /// "in entry …" or "after entry …".
        place: String,
        /// What is wrong.
        problem: String,
    },
    /// A malformed container image: an OCI layout or a `docker save` archive.
    #[error("{layout}: {problem}")]
    Oci {
        /// Path of the image.
        layout: String,
        /// What is wrong.
        problem: String,
    },
    /// A layout or archive with several images.
    #[error("{image}: it holds several images ({images})")]
    SeveralImages {
        /// Path of the layout or archive.
        image: String,
        /// Names or platforms that select the images.
        images: String,
    },
    /// An image layer that cannot be applied by itself.
    #[error("{path}: {problem}")]
    Layer {
        /// The path in the layer, quoted.
        path: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A compressed archive that contains more than the volume can hold.
    #[error(
        "{archive}: with {path} its contents come to more than {limit} bytes, and the volume has {given}"
    )]
    Overfull {
        /// Name of the archive.
        archive: String,
        /// The file that exceeds the limit, quoted.
        path: String,
        /// The limit.
        limit: u64,
        /// Size of the volume in bytes.
        given: u64,
    },
    /// The contents do not fit in the requested size.
    #[error("the contents need {needed} bytes; a volume of {given} bytes is too small")]
    TooSmall {
        /// A size that would suffice.
        needed: u64,
        /// The requested size.
        given: u64,
    },
    /// More inodes are needed than were requested, or than fit.
    #[error(
        "the contents need {needed} inodes, the volume has {given}; ask for more inodes, fewer bytes per inode, or, where the \
         volume has as many as its size allows, a larger volume"
    )]
    TooFewInodes {
        /// Inodes needed, including reserved ones.
        needed: u64,
        /// Inodes available.
        given: u64,
    },
    /// An invalid line of a list that accompanies the sources.
    #[error("{file}, line {line}: {problem}")]
    Line {
        /// The name of the list.
        file: String,
        /// The number of the line, counted from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// The target already contains something.
    #[error("{path} holds {contents}")]
    Occupied {
        /// The target.
        path: String,
        /// What it contains, with an article.
        contents: String,
    },
    /// Options that contradict each other or exceed what ext supports.
    #[error("{0}")]
    Options(String),
    /// The image could not be written.
    #[error("cannot {action} {path}: {error}")]
    Output {
        /// The operation.
        action: &'static str,
        /// The image, or its directory.
        path: String,
        /// The system's error.
        error: io::Error,
    },
    /// The image could not be written.
    #[error("cannot write the image: {0}")]
    Device(#[from] extant_block::IoError),
    /// The existing volume cannot be opened or changed.
    #[error("{path}: {error}")]
    Volume {
        /// The image, or the path on the volume, quoted.
        path: String,
        /// The error.
        error: extant_fs::Error,
    },
    /// A task of the build panicked; a bug.
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

/// Quotes a name of arbitrary bytes for a terminal (see [`extant_fs::quote`]).
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
