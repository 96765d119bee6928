//! From a path in an archive to a place in the tree. Nothing an archive says leads outside the tree.

use crate::tree::{Kind, NodeId, Tree};
use crate::{BuildError, quoted};
use std::collections::VecDeque;

/// Symbolic links followed on the way to one entry, as in Linux.
const MAX_LINKS: u32 = 40;

/// The parts of a path: `/`, `.` and empty parts vanish, `..` goes up but never above the root.
fn parts(path: &[u8]) -> Vec<&[u8]> {
    let mut out = Vec::new();
    for part in path.split(|b| *b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// Splits a path into the parent directory's path and the last name; `None` for the root itself.
pub(crate) fn split(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let parts = parts(path);
    let (name, parents) = parts.split_last()?;
    Some((parents.join(&b'/'), name.to_vec()))
}

/// The directory at `path`; symbolic links on the way are followed as if the tree were the whole file system. Missing
/// directories are made where `create` says so.
pub(crate) fn directory(tree: &mut Tree, path: &[u8], create: bool) -> Result<Option<NodeId>, BuildError> {
    let mut rest: VecDeque<Vec<u8>> = path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect();
    let mut above = Vec::new();
    let mut at = NodeId::ROOT;
    let mut links = 0;
    while let Some(part) = rest.pop_front() {
        match &part[..] {
            b"" | b"." => continue,
            b".." => {
                at = above.pop().unwrap_or(NodeId::ROOT);
                continue;
            }
            _ => {}
        }
        let found = tree.lookup(at, &part).map(|e| tree.entry_node(e));
        let kind = found.map(|n| tree.node(n).kind);
        match (found, kind) {
            (Some(node), Some(Kind::Directory)) => {
                above.push(std::mem::replace(&mut at, node));
            }
            (Some(node), Some(Kind::Symlink)) if links < MAX_LINKS => {
                links += 1;
                let target = tree.symlink_target(node).to_vec();
                if target.first() == Some(&b'/') {
                    at = NodeId::ROOT;
                    above.clear();
                }
                for part in target.split(|b| *b == b'/').rev() {
                    rest.push_front(part.to_vec());
                }
            }
            (Some(_), Some(Kind::Symlink)) => {
                return Err(BuildError::Source {
                    action: "follow",
                    path: quoted(path),
                    error: std::io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()),
                });
            }
            _ if create => {
                let made = tree.imply_directory(at, &part)?;
                above.push(std::mem::replace(&mut at, made));
            }
            _ => return Ok(None),
        }
    }
    Ok(Some(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Meta, XattrSetId};
    use extant_format::Timestamp;

    const META: Meta = Meta {
        mode: 0o777,
        uid: 0,
        gid: 0,
        mtime: Timestamp { seconds: 0, nanos: 0 },
        xattrs: XattrSetId::EMPTY,
    };

    #[test]
    fn nothing_climbs_above_the_root() {
        assert_eq!(split(b"/../../etc/./passwd"), Some((b"etc".to_vec(), b"passwd".to_vec())));
        assert_eq!(split(b"./"), None);
        assert_eq!(split(b"a/.."), None);
    }

    #[test]
    fn links_on_the_way_are_followed_within_the_tree() {
        let mut tree = Tree::new();
        let usr = tree.imply_directory(NodeId::ROOT, b"usr").unwrap();
        let lib = tree.imply_directory(usr, b"lib").unwrap();
        tree.put_symlink(NodeId::ROOT, b"lib", META, b"../../usr/lib").unwrap();
        tree.put_symlink(usr, b"abs", META, b"/lib").unwrap();
        assert_eq!(directory(&mut tree, b"lib", false).unwrap(), Some(lib));
        assert_eq!(directory(&mut tree, b"usr/abs", false).unwrap(), Some(lib));
        assert_eq!(directory(&mut tree, b"lib/none", false).unwrap(), None);
        tree.put_symlink(NodeId::ROOT, b"loop", META, b"loop").unwrap();
        assert!(directory(&mut tree, b"loop/x", true).is_err());
    }
}
