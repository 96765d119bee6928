//! Reads file contents from the host or from archives.

use super::Stores;
use crate::tree::{DataRange, EntryId, NodeId, Payload, Tree};
use crate::{BuildError, quoted};
use extant_format::{Timestamp, UintExt};
use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;

/// Where contents come from, and how the tree's time stamps were adjusted.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) tree: &'a Tree,
    pub(crate) stores: &'a Stores,
    /// Later source times were clamped to this one.
    pub(crate) clamp: Option<Timestamp>,
    /// Earliest and latest second that the volume's inodes can store.
    pub(crate) time_range: (i64, i64),
}

/// Reads files, ideally grouped by directory; keeps the last directory open.
#[derive(Default)]
pub(crate) struct Reader {
    dir: Option<(NodeId, u16, OwnedFd)>,
}

impl Reader {
    /// Fills `to` from byte `offset` of the named file; holes and bytes past its end read as zeros.
    pub(crate) fn read(
        &mut self,
        from: Origin<'_>,
        entry: EntryId,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), BuildError> {
        let id = from.tree.entry_node(entry);
        let node = from.tree.node(id);
        let len = (node.size.saturating_sub(offset)).min(to.len().to_u64()).to_usize();
        let (data, padding) = to.split_at_mut(len);
        padding.fill(0);
        match node.payload {
            Payload::Host { root } => self.read_host(from, entry, root, None, offset, data),
            Payload::HostAt { root, path } => {
                self.read_host(from, entry, root, Some(from.tree.host_path(path)), offset, data)
            }
            Payload::Stored { archive, offset: at } => {
                let read = |into: &mut [u8], skip: u64| read_archive(from, entry, archive, at + skip, into);
                match from.tree.sparse_map(id) {
                    None => read(data, offset),
                    Some(map) => read_sparse(map, offset, data, read),
                }
            }
            _ => {
                data.fill(0);
                Ok(())
            }
        }
    }

    /// Reads the file at `elsewhere`, relative to the source's root, or at the entry's own path.
    fn read_host(
        &mut self,
        from: Origin<'_>,
        entry: EntryId,
        root: u16,
        elsewhere: Option<&[u8]>,
        offset: u64,
        to: &mut [u8],
    ) -> Result<(), BuildError> {
        let path = || host_path(from, root, entry, elsewhere);
        let not_open = |e| BuildError::source("open", &path(), e);
        let opened;
        let (dir, name) = match elsewhere {
            None => (self.directory(from, root, entry).map_err(not_open)?, from.tree.entry_name(entry)),
            Some(path) => {
                let slash = path.iter().rposition(|&byte| byte == b'/').expect("paths begin with one");
                let start = &from.stores.roots[usize::from(root)].fd;
                opened = open_beneath(start, &path[..slash]).map_err(not_open)?;
                (&opened, &path[slash + 1..])
            }
        };
        // The file may have become a FIFO; opening it must not block.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = match rustix::fs::openat(dir, OsStr::from_bytes(name), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::LOOP) => return Err(changed(path(), "it became a symbolic link")),
            Err(e) => return Err(BuildError::source("open", &path(), e)),
        };
        let mut done = 0;
        while done < to.len() {
            match rustix::io::pread(&fd, &mut to[done..], offset + done.to_u64()) {
                Ok(0) => return Err(changed(path(), "it shrank")),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(BuildError::source("read", &path(), e)),
            }
        }
        let stat = rustix::fs::fstat(&fd).map_err(|e| BuildError::source("read", &path(), e))?;
        let id = from.tree.entry_node(entry);
        let node = from.tree.node(id);
        let seconds = from.clamp.map_or(stat.st_mtime, |clamp| stat.st_mtime.min(clamp.seconds));
        let (first, last) = from.time_range;
        let seconds = seconds.clamp(first, last);
        let change = if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            "it is no longer a regular file"
        } else if stat.st_size.cast_unsigned() > node.size {
            "it grew"
        } else if stat.st_size.cast_unsigned() < node.size {
            "it shrank"
        } else if match from.tree.host_time(id) {
            Some(time) => {
                stat.st_mtime != time.seconds || u32::try_from(stat.st_mtime_nsec) != Ok(time.nanos)
            }
            None => {
                seconds != node.mtime.seconds
                    || (from.clamp.is_none() && u32::try_from(stat.st_mtime_nsec) != Ok(node.mtime.nanos))
            }
        } {
            "it was written to"
        } else {
            return Ok(());
        };
        Err(changed(path(), change))
    }

    /// Opens the directory that contains an entry.
    fn directory(&mut self, from: Origin<'_>, root: u16, entry: EntryId) -> Result<&OwnedFd, Errno> {
        let dir = from.tree.entry_parent(entry);
        if self.dir.as_ref().is_none_or(|(of, at, _)| *of != dir || *at != root) {
            let start = &from.stores.roots[usize::from(root)].fd;
            self.dir = Some((dir, root, open_beneath(start, &from.tree.path(dir))?));
        }
        self.dir.as_ref().map(|(_, _, fd)| fd).ok_or(Errno::NOENT)
    }
}

/// Opens a directory relative to another, without following symbolic links.
fn open_beneath(start: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = path.strip_prefix(b"/").unwrap_or(path);
    if !below.is_empty() {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match rustix::fs::openat2(start, OsStr::from_bytes(below), flags, Mode::empty(), resolve) {
            // Old kernels and some containers lack this call, and the path may be too long for it.
            Err(Errno::NOSYS | Errno::PERM | Errno::NAMETOOLONG | Errno::AGAIN) => {}
            result => return result,
        }
    }
    let mut fd = rustix::fs::openat(start, ".", flags, Mode::empty())?;
    for part in below.split(|b| *b == b'/').filter(|part| !part.is_empty()) {
        fd = rustix::fs::openat(&fd, OsStr::from_bytes(part), flags, Mode::empty())?;
    }
    Ok(fd)
}

fn host_path(from: Origin<'_>, root: u16, entry: EntryId, elsewhere: Option<&[u8]>) -> Vec<u8> {
    let mut path = from.stores.roots[usize::from(root)].path.as_os_str().as_bytes().to_vec();
    match elsewhere {
        Some(below) => path.extend(below),
        None => path.extend(from.tree.entry_path(entry)),
    }
    path
}

fn changed(path: Vec<u8>, change: &str) -> BuildError {
    BuildError::Changed { path: quoted(&path), change: change.into() }
}

fn read_archive(
    from: Origin<'_>,
    entry: EntryId,
    archive: u16,
    offset: u64,
    to: &mut [u8],
) -> Result<(), BuildError> {
    let archive = &from.stores.archives[usize::from(archive)];
    archive.file.read_exact_at(to, offset).map_err(|error| {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            let change = format!("it shrank; {} is cut off", quoted(&from.tree.entry_path(entry)));
            BuildError::Changed { path: archive.name.clone(), change }
        } else {
            BuildError::Source { action: "read", path: archive.name.clone(), error }
        }
    })
}

/// Copies the data ranges from `offset` on, with zeros between them.
fn read_sparse(
    map: &[DataRange],
    offset: u64,
    to: &mut [u8],
    read: impl Fn(&mut [u8], u64) -> Result<(), BuildError>,
) -> Result<(), BuildError> {
    let end = offset + to.len().to_u64();
    to.fill(0);
    let first = map.partition_point(|range| range.offset + range.len <= offset);
    for range in map[first..].iter().take_while(|range| range.offset < end) {
        let from = range.offset.max(offset);
        let until = (range.offset + range.len).min(end);
        let into = &mut to[(from - offset).to_usize()..(until - offset).to_usize()];
        read(into, range.stored + (from - range.offset))?;
    }
    Ok(())
}
