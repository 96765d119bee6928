//! Exports a volume to a host directory.

use super::file_contents::{self, Allowance, Pieces, Sink};
use super::given::{Given, umask};
use super::hard_links::Links;
use super::host::{HostDir, SafeName, Target};
use super::read_ahead::{Ahead, Contents, Parts};
use super::{ExportError, Exported, Loss, Watch};
use extant_format::{FileKind, Inode};
use extant_fs::{Attribute, Error, Volume};
use extant_rt::Rt;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Copies `top` to a directory of the host.
///
/// With a `name`, `top` becomes that name in `directory`: it replaces a file there and merges into
/// a directory, but replaces a device, pipe or socket only with the same kind. Without one, `top`
/// must be a directory; its contents go straight into `directory`, whose own attributes stay.
///
/// Keeps permissions, times to the nanosecond, extended attributes, hard links among the copied
/// files, holes and, when run as root, owners and device nodes. Other users cannot change owners;
/// for files of another owner the set-user-id and set-group-id bits are then not set. Nothing
/// outside `directory` is touched, neither through names and links of the volume nor through
/// symbolic links in `directory`. Files are read on another thread while earlier ones are created.
///
/// # Errors
/// Only errors that end the whole copy: a full disk, or a directory that cannot be written to.
/// Other failures are reported to `watch`.
pub async fn to_directory(
    rt: &Rt,
    volume: &Volume,
    top: &Inode,
    directory: &Path,
    name: Option<&[u8]>,
    watch: &mut dyn Watch,
) -> Result<Exported, ExportError> {
    super::check_top(top)?;
    let is_directory = top.kind() == Some(FileKind::Directory);
    if name.is_none() && !is_directory {
        return Err(Error::NotADirectory(format!("inode {}", top.number)).into());
    }
    let mut copy = Copy::new(volume, directory, watch)?;
    // If `top` itself is created, everything is one level deeper.
    let shift = usize::from(name.is_some());
    if let Some(name) = name {
        copy.add(1, name, b"", top, Parts::of(volume, top).await).await?;
    }
    if is_directory && copy.stack.len() == 1 + shift {
        let mut ahead = Ahead::of(rt, volume, top).await?;
        while let Some(next) = ahead.next().await? {
            match next {
                Ok(found) => {
                    if let (Some(inode), Some(parts)) = (&found.entry.inode, found.parts) {
                        let depth = found.entry.depth + shift;
                        copy.add(depth, &found.entry.name, &found.path, inode, parts).await?;
                    }
                }
                Err(failure) => copy.watch.missing(&failure.path, failure.error),
            }
        }
    }
    Ok(copy.finish().await)
}

/// A directory of the host being filled.
pub(super) struct Copy<'a> {
    pub(super) volume: Volume,
    pub(super) watch: &'a mut dyn Watch,
    /// Open directories, outermost first.
    stack: Vec<Level>,
    links: Links,
    allowance: Allowance,
    is_root: bool,
    umask: Option<u16>,
    /// Depth of a directory that could not be created; anything deeper is skipped.
    skip_below: Option<usize>,
    done: Exported,
}

struct Level {
    dir: HostDir,
    /// The directory's inode; its attributes are set once the directory is filled.
    inode: Option<Inode>,
    /// The directory's name on the host; empty for the destination.
    name: Vec<u8>,
    /// The directory's path on the volume.
    path: Vec<u8>,
    /// What new files in it get, once there is one.
    given: Option<Given>,
    /// It was made by this copy, and so got the same.
    is_new: bool,
}

impl Level {
    fn new(dir: HostDir, inode: Option<Inode>, name: Vec<u8>, path: Vec<u8>) -> Self {
        Self { dir, inode, name, path, given: None, is_new: false }
    }
}

impl<'a> Copy<'a> {
    /// Begins to copy files of `volume` to a directory.
    pub(super) fn new(
        volume: &Volume,
        directory: &Path,
        watch: &'a mut dyn Watch,
    ) -> Result<Self, ExportError> {
        let dir = HostDir::open(directory)?;
        Ok(Self {
            volume: volume.clone(),
            watch,
            stack: vec![Level::new(dir, None, Vec::new(), Vec::new())],
            links: Links::default(),
            allowance: Allowance::of(volume),
            is_root: rustix::process::geteuid().is_root(),
            umask: umask(),
            skip_below: None,
            done: Exported::default(),
        })
    }

    /// Completes all directories.
    pub(super) async fn finish(mut self) -> Exported {
        self.leave_to(0).await;
        self.done
    }

    /// At the end, gives the destination itself the attributes of `top`.
    pub(super) fn be(&mut self, top: &Inode) {
        self.stack[0].inode = Some(top.clone());
        self.watch.settled(b"", top, true);
    }

    /// Opens a directory at `depth`. It is created if missing; an existing one keeps its
    /// attributes.
    pub(super) async fn enter(&mut self, depth: usize, name: &[u8]) -> Result<(), ExportError> {
        self.skip_below = None;
        self.leave_to(depth).await;
        let name = SafeName::new(name).ok_or(io::Error::from(Errno::INVAL))?;
        let parent = &self.stack.last().expect("the destination stays open").dir;
        let ((dir, _), name) = (parent.make_child(name)?, name.as_bytes().to_vec());
        self.stack.push(Level::new(dir, None, name, Vec::new()));
        Ok(())
    }

    /// Completes directories until the innermost open one is at `depth`.
    async fn leave_to(&mut self, depth: usize) {
        while self.stack.len() > depth.max(1) || (depth == 0 && !self.stack.is_empty()) {
            let Some(level) = self.stack.pop() else { return };
            if let Some(inode) = level.inode {
                let given = level.given.filter(|_| level.is_new);
                let xattrs = self.volume.xattrs(&inode).await;
                self.set_attributes(
                    Target::Open(level.dir.as_fd()),
                    &level.path,
                    &inode,
                    xattrs,
                    given,
                    None,
                );
            }
        }
    }

    /// Copies one inode, whose parts these are, into the directory at `depth - 1`.
    pub(super) async fn add(
        &mut self,
        depth: usize,
        name: &[u8],
        path: &[u8],
        inode: &Inode,
        mut parts: Parts,
    ) -> Result<(), ExportError> {
        if self.skip_below.is_some_and(|skip| depth > skip) {
            self.watch.settled(path, inode, false);
            return Ok(());
        }
        self.skip_below = None;
        self.leave_to(depth).await;
        self.volume.add_problems(std::mem::take(&mut parts.problems));
        let is_directory = inode.kind() == Some(FileKind::Directory);
        let made = match SafeName::new(name) {
            None => {
                self.watch.not_kept(path, Loss::Name);
                false
            }
            Some(name) => match self.make(name, path, inode, parts).await {
                Ok(made) => made,
                Err(ExportError::Output(error)) if !is_fatal(&error) => {
                    self.watch.not_kept(path, Loss::File(error));
                    false
                }
                Err(other) => return Err(other),
            },
        };
        match (made, is_directory) {
            (true, true) => self.done.directories += 1,
            (true, false) => self.done.others += 1,
            (false, true) => self.skip_below = Some(depth),
            (false, false) => {}
        }
        self.watch.settled(path, inode, made);
        Ok(())
    }

    /// Creates the inode under a name. Returns whether the name exists now.
    async fn make(
        &mut self,
        name: SafeName<'_>,
        path: &[u8],
        inode: &Inode,
        parts: Parts,
    ) -> Result<bool, ExportError> {
        let Some(kind) = inode.kind() else { return Ok(false) };
        if kind == FileKind::Directory {
            let parent = self.stack.last_mut().expect("the destination stays open");
            let (dir, is_new) = parent.dir.make_child(name)?;
            let mut level = Level::new(dir, Some(inode.clone()), name.as_bytes().to_vec(), path.to_vec());
            if is_new {
                // It passes on what it was given itself: its group, and its directory's list.
                let ask = || Given::ask(&parent.dir, Target::Open(level.dir.as_fd()));
                parent.given = parent.given.or_else(ask);
                (level.given, level.is_new) = (parent.given, true);
            }
            self.stack.push(level);
            return Ok(true);
        }
        let parent = &self.stack.last().expect("the destination stays open").dir;
        if let Some(first) = self.links.earlier(inode) {
            let (dir, old) = self.stack[0].dir.parent_of(&first)?;
            match parent.create_link(name, &dir, old) {
                Ok(()) => return Ok(true),
                // The host allows fewer links or none, or protects this file; create a separate
                // file instead.
                Err(error) if is_one_of(&error, &[Errno::MLINK, Errno::PERM, Errno::OPNOTSUPP]) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match kind {
            FileKind::Directory => {}
            FileKind::Regular => return self.make_file(name, path, inode, parts).await,
            FileKind::Symlink => {
                let target = match parts.contents {
                    Contents::Target(target) => target,
                    _ => self.volume.read_link(inode).await,
                };
                match target {
                    Ok(target) => parent.create_symlink(name, &target)?,
                    Err(error) => {
                        self.watch.unreadable(path, error);
                        return Ok(false);
                    }
                }
            }
            FileKind::CharDevice | FileKind::BlockDevice if !self.is_root => {
                self.watch.not_kept(path, Loss::Device);
                return Ok(false);
            }
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                parent.create_node(name, kind, inode.device())?;
            }
        }
        self.came(name, inode);
        // Take the level off the stack meanwhile, so that `self` can be borrowed.
        let mut level = self.stack.pop().expect("the destination stays open");
        let target = Target::Name(&level.dir, name);
        level.given = level.given.or_else(|| Given::ask(&level.dir, target));
        self.set_attributes(target, path, inode, parts.xattrs, level.given, None);
        self.stack.push(level);
        Ok(true)
    }

    async fn make_file(
        &mut self,
        name: SafeName<'_>,
        path: &[u8],
        inode: &Inode,
        parts: Parts,
    ) -> Result<bool, ExportError> {
        let (pieces, bytes) = match parts.contents {
            Contents::Small { pieces, bytes } => (pieces, Some(bytes)),
            _ => (self.volume.stream(inode.clone()).await.map(Pieces::from), None),
        };
        let pieces = match pieces {
            Ok(pieces) => pieces,
            Err(error) => {
                self.watch.unreadable(path, error);
                return Ok(false);
            }
        };
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => file_contents::stored_bytes(&self.volume, inode).await,
        };
        self.allowance.spend(inode, bytes)?;
        let mut level = self.stack.pop().expect("the destination stays open");
        let permissions = Given::first_permissions(level.given, inode.mode(), (inode.uid(), inode.gid()));
        let file = level.dir.create_file(name, permissions);
        let outcome = match &file {
            Ok(file) => self.fill(file, path, inode, pieces).await,
            Err(_) => Ok(()),
        };
        match &file {
            Ok(_) if outcome.is_err() => level.dir.remove(name),
            Ok(file) if level.given.is_none() => {
                level.given = Given::ask(&level.dir, Target::Open(file.as_fd()));
            }
            _ => {}
        }
        let given = level.given;
        self.stack.push(level);
        outcome?;
        let file = file?;
        self.came(name, inode);
        let mode = self.umask.map(|mask| permissions & !mask);
        self.set_attributes(Target::Open(file.as_fd()), path, inode, parts.xattrs, given, mode);
        Ok(true)
    }

    async fn fill(&mut self, file: &File, path: &[u8], inode: &Inode, pieces: Pieces) -> io::Result<()> {
        let sent = file_contents::send(pieces, path, &mut Placed(file), self.watch).await?;
        self.done.bytes += sent;
        // The file may end with a hole.
        if sent != inode.size() {
            file.set_len(inode.size())?;
        }
        Ok(())
    }

    /// Records that an inode now has a name in the innermost directory.
    fn came(&mut self, name: SafeName<'_>, inode: &Inode) {
        if inode.links() >= 2 {
            let host_path = self.host_path(name);
            self.links.came(inode, &host_path);
        }
    }

    /// Path of a name in the innermost directory, relative to the destination.
    fn host_path(&self, name: SafeName<'_>) -> Vec<u8> {
        let mut path = Vec::new();
        for level in &self.stack[1..] {
            path.extend_from_slice(&level.name);
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        path
    }

    /// Sets the attributes of an inode, as far as a new file does not have them: `given` by the
    /// host, and the `mode` with which it was created, unless an access list changed that.
    fn set_attributes(
        &mut self,
        target: Target<'_>,
        path: &[u8],
        inode: &Inode,
        xattrs: Result<Vec<Attribute>, Error>,
        given: Option<Given>,
        created_mode: Option<u16>,
    ) {
        let metadata = |watch: &mut dyn Watch, what, result: io::Result<()>| {
            if let Err(error) = result {
                watch.not_kept(path, Loss::Metadata { what, error });
            }
        };
        let mut mode = inode.mode();
        let mut is_changed = given.is_none_or(Given::has_list);
        if self.is_root && given.is_some_and(|given| given.is_owned_by(inode.uid(), inode.gid())) {
            // The host has given it its owner.
        } else if self.is_root {
            // The owner comes first: changing it clears set-user-id bits and capabilities.
            metadata(self.watch, "owner", target.set_owner(inode.uid(), inode.gid()));
        } else {
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            if (inode.uid(), inode.gid()) != (uid, gid) {
                mode &= !0o6000;
            }
        }
        match xattrs {
            Ok(xattrs) => {
                // A new file inherits its directory's default list, which the volume's file may not
                // have.
                let lists: &[&[u8]] = match inode.kind() {
                    Some(FileKind::Symlink) => &[],
                    _ if given.is_some_and(|given| !given.has_list()) => &[],
                    Some(FileKind::Directory) => &[b"system.posix_acl_access", b"system.posix_acl_default"],
                    _ => &[b"system.posix_acl_access"],
                };
                for &list in lists {
                    if !xattrs.iter().any(|attribute| *attribute.name == *list)
                        && let Err(error) = target.remove_xattr(list)
                    {
                        let name = extant_fs::quote(list);
                        self.watch.not_kept(path, Loss::Attribute { name, error });
                    }
                }
                for attribute in xattrs {
                    // An access list is also the permissions of the group.
                    is_changed = true;
                    if let Err(error) = target.set_xattr(&attribute.name, &attribute.value) {
                        let name = extant_fs::quote(&attribute.name);
                        self.watch.not_kept(path, Loss::Attribute { name, error });
                    }
                }
            }
            Err(error) => self.watch.unreadable(path, error),
        }
        let has_mode = !is_changed && created_mode == Some(mode & 0o7777);
        if inode.kind() != Some(FileKind::Symlink) && !has_mode {
            metadata(self.watch, "mode", target.set_mode(mode));
        }
        metadata(self.watch, "times", target.set_times(inode.accessed(), inode.modified()));
    }
}

/// Whether the next file would fail for the same reason.
fn is_fatal(error: &io::Error) -> bool {
    is_one_of(error, &[Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::IO])
}

fn is_one_of(error: &io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Writes each piece at its offset.
struct Placed<'a>(&'a File);

impl Sink for Placed<'_> {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }
}
