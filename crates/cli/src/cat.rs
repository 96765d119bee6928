//! `extant cat`.

use crate::args::{CatArgs, ImageArgs};
use crate::failure::Failure;
use crate::globs;
use crate::image_path::ImagePath;
use crate::session::{Access, Session};
use extant_format::FileKind;
use extant_fs::{Chunk, Error, Follow, Volume, quote};
use std::sync::LazyLock;

/// Zeros to print for holes; allocated at run time to keep them out of the binary.
static ZEROES: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; 256 << 10]);

pub(crate) fn run(session: &mut Session, args: &CatArgs) -> Result<(), Failure> {
    for place in &globs::expanded(session, &args.places, &args.open)? {
        print_file(session, place, &args.open, &mut |_| None)?;
    }
    Ok(())
}

/// Prints a file, or reports why not. `wanted` returns how much of a piece is still to be printed,
/// if not all of it; nothing after that is read.
pub(crate) fn print_file(
    session: &mut Session,
    place: &ImagePath,
    open: &ImageArgs,
    wanted: &mut dyn FnMut(&[u8]) -> Option<usize>,
) -> Result<(), Failure> {
    let volume = match session.volume(place, open, Access::Contents) {
        Ok(volume) => volume,
        Err(failure) => {
            session.fail(failure);
            return Ok(());
        }
    };
    let rt = session.rt.clone();
    match rt.block_on(print(session, place, &volume, wanted))? {
        Err(failure @ (Failure::Closed | Failure::Stdout(_))) => return Err(failure),
        Err(failure) => session.fail(failure),
        Ok(()) => {}
    }
    Ok(())
}

/// Prints a file up to its first unreadable byte: anything after it would be at the wrong offset.
async fn print(
    session: &mut Session,
    place: &ImagePath,
    volume: &Volume,
    wanted: &mut dyn FnMut(&[u8]) -> Option<usize>,
) -> Result<(), Failure> {
    let at = |error| Failure::at(place, error);
    let inode = place.resolve(volume, Follow::Yes).await.map_err(at)?;
    match inode.kind() {
        Some(FileKind::Regular) => {}
        Some(FileKind::Directory) => return Err(at(Error::IsADirectory(quote(&place.path)))),
        _ => return Err(at(Error::NotAFile(quote(&place.path)))),
    }
    let mut stream = volume.stream(inode).await.map_err(at)?;
    while let Some(chunk) = stream.next().await.map_err(|lost| at(lost.into()))? {
        match chunk {
            Chunk::Data { bytes, .. } => {
                if let Some(last) = wanted(&bytes) {
                    return session.out.write(&bytes[..last]);
                }
                session.out.write(&bytes)?;
            }
            Chunk::Hole { bytes, .. } => {
                let mut left = bytes;
                while left > 0 {
                    let n = left.min(ZEROES.len() as u64);
                    let zeroes = &ZEROES[..n as usize];
                    if let Some(last) = wanted(zeroes) {
                        return session.out.write(&zeroes[..last]);
                    }
                    session.out.write(zeroes)?;
                    left -= n;
                }
            }
        }
    }
    Ok(())
}
