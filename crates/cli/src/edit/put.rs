//! Copies of the host's files into a volume.

use super::{Edit, join};
use crate::edit_args::PutArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use extant::{Error, File, FileOptions, Special, Time, XattrMode};
use extant_fs::quote;
use extant_image::Note;
use rustix::fs::{major, minor};
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes read from the host at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Zeroes that become a hole.
const HOLE_BYTES: usize = 64 << 10;

impl Edit<'_> {
    pub(super) fn put(&self, args: &PutArgs) -> Result<(), Failure> {
        let (target, sources) = args.paths.split_last().expect("clap wants two");
        self.wants_dir(sources, target)?;
        let target = self.place(target);
        let mut put = Put { edit: self, args, links: BTreeMap::new(), clamped: None };
        for source in sources {
            let path = self.inside(&target.path, source.as_bytes());
            let mut source = Path::new(source).to_owned();
            // As cp: without -r what a link leads to is copied.
            if !args.recursive && source.is_symlink() {
                source = fs::canonicalize(&source).map_err(|error| Failure::host(&source, error))?;
            }
            put.tree(&source, ImagePath { image: target.image.clone(), path })?;
        }
        if let Some((path, files)) = put.clamped {
            let (first, last) = self.volume.time_range();
            let note = Note::TimeClamped { path, files, range: (first.seconds, last.seconds) };
            self.session.summary(&note.to_string());
        }
        Ok(())
    }
}

struct Put<'a> {
    edit: &'a Edit<'a>,
    args: &'a PutArgs,
    /// The first path of each file with several names, by device and inode.
    links: BTreeMap<(u64, u64), Vec<u8>>,
    /// The first file whose times the volume cannot store, quoted, and how many there are.
    clamped: Option<(String, u64)>,
}

impl Put<'_> {
    /// Copies a file and, if it is a directory, everything below it.
    fn tree(&mut self, source: &Path, target: ImagePath) -> Result<(), Failure> {
        let mut todo = vec![(source.to_owned(), target)];
        // Directories get their times last: filling them changes those.
        let mut dirs: Vec<(ImagePath, Metadata)> = Vec::new();
        while let Some((source, target)) = todo.pop() {
            let metadata = fs::symlink_metadata(&source).map_err(|error| Failure::host(&source, error))?;
            if !metadata.is_dir() {
                self.file(&source, &target, &metadata)?;
                continue;
            }
            if !self.args.recursive {
                let error = io::Error::other("is a directory; copy it with --recursive");
                return Err(Failure::host(&source, error));
            }
            match self.edit.root.create_dir_with(&target.path, metadata.mode() & 0o7777) {
                Err(Error::Exists(_)) if self.edit.is_dir(&target.path) => {}
                other => other.map_err(|error| Failure::at(&target, error))?,
            }
            let mut names: Vec<PathBuf> = fs::read_dir(&source)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
                .map_err(|error| Failure::host(&source, error))?;
            // The last one comes first from the stack; the order makes the image reproducible.
            names.sort_unstable_by(|a, b| b.cmp(a));
            for path in names {
                let name = path.file_name().expect("a directory's entry has a name").as_bytes();
                let below = ImagePath { image: target.image.clone(), path: join(&target.path, name) };
                todo.push((path, below));
            }
            self.attributes(&source, &target, &metadata)?;
            self.count_clamped(&target, &metadata)?;
            dirs.push((target, metadata));
        }
        dirs.iter().rev().try_for_each(|(target, metadata)| self.times(target, metadata))
    }

    fn file(&mut self, source: &Path, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let root = &self.edit.root;
        let path = &target.path;
        let failed = |error| Failure::at(target, error);
        let kind = metadata.file_type();
        if metadata.nlink() > 1 {
            match self.links.get(&(metadata.dev(), metadata.ino())) {
                Some(first) => {
                    self.replace(target)?;
                    return root.hard_link(first, path).map_err(failed);
                }
                None => {
                    self.links.insert((metadata.dev(), metadata.ino()), path.clone());
                }
            }
        }
        self.count_clamped(target, metadata)?;
        if kind.is_file() {
            return self.regular(source, target, metadata);
        }
        let mode = metadata.mode() & 0o7777;
        let device = (major(metadata.rdev()), minor(metadata.rdev()));
        self.replace(target)?;
        let made = if kind.is_symlink() {
            let link = fs::read_link(source).map_err(|error| Failure::host(source, error))?;
            root.symlink(link.as_os_str().as_bytes(), path)
        } else if kind.is_fifo() {
            root.create_special(path, Special::Fifo, mode)
        } else if kind.is_socket() {
            root.create_special(path, Special::Socket, mode)
        } else if kind.is_char_device() {
            root.create_special(path, Special::Char(device.0, device.1), mode)
        } else {
            root.create_special(path, Special::Block(device.0, device.1), mode)
        };
        made.map_err(failed)?;
        self.attributes(source, target, metadata)?;
        self.times(target, metadata)
    }

    /// Copies a regular file: under a temporary name beside its own until all of it is there, so that a failure leaves what
    /// the name led to. The target of a symbolic link of the image is overwritten in place.
    fn regular(&self, source: &Path, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        if root.symlink_metadata(&target.path).is_ok_and(|found| !found.is_file()) {
            let mut options = FileOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600);
            let file = root.open_with(&target.path, &options).map_err(failed)?;
            self.contents(source, &file, target, metadata)?;
            self.attributes(source, target, metadata)?;
            return self.times(target, metadata);
        }
        let (file, temporary) = self.temporary(target).map_err(failed)?;
        let done = self
            .contents(source, &file, target, metadata)
            .and_then(|()| self.attributes(source, &temporary, metadata))
            .and_then(|()| self.times(&temporary, metadata))
            .and_then(|()| root.rename(&temporary.path, &target.path).map_err(failed));
        drop(file);
        if done.is_err() {
            // The error that is reported is the first.
            let _ = root.remove_file(&temporary.path);
        }
        done
    }

    /// A new file in the directory of `target`.
    fn temporary(&self, target: &ImagePath) -> Result<(File, ImagePath), Error> {
        let end = target.path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut options = FileOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut n = 0;
        loop {
            let mut path = target.path[..end].to_vec();
            path.extend_from_slice(format!(".put-{n}~").as_bytes());
            match self.edit.root.open_with(&path, &options) {
                Err(Error::Exists(_)) => n += 1,
                Err(error) => return Err(error),
                Ok(file) => return Ok((file, ImagePath { image: target.image.clone(), path })),
            }
        }
    }

    /// Makes room for something that cannot overwrite a file.
    fn replace(&self, target: &ImagePath) -> Result<(), Failure> {
        match self.edit.root.remove_file(&target.path) {
            Ok(()) | Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(Failure::at(target, error)),
        }
    }

    fn contents(
        &self,
        source: &Path,
        file: &File,
        target: &ImagePath,
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let read = |error| Failure::host(source, error);
        let failed = |error| Failure::at(target, error);
        let from = fs::File::open(source).map_err(read)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut at = 0;
        loop {
            // Chunks begin on multiples of their length, wherever data do.
            at = next_data(&from, at, metadata.len()).map_err(read)?;
            let n = match from.read_at(&mut chunk, at) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(read(error)),
            };
            for (skip, piece) in (0..).step_by(HOLE_BYTES).zip(chunk[..n].chunks(HOLE_BYTES)) {
                if piece.iter().any(|&byte| byte != 0) {
                    file.write_all_at(at + skip, piece).map_err(failed)?;
                }
            }
            // Written chunk by chunk, before the cache comes to it by itself: the same files get the same places.
            file.write_back().map_err(failed)?;
            at += n as u64;
        }
        if file.len() < at {
            file.set_len(at).map_err(failed)?;
        }
        Ok(())
    }

    /// Owner and extended attributes. The owner comes before the mode's set-ID bits, which it takes away.
    fn attributes(&self, source: &Path, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        let (uid, gid) = if self.args.all_root { (0, 0) } else { (metadata.uid(), metadata.gid()) };
        root.set_owner(&target.path, Some(uid), Some(gid)).map_err(failed)?;
        let xattrs = xattrs(source).map_err(|error| Failure::host(source, error))?;
        // A file that was replaced, or the directory, had an access list, which would let others in.
        for name in root.xattrs(&target.path).map_err(failed)? {
            if !xattrs.iter().any(|(kept, _)| *kept == name) {
                root.remove_xattr(&target.path, name).map_err(failed)?;
            }
        }
        if !metadata.is_symlink() {
            root.set_mode(&target.path, metadata.mode() & 0o7777).map_err(failed)?;
        }
        for (name, value) in xattrs {
            root.set_xattr(&target.path, name, value, XattrMode::Any).map_err(failed)?;
        }
        Ok(())
    }

    fn times(&self, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let modified = modified(metadata)?;
        // Reading the source changes its time of access: the time of change stands for it, so that copies are alike.
        let done = self.edit.root.set_times(&target.path, Some(modified), Some(modified));
        done.map_err(|error| Failure::at(target, error))
    }

    /// Counts a file whose time the volume cannot store.
    fn count_clamped(&mut self, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let (first, last) = self.edit.volume.time_range();
        if !(first..=last).contains(&modified(metadata)?) {
            self.clamped.get_or_insert_with(|| (quote(&target.path), 0)).1 += 1;
        }
        Ok(())
    }
}

/// A source's time of change, none later than `SOURCE_DATE_EPOCH`.
fn modified(metadata: &Metadata) -> Result<Time, Failure> {
    let latest = crate::build::source_date_epoch()?.map(|time| time.seconds);
    Ok(match latest {
        Some(latest) if metadata.mtime() >= latest => Time { seconds: latest, nanos: 0 },
        _ => Time { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 },
    })
}

/// Where data come at or after byte `at` of a file of `len` bytes; in whole chunks, and `len` if there are none. A file system
/// that does not tell has data everywhere.
fn next_data(file: &fs::File, at: u64, len: u64) -> io::Result<u64> {
    use rustix::io::Errno;
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => Ok((data / CHUNK_BYTES as u64 * CHUNK_BYTES as u64).max(at)),
        Err(Errno::NXIO) => Ok(at.max(len)),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(at),
        Err(error) => Err(error.into()),
    }
}

type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

fn xattrs(source: &Path) -> io::Result<Xattrs> {
    let mut names = vec![0_u8; 64 << 10];
    let len = match rustix::fs::llistxattr(source, &mut names) {
        Err(rustix::io::Errno::NOTSUP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut all = Vec::new();
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; 64 << 10];
        let len = rustix::fs::lgetxattr(source, name, &mut value)?;
        value.truncate(len);
        all.push((name.to_vec(), value));
    }
    all.sort();
    Ok(all)
}
