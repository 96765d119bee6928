//! Copies host files into a volume.

use super::Edit;
use super::names::{directory_of, find_resolved, join, resolved};
use crate::edit_args::PutArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::owners::{NamedOwner, Owner};
use extant::{Error, FileOptions, FileType, Inode, NewFile, SmallFile, SmallFiles, Special, Time, XattrMode};
use extant_format::{CAPABILITY_XATTR, with_capability_root};
use extant_fs::quote;
use extant_image::Note;
use rustix::fs::{major, minor};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes read from the host at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// The set-user-ID and set-group-ID bits of a mode.
const SET_ID: u32 = 0o6000;

impl Edit<'_> {
    pub(super) fn put(&self, args: &PutArgs) -> Result<(), Failure> {
        let (target, sources) = args.paths.split_last().expect("clap wants two");
        self.wants_dir(sources, target)?;
        let target = self.place(target);
        if args.owner.as_ref().is_some_and(NamedOwner::has_name) {
            // The volume's own passwd may be among the files that wait.
            self.make_waiting()?;
        }
        let owner = args.owner.as_ref().map(|owner| owner.resolve(&self.root, self.image)).transpose()?;
        let (links, clamped, chunk) = Default::default();
        let mut put = Put { edit: self, args, owner, links, clamped, chunk };
        for source in sources {
            let mut found = (source != "-").then(|| fs::symlink_metadata(source));
            let is_link = matches!(&found, Some(Ok(found)) if found.is_symlink());
            if let Some(mut stream) = Stream::of(source, is_link && !args.recursive)? {
                if self.is_dir(&target.path) {
                    let told = format!(
                        "{}: is a directory; name the file that {} becomes",
                        target.quoted(),
                        stream.name
                    );
                    return Err(Failure::Usage(told));
                }
                put.stream(&mut stream, &target)?;
                continue;
            }
            let path = self.inside(&target.path, source.as_bytes());
            let mut source = Path::new(source).to_owned();
            // Without -r, copy the target of a link, as cp does.
            if !args.recursive && is_link {
                source = fs::canonicalize(&source).map_err(|error| Failure::host(&source, error))?;
                found = None;
            }
            put.tree(&source, found, ImagePath { image: target.image.clone(), path })?;
        }
        if let Some((path, files)) = put.clamped {
            let (first, last) = self.volume.time_range();
            let note = Note::TimeClamped { path, files, range: (first.seconds, last.seconds) };
            self.session.summary(&note.to_string());
        }
        Ok(())
    }
}

/// A source that can only be read once, from its beginning.
struct Stream {
    from: fs::File,
    /// Name of the source, for messages.
    name: String,
}

impl Stream {
    /// Returns standard input for `-`, and the target of a link such as `/dev/stdin` or
    /// `/dev/fd/63`, if it is a pipe or a device and `source` is a link to be followed. Returns
    /// `None` for everything else.
    fn of(source: &OsStr, is_followed: bool) -> Result<Option<Self>, Failure> {
        if source == "-" {
            let failed = |error: Errno| Failure::host(Path::new("standard input"), error);
            let from = rustix::io::dup(rustix::stdio::stdin()).map_err(failed)?.into();
            return Ok(Some(Self { from, name: "standard input".into() }));
        }
        let path = Path::new(source);
        let is_stream = |file: Metadata| {
            let kind = file.file_type();
            kind.is_fifo() || kind.is_char_device() || kind.is_socket()
        };
        if !is_followed || !path.metadata().is_ok_and(is_stream) {
            return Ok(None);
        }
        let from = fs::File::open(path).map_err(|error| Failure::host(path, error))?;
        Ok(Some(Self { from, name: quote(source.as_bytes()) }))
    }
}

struct Put<'a> {
    edit: &'a Edit<'a>,
    args: &'a PutArgs,
    /// The owner given by `--owner`.
    owner: Option<Owner>,
    /// First path of each file with several names, by device and inode.
    links: BTreeMap<(u64, u64), Vec<u8>>,
    /// The first file whose times the volume cannot store, quoted, and the number of such files.
    clamped: Option<(String, u64)>,
    /// Buffer for contents.
    chunk: Vec<u8>,
}

impl Put<'_> {
    /// Copies a file and, if it is a directory, everything below it. `found` is what the host says
    /// of it, if it was asked.
    fn tree(
        &mut self,
        source: &Path,
        mut found: Option<io::Result<Metadata>>,
        target: ImagePath,
    ) -> Result<(), Failure> {
        let mut todo = vec![(source.to_owned(), target)];
        // Directories get their times last, because filling them changes those.
        let mut dirs: Vec<(ImagePath, Metadata)> = Vec::new();
        while let Some((source, target)) = todo.pop() {
            let metadata = found.take().unwrap_or_else(|| fs::symlink_metadata(&source));
            let metadata = metadata.map_err(|error| Failure::host(&source, error))?;
            if !metadata.is_dir() {
                self.file(&source, &target, &metadata)?;
                continue;
            }
            if !self.args.recursive {
                let error = io::Error::other("is a directory; copy it with --recursive");
                return Err(Failure::host(&source, error));
            }
            if dirs.is_empty() {
                // If a file of an earlier line cannot be made, this line must leave no directories.
                self.edit.make_waiting()?;
            }
            let failed = |error| Failure::at(&target, error);
            let make = || self.edit.root.create_dir_with(&target.path, metadata.mode() & 0o7777);
            let made = match self.edit.is_waiting(&target.path) {
                true => Err(Error::Exists(quote(&target.path))),
                false => make(),
            };
            let made = match made {
                // What is in the way may be a file that waits.
                Err(_) if self.edit.has_waiting() => {
                    self.edit.make_waiting()?;
                    make()
                }
                made => made,
            };
            let path = match made {
                // Follow a symbolic link to a directory: the attributes go to that directory.
                Err(Error::Exists(_)) if self.edit.is_dir(&target.path) => {
                    resolved(&self.edit.root, &target.path).map_err(failed)?
                }
                other => other.map(|()| target.path.clone()).map_err(failed)?,
            };
            let target = ImagePath { path, ..target };
            let mut names: Vec<PathBuf> = fs::read_dir(&source)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
                .map_err(|error| Failure::host(&source, error))?;
            // The stack pops the last one first; a fixed order makes the image reproducible.
            names.sort_unstable_by(|a, b| b.cmp(a));
            for path in names {
                let name = path.file_name().expect("a directory's entry has a name").as_bytes();
                let below = ImagePath { image: target.image.clone(), path: join(&target.path, name) };
                todo.push((path, below));
            }
            let inode = self.edit.root.inode(&target.path).map_err(|error| Failure::at(&target, error))?;
            self.attributes(&source, &target, &inode, &metadata)?;
            self.count_clamped(&target, self.modified(&metadata)?);
            self.edit.count(0, 1, 0);
            dirs.push((target, metadata));
        }
        if !dirs.is_empty() {
            self.edit.make_waiting()?;
        }
        dirs.iter().rev().try_for_each(|(target, metadata)| {
            let inode = self.edit.root.inode(&target.path).map_err(|error| Failure::at(target, error))?;
            self.times(target, &inode, metadata)
        })
    }

    /// Creates a file with everything that the stream delivers.
    fn stream(&mut self, stream: &mut Stream, target: &ImagePath) -> Result<(), Failure> {
        self.edit.make_waiting()?;
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        let (path, there) = find_resolved(root, &target.path).map_err(failed)?;
        let target = &ImagePath { image: target.image.clone(), path };
        let failed = |error| Failure::at(target, error);
        if there.is_some_and(|there| there.file_type() != FileType::File) {
            return Err(failed(Error::Special(quote(&target.path))));
        }
        let mode = self.args.mode.unwrap_or(0o644);
        let made =
            root.unnamed(directory_of(&target.path), NewFile::Regular, mode & !SET_ID).map_err(failed)?;
        let file = made.open(FileOptions::new().write(true)).map_err(failed)?;
        let chunk = &mut self.chunk;
        chunk.resize(CHUNK_BYTES, 0);
        let (mut at, mut end) = (0, false);
        while !end {
            let mut filled = 0;
            while filled < CHUNK_BYTES && !end {
                match stream.from.read(&mut chunk[filled..]) {
                    Ok(n) => (filled, end) = (filled + n, n == 0),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(Failure::host(Path::new(&stream.name), error)),
                }
            }
            file.write_all_at(at, &chunk[..filled]).map_err(failed)?;
            file.write_back().map_err(failed)?;
            at += filled as u64;
        }
        let (uid, gid) = self.owner((rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw()));
        made.set_owner(Some(uid), Some(gid)).map_err(failed)?;
        made.set_mode(mode).map_err(failed)?;
        let latest = crate::build::source_date_epoch()?.map(|time| time.seconds);
        if let Some(seconds) = self.args.mtime.or(latest) {
            let time = Time { seconds, nanos: 0 };
            self.count_clamped(target, time);
            made.set_times(Some(time), Some(time)).map_err(failed)?;
        }
        self.edit.count(1, 0, at);
        made.link_over(root, &target.path).map_err(failed)
    }

    /// Reads a small file and adds it to those that are made together. Returns false if it must be
    /// made by itself: its name is taken, or there is more to copy than contents and what every
    /// file has.
    fn is_put_together(
        &mut self,
        source: &Path,
        target: &ImagePath,
        metadata: &Metadata,
    ) -> Result<bool, Failure> {
        let len = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
        let is_whole = metadata.blocks().saturating_mul(512) >= metadata.len();
        if !metadata.is_file() || metadata.nlink() > 1 || len > SmallFiles::FILE_BYTES || !is_whole {
            return Ok(false);
        }
        let Ok((path, None)) = find_resolved(&self.edit.root, &target.path) else { return Ok(false) };
        let read = |error| Failure::host(source, error);
        let from = fs::File::open(source).map_err(read)?;
        let mut done = 0;
        // One more byte finds out whether it grows.
        self.chunk.resize((len + 1).max(self.chunk.len()), 0);
        loop {
            match from.read_at(&mut self.chunk[done..=len], done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read(error)),
            }
            if done >= len {
                break;
            }
        }
        if done > len || !xattrs(source).map_err(read)?.is_empty() {
            return Ok(false);
        }
        let modified = self.modified(metadata)?;
        let (uid, gid) = self.owner((metadata.uid(), metadata.gid()));
        let target = ImagePath { image: target.image.clone(), path };
        let file = SmallFile {
            mode: self.mode(metadata),
            uid,
            gid,
            // As for every copy: see `times`.
            accessed: modified,
            modified,
            contents: &self.chunk[..done],
        };
        let is_added = self.edit.is_added(&target, &file)?;
        if is_added {
            self.count_clamped(&target, modified);
            self.edit.count(1, 0, done as u64);
        }
        Ok(is_added)
    }

    fn file(&mut self, source: &Path, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        if self.is_put_together(source, target, metadata)? {
            return Ok(());
        }
        self.edit.make_waiting()?;
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        let kind = metadata.file_type();
        // Contents go to the target of a symbolic link, as with cp; anything else replaces the
        // link.
        let (path, there) = match kind.is_file() {
            true => find_resolved(root, &target.path).map_err(failed)?,
            false => (target.path.clone(), root.symlink_metadata(&target.path).ok()),
        };
        let target = &ImagePath { image: target.image.clone(), path };
        let path = &target.path;
        let failed = |error| Failure::at(target, error);
        if metadata.nlink() > 1 {
            match self.links.get(&(metadata.dev(), metadata.ino())) {
                Some(first) => {
                    self.edit.count(1, 0, 0);
                    let linked = root.inode(first).and_then(|first| first.link_over(root, path));
                    return linked.map_err(failed);
                }
                None => {
                    self.links.insert((metadata.dev(), metadata.ino()), path.clone());
                }
            }
        }
        match there.map(|there| there.file_type()) {
            Some(FileType::Dir) => return Err(failed(Error::IsADirectory(quote(path)))),
            Some(there) if kind.is_file() && there != FileType::File => {
                return Err(failed(Error::Special(quote(path))));
            }
            _ => {}
        }
        self.count_clamped(target, self.modified(metadata)?);
        let device = (major(metadata.rdev()), minor(metadata.rdev()));
        let link;
        let new = if kind.is_file() {
            NewFile::Regular
        } else if kind.is_symlink() {
            link = fs::read_link(source).map_err(|error| Failure::host(source, error))?;
            NewFile::Symlink(link.as_os_str().as_bytes())
        } else {
            NewFile::Special(if kind.is_fifo() {
                Special::Fifo
            } else if kind.is_socket() {
                Special::Socket
            } else if kind.is_char_device() {
                Special::Char(device.0, device.1)
            } else {
                Special::Block(device.0, device.1)
            })
        };
        // Open the source before the image is changed.
        let from = match kind.is_file() {
            true => Some(fs::File::open(source).map_err(|error| Failure::host(source, error))?),
            false => None,
        };
        // Link it once it is complete: after a failure or a power cut, the name keeps its old file.
        let made = root.unnamed(directory_of(path), new, self.mode(metadata) & !SET_ID).map_err(failed)?;
        if let Some(from) = from {
            self.contents((source, &from), &made, target, metadata)?;
        }
        self.attributes(source, target, &made, metadata)?;
        self.times(target, &made, metadata)?;
        self.edit.count(1, 0, 0);
        made.link_over(root, path).map_err(failed)
    }

    /// Copies a file's data; holes in the host's file stay holes.
    fn contents(
        &mut self,
        (source, from): (&Path, &fs::File),
        made: &Inode,
        target: &ImagePath,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let read = |error| Failure::host(source, error);
        let failed = |error| Failure::at(target, error);
        let file = made.open(FileOptions::new().write(true)).map_err(failed)?;
        let chunk = &mut self.chunk;
        // A short file needs only a short buffer; one more byte finds its end.
        let room = usize::try_from(metadata.len()).unwrap_or(CHUNK_BYTES).saturating_add(1).min(CHUNK_BYTES);
        chunk.resize(room.max(chunk.len()), 0);
        // A file that has all its blocks has no holes. Preallocated blocks look like holes to a
        // seek, but not to swapon.
        let is_whole = metadata.blocks().saturating_mul(512) >= metadata.len();
        let next_data = |at| if is_whole { Ok(at..u64::MAX) } else { next_data(from, at, metadata.len()) };
        let mut data = next_data(0).map_err(read)?;
        let mut unplaced = 0;
        loop {
            if data.is_empty() {
                data = next_data(data.end).map_err(read)?;
            }
            let wanted = chunk.len().min(usize::try_from(data.end - data.start).unwrap_or(usize::MAX));
            let n = match from.read_at(&mut chunk[..wanted], data.start) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(read(error)),
            };
            file.write_all_at(data.start, &chunk[..n]).map_err(failed)?;
            self.edit.count(0, 0, n as u64);
            data.start += n as u64;
            unplaced += n;
            // Write back here, not whenever the cache does, so that the same files always get the
            // same locations.
            if unplaced >= CHUNK_BYTES || n == 0 {
                file.write_back().map_err(failed)?;
                unplaced = 0;
            }
            if n == 0 {
                break;
            }
        }
        if file.len() < data.start {
            file.set_len(data.start).map_err(failed)?;
        }
        Ok(())
    }

    /// Sets owner and extended attributes of `made`, which is or will be `target`. The owner comes
    /// before the mode, because changing it clears the set-ID bits. A directory may have existed
    /// before. So the changes that can be refused are made first, in one step: if they are refused,
    /// the directory keeps its attributes.
    fn attributes(
        &self,
        source: &Path,
        target: &ImagePath,
        made: &Inode,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let failed = |error| Failure::at(target, error);
        let (uid, gid) = self.owner((metadata.uid(), metadata.gid()));
        let mut xattrs = xattrs(source).map_err(|error| Failure::host(source, error))?;
        if self.args.all_root || self.owner.is_some_and(|owner| owner.uid == Some(0)) {
            for (_, value) in xattrs.iter_mut().filter(|(name, _)| name == CAPABILITY_XATTR) {
                if let Some(mapped) = with_capability_root(value, 0) {
                    *value = mapped;
                }
            }
        }
        // An existing directory, or its parent, may have had an access list that would let others
        // in.
        let mut removed = made.xattrs().map_err(failed)?;
        removed.retain(|name| xattrs.iter().all(|(kept, _)| kept != name));
        if metadata.is_dir() {
            let removed = removed.iter().map(|name| (&name[..], None));
            let set = xattrs.iter().map(|(name, value)| (&name[..], Some(&value[..])));
            made.change_xattrs(&removed.chain(set).collect::<Vec<_>>()).map_err(failed)?;
        }
        // Each change takes log space and time; skip what is already right.
        let there = made.metadata().map_err(failed)?;
        if (there.uid(), there.gid()) != (uid, gid) {
            made.set_owner(Some(uid), Some(gid)).map_err(failed)?;
        }
        if !metadata.is_dir() {
            for name in &removed {
                made.remove_xattr(name).map_err(failed)?;
            }
        }
        let mode = self.mode(metadata);
        if !metadata.is_symlink() && made.metadata().map_err(failed)?.mode() != mode {
            made.set_mode(mode).map_err(failed)?;
        }
        if !metadata.is_dir() {
            for (name, value) in &xattrs {
                made.set_xattr(name, value, XattrMode::Any).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn times(&self, target: &ImagePath, made: &Inode, metadata: &Metadata) -> Result<(), Failure> {
        let modified = self.modified(metadata)?;
        // Reading the source changes its access time; use the modification time for both, so that
        // copies are identical.
        let done = made.set_times(Some(modified), Some(modified));
        done.map_err(|error| Failure::at(target, error))
    }

    /// Counts a file whose time the volume cannot store.
    fn count_clamped(&mut self, target: &ImagePath, time: Time) {
        let (first, last) = self.edit.volume.time_range();
        if !(first..=last).contains(&time) {
            self.clamped.get_or_insert_with(|| (quote(&target.path), 0)).1 += 1;
        }
    }

    /// The permissions of a copy. `--mode` is for files: a directory without search permission is
    /// useless.
    fn mode(&self, metadata: &Metadata) -> u32 {
        let own = metadata.mode() & 0o7777;
        if metadata.is_dir() { own } else { self.args.mode.unwrap_or(own) }
    }

    /// The owner and group of a copy; `(uid, gid)` are those of its source.
    fn owner(&self, (uid, gid): (u32, u32)) -> (u32, u32) {
        match self.owner {
            _ if self.args.all_root => (0, 0),
            Some(owner) => (owner.uid.unwrap_or(uid), owner.gid.unwrap_or(gid)),
            None => (uid, gid),
        }
    }

    /// The modification time of a copy: `--mtime`, or the source's, clamped to `SOURCE_DATE_EPOCH`.
    fn modified(&self, metadata: &Metadata) -> Result<Time, Failure> {
        if let Some(seconds) = self.args.mtime {
            return Ok(Time { seconds, nanos: 0 });
        }
        let latest = crate::build::source_date_epoch()?.map(|time| time.seconds);
        Ok(match latest {
            Some(latest) if metadata.mtime() >= latest => Time { seconds: latest, nanos: 0 },
            _ => Time { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 },
        })
    }
}

/// The next data range at or after `at` in a file of `len` bytes. Bytes past that length count as
/// data, and so does the whole file if its file system does not report holes.
fn next_data(file: &fs::File, at: u64, len: u64) -> io::Result<Range<u64>> {
    use rustix::fs::{SeekFrom, seek};
    let start = match seek(file, SeekFrom::Data(at)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(at.max(len)..u64::MAX),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(at..u64::MAX),
        Err(error) => return Err(error.into()),
    };
    match seek(file, SeekFrom::Hole(start)) {
        // The hole was punched meanwhile.
        Ok(end) => Ok(start..end.max(start + 1)),
        Err(Errno::NXIO) => Ok(start..u64::MAX),
        Err(error) => Err(error.into()),
    }
}

type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn xattrs(source: &Path) -> io::Result<Xattrs> {
    let names = match read_xattr(|names| rustix::fs::llistxattr(source, names)) {
        Err(Errno::NOTSUP) => return Ok(Vec::new()),
        names => names?,
    };
    let mut all = Vec::new();
    for name in names.split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let value = read_xattr(|value| rustix::fs::lgetxattr(source, name, value))?;
        all.push((name.to_vec(), value));
    }
    all.sort();
    Ok(all)
}

/// Reads a list of names or a value, which is short for most files.
fn read_xattr(get: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    /// The maximum length that Linux returns.
    const MOST: usize = 64 << 10;
    let mut small = [0; 256];
    match get(&mut small) {
        Ok(len) => Ok(small[..len].to_vec()),
        Err(Errno::RANGE) => {
            let mut large = vec![0; MOST];
            let len = get(&mut large)?;
            large.truncate(len);
            Ok(large)
        }
        Err(error) => Err(error),
    }
}
