//! `extant cat`.

use crate::args::CatArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::session::{Access, Session};
use extant_format::FileKind;
use extant_fs::{Chunk, Error, Follow, Volume, quote};
use std::sync::LazyLock;

/// Zeros to print for holes; allocated at run time to keep them out of the binary.
static ZEROES: LazyLock<Vec<u8>> = LazyLock::new(|| vec![0; 256 << 10]);

pub(crate) fn run(session: &mut Session, args: &CatArgs) -> Result<(), Failure> {
    for place in &args.places {
        let volume = match session.volume(place, &args.open, Access::Contents) {
            Ok(volume) => volume,
            Err(failure) => {
                session.fail(failure);
                continue;
            }
        };
        let rt = session.rt.clone();
        match rt.block_on(print(session, place, &volume))? {
            Err(failure @ (Failure::Closed | Failure::Stdout(_))) => return Err(failure),
            Err(failure) => session.fail(failure),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Prints a file up to its first unreadable byte: anything after it would be at the wrong offset.
async fn print(session: &mut Session, place: &ImagePath, volume: &Volume) -> Result<(), Failure> {
    let at = |error| Failure::at(place, error);
    let inode = volume.resolve(&place.path, Follow::Yes).await.map_err(at)?;
    match inode.kind() {
        Some(FileKind::Regular) => {}
        Some(FileKind::Directory) => return Err(at(Error::IsADirectory(quote(&place.path)))),
        _ => return Err(at(Error::NotAFile(quote(&place.path)))),
    }
    let mut stream = volume.stream(inode).await.map_err(at)?;
    while let Some(chunk) = stream.next().await.map_err(|lost| at(lost.into()))? {
        match chunk {
            Chunk::Data { bytes, .. } => session.out.write(&bytes)?,
            Chunk::Hole { bytes, .. } => {
                let mut left = bytes;
                while left > 0 {
                    let n = left.min(ZEROES.len() as u64);
                    session.out.write(&ZEROES[..n as usize])?;
                    left -= n;
                }
            }
        }
    }
    Ok(())
}
