//! Names of a volume.

use extant::{Dir, Error, FileType, Metadata};
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

/// The directory in which the last name of a path lies.
pub(super) fn directory_of(path: &[u8]) -> &[u8] {
    match split(path).0 {
        b"" => b".",
        directory => directory,
    }
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
    find_resolved(root, path).map(|(path, _)| path)
}

/// As [`resolved`], with the attributes of what has that name.
pub(super) fn find_resolved(root: &Dir, path: &[u8]) -> Result<(Vec<u8>, Option<Metadata>), Error> {
    let mut at = path.to_vec();
    for _ in 0..=LINKS_MAX {
        match root.symlink_metadata(&at) {
            Ok(found) if found.file_type() == FileType::Symlink => at = beside(&at, &root.read_link(&at)?),
            Ok(found) => return Ok((at, Some(found))),
            Err(Error::NotFound(_)) => return Ok((at, None)),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Loop(quote(path)))
}
