//! One of the compared trees: how to walk it and read its files.

use super::link_pairs::Identity;
use super::{TimeOf, Tree, Unreadable};
use extant_format::{
    Corrupt, DeviceNumber, FileKind, Inode, InodeFlags, InodeNumber, Place, Timestamp, UintExt,
};
use extant_fs::{Attribute, Error, Walk, WalkOptions};
use std::cmp::Ordering;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The order of [`Attributes::times`].
pub(super) const TIMES: [TimeOf; 4] =
    [TimeOf::Modification, TimeOf::Access, TimeOf::Change, TimeOf::Creation];

/// Size limits that Linux sets for a file's list of attribute names, and for one value.
const HOST_ATTRIBUTE_BYTES: usize = 64 << 10;

/// Inode fields that are compared.
#[derive(Debug)]
pub(super) struct Attributes {
    pub(super) kind: FileKind,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) size: u64,
    pub(super) links: u64,
    pub(super) identity: Identity,
    pub(super) device: Option<DeviceNumber>,
    /// Flags settable by `chattr`; volumes only.
    pub(super) flags: Option<InodeFlags>,
    pub(super) project: Option<u32>,
    pub(super) times: [Option<Timestamp>; 4],
    /// Whether times have fractions of a second.
    pub(super) has_fractions: bool,
}

/// A file found by a walk.
#[derive(Debug)]
pub(super) struct Item {
    /// The path, relative to the top.
    pub(super) path: Vec<u8>,
    pub(super) attributes: Attributes,
    pub(super) node: Node,
}

#[derive(Debug)]
pub(super) enum Node {
    Stored(Inode),
    Host(PathBuf),
}

/// Flags that describe how a file is stored rather than what it contains.
fn stored_as() -> InodeFlags {
    InodeFlags::HUGE_FILE
        | InodeFlags::EXTENTS
        | InodeFlags::INDEX
        | InodeFlags::INLINE_DATA
        | InodeFlags::EA_INODE
        // EXT4_EOFBLOCKS_FL, left behind by old kernels.
        | InodeFlags::from_bits_retain(0x40_0000)
}

impl Item {
    fn stored(path: Vec<u8>, inode: Inode) -> Result<Self, Error> {
        let Some(kind) = inode.kind() else {
            let rule = "that of a kind of file";
            return Err(
                Corrupt::field(Place::Inode(inode.number), "i_mode", inode.mode().into(), rule).into()
            );
        };
        let created = inode.created();
        let attributes = Attributes {
            kind,
            mode: inode.mode() & 0o7777,
            uid: inode.uid(),
            gid: inode.gid(),
            size: inode.size(),
            links: inode.links().into(),
            identity: (0, inode.number.0.into()),
            device: inode.device(),
            flags: Some(inode.flags().difference(stored_as())),
            project: Some(inode.project().unwrap_or(0)),
            times: [Some(inode.modified()), Some(inode.accessed()), Some(inode.changed()), created],
            has_fractions: created.is_some(),
        };
        Ok(Self { path, attributes, node: Node::Stored(inode) })
    }

    fn host(path: Vec<u8>, at: PathBuf) -> io::Result<Self> {
        let metadata = fs::symlink_metadata(&at)?;
        let kind = FileKind::from_mode(metadata.mode().fit_u16()).ok_or(io::ErrorKind::Unsupported)?;
        Ok(Self { path, attributes: Attributes::host(kind, &metadata), node: Node::Host(at) })
    }

    pub(super) fn is_directory(&self) -> bool {
        self.attributes.kind == FileKind::Directory
    }

    /// Whether both items are the same file of the same volume.
    pub(super) fn is_same(&self, other: &Self, tree: &Tree<'_>, others: &Tree<'_>) -> bool {
        match (&self.node, &other.node, tree, others) {
            (
                Node::Stored(a),
                Node::Stored(b),
                Tree::Volume { volume, .. },
                Tree::Volume { volume: other, .. },
            ) => a.number == b.number && std::sync::Arc::ptr_eq(volume.device(), other.device()),
            _ => false,
        }
    }

    /// Extended attributes, sorted by name.
    pub(super) async fn extended(&self, tree: &Tree<'_>) -> Result<Vec<Attribute>, Unreadable> {
        match (&self.node, tree) {
            (Node::Stored(inode), Tree::Volume { volume, .. }) => Ok(volume.xattrs(inode).await?),
            (Node::Host(at), _) => Ok(host_attributes(at)?),
            (Node::Stored(_), Tree::Host(_)) => unreachable!("an inode belongs to a volume"),
        }
    }

    /// Returns the target of a symbolic link.
    pub(super) async fn target(&self, tree: &Tree<'_>) -> Result<Vec<u8>, Unreadable> {
        match (&self.node, tree) {
            (Node::Stored(inode), Tree::Volume { volume, .. }) => Ok(volume.read_link(inode).await?),
            (Node::Host(at), _) => Ok(fs::read_link(at)?.as_os_str().as_bytes().to_vec()),
            (Node::Stored(_), Tree::Host(_)) => unreachable!("an inode belongs to a volume"),
        }
    }
}

impl Attributes {
    fn host(kind: FileKind, metadata: &Metadata) -> Self {
        let rdev = metadata.rdev();
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let device = DeviceNumber { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) };
        let time = |seconds, nanos: i64| Some(Timestamp { seconds, nanos: nanos.cast_unsigned().fit_u32() });
        Self {
            kind,
            mode: metadata.mode().fit_u16() & 0o7777,
            uid: metadata.uid(),
            gid: metadata.gid(),
            size: metadata.len(),
            links: metadata.nlink(),
            identity: (metadata.dev(), metadata.ino()),
            device: is_device.then_some(device),
            flags: None,
            project: None,
            times: [
                time(metadata.mtime(), metadata.mtime_nsec()),
                time(metadata.atime(), metadata.atime_nsec()),
                time(metadata.ctime(), metadata.ctime_nsec()),
                None,
            ],
            has_fractions: true,
        }
    }
}

fn host_attributes(at: &Path) -> io::Result<Vec<Attribute>> {
    let mut names = vec![0_u8; HOST_ATTRIBUTE_BYTES];
    let len = match rustix::fs::llistxattr(at, &mut names) {
        Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; HOST_ATTRIBUTE_BYTES];
        let len = rustix::fs::lgetxattr(at, name, &mut value)?;
        value.truncate(len);
        found.push(Attribute { name: name.to_vec(), value });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// The order in which walks visit paths: directories before their entries, names in byte order.
pub(super) fn order(a: &[u8], b: &[u8]) -> Ordering {
    a.split(|&byte| byte == b'/').cmp(b.split(|&byte| byte == b'/'))
}

impl Tree<'_> {
    /// The file at which the comparison begins.
    pub(super) fn top(&self) -> Result<Item, Unreadable> {
        match self {
            Self::Volume { top, .. } => Ok(Item::stored(Vec::new(), (*top).clone())?),
            Self::Host(at) => Ok(Item::host(Vec::new(), at.to_path_buf())?),
        }
    }

    /// Whether the tree is an entire volume.
    pub(super) fn is_root(&self) -> bool {
        matches!(self, Self::Volume { top, .. } if top.number == InodeNumber::ROOT)
    }

    /// Starts a walk below the top, which is a directory.
    pub(super) async fn walk(&self) -> Result<Walker, Unreadable> {
        match *self {
            Self::Volume { volume, top } => {
                let options = WalkOptions { inodes: true, whole_directories: true, ..Default::default() };
                Ok(Walker::Volume(Box::new(volume.walk(top, options).await?)))
            }
            Self::Host(at) => {
                Ok(Walker::Host(HostWalk { stack: Vec::new(), enter: Some((Vec::new(), at.to_path_buf())) }))
            }
        }
    }
}

pub(super) enum Walker {
    Volume(Box<Walk>),
    Host(HostWalk),
}

/// A walk below a host directory.
pub(super) struct HostWalk {
    /// Files still to visit, the next one last: path from the top, and path from the working
    /// directory.
    stack: Vec<Vec<(Vec<u8>, PathBuf)>>,
    enter: Option<(Vec<u8>, PathBuf)>,
}

type Failed = (Vec<u8>, Unreadable);

impl Walker {
    /// The next file. For an unreadable one the error is returned with its path, and the walk goes
    /// on.
    pub(super) async fn next(&mut self) -> Option<Result<Item, Failed>> {
        match self {
            Self::Volume(walk) => loop {
                match walk.next().await? {
                    Err(failure) => return Some(Err((failure.path, failure.error.into()))),
                    Ok(entry) => {
                        let Some(inode) = entry.inode else { continue };
                        let path = walk.path().to_vec();
                        return Some(Item::stored(path.clone(), inode).map_err(|error| (path, error.into())));
                    }
                }
            },
            Self::Host(walk) => walk.next(),
        }
    }

    /// Does not descend into the directory just returned.
    pub(super) fn skip(&mut self) {
        match self {
            Self::Volume(walk) => walk.skip(),
            Self::Host(walk) => walk.enter = None,
        }
    }
}

impl HostWalk {
    fn next(&mut self) -> Option<Result<Item, Failed>> {
        if let Some((path, at)) = self.enter.take() {
            match list(&path, &at) {
                Ok(names) => self.stack.push(names),
                Err(error) => return Some(Err((path, error.into()))),
            }
        }
        loop {
            let Some((path, at)) = self.stack.last_mut()?.pop() else {
                self.stack.pop();
                continue;
            };
            return Some(match Item::host(path.clone(), at) {
                Ok(item) => {
                    if let (true, Node::Host(at)) = (item.is_directory(), &item.node) {
                        self.enter = Some((path, at.clone()));
                    }
                    Ok(item)
                }
                Err(error) => Err((path, error.into())),
            });
        }
    }
}

/// Names in a host directory, in reverse order.
fn list(path: &[u8], at: &Path) -> io::Result<Vec<(Vec<u8>, PathBuf)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(at)? {
        let name = entry?.file_name();
        let mut below = path.to_vec();
        if !below.is_empty() {
            below.push(b'/');
        }
        below.extend_from_slice(name.as_bytes());
        names.push((below, at.join(name)));
    }
    names.sort_unstable_by(|a, b| b.0.cmp(&a.0));
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_before_its_names_and_these_before_its_longer_neighbours() {
        let sorted: [&[u8]; 5] = [b"a", b"a/b", b"a/b/c", b"a-b", b"ab"];
        assert!(sorted.is_sorted_by(|a, b| order(a, b) == Ordering::Less));
    }
}
