//! `extant find`.

use crate::args::FindArgs;
use crate::failure::Failure;
use crate::globs;
use crate::image_path::ImagePath;
use crate::output::outln;
use crate::session::Session;
use extant_format::{FileKind, Inode};
use extant_fs::{Follow, Volume, WalkOptions, quote};

pub(crate) fn run(session: &mut Session, args: &FindArgs) -> Result<(), Failure> {
    globs::for_each_place(session, &args.places, &args.open, async |session, place, volume| {
        find(session, args, place, volume).await
    })
}

async fn find(
    session: &mut Session,
    args: &FindArgs,
    place: &ImagePath,
    volume: &Volume,
) -> Result<(), Failure> {
    let at = |error| Failure::at(place, error);
    let top = place.resolve(volume, Follow::No).await.map_err(at)?;
    let name = place.path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or(b"/");
    if matches(args, name, top.kind(), Some(&top)) {
        print(session, args, &place.below(b""))?;
    }
    if top.kind() != Some(FileKind::Directory) {
        return Ok(());
    }
    let options = WalkOptions {
        inodes: args.min_size.is_some(),
        depth: args.max_depth.map(|depth| depth as usize),
        whole_directories: false,
    };
    let mut walk = volume.walk(&top, options).await.map_err(at)?;
    while let Some(next) = walk.next().await {
        match next {
            Err(error) => session.fail_walk(place, error),
            Ok(entry) if matches(args, &entry.name, entry.kind, entry.inode.as_ref()) => {
                print(session, args, &place.below(walk.path()))?;
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

fn matches(args: &FindArgs, name: &[u8], kind: Option<FileKind>, inode: Option<&Inode>) -> bool {
    let is_named = args.name.as_ref().is_none_or(|pattern| pattern.matches(&String::from_utf8_lossy(name)));
    let letter = match kind {
        None => "",
        Some(FileKind::Regular) => "f",
        Some(FileKind::Directory) => "d",
        Some(FileKind::Symlink) => "l",
        Some(FileKind::BlockDevice) => "b",
        Some(FileKind::CharDevice) => "c",
        Some(FileKind::Fifo) => "p",
        Some(FileKind::Socket) => "s",
    };
    is_named
        && args.kind.as_ref().is_none_or(|kind| kind == letter)
        && args.min_size.is_none_or(|least| inode.is_some_and(|inode| inode.size() >= least))
}

fn print(session: &mut Session, args: &FindArgs, path: &[u8]) -> Result<(), Failure> {
    match args.print0 {
        true => session.out.write(&[path, b"\0"].concat()),
        false => outln!(session.out, "{}", quote(path)),
    }
}
