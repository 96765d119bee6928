//! `extant cp`.

use crate::args::CpArgs;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::report::{self, Reporter};
use crate::session::{Access, Session, used_bytes};
use extant_fs::{Follow, quote};
use extant_image::export::to_directory;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) fn run(session: &mut Session, args: &CpArgs) -> Result<(), Failure> {
    // Every directory on the way down stays open.
    let _ = raise_open_files();
    let volume = session.volume(&args.place, &args.open, Access::Contents)?;
    let (directory, name) = destination(args)?;
    let rt = session.rt.clone();
    let progress = Progress::new(used_bytes(&volume), session.quiet);
    let mut reporter = Reporter { session, place: &args.place, progress };
    let copied = rt.block_on(async {
        let top = volume.resolve(&args.place.path, Follow::No).await?;
        to_directory(&volume, &top, &directory, name.as_deref(), &mut reporter).await
    })?;
    reporter.progress.finish();
    let to = quote(args.to.as_os_str().as_bytes());
    let done = copied.map_err(|error| report::failure(&args.place, &to, error))?;
    session.summary(&format!("{to}: {done}"));
    Ok(())
}

/// The directory to copy into, and the name there; none for the root of an image, which goes straight into it.
fn destination(args: &CpArgs) -> Result<(PathBuf, Option<Vec<u8>>), Failure> {
    let of_source = args.place.file_name().map(|name| name.as_bytes().to_vec());
    let host = |error| Failure::host(&args.to, error);
    // With a slash behind it the user says that a symbolic link there is meant to be followed.
    let slash = args.to.as_os_str().as_bytes().ends_with(b"/");
    let there = if slash { args.to.metadata() } else { args.to.symlink_metadata() };
    match (there, of_source) {
        (Ok(there), of_source) if there.is_dir() => Ok((args.to.clone(), of_source)),
        (Ok(there), _) if there.is_symlink() && args.to.is_dir() => Err(host(std::io::Error::other(
            "is a symbolic link; write a slash behind it to copy into its target",
        ))),
        (Ok(_), None) => Err(host(std::io::ErrorKind::NotADirectory.into())),
        (Err(error), _) if error.kind() != std::io::ErrorKind::NotFound => Err(host(error)),
        (_, None) => {
            std::fs::create_dir(&args.to).map_err(host)?;
            Ok((args.to.clone(), None))
        }
        (_, Some(_)) => {
            let name = args.to.file_name().map(OsStr::as_bytes).filter(|_| !slash);
            let name = name.ok_or_else(|| host(std::io::ErrorKind::NotFound.into()))?.to_vec();
            let parent = args.to.parent().filter(|parent| !parent.as_os_str().is_empty());
            // The parent may be reached through links: the user wrote it.
            Ok((parent.unwrap_or(Path::new(".")).join(""), Some(name)))
        }
    }
}

/// As many open files as the user may have.
fn raise_open_files() -> rustix::io::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)
}
