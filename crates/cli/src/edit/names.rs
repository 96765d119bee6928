//! Names of a volume that are looked at, or taken by something new once it is whole.

use extant::{Dir, Error, FileType};
use extant_fs::quote;

/// Symbolic links that one path may lead through (Linux: `MAXSYMLINKS`).
const LINKS_MAX: u32 = 40;

pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// `other` as it is understood in the directory of `path`.
pub(super) fn beside(path: &[u8], other: &[u8]) -> Vec<u8> {
    if other.starts_with(b"/") {
        return other.to_vec();
    }
    [split(path).0, other].concat()
}

/// The part of a path up to its last name, and that name.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    path[..end].split_at(path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1))
}

/// Whether two paths are one name in one directory.
pub(super) fn is_same_name(root: &Dir, a: &[u8], b: &[u8]) -> bool {
    let ((dir_a, name_a), (dir_b, name_b)) = (split(a), split(b));
    let inode =
        |dir: &[u8]| root.metadata(if dir.is_empty() { b"/" } else { dir }).map(|found| found.inode());
    name_a == name_b && matches!((inode(dir_a), inode(dir_b)), (Ok(a), Ok(b)) if a == b)
}

/// The name that `path` leads to where its last name is that of a symbolic link; nothing need have that name.
///
/// # Errors
/// Too many links, or a directory on the way that is none.
pub(super) fn resolved(root: &Dir, path: &[u8]) -> Result<Vec<u8>, Error> {
    let mut at = path.to_vec();
    for _ in 0..=LINKS_MAX {
        match root.symlink_metadata(&at) {
            Ok(found) if found.file_type() == FileType::Symlink => at = beside(&at, &root.read_link(&at)?),
            Ok(_) | Err(Error::NotFound(_)) => return Ok(at),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Loop(quote(path)))
}

/// Has `make` make something under a temporary name in the directory of `path`, and returns it with that name's path.
///
/// # Errors
/// Those of `make`.
pub(super) fn aside<T>(
    path: &[u8],
    mut make: impl FnMut(&[u8]) -> Result<T, Error>,
) -> Result<(T, Vec<u8>), Error> {
    let mut n = 0;
    loop {
        let temporary = beside(path, format!(".put-{n}~").as_bytes());
        match make(&temporary) {
            Err(Error::Exists(_)) => n += 1,
            made => return Ok((made?, temporary)),
        }
    }
}

/// Has `make` make a link in place of whatever but a directory has the name `path`, which a failure leaves as it was.
///
/// # Errors
/// Those of `make` and of a rename.
pub(super) fn link_over(
    root: &Dir,
    path: &[u8],
    make: impl Fn(&[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    match root.symlink_metadata(path) {
        Err(Error::NotFound(_)) => return make(path),
        Ok(found) if found.is_dir() => return Err(Error::IsADirectory(quote(path))),
        other => other.map(drop)?,
    }
    let ((), temporary) = aside(path, make)?;
    let renamed = root.rename(&temporary, path);
    // A rename over another name of the same file leaves both. The error that is reported is the first.
    if root.symlink_metadata(&temporary).is_ok() {
        let _ = root.remove_file(&temporary);
    }
    renamed
}
