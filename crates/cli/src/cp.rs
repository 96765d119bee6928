//! `extant cp`.

use crate::args::CpArgs;
use crate::failure::Failure;
use crate::hints;
use crate::progress::Progress;
use crate::report::{self, Reporter};
use crate::session::{Access, Session, used_bytes};
use extant_format::FileKind;
use extant_fs::{Follow, quote};
use extant_image::export::{to_directory, to_writer};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub(crate) fn run(session: &mut Session, args: &CpArgs) -> Result<(), Failure> {
    hints::wrong_way(args)?;
    // Every directory on the way down stays open.
    let _ = raise_open_files();
    let volume = session.volume(&args.place, &args.open, Access::Contents)?;
    let rt = session.rt.clone();
    let top = rt.block_on(args.place.resolve(&volume, Follow::No))?;
    let top = top.map_err(|error| Failure::at(&args.place, error))?;
    let destination = Destination::of(args, top.kind())?;
    let _claim = match args.to.metadata() {
        Ok(there) if there.is_file() => Some(Session::claim_output(&args.to, &args.place.image)?),
        _ => None,
    };
    let progress = Progress::new(used_bytes(&volume), session.quiet);
    let mut reporter = Reporter { session, place: &args.place, progress };
    let copied = rt.block_on(async {
        match destination {
            Destination::Name { directory, name } => {
                to_directory(&volume, &top, &directory, name.as_deref(), &mut reporter).await
            }
            Destination::Special(mut file) => to_writer(&volume, &top, &mut file, &mut reporter).await,
        }
    })?;
    reporter.progress.finish();
    let to = quote(args.to.as_os_str().as_bytes());
    let done = copied.map_err(|error| report::failure(&args.place, &to, error))?;
    session.summary(&format!("{to}: {done}"));
    Ok(())
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
    fn of(args: &CpArgs, source: Option<FileKind>) -> Result<Self, Failure> {
        let of_source = args.place.file_name().map(|name| name.as_bytes().to_vec());
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
                // The missing file is then the directory, not the name in it.
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
