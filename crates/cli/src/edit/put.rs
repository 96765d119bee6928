//! Copies of the host's files into a volume.

use super::Edit;
use super::names::{aside, join, link_over, resolved};
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
            let failed = |error| Failure::at(&target, error);
            let made = self.edit.root.create_dir_with(&target.path, metadata.mode() & 0o7777);
            let path = match made {
                // A symbolic link to a directory is followed: its attributes are that directory's.
                Err(Error::Exists(_)) if self.edit.is_dir(&target.path) => {
                    resolved(&self.edit.root, &target.path).map_err(failed)?
                }
                other => other.map(|()| target.path.clone()).map_err(failed)?,
            };
            let target = ImagePath { path, ..target };
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
            self.attributes(&source, &target, &target.path, &metadata)?;
            self.count_clamped(&target, &metadata)?;
            dirs.push((target, metadata));
        }
        dirs.iter().rev().try_for_each(|(target, metadata)| self.times(target, &target.path, metadata))
    }

    fn file(&mut self, source: &Path, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        let kind = metadata.file_type();
        // As cp: contents go to what a symbolic link leads to, and everything else replaces the link.
        let followed = match kind.is_file() {
            true => resolved(root, &target.path).map_err(failed)?,
            false => target.path.clone(),
        };
        let target = &ImagePath { image: target.image.clone(), path: followed };
        let path = &target.path;
        let failed = |error| Failure::at(target, error);
        if metadata.nlink() > 1 {
            match self.links.get(&(metadata.dev(), metadata.ino())) {
                Some(first) => {
                    return link_over(root, path, |name| root.hard_link(first, name)).map_err(failed);
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
        if kind.is_symlink() {
            let link = fs::read_link(source).map_err(|error| Failure::host(source, error))?;
            let link = link.as_os_str().as_bytes();
            return self.whole(source, target, metadata, |name| root.symlink(link, name), |()| Ok(()));
        }
        let special = if kind.is_fifo() {
            Special::Fifo
        } else if kind.is_socket() {
            Special::Socket
        } else if kind.is_char_device() {
            Special::Char(device.0, device.1)
        } else {
            Special::Block(device.0, device.1)
        };
        let make = |name: &[u8]| root.create_special(name, special, mode);
        self.whole(source, target, metadata, make, |()| Ok(()))
    }

    fn regular(&self, source: &Path, target: &ImagePath, metadata: &Metadata) -> Result<(), Failure> {
        let root = &self.edit.root;
        if let Ok(found) = root.symlink_metadata(&target.path)
            && !found.is_file()
            && !found.is_dir()
        {
            return Err(Failure::at(target, Error::Special(quote(&target.path))));
        }
        let mut options = FileOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let make = |name: &[u8]| root.open_with(name, &options);
        self.whole(source, target, metadata, make, |file| self.contents(source, file, target, metadata))
    }

    /// Has `make` make a file of the volume and `fill` fill it, under a temporary name beside that of `target` until all of
    /// it is there, so that a failure leaves what has the name.
    fn whole<T>(
        &self,
        source: &Path,
        target: &ImagePath,
        metadata: &Metadata,
        make: impl FnMut(&[u8]) -> Result<T, Error>,
        fill: impl FnOnce(&T) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        if root.symlink_metadata(&target.path).is_ok_and(|found| found.is_dir()) {
            return Err(failed(Error::IsADirectory(quote(&target.path))));
        }
        let (made, temporary) = aside(&target.path, make).map_err(failed)?;
        let done = fill(&made)
            .and_then(|()| self.attributes(source, target, &temporary, metadata))
            .and_then(|()| self.times(target, &temporary, metadata))
            .and_then(|()| root.rename(&temporary, &target.path).map_err(failed));
        drop(made);
        if done.is_err() {
            // The error that is reported is the first.
            let _ = root.remove_file(&temporary);
        }
        done
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

    /// Owner and extended attributes of what has the name `path`, for now, and is to be `target`. The owner comes before the
    /// mode's set-ID bits, which it takes away.
    fn attributes(
        &self,
        source: &Path,
        target: &ImagePath,
        path: &[u8],
        metadata: &Metadata,
    ) -> Result<(), Failure> {
        let root = &self.edit.root;
        let failed = |error| Failure::at(target, error);
        let (uid, gid) = if self.args.all_root { (0, 0) } else { (metadata.uid(), metadata.gid()) };
        root.set_owner(path, Some(uid), Some(gid)).map_err(failed)?;
        let xattrs = xattrs(source).map_err(|error| Failure::host(source, error))?;
        // A directory that was there, or the one around it, had an access list, which would let others in.
        for name in root.xattrs(path).map_err(failed)? {
            if !xattrs.iter().any(|(kept, _)| *kept == name) {
                root.remove_xattr(path, name).map_err(failed)?;
            }
        }
        if !metadata.is_symlink() {
            root.set_mode(path, metadata.mode() & 0o7777).map_err(failed)?;
        }
        for (name, value) in xattrs {
            root.set_xattr(path, &name, &value, XattrMode::Any).map_err(|error| match error {
                Error::NoSpace => self.no_room(target, &name, value.len()),
                error => failed(error),
            })?;
        }
        Ok(())
    }

    /// The failure of an attribute that found no room.
    fn no_room(&self, target: &ImagePath, name: &[u8], bytes: usize) -> Failure {
        let block = self.edit.volume.statfs().block_bytes;
        let told = format!(
            "{}: no room for attribute {} of {bytes} bytes: a file's attributes fit its inode and one block of \
             {block} bytes",
            target.quoted(),
            quote(name),
        );
        Failure::Named { told, error: Error::NoSpace }
    }

    fn times(&self, target: &ImagePath, path: &[u8], metadata: &Metadata) -> Result<(), Failure> {
        let modified = modified(metadata)?;
        // Reading the source changes its time of access: the time of change stands for it, so that copies are alike.
        let done = self.edit.root.set_times(path, Some(modified), Some(modified));
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
