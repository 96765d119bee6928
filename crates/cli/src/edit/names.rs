//! Paths on a volume.

use extant::{Dir, Error, FileType, Metadata};
use extant_fs::{SYMLINKS_MAX, quote};

pub(super) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = dir.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

/// Resolves `other` relative to the directory of `path`.
pub(super) fn beside(path: &[u8], other: &[u8]) -> Vec<u8> {
    if other.starts_with(b"/") {
        return other.to_vec();
    }
    [split(path).0, other].concat()
}

/// The directory of a path's last component.
pub(super) fn directory_of(path: &[u8]) -> &[u8] {
    match split(path).0 {
        b"" => b".",
        directory => directory,
    }
}

/// Splits off the last component of a path.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    path[..end].split_at(path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1))
}

/// Whether two paths are the same name in the same directory.
pub(super) fn is_same_name(root: &Dir, a: &[u8], b: &[u8]) -> bool {
    let ((dir_a, name_a), (dir_b, name_b)) = (split(a), split(b));
    let inode =
        |dir: &[u8]| root.metadata(if dir.is_empty() { b"/" } else { dir }).map(|found| found.inode());
    name_a == name_b && matches!((inode(dir_a), inode(dir_b)), (Ok(a), Ok(b)) if a == b)
}

/// Follows symbolic links in the last component of `path`; the resulting name may not exist.
///
/// # Errors
/// Too many links, or a component on the way is not a directory.
pub(super) fn resolved(root: &Dir, path: &[u8]) -> Result<Vec<u8>, Error> {
    find_resolved(root, path).map(|(path, _)| path)
}

/// Like [`resolved`], and returns the attributes of the file if it exists.
pub(super) fn find_resolved(root: &Dir, path: &[u8]) -> Result<(Vec<u8>, Option<Metadata>), Error> {
    let mut at = path.to_vec();
    for _ in 0..=SYMLINKS_MAX {
        match root.symlink_metadata(&at) {
            Ok(found) if found.file_type() == FileType::Symlink => at = beside(&at, &root.read_link(&at)?),
            Ok(found) => return Ok((at, Some(found))),
            Err(Error::NotFound(_)) => return Ok((at, None)),
            Err(error) => return Err(error),
        }
    }
    Err(Error::Loop(quote(path)))
}
