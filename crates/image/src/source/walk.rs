//! Reads a host directory into the tree.

use super::{FileIdentity, LoadOptions, Stores, whiteout_marks};
use crate::tree::{DataRange, Kind, Meta, NodeId, Payload, Tree, Xattr, XattrSetId, is_storable};
use crate::{BuildError, Note, Selection, quoted, quoted_path, workers};
use extant_format::Timestamp;
use extant_rt::Rt;
use parking_lot::{Condvar, Mutex};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Entries handed to the tree at a time.
const BATCH: usize = 512;
const DENTS_BYTES: usize = 64 << 10;
/// Maximum length of a path that Linux accepts in one call.
const PATH_MAX: usize = 4096;

/// Adds the directory `root` of `stores` to the tree.
///
/// Symbolic links are never followed. Several threads read entries, so nodes are added in any
/// order; nothing that reaches the volume depends on it. Also returns a note about names that image
/// layers use to hide files.
pub(crate) fn walk(
    tree: Tree,
    stores: &Stores,
    root: u16,
    options: &LoadOptions<'_>,
    rt: &Rt,
) -> Result<(Tree, Option<Note>), BuildError> {
    let host = &stores.roots[usize::from(root)];
    let host_path = host.path.as_os_str().as_bytes().to_vec();
    let fd = host.fd.try_clone().map_err(|e| BuildError::source("open directory", &host_path, e))?;
    let stat = stat(host.fd.as_fd(), c"").map_err(|e| BuildError::source("read", &host_path, e))?;
    let shared = Arc::new(Walk {
        root,
        selection: options.selection.clone(),
        replaced: options.replaced,
        device: options.one_file_system.then_some((stat.stx_dev_major, stat.stx_dev_minor)),
        root_path: host_path.clone(),
        queue: Mutex::new(Queue { pending: Vec::new(), working: 0, failed: None }),
        changed: Condvar::new(),
        found: Mutex::new(Found { tree, links: BTreeMap::new(), whiteouts: None }),
    });
    {
        let xattrs =
            read_xattrs(&Attrs::Fd(fd.as_fd())).map_err(|e| BuildError::source("read", &host_path, e))?;
        let mut found = shared.found.lock();
        let xattrs = found.tree.intern_xattrs(xattrs);
        found.tree.set_meta(NodeId::ROOT, meta_of(&stat, xattrs));
    }
    let job = Job { parent: Arc::new(fd), name: c".".into(), path: Vec::new(), node: NodeId::ROOT };
    shared.queue.lock().pending.push(job);
    workers::run(rt, "walk", &shared, Walk::work)?;
    if let Some(error) = shared.queue.lock().failed.take() {
        return Err(error);
    }
    let mut found = shared.found.lock();
    let note = found.whiteouts.take().map(|(first, names)| Note::Whiteouts {
        archive: quoted(&host_path),
        path: quoted(&first),
        names,
    });
    Ok((std::mem::take(&mut found.tree), note))
}

struct Walk {
    root: u16,
    selection: Selection,
    replaced: Option<FileIdentity>,
    device: Option<(u32, u32)>,
    root_path: Vec<u8>,
    queue: Mutex<Queue>,
    changed: Condvar,
    found: Mutex<Found>,
}

/// Directories to read; last in, first out, so that few ancestors are open at a time.
struct Queue {
    pending: Vec<Job>,
    working: usize,
    failed: Option<BuildError>,
}

struct Job {
    parent: Arc<OwnedFd>,
    name: CString,
    /// Path from the root of the source, for messages.
    path: Vec<u8>,
    node: NodeId,
}

struct Found {
    tree: Tree,
    links: BTreeMap<FileIdentity, NodeId>,
    /// First whiteout in path order, and the number of whiteouts.
    whiteouts: Option<(Vec<u8>, u64)>,
}

impl Found {
    fn count_whiteout(&mut self, path: Vec<u8>) {
        let (first, names) = self.whiteouts.get_or_insert((path.clone(), 0));
        *names += 1;
        if path < *first {
            *first = path;
        }
    }
}

struct Item {
    name: CString,
    /// Another file system is mounted here; its files are left out.
    mount_point: bool,
    stat: Statx,
    target: Option<CString>,
    xattrs: Vec<Xattr>,
    sparse: Option<Vec<DataRange>>,
}

impl Item {
    /// Whether this is a whiteout, in an unpacked layer or in overlayfs form.
    fn is_whiteout(&self) -> bool {
        let is_device = FileType::from_raw_mode(self.stat.stx_mode.into()) == FileType::CharacterDevice;
        whiteout_marks::is_mark(self.name.to_bytes())
            || (is_device && (self.stat.stx_rdev_major, self.stat.stx_rdev_minor) == (0, 0))
    }
}

/// Counts a worker as busy with a directory until dropped, even by a panic.
struct Busy<'w>(&'w Walk);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.queue.lock().working -= 1;
        self.0.changed.notify_all();
    }
}

impl Walk {
    fn work(&self, _worker: usize) {
        loop {
            let mut queue = self.queue.lock();
            let job = loop {
                if queue.failed.is_some() {
                    return;
                }
                if let Some(job) = queue.pending.pop() {
                    queue.working += 1;
                    break job;
                }
                if queue.working == 0 {
                    return;
                }
                self.changed.wait(&mut queue);
            };
            drop(queue);
            let busy = Busy(self);
            if let Err(error) = self.directory(&job) {
                self.queue.lock().failed.get_or_insert(error);
            }
            drop(busy);
        }
    }

    fn directory(&self, job: &Job) -> Result<(), BuildError> {
        let here = |name: &[u8]| {
            let mut path = self.root_path.clone();
            path.extend_from_slice(&job.path);
            if !name.is_empty() && name != b"/" {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            path
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&*job.parent, &job.name, flags, Mode::empty())
            .map_err(|e| BuildError::source("open directory", &here(b""), e))?;
        let fd = Arc::new(fd);
        // No call lists attributes by directory and name. A path is twice as fast as a link in
        // /proc, but its length is limited.
        let mut attr_dir = here(b"/");
        if attr_dir.len() > PATH_MAX - 256 {
            attr_dir = format!("/proc/self/fd/{}/", fd.as_raw_fd()).into_bytes();
        }
        let mut buf = vec![MaybeUninit::<u8>::uninit(); DENTS_BYTES];
        let mut dents = RawDir::new(&*fd, &mut buf);
        let mut items = Vec::new();
        while let Some(dent) = dents.next() {
            let dent = dent.map_err(|e| BuildError::source("read directory", &here(b""), e))?;
            let name = dent.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            // Excluded names are not read, because what lies below them may be large or unreadable.
            // Marks of layers are read, whatever their names, because they remove names of lower
            // layers.
            if !self.selection.exclude.is_empty() && !whiteout_marks::is_mark(name.to_bytes()) {
                let path = [&job.path[..], b"/", name.to_bytes()].concat();
                if self.selection.leaves_out(&path[1..]) {
                    continue;
                }
            }
            let item = self
                .item(&fd, name, &attr_dir)
                .map_err(|(action, e)| BuildError::source(action, &here(name.to_bytes()), e))?;
            items.extend(item);
            if items.len() >= BATCH {
                self.hand_over(job, &fd, &mut items)?;
            }
        }
        self.hand_over(job, &fd, &mut items)
    }

    fn item(
        &self,
        dir: &OwnedFd,
        name: &CStr,
        attr_dir: &[u8],
    ) -> Result<Option<Item>, (&'static str, Errno)> {
        let stat = stat(dir.as_fd(), name).map_err(|e| ("read", e))?;
        let elsewhere = self.device.is_some_and(|device| device != (stat.stx_dev_major, stat.stx_dev_minor));
        if elsewhere && FileType::from_raw_mode(stat.stx_mode.into()) != FileType::Directory {
            return Ok(None);
        }
        if self.replaced.is_some_and(|image| image == identity(&stat)) {
            return Ok(None);
        }
        let mut attr_path = attr_dir.to_vec();
        attr_path.extend_from_slice(name.to_bytes());
        let xattrs = read_xattrs(&Attrs::Path(&attr_path)).map_err(|e| ("read extended attributes of", e))?;
        let kind = FileType::from_raw_mode(stat.stx_mode.into());
        let mut target = None;
        let mut sparse = None;
        match kind {
            FileType::Symlink => {
                target = Some(rustix::fs::readlinkat(dir, name, Vec::new()).map_err(|e| ("read link", e))?);
            }
            FileType::RegularFile if stat.stx_blocks.saturating_mul(512) < stat.stx_size => {
                sparse = data_ranges(dir, name, stat.stx_size).map_err(|e| ("open", e))?;
            }
            _ => {}
        }
        Ok(Some(Item { name: name.into(), mount_point: elsewhere, stat, target, xattrs, sparse }))
    }

    fn hand_over(&self, job: &Job, fd: &Arc<OwnedFd>, items: &mut Vec<Item>) -> Result<(), BuildError> {
        let mut below = Vec::new();
        {
            let mut found = self.found.lock();
            for item in items.iter().filter(|item| item.is_whiteout()) {
                found.count_whiteout([&job.path[..], b"/", item.name.to_bytes()].concat());
            }
            let Found { tree, links, .. } = &mut *found;
            for item in items.drain(..) {
                let xattrs = tree.intern_xattrs(item.xattrs);
                let meta = meta_of(&item.stat, xattrs);
                let name = item.name.to_bytes();
                let kind = FileType::from_raw_mode(item.stat.stx_mode.into());
                let identity = identity(&item.stat);
                let linked = kind != FileType::Directory && item.stat.stx_nlink > 1;
                if linked && let Some(&node) = links.get(&identity) {
                    tree.link(job.node, name, node)?;
                    continue;
                }
                let device =
                    Payload::Device { major: item.stat.stx_rdev_major, minor: item.stat.stx_rdev_minor };
                let mut special = |kind, payload| tree.put(job.node, name, kind, meta, payload, 0, None);
                let node = match kind {
                    FileType::Directory => {
                        let node = tree.put_directory(job.node, name, meta)?;
                        if !item.mount_point {
                            let path = [&job.path[..], b"/", name].concat();
                            below.push(Job { parent: fd.clone(), name: item.name, path, node });
                        }
                        continue;
                    }
                    FileType::RegularFile => {
                        let payload = Payload::Host { root: self.root };
                        tree.put(job.node, name, Kind::File, meta, payload, item.stat.stx_size, item.sparse)?
                    }
                    FileType::Symlink => {
                        let target = item.target.as_deref().map_or(&b""[..], CStr::to_bytes);
                        tree.put_symlink(job.node, name, meta, target)?
                    }
                    FileType::CharacterDevice => special(Kind::CharDevice, device)?,
                    FileType::BlockDevice => special(Kind::BlockDevice, device)?,
                    FileType::Fifo => special(Kind::Fifo, Payload::None)?,
                    FileType::Socket => special(Kind::Socket, Payload::None)?,
                    FileType::Unknown => {
                        return Err(BuildError::Options(format!(
                            "{}{}/{} has no type that ext knows",
                            quoted_path(std::path::Path::new(std::ffi::OsStr::from_bytes(&self.root_path))),
                            quoted(&job.path),
                            quoted(name)
                        )));
                    }
                };
                if linked {
                    links.insert(identity, node);
                }
            }
        }
        if !below.is_empty() {
            self.queue.lock().pending.append(&mut below);
            self.changed.notify_all();
        }
        Ok(())
    }
}

fn stat(dir: BorrowedFd<'_>, name: &CStr) -> Result<Statx, Errno> {
    let mut flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    if name.is_empty() {
        flags |= AtFlags::EMPTY_PATH;
    }
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS)
}

fn identity(stat: &Statx) -> FileIdentity {
    (stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino)
}

fn meta_of(stat: &Statx, xattrs: XattrSetId) -> Meta {
    Meta {
        mode: stat.stx_mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        mtime: Timestamp { seconds: stat.stx_mtime.tv_sec, nanos: stat.stx_mtime.tv_nsec },
        xattrs,
    }
}

/// Data ranges of a sparse file; `None` if the file system cannot tell, or there is no hole.
fn data_ranges(dir: &OwnedFd, name: &CStr, size: u64) -> Result<Option<Vec<DataRange>>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(dir, name, flags, Mode::empty())?;
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&fd, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(None),
            Err(e) => return Err(e),
        };
        let end = rustix::fs::seek(&fd, SeekFrom::Hole(start))?.min(size);
        if end <= start {
            break;
        }
        ranges.push(DataRange { offset: start, len: end - start, stored: start });
        at = end;
    }
    let whole = matches!(ranges[..], [DataRange { offset: 0, len, .. }] if len == size);
    Ok((!whole).then_some(ranges))
}

enum Attrs<'a> {
    Fd(BorrowedFd<'a>),
    /// A path. A symbolic link in its last component is not followed.
    Path(&'a [u8]),
}

/// Maximum size of a list of names, and of a value, that Linux returns.
const XATTR_MAX: usize = 64 << 10;

fn read_xattrs(from: &Attrs<'_>) -> Result<Vec<Xattr>, Errno> {
    let list = |buf: &mut [u8]| match from {
        Attrs::Fd(fd) => rustix::fs::flistxattr(fd, buf),
        Attrs::Path(path) => rustix::fs::llistxattr(*path, buf),
    };
    let get = |name: &[u8], buf: &mut [u8]| match from {
        Attrs::Fd(fd) => rustix::fs::fgetxattr(fd, name, buf),
        Attrs::Path(path) => rustix::fs::lgetxattr(*path, name, buf),
    };
    let mut small = [0; 256];
    let names = match list(&mut small) {
        Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(Vec::new()),
        Ok(n) => small[..n].to_vec(),
        Err(Errno::RANGE) => {
            let mut large = vec![0; XATTR_MAX];
            let n = list(&mut large)?;
            large.truncate(n);
            large
        }
        Err(e) => return Err(e),
    };
    let mut set = Vec::new();
    for name in names.split(|b| *b == 0).filter(|name| !name.is_empty()) {
        if !is_storable(name) {
            // The attribute will be left out and reported by name, so its value is not needed.
            set.push(Xattr { name: name.into(), value: Box::default() });
            continue;
        }
        let value = match get(name, &mut small) {
            Ok(n) => small[..n].to_vec(),
            Err(Errno::RANGE) => {
                let mut large = vec![0; XATTR_MAX];
                let n = get(name, &mut large)?;
                large.truncate(n);
                large
            }
            Err(Errno::NODATA) => continue, // removed since it was listed
            Err(e) => return Err(e),
        };
        set.push(Xattr { name: name.into(), value: value.into() });
    }
    Ok(set)
}
