//! Patterns in paths of an image: `rootfs.img:/etc/*.conf`.

use crate::args::ImageArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::session::{Access, Session};
use extant_format::{FileKind, Inode};
use extant_fs::{Error, Follow, Volume, WalkOptions};
use glob::{MatchOptions, Pattern};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;

/// As in the shell, `*` does not match a dot at the beginning of a name.
const OPTIONS: MatchOptions =
    MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };

/// Replaces each place whose path is a pattern with what matches, in order of names. A path that
/// exists literally is not taken as a pattern, and a pattern that matches nothing is kept as it is.
pub(crate) fn expanded(
    session: &mut Session,
    places: &[ImagePath],
    open: &ImageArgs,
) -> Result<Vec<ImagePath>, Failure> {
    check_colon(session, places, open)?;
    let mut all = Vec::new();
    for place in places {
        let is_pattern = place.path.iter().any(|byte| b"*?[".contains(byte));
        // The command itself reports a volume that cannot be opened.
        let volume = match is_pattern {
            true => session.volume(place, open, Access::Metadata).ok(),
            false => None,
        };
        let Some(volume) = volume else {
            all.push(place.clone());
            continue;
        };
        let rt = session.rt.clone();
        let found = rt.block_on(matching(&volume, &place.path))?;
        match found.is_empty() {
            true => all.push(place.clone()),
            false => {
                all.extend(found.into_iter().map(|path| ImagePath { image: place.image.clone(), path }));
            }
        }
    }
    Ok(all)
}

/// Refuses `IMAGE /PATH`, two words for a path in an image, which other tools want.
fn check_colon(session: &mut Session, places: &[ImagePath], open: &ImageArgs) -> Result<(), Failure> {
    let is_bare = |place: &ImagePath| place.path == b"/";
    let [image, rest @ ..] = places else { return Ok(()) };
    let of_host = |place: &&ImagePath| is_bare(place) && place.image.is_absolute();
    let Some(path) = rest.iter().find(of_host).filter(|_| is_bare(image)) else { return Ok(()) };
    let has_none = match session.volume(path, open, Access::Metadata) {
        // What opens is an image.
        Ok(_) => return Ok(()),
        Err(failure) => matches!(failure, Failure::NoVolume { .. } | Failure::Foreign { .. }),
    };
    // The command itself tells what is wrong with an image.
    let is_no_image = match std::fs::metadata(&path.image) {
        Ok(there) => there.is_dir() || there.is_file() && has_none,
        Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
    };
    if !is_no_image {
        return Ok(());
    }
    let Ok(volume) = session.volume(image, open, Access::Metadata) else { return Ok(()) };
    let path = path.image.as_os_str().as_bytes().to_vec();
    let meant = ImagePath { image: image.image.clone(), path };
    match session.rt.block_on(meant.resolve(&volume, Follow::Yes))? {
        Ok(_) => Err(Failure::Usage(format!("a path in an image is written {}", meant.quoted()))),
        Err(_) => Ok(()),
    }
}

/// Expands the places and calls `each` for every one, with its volume. If one fails, the failure is
/// reported, and the others follow; only a failure to write the output ends the command.
pub(crate) fn for_each_place(
    session: &mut Session,
    places: &[ImagePath],
    open: &ImageArgs,
    mut each: impl AsyncFnMut(&mut Session, &ImagePath, &Volume) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for place in &expanded(session, places, open)? {
        let volume = match session.volume(place, open, Access::Metadata) {
            Ok(volume) => volume,
            Err(failure) => {
                session.fail(failure);
                continue;
            }
        };
        let rt = session.rt.clone();
        match rt.block_on(each(session, place, &volume))? {
            Err(failure @ (Failure::Closed | Failure::Stdout(_))) => return Err(failure),
            Err(failure) => session.fail(failure),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Paths that match. Unreadable directories match nothing.
async fn matching(volume: &Volume, path: &[u8]) -> Vec<Vec<u8>> {
    if volume.resolve(path, Follow::No).await.is_ok() {
        return Vec::new();
    }
    let mut found: Vec<Vec<u8>> = vec![Vec::new()];
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let pattern = std::str::from_utf8(name).ok().filter(|name| name.contains(['*', '?', '[']));
        let pattern = pattern.and_then(|name| Pattern::new(name).ok());
        let mut next = Vec::new();
        for dir in found {
            match &pattern {
                None => {
                    let path = [&dir[..], b"/", name].concat();
                    if volume.resolve(&path, Follow::No).await.is_ok() {
                        next.push(path);
                    }
                }
                Some(pattern) => {
                    let names = names(volume, &dir).await.unwrap_or_default();
                    let matches =
                        |name: &Vec<u8>| pattern.matches_with(&String::from_utf8_lossy(name), OPTIONS);
                    let paths =
                        names.into_iter().filter(matches).map(|name| [&dir[..], b"/", &name].concat());
                    next.extend(paths);
                }
            }
        }
        found = next;
    }
    found
}

/// The names in a directory, in order.
async fn names(volume: &Volume, path: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let path = if path.is_empty() { b"/" } else { path };
    let dir: Inode = volume.resolve(path, Follow::Yes).await?;
    let mut names = Vec::new();
    if dir.kind() == Some(FileKind::Directory) {
        let mut walk = volume.walk(&dir, WalkOptions { depth: Some(1), ..Default::default() }).await?;
        while let Some(next) = walk.next().await {
            names.extend(next.ok().map(|entry| entry.name));
        }
    }
    Ok(names)
}
