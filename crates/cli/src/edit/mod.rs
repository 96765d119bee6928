//! Commands that change a volume: `put`, `mkdir`, `rm`, `mv`, `ln`, `chmod`, `chown`, `xattr`,
//! `truncate`, `fallocate`, `copy`, `trim`, `defrag`, and `edit`, which makes many changes in one
//! batch.
//!
//! A batch opens the volume once, runs its commands in order, stops at the first failure, and
//! closes the volume, so the image is complete and clean either way. It succeeds only if every
//! command and the close succeeded.

mod atomic;
mod attributes;
#[cfg(test)]
mod cuts;
mod names;
mod put;
mod script;
mod together;

use crate::edit_args::{DefragArgs, EditArgs, EditCommand, LockArgs, ScriptLine, TrimArgs};
use crate::failure::Failure;
use crate::hints;
use crate::image_path::ImagePath;
use crate::json::{self, Bytes};
use crate::output::outln;
use crate::owners::Owner;
use crate::session::Session;
use clap::{CommandFactory, FromArgMatches};
use extant::{
    Defragmented, Dir, Error, Fallocate, File, FileOptions, FileType, NewFile, OpenOptions, RenameMode, Time,
    Volume,
};
use extant_block::Device;
use extant_format::{Corrupt, Place};
use extant_fs::quote;
use names::{directory_of, is_same_name, join, resolved};
pub(crate) use script::words;
use serde::Serialize;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use together::{Line, Together};

/// Runs a single command. All of its paths must be in the same image.
pub(crate) fn run(session: &mut Session, command: &mut EditCommand) -> Result<(), Failure> {
    if let EditCommand::Xattr(args) = command
        && args.only_lists()
    {
        return attributes::list(session, &args.paths);
    }
    if let EditCommand::Put(args) = command {
        hints::put_wrong_way(&args.paths)?;
    }
    let image = one_image(command.targets_mut().into_iter().map(|target| &*target))?;
    let mut counts = Counts::default();
    batch(session, &image, command.lock(), |session, volume| {
        let edit = Edit { in_script: false, ..Edit::in_script(session, &image, volume) };
        let done = edit.run(command).map_err(|failure| edit.stopped(failure));
        counts = edit.counts.get();
        done
    })?;
    match command {
        EditCommand::Put(args) if args.json => json::print(&mut session.out, &counts),
        _ => Ok(()),
    }
}

/// What `put` has copied into a volume so far.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    /// All files except directories.
    files: u64,
    directories: u64,
    /// Bytes of contents, without holes.
    bytes: u64,
}

/// The image of these paths, which must be the same for all of them.
fn one_image<'a>(targets: impl Iterator<Item = &'a OsString>) -> Result<PathBuf, Failure> {
    let mut image: Option<PathBuf> = None;
    for target in targets {
        if !target.as_bytes().windows(2).any(|pair| pair == b":/") {
            let word = quote(target.as_bytes());
            let example = if Path::new(target).is_file() { &format!("{word}:/") } else { "IMAGE:/PATH" };
            return Err(Failure::Usage(format!("{word}: a path in an image is written {example}")));
        }
        let place = ImagePath::parse(target.clone());
        Failure::of_split(&place)?;
        match &image {
            Some(image) if *image != place.image => {
                return Err(Failure::Usage("one call changes one image".into()));
            }
            _ => image = Some(place.image),
        }
    }
    Ok(image.expect("every command has a target"))
}

/// `extant edit`.
pub(crate) fn run_script(session: &mut Session, args: &EditArgs) -> Result<(), Failure> {
    let mut text = Vec::new();
    if args.script == Path::new("-") {
        std::io::stdin().read_to_end(&mut text).map_err(|e| Failure::host(Path::new("standard input"), e))?;
    } else {
        text = std::fs::read(&args.script).map_err(|e| Failure::host(&args.script, e))?;
    }
    // Some editors start a text file with a byte order mark.
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    // Report mistakes in the script before changing anything.
    let mut commands = Vec::new();
    // Build the parser once: that takes longer than parsing a line.
    let mut parser = ScriptLine::command();
    for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
        let wrong = |what: &dyn std::fmt::Display| Failure::Usage(format!("line {number}: {what}"));
        let words = script::words(line).map_err(|what| wrong(&what))?;
        if words.is_empty() {
            continue;
        }
        let parsed = parser
            .try_get_matches_from_mut(words)
            .and_then(|mut found| ScriptLine::from_arg_matches_mut(&mut found));
        let ScriptLine { mut command } = parsed.map_err(|error| wrong(&misread(&error)))?;
        command.check_in_batch().map_err(|what| wrong(&what))?;
        for target in command.targets_mut() {
            if !target.as_bytes().starts_with(b"/") {
                return Err(wrong(&format!(
                    "{}: a path in the image begins with /",
                    quote(target.as_bytes())
                )));
            }
        }
        commands.push((number, command));
    }
    let count = commands.len();
    let (mut done, mut failed_line, mut put) = (0, None, Counts::default());
    let work = |session: &Session, volume: &Volume| {
        let together = Rc::<Together>::default();
        for (number, command) in &commands {
            let line = Line { number: *number, done, put };
            let edit = Edit {
                counts: put.into(),
                together: together.clone(),
                line: Some(line),
                ..Edit::in_script(session, &args.image, volume)
            };
            let mut ran = match command {
                // Files that lines in a row put are made together.
                EditCommand::Put(_) => edit.begin(command),
                _ => edit.make_waiting().and_then(|()| edit.begin(command)),
            };
            if ran.is_err() || done + 1 == count {
                ran = edit.make_waiting().and(ran);
            }
            ran.map_err(|failure| {
                let line = edit.failed_line.get().unwrap_or(line);
                (failed_line, done, put) = (Some(line.number), line.done, line.put);
                edit.stopped(Failure::Line { number: line.number, failure: Box::new(failure) })
            })?;
            (done, put) = (done + 1, edit.counts.get());
        }
        Ok(())
    };
    let ended = match args.atomic {
        true => atomic::batch(session, &args.image, args.lock, work),
        false => batch(session, &args.image, args.lock, work),
    };
    if args.json {
        if args.atomic && ended.is_err() {
            (done, put) = (0, Counts::default());
        }
        json::print(&mut session.out, &JsonEdit { commands: count, done, failed_line, put })?;
        return ended;
    }
    ended?;
    let image = quote(args.image.as_os_str().as_bytes());
    session.summary(&format!("{image}: {count} commands done"));
    Ok(())
}

/// The result of a script. After a failed line, the changes of earlier lines stay, unless the
/// script ran with `--atomic`.
#[derive(Serialize)]
struct JsonEdit {
    commands: usize,
    done: usize,
    failed_line: Option<usize>,
    put: Counts,
}

/// The failure for a line that is not a command.
pub(crate) fn misread(error: &clap::Error) -> Failure {
    let text = error.to_string();
    Failure::Usage(text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
}

/// `extant trim`.
pub(crate) fn trim(session: &mut Session, args: &TrimArgs) -> Result<(), Failure> {
    let image = quote(args.image.as_os_str().as_bytes());
    let mut trimmed_bytes = 0;
    batch(session, &args.image, args.lock, |_, volume| {
        let range = args.offset..args.length.map_or(u64::MAX, |length| args.offset.saturating_add(length));
        trimmed_bytes = volume
            .trim(range, args.minimum)
            .map_err(|error| Failure::Volume { place: image.clone(), error })?;
        Ok(())
    })?;
    match args.json {
        true => json::print(&mut session.out, &JsonTrim { trimmed_bytes }),
        false => {
            session.summary(&format!("{image}: {trimmed_bytes} bytes of free space given back"));
            Ok(())
        }
    }
}

#[derive(Serialize)]
struct JsonTrim {
    trimmed_bytes: u64,
}

/// `extant defrag`.
pub(crate) fn defrag(session: &mut Session, args: &DefragArgs) -> Result<(), Failure> {
    let image = one_image(args.paths.iter())?;
    let mut all = Vec::new();
    let done = batch(session, &image, args.lock, |_, volume| {
        let root = volume.root();
        for target in &args.paths {
            let place = ImagePath::parse(target.clone());
            let failed = |error| Failure::at(&place, error);
            let file = root.open_with(&place.path, FileOptions::new().write(true)).map_err(failed)?;
            let done = file.defragment().map_err(failed)?;
            all.push((place, done));
        }
        Ok(())
    });
    if args.json {
        let files: Vec<_> = all.iter().map(|(place, done)| JsonDefragmented::new(place, done)).collect();
        json::print(&mut session.out, &files)?;
    } else {
        for (place, Defragmented { runs_before, runs_after, .. }) in &all {
            outln!(session.out, "{}: {runs_before} runs, {runs_after} now", place.quoted())?;
        }
    }
    done
}

#[derive(Serialize)]
struct JsonDefragmented<'a> {
    path: Bytes<'a>,
    runs_before: u64,
    runs_after: u64,
    moved_bytes: u64,
}

impl<'a> JsonDefragmented<'a> {
    fn new(place: &'a ImagePath, done: &Defragmented) -> Self {
        let &Defragmented { runs_before, runs_after, moved_bytes } = done;
        Self { path: Bytes(&place.path), runs_before, runs_after, moved_bytes }
    }
}

/// Why a batch stopped early.
struct Stopped {
    failure: Box<Failure>,
    /// The batch did nothing except create a file that got no name, so the image stays as it was.
    is_void: bool,
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Self {
        Self { failure: Box::new(failure), is_void: false }
    }
}

/// Opens the image, runs `work` on it, closes it, and reports damage that did not stop `work`.
fn batch(
    session: &mut Session,
    image: &Path,
    lock: LockArgs,
    work: impl FnOnce(&Session, &Volume) -> Result<(), Stopped>,
) -> Result<(), Failure> {
    let volume = open(session, image, lock)?;
    match work(session, &volume) {
        Err(Stopped { failure, is_void: true }) => {
            let closed = close_by(session, image, &volume, Volume::give_up);
            Err::<(), _>(*failure).and(closed)
        }
        done => {
            let closed = close(session, image, &volume);
            done.map_err(|stopped| *stopped.failure).and(closed)
        }
    }
}

/// Opens the volume in an image for a batch of changes.
pub(crate) fn open(session: &Session, image: &Path, lock: LockArgs) -> Result<Volume, Failure> {
    open_on(session, image, session.device_to_change(image, lock.foreign_locks())?)
}

fn open_on(session: &Session, image: &Path, device: Arc<dyn Device>) -> Result<Volume, Failure> {
    let fixed_time = crate::build::source_date_epoch()?.map(|time| time.seconds);
    let options = OpenOptions::new().write(true).offline(true).fixed_time(fixed_time);
    Volume::open_device(&session.rt, device, &options)
        .map_err(|error| session.not_opened_to_change(image, error))
}

/// Closes the volume, and reports damage that did not stop the changes.
pub(crate) fn close(session: &mut Session, image: &Path, volume: &Volume) -> Result<(), Failure> {
    close_by(session, image, volume, Volume::close)
}

fn close_by(
    session: &mut Session,
    image: &Path,
    volume: &Volume,
    close: impl FnOnce(Volume) -> Result<(), Error>,
) -> Result<(), Failure> {
    let place = quote(image.as_os_str().as_bytes());
    let closed = close(volume.clone()).map_err(|error| Failure::Volume { place: place.clone(), error });
    session.problems(&place, volume.problems());
    closed
}

/// The volume being changed.
pub(crate) struct Edit<'a> {
    session: &'a Session,
    volume: &'a Volume,
    image: &'a Path,
    root: Dir,
    in_script: bool,
    /// Set if an operation that leaves nothing behind has failed, and nothing was changed before
    /// it.
    is_void: Cell<bool>,
    counts: Cell<Counts>,
    together: Rc<Together>,
    line: Option<Line>,
    /// The line whose file could not be made, if it is not the current one.
    failed_line: Cell<Option<Line>>,
}

impl<'a> Edit<'a> {
    /// Creates an edit for commands whose paths start at the volume's root.
    pub(crate) fn in_script(session: &'a Session, image: &'a Path, volume: &'a Volume) -> Self {
        let (is_void, counts, together, line, failed_line) = Default::default();
        let root = volume.root();
        Self { session, image, volume, root, in_script: true, is_void, counts, together, line, failed_line }
    }

    /// Counts what `put` has copied.
    fn count(&self, files: u64, directories: u64, bytes: u64) {
        let mut counts = self.counts.get();
        counts.files += files;
        counts.directories += directories;
        counts.bytes += bytes;
        self.counts.set(counts);
    }

    fn stopped(&self, failure: Failure) -> Stopped {
        Stopped { failure: Box::new(failure), is_void: self.is_void.get() }
    }

    /// Runs `make`, which creates something without a name and names it only as its last step, if
    /// at all.
    fn make_unnamed<T>(&self, make: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let was_unchanged = self.volume.is_unchanged();
        let made = make();
        self.is_void.set(made.is_err() && was_unchanged);
        made
    }

    fn place(&self, target: &OsStr) -> ImagePath {
        match self.in_script {
            true => ImagePath { image: self.image.to_owned(), path: target.as_bytes().to_vec() },
            false => ImagePath::parse(target.to_owned()),
        }
    }

    /// Runs a call on a path; a failure names the path.
    fn at<T>(
        &self,
        target: &OsStr,
        call: impl FnOnce(&Dir, &[u8]) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let place = self.place(target);
        call(&self.root, &place.path).map_err(|error| Failure::at(&place, error))
    }

    fn is_dir(&self, path: &[u8]) -> bool {
        self.root.metadata(path).is_ok_and(|metadata| metadata.is_dir())
    }

    /// `path`, or if that is a directory, the last name of `source` in it.
    fn inside(&self, path: &[u8], source: &[u8]) -> Vec<u8> {
        let name = source.split(|&byte| byte == b'/').rfind(|name| !name.is_empty());
        match name {
            Some(name) if self.is_dir(path) => join(path, name),
            _ => path.to_vec(),
        }
    }

    pub(crate) fn run(&self, command: &EditCommand) -> Result<(), Failure> {
        let ran = self.begin(command);
        // What was put before an error stays.
        self.make_waiting().and(ran)
    }

    /// Runs a command; files that it puts may still have to be made.
    fn begin(&self, command: &EditCommand) -> Result<(), Failure> {
        match command {
            EditCommand::Put(args) => self.put(args),
            EditCommand::Mkdir(args) => self.each(&args.paths, |root, path| match args.parents {
                false => root.create_dir_with(path, args.mode),
                true => create_with_parents(root, path, args.mode),
            }),
            EditCommand::Mknod(args) => {
                let special = args.special().map_err(Failure::Usage)?;
                self.at(&args.path, |root, path| root.create_special(path, special, args.mode))
            }
            EditCommand::Touch(args) => {
                let (seconds, nanos) = self.session.rt.wall_time();
                let fixed = crate::build::source_date_epoch()?.map(|time| time.seconds);
                let time = match args.mtime.or(fixed) {
                    Some(seconds) => Time { seconds, nanos: 0 },
                    None => Time { seconds, nanos },
                };
                self.each(&args.paths, |root, path| match root.set_times(path, Some(time), Some(time)) {
                    Err(Error::NotFound(_)) if args.no_create => Ok(()),
                    Err(Error::NotFound(_)) => {
                        let made = root.open_with(path, FileOptions::new().write(true).create(true))?;
                        made.set_times(Some(time), Some(time))
                    }
                    done => done,
                })
            }
            EditCommand::Rm(args) => self.each(&args.paths, |root, path| {
                let kind = match root.symlink_metadata(path) {
                    Err(Error::NotFound(_)) if args.is_content || args.force => return Ok(()),
                    found => found?.file_type(),
                };
                match kind {
                    FileType::Dir if args.recursive => root.remove_dir_all(path),
                    _ => root.remove_file(path),
                }
            }),
            EditCommand::Mv(args) => {
                let (target, sources) = args.paths.split_last().expect("clap wants two");
                let to = self.place(target).path;
                self.wants_dir(sources, target)?;
                let mode = if args.no_clobber { RenameMode::NoReplace } else { RenameMode::Replace };
                self.each(sources, |root, path| rename(root, path, &self.inside(&to, path), mode))
            }
            EditCommand::Ln(args) => {
                let from = match args.symbolic {
                    true => args.target.as_bytes().to_vec(),
                    false => self.place(&args.target).path,
                };
                let replaces = args.replaces || args.force;
                self.at(&args.name, |root, path| {
                    if args.symbolic {
                        if !replaces {
                            return root.symlink(&from, path);
                        }
                        check_not_itself(root, &names::beside(path, &from), path)?;
                        if root.symlink_metadata(path).is_ok_and(|there| there.is_dir()) {
                            return Err(Error::IsADirectory(quote(path)));
                        }
                        let new = NewFile::Symlink(&from);
                        return root.unnamed(directory_of(path), new, 0o777)?.link_over(root, path);
                    }
                    let path = self.inside(path, &from);
                    if !replaces {
                        return root.hard_link(&from, &path);
                    }
                    check_not_itself(root, &from, &path)?;
                    root.inode(&from)?.link_over(root, &path)
                })
            }
            EditCommand::Chmod(args) => self.below(&args.paths, args.recursive, |root, path| {
                // The mode of a symbolic link has no meaning.
                if args.recursive && root.symlink_metadata(path)?.file_type() == FileType::Symlink {
                    return Ok(());
                }
                let mode = match args.mode.absolute() {
                    Some(mode) => mode,
                    None => args.mode.apply(&root.metadata(path)?),
                };
                root.set_mode(path, mode)
            }),
            EditCommand::Chown(args) => {
                let Owner { uid, gid } = args.owner.resolve(&self.root, self.image)?;
                self.below(&args.paths, args.recursive, |root, path| root.set_owner(path, uid, gid))
            }
            EditCommand::Xattr(args) => {
                let sets = args.set.iter().map(|set| {
                    let set = set.as_bytes();
                    let at = set.iter().position(|&byte| byte == b'=');
                    let at = at.ok_or_else(|| Error::Invalid("an attribute is set as NAME=VALUE".into()))?;
                    Ok::<_, Error>((&set[..at], xattr_value(&set[at + 1..])?))
                });
                let sets: Result<Vec<_>, Error> = sets.collect();
                self.each(&args.paths, |root, path| {
                    let sets = sets.clone()?;
                    let is_kept = |name: &[u8]| args.remove.iter().all(|removed| removed.as_bytes() != name);
                    let sets = sets.iter().filter(|(name, _)| is_kept(name));
                    let sets = sets.map(|(name, value)| (*name, Some(&value[..])));
                    let removes = args.remove.iter().map(|name| (name.as_bytes(), None));
                    // Remove attributes first, to make room for those that are set.
                    root.change_xattrs(path, &removes.chain(sets).collect::<Vec<_>>())
                })
            }
            EditCommand::Truncate(args) => self.each(&args.paths, |root, path| {
                self.change_file(root, path, !args.no_create, |file| file.set_len(args.size)).or_else(
                    |error| match error {
                        Error::NotFound(_) if args.no_create => Ok(()),
                        error => Err(error),
                    },
                )
            }),
            EditCommand::Fallocate(args) => self.each(&args.paths, |root, path| {
                let creates = matches!(args.mode(), Fallocate::Allocate { .. });
                self.change_file(root, path, creates, |file| {
                    file.fallocate(args.mode(), args.offset, args.length)
                })
            }),
            EditCommand::Copy(args) => {
                let (target, sources) = args.paths.split_last().expect("clap wants two");
                let to = self.place(target).path;
                self.wants_dir(sources, target)?;
                self.each(sources, |root, path| self.copy(root, path, &self.inside(&to, path)))
            }
        }
    }

    /// Refuses several sources unless the target is a directory.
    fn wants_dir(&self, sources: &[OsString], target: &OsStr) -> Result<(), Failure> {
        let place = self.place(target);
        if sources.len() > 1 && !self.is_dir(&place.path) {
            return Err(Failure::at(&place, Error::NotADirectory(quote(&place.path))));
        }
        Ok(())
    }

    fn each(
        &self,
        targets: &[OsString],
        call: impl Fn(&Dir, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        targets.iter().try_for_each(|target| self.at(target, &call))
    }

    /// Calls `change` for every target and, with `recursive`, everything below it, directories
    /// before their contents.
    fn below(
        &self,
        targets: &[OsString],
        recursive: bool,
        call: impl Fn(&Dir, &[u8]) -> Result<(), Error>,
    ) -> Result<(), Failure> {
        for target in targets {
            let mut todo = vec![self.place(target)];
            let mut visited = BTreeSet::new();
            while let Some(place) = todo.pop() {
                let failed = |error| Failure::at(&place, error);
                let found = self.root.symlink_metadata(&place.path).map_err(failed)?;
                let is_dir = recursive && found.is_dir();
                if is_dir && !visited.insert(found.inode()) {
                    let rule = "1: it was entered before; `extant check` says more";
                    let place = Place::Inode(found.inode());
                    return Err(failed(Corrupt::field(place, "names of the directory", 2, rule).into()));
                }
                call(&self.root, &place.path).map_err(failed)?;
                if is_dir {
                    let dir = self.root.open_dir(&place.path).map_err(failed)?;
                    for entry in dir.entries().map_err(failed)? {
                        let path = join(&place.path, &entry.name);
                        todo.push(ImagePath { image: place.image.clone(), path });
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies `change` to a file. With `creates`, applies it to a new unnamed file, which gets its
    /// name only afterwards.
    fn change_file(
        &self,
        root: &Dir,
        path: &[u8],
        creates: bool,
        change: impl FnOnce(&File) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let path = resolved(root, path)?;
        let mut options = FileOptions::new();
        options.write(true);
        if !creates || root.try_exists(&path)? {
            return change(&root.open_with(&path, &options)?);
        }
        self.make_unnamed(|| {
            let new = root.unnamed(directory_of(&path), NewFile::Regular, 0o644)?;
            change(&new.open(&options)?)?;
            new.link(root, &path)
        })
    }

    /// Copies a file; the copy gets its name once it is complete.
    fn copy(&self, root: &Dir, from: &[u8], to: &[u8]) -> Result<(), Error> {
        let to = resolved(root, to)?;
        let source = root.open(from)?;
        let metadata = source.metadata()?;
        if let Ok(there) = root.symlink_metadata(&to) {
            match there.file_type() {
                _ if there.inode() == metadata.inode() => {
                    return Err(Error::Invalid(format!("{}: a copy of the file to itself", quote(&to))));
                }
                FileType::Dir => return Err(Error::IsADirectory(quote(&to))),
                FileType::File => {}
                _ => return Err(Error::Special(quote(&to))),
            }
        }
        self.make_unnamed(|| {
            let new = root.unnamed(directory_of(&to), NewFile::Regular, 0o600)?;
            let file = new.open(FileOptions::new().write(true))?;
            let (len, mut done) = (source.len(), 0);
            while done < len {
                match source.copy_range(done, &file, done, len - done)? {
                    0 => break,
                    copied => done += copied,
                }
            }
            new.set_mode(metadata.mode() & 0o7777)?;
            new.link_over(root, &to)
        })
    }
}

/// Renames like mv: if both names belong to the same file, removes the old one; rename(2) would
/// keep both.
fn rename(root: &Dir, from: &[u8], to: &[u8], mode: RenameMode) -> Result<(), Error> {
    if mode == RenameMode::Replace
        && let (Ok(source), Ok(there)) = (root.symlink_metadata(from), root.symlink_metadata(to))
        && source.inode() == there.inode()
        && !source.is_dir()
    {
        return match is_same_name(root, from, to) {
            true => Err(Error::Invalid(format!("{} is the same file", quote(to)))),
            false => root.remove_file(from),
        };
    }
    root.rename_with(from, to, mode)
}

/// Fails if a link at `path` would replace its own target.
fn check_not_itself(root: &Dir, target: &[u8], path: &[u8]) -> Result<(), Error> {
    match root.symlink_metadata(path).is_ok() && is_same_name(root, target, path) {
        true => Err(Error::Invalid("the link and the file that it leads to are the same".into())),
        false => Ok(()),
    }
}

/// Parses a value argument: hexadecimal after 0x, base64 after 0s, as in setfattr, and otherwise
/// the bytes of the argument.
fn xattr_value(text: &[u8]) -> Result<Vec<u8>, Error> {
    if let Some(digits) = text.strip_prefix(b"0s").or(text.strip_prefix(b"0S")) {
        let wrong = || Error::Invalid("behind 0s, a value is in base64".into());
        return extant_image::base64_decoded(digits).ok_or_else(wrong);
    }
    let Some(digits) = text.strip_prefix(b"0x").or(text.strip_prefix(b"0X")) else {
        return Ok(text.to_vec());
    };
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pairs = digits.chunks(2).map(|pair| match *pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    let wrong = || Error::Invalid("behind 0x, a value has pairs of hexadecimal digits".into());
    pairs.collect::<Option<_>>().ok_or_else(wrong)
}

/// Creates a directory and any missing parents, which get mode 0755.
fn create_with_parents(root: &Dir, path: &[u8], mode: u32) -> Result<(), Error> {
    let length = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let path = &path[..length];
    let ends = path.iter().enumerate().filter(|&(_, &byte)| byte == b'/').map(|(at, _)| at);
    for end in ends.chain([path.len()]).filter(|&end| end > 0 && path[end - 1] != b'/') {
        let is_last = end == path.len();
        match root.create_dir_with(&path[..end], if is_last { mode } else { 0o755 }) {
            Err(Error::Exists(_)) if !is_last || root.metadata(path)?.is_dir() => {}
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_text_hexadecimal_or_base64() {
        let value = |text: &[u8]| xattr_value(text).ok();
        assert_eq!(value(b"plain"), Some(b"plain".to_vec()));
        assert_eq!(value(b"0x00fF"), Some(vec![0, 255]));
        // RFC 4648, section 10.
        for (text, bytes) in [
            (&b"0s"[..], &b""[..]),
            (b"0sZg==", b"f"),
            (b"0sZm8=", b"fo"),
            (b"0sZm9v", b"foo"),
            (b"0SZm9vYg", b"foob"),
            (b"0s+/8=", b"\xfb\xff"),
        ] {
            assert_eq!(value(text).as_deref(), Some(bytes), "{}", text.escape_ascii());
        }
        for text in [&b"0x0"[..], b"0xg0", b"0sZ", b"0sZg=", b"0sZ===", b"0sZm9v=", b"0sZ-==", b"0sZg==Zg=="]
        {
            assert_eq!(value(text), None, "{}", text.escape_ascii());
        }
    }
}
