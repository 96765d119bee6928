//! `extant du`.

use crate::args::DuArgs;
use crate::failure::Failure;
use crate::globs;
use crate::image_path::ImagePath;
use crate::output::outln;
use crate::session::Session;
use crate::values;
use extant_format::{FileKind, Inode, InodeNumber};
use extant_fs::{Follow, Volume, WalkOptions, quote};
use std::collections::BTreeSet;

pub(crate) fn run(session: &mut Session, args: &DuArgs) -> Result<(), Failure> {
    globs::for_each_place(session, &args.places, &args.open, async |session, place, volume| {
        count(session, args, place, volume).await
    })
}

/// A directory whose contents are being counted.
struct Open {
    path: Vec<u8>,
    bytes: u64,
}

async fn count(
    session: &mut Session,
    args: &DuArgs,
    place: &ImagePath,
    volume: &Volume,
) -> Result<(), Failure> {
    let at = |error| Failure::at(place, error);
    let top = place.resolve(volume, Follow::Yes).await.map_err(at)?;
    let bytes = allocated(volume, &top);
    if top.kind() != Some(FileKind::Directory) {
        return print(session, args, &place.below(b""), bytes);
    }
    let mut open = vec![Open { path: place.below(b""), bytes }];
    // Files with several names that were already counted.
    let mut counted: BTreeSet<InodeNumber> = BTreeSet::new();
    let mut walk = volume.walk(&top, WalkOptions { inodes: true, ..Default::default() }).await.map_err(at)?;
    while let Some(next) = walk.next().await {
        let entry = match next {
            Ok(entry) => entry,
            Err(error) => {
                session.fail_walk(place, error);
                continue;
            }
        };
        close(session, args, &mut open, entry.depth)?;
        let Some(inode) = &entry.inode else { continue };
        let is_dir = inode.kind() == Some(FileKind::Directory);
        if !is_dir && inode.links() > 1 && !counted.insert(inode.number) {
            continue;
        }
        let bytes = allocated(volume, inode);
        let path = place.below(walk.path());
        if is_dir {
            open.push(Open { path, bytes });
            continue;
        }
        if args.all && is_shown(args, entry.depth) {
            print(session, args, &path, bytes)?;
        }
        open.last_mut().expect("the top stays open").bytes += bytes;
    }
    close(session, args, &mut open, 0)
}

/// Closes directories until only `depth` of them are open, and prints those that it closes.
fn close(session: &mut Session, args: &DuArgs, open: &mut Vec<Open>, depth: usize) -> Result<(), Failure> {
    while open.len() > depth {
        let Some(Open { path, bytes }) = open.pop() else { break };
        if let Some(above) = open.last_mut() {
            above.bytes += bytes;
        }
        if is_shown(args, open.len()) {
            print(session, args, &path, bytes)?;
        }
    }
    Ok(())
}

fn is_shown(args: &DuArgs, depth: usize) -> bool {
    let deepest = if args.summarize { Some(0) } else { args.max_depth };
    deepest.is_none_or(|deepest| depth <= deepest)
}

fn allocated(volume: &Volume, inode: &Inode) -> u64 {
    inode.blocks_512(volume.superblock()).saturating_mul(512)
}

fn print(session: &mut Session, args: &DuArgs, path: &[u8], bytes: u64) -> Result<(), Failure> {
    let size = if args.human_readable { values::human(bytes) } else { bytes.to_string() };
    outln!(session.out, "{size}\t{}", quote(path))
}
