//! Files of an image, opened by names that may come from the image itself.

use super::super::{Stores, tree_paths};
use crate::tree::{Kind, NodeId, Payload, Tree};
use crate::{BuildError, quoted_path};
use extant_format::UintExt;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Where an image's files are stored.
pub(super) enum Files<'a> {
    /// In a directory of the host.
    Directory(OwnedFd),
    /// In an archive that has been read.
    Archive(&'a Tree),
}

/// A file of an image.
pub(super) struct Blob {
    pub(super) file: Arc<File>,
    /// Offset in `file` where the blob begins.
    pub(super) start: u64,
    pub(super) len: u64,
    /// The archive's index in the stores, if `file` is registered there.
    pub(super) archive: Option<u16>,
}

impl Files<'_> {
    pub(super) fn of_directory(path: &Path) -> Result<Self, BuildError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        opened.map(Self::Directory).map_err(|error| BuildError::Source {
            action: "open directory",
            path: quoted_path(path),
            error: error.into(),
        })
    }

    /// Whether anything has this name, of whatever type.
    pub(super) fn has(&self, path: &str) -> bool {
        match self {
            Self::Directory(dir) => rustix::fs::statat(dir, path, AtFlags::SYMLINK_NOFOLLOW).is_ok(),
            Self::Archive(tree) => tree_paths::find(tree, path.as_bytes()).is_ok_and(|found| found.is_some()),
        }
    }

    /// Names at the top level. Names that are not UTF-8 are skipped; no image uses them.
    pub(super) fn names(&self) -> Vec<String> {
        match self {
            Self::Directory(dir) => {
                let listed = rustix::fs::Dir::read_from(dir).into_iter().flatten().flatten();
                listed.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned)).collect()
            }
            Self::Archive(tree) => {
                let names = tree.children(NodeId::ROOT).map(|entry| tree.entry_name(entry).to_vec());
                names.filter_map(|name| String::from_utf8(name).ok()).collect()
            }
        }
    }

    /// Opens a file; the error names it.
    pub(super) fn open(&self, path: &str, stores: &Stores) -> Result<Blob, String> {
        match self {
            Self::Directory(dir) => {
                open_within(dir.as_fd(), path).map_err(|e| format!("cannot open {path}: {e}"))
            }
            Self::Archive(tree) => archived(tree, path, stores),
        }
    }
}

/// Opens a regular file at or below a directory. Other types are never opened: opening a pipe waits
/// for a writer, and opening a device may do anything. No symbolic link leads out of the directory.
fn open_within(dir: BorrowedFd<'_>, path: &str) -> io::Result<Blob> {
    let found = open_beneath(dir, path, OFlags::PATH | OFlags::CLOEXEC)?;
    let stat = rustix::fs::fstat(&found)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    // The file's name may have been reused since.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open_beneath(dir, path, flags)?);
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    Ok(Blob { file: Arc::new(file), start: 0, len: meta.len(), archive: None })
}

fn open_beneath(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(dir, path, flags, Mode::empty(), resolve) {
        Err(Errno::XDEV) => Err(io::Error::other(
            "it leads out of the image, through a symbolic link or by its name; put a copy of the file in its place",
        )),
        // Old kernels and some containers lack this call.
        Err(Errno::NOSYS | Errno::PERM) => open_without_links(dir, path, flags),
        other => Ok(other?),
    }
}

fn open_without_links(dir: BorrowedFd<'_>, path: &str, flags: OFlags) -> io::Result<OwnedFd> {
    let parts: Vec<_> = path.split('/').filter(|part| !part.is_empty()).collect();
    if path.starts_with('/') || parts.contains(&"..") {
        return Err(io::Error::other("it leads out of the image by its name"));
    }
    let mut here = dir.try_clone_to_owned()?;
    for (n, part) in (1..).zip(&parts) {
        let flags = if n < parts.len() { OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC } else { flags };
        here = rustix::fs::openat(&here, *part, flags | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(here)
}

fn archived(tree: &Tree, path: &str, stores: &Stores) -> Result<Blob, String> {
    let found = tree_paths::find_followed(tree, path.as_bytes()).map_err(|e| e.to_string())?;
    let id = found.ok_or_else(|| format!("it has no {path}"))?;
    let node = tree.node(id);
    match node.payload {
        _ if node.kind != Kind::File => Err(format!("{path} is not a regular file")),
        Payload::Stored { archive, offset } if tree.sparse_map(id).is_none() => {
            let file = stores.archives[usize::from(archive)].file.clone();
            Ok(Blob { file, start: offset, len: node.size, archive: Some(archive) })
        }
        Payload::Stored { .. } => {
            Err(format!("{path} is packed as a sparse file; pack the archive without --sparse"))
        }
        _ => Err(format!("{path} is empty")),
    }
}

impl Blob {
    pub(super) fn reader(&self) -> BlobReader {
        BlobReader { file: self.file.clone(), at: self.start, end: self.start + self.len }
    }
}

pub(super) struct BlobReader {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = (self.end - self.at).min(buf.len().to_u64()).to_usize();
        let n = self.file.read_at(&mut buf[..want], self.at)?;
        self.at += n.to_u64();
        Ok(n)
    }
}
