//! `extant cp`.

use crate::args::CpArgs;
use crate::failure::Failure;
use crate::globs;
use crate::hints;
use crate::image_path::ImagePath;
use crate::progress::Progress;
use crate::report::{self, JsonLoss, Reporter};
use crate::session::{Access, Session, used_bytes};
use extant_format::FileKind;
use extant_fs::{Follow, quote};
use extant_image::export::{Exported, to_directory, to_writer};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub(crate) fn run(session: &mut Session, args: &CpArgs) -> Result<(), Failure> {
    hints::wrong_way(args)?;
    // Every directory on the way down stays open, which may take many descriptors.
    let _ = raise_open_files();
    if args.json && args.to.as_os_str() == "-" {
        return Err(Failure::Usage("with --json the copy cannot be standard output; name a file".into()));
    }
    let places = globs::expanded(session, &args.places, &args.open)?;
    if places.len() > 1 && !args.to.is_dir() {
        return Err(Failure::host(
            &args.to,
            std::io::Error::other("is no directory, and there are several files"),
        ));
    }
    let to = quote(args.to.as_os_str().as_bytes());
    let (mut all, mut lost) = (Exported::default(), Vec::new());
    for place in &places {
        let (done, more) = copy(session, args, place, &to)?;
        all.directories += done.directories;
        all.others += done.others;
        all.bytes += done.bytes;
        lost.extend(more);
    }
    report::print(session, &to, &all, args.json.then_some(lost))
}

/// Copies one file or directory. Returns what was copied and, for JSON, what was lost.
fn copy(
    session: &mut Session,
    args: &CpArgs,
    place: &ImagePath,
    to: &str,
) -> Result<(Exported, Vec<JsonLoss>), Failure> {
    let volume = session.volume(place, &args.open, Access::Contents)?;
    let rt = session.rt.clone();
    let top = rt.block_on(place.resolve(&volume, Follow::No))?;
    let top = top.map_err(|error| Failure::at(place, error))?;
    let destination = Destination::of(args, place, top.kind())?;
    let _claim = match args.to.metadata() {
        Ok(there) if there.is_file() || there.file_type().is_block_device() => {
            Some(Session::claim_output(&args.to, &place.image)?)
        }
        _ => None,
    };
    let progress = Progress::new(used_bytes(&volume), session.quiet);
    let mut reporter = Reporter::new(session, place, progress, args.json);
    let copied = rt.block_on(async {
        match destination {
            Destination::Name { directory, name } => {
                to_directory(&rt, &volume, &top, &directory, name.as_deref(), &mut reporter).await
            }
            Destination::Special(mut file) => to_writer(&volume, &top, &mut file, &mut reporter).await,
        }
    })?;
    let lost = reporter.finish();
    copied.map(|done| (done, lost)).map_err(|error| report::failure(place, to, error))
}

/// Destination of a copy.
enum Destination {
    /// A directory, and the name to create in it; `None` to copy the image's root into an existing
    /// directory.
    Name { directory: PathBuf, name: Option<Vec<u8>> },
    /// A device or named pipe, which receives the file's contents, as with `cp` from coreutils.
    Special(File),
}

impl Destination {
    fn of(args: &CpArgs, place: &ImagePath, source: Option<FileKind>) -> Result<Self, Failure> {
        let of_source = place.file_name().map(|name| name.as_bytes().to_vec());
        let host = |error| Failure::host(&args.to, error);
        let refuse = |text: &str| Err(host(std::io::Error::other(text)));
        if args.to.as_os_str() == "-" {
            if source != Some(FileKind::Regular) {
                let told = "-: standard output takes the contents of a regular file only; extant export writes an archive";
                return Err(Failure::Usage(told.into()));
            }
            let to =
                rustix::io::dup(rustix::stdio::stdout()).map_err(|error| Failure::Stdout(error.into()))?;
            return Ok(Self::Special(to.into()));
        }
        // /dev/stdout and similar are links to devices and pipes.
        if let Ok(there) = args.to.metadata() {
            let kind = there.file_type();
            if kind.is_socket() {
                return refuse("is a socket, which nothing can be copied to");
            }
            if kind.is_char_device() || kind.is_block_device() || kind.is_fifo() {
                if source != Some(FileKind::Regular) {
                    return refuse("is a device or pipe, which takes the contents of a regular file only");
                }
                return Ok(Self::Special(OpenOptions::new().write(true).open(&args.to).map_err(host)?));
            }
        }
        // A trailing slash means that the user wants a symbolic link there followed.
        let slash = args.to.as_os_str().as_bytes().ends_with(b"/");
        let there = if slash { args.to.metadata() } else { args.to.symlink_metadata() };
        match (there, of_source) {
            (Ok(there), name) if there.is_dir() => Ok(Self::Name { directory: args.to.clone(), name }),
            (Ok(there), _) if there.is_symlink() && args.to.is_dir() => {
                refuse("is a symbolic link; write a slash behind it to copy into its target")
            }
            (Ok(_), None) => Err(host(std::io::ErrorKind::NotADirectory.into())),
            (Err(error), _) if error.kind() != std::io::ErrorKind::NotFound => Err(host(error)),
            _ if slash && source != Some(FileKind::Directory) => {
                Err(host(std::io::ErrorKind::NotADirectory.into()))
            }
            (_, _) => {
                let name = args.to.file_name().map(OsStr::as_bytes);
                let name = name.ok_or_else(|| host(std::io::ErrorKind::NotFound.into()))?.to_vec();
                let parent = args.to.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = parent.unwrap_or(Path::new("."));
                // If the parent is missing, report that instead of the name in it.
                if let Err(error) = parent.metadata() {
                    return Err(Failure::host(parent, error));
                }
                // The parent may be reached through links, because the user named it.
                Ok(Self::Name { directory: parent.join(""), name: Some(name) })
            }
        }
    }
}

/// Raises the limit on open files to the maximum allowed.
fn raise_open_files() -> rustix::io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)
}
