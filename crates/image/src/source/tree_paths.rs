//! Resolves archive paths to nodes of the tree. No path leads outside the tree.

use crate::BuildError;
use crate::tree::{Kind, NodeId, Tree};
use extant_fs::SYMLINKS_MAX;
use std::collections::VecDeque;

/// Components of a path: `/`, `.` and empty components are dropped; `..` goes up, but never above
/// the root.
pub(crate) fn parts(path: &[u8]) -> Vec<&[u8]> {
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

/// Splits a path into the parent's path and the last name; `None` for the root.
pub(crate) fn split(path: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let parts = parts(path);
    let (name, parents) = parts.split_last()?;
    Some((parents.join(&b'/'), name.to_vec()))
}

/// The directory at `path`, if any. Symbolic links on the way are followed as if the tree were the
/// whole file system.
pub(crate) fn directory(tree: &Tree, path: &[u8]) -> Result<Option<NodeId>, BuildError> {
    let mut way = Way::along(path);
    Ok(way.go(tree)?.is_none().then_some(way.at))
}

/// Like [`directory`], but creates missing directories, and replaces anything else that has their
/// names.
pub(crate) fn directory_or_make(tree: &mut Tree, path: &[u8]) -> Result<NodeId, BuildError> {
    Ok(directory_or_make_unless(tree, path, |_| false)?.expect("nothing is kept"))
}

/// Like [`directory_or_make`], but returns `None` if it would replace something for which `is_kept`
/// is true.
pub(crate) fn directory_or_make_unless(
    tree: &mut Tree,
    path: &[u8],
    is_kept: impl Fn(NodeId) -> bool,
) -> Result<Option<NodeId>, BuildError> {
    let mut way = Way::along(path);
    while let Some(missing) = way.go(tree)? {
        if tree.lookup(way.at, &missing).is_some_and(|entry| is_kept(tree.entry_node(entry))) {
            return Ok(None);
        }
        let made = tree.imply_directory(way.at, &missing)?;
        way.enter(made);
    }
    Ok(Some(way.at))
}

/// The node at `path`, if any. Symbolic links are followed, except in the last component.
pub(crate) fn find(tree: &Tree, path: &[u8]) -> Result<Option<NodeId>, BuildError> {
    let Some((parent, name)) = split(path) else { return Ok(Some(NodeId::ROOT)) };
    let Some(parent) = directory(tree, &parent)? else { return Ok(None) };
    Ok(tree.lookup(parent, &name).map(|entry| tree.entry_node(entry)))
}

/// Like [`find`], but also follows a symbolic link in the last component.
pub(crate) fn find_followed(tree: &Tree, path: &[u8]) -> Result<Option<NodeId>, BuildError> {
    let mut path = path.to_vec();
    for _ in 0..=SYMLINKS_MAX {
        let Some(node) = find(tree, &path)? else { return Ok(None) };
        if tree.node(node).kind != Kind::Symlink {
            return Ok(Some(node));
        }
        let target = tree.symlink_target(node);
        path = match (target.first(), split(&path)) {
            (Some(b'/'), _) | (_, None) => target.to_vec(),
            (_, Some((parent, _))) => [&parent[..], b"/", target].concat(),
        };
    }
    Err(too_many_links(&path))
}

pub(crate) fn too_many_links(path: &[u8]) -> BuildError {
    BuildError::source("follow", path, rustix::io::Errno::LOOP)
}

/// A path resolution in progress.
struct Way<'p> {
    path: &'p [u8],
    at: NodeId,
    /// Ancestors of `at`.
    above: Vec<NodeId>,
    rest: VecDeque<Vec<u8>>,
    links: u32,
}

impl<'p> Way<'p> {
    fn along(path: &'p [u8]) -> Self {
        let rest = path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect();
        Self { path, at: NodeId::ROOT, above: Vec::new(), rest, links: 0 }
    }

    fn enter(&mut self, dir: NodeId) {
        self.above.push(std::mem::replace(&mut self.at, dir));
    }

    /// Resolves to the end, or up to the first name that is not a directory, which is returned.
    fn go(&mut self, tree: &Tree) -> Result<Option<Vec<u8>>, BuildError> {
        while let Some(part) = self.rest.pop_front() {
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    self.at = self.above.pop().unwrap_or(NodeId::ROOT);
                    continue;
                }
                _ => {}
            }
            let Some(node) = tree.lookup(self.at, &part).map(|entry| tree.entry_node(entry)) else {
                return Ok(Some(part));
            };
            match tree.node(node).kind {
                Kind::Directory => self.enter(node),
                Kind::Symlink => {
                    let target = tree.symlink_target(node);
                    // The path is a hard link to a symbolic link of a lower layer, whose target is
                    // unknown here.
                    if target.is_empty() {
                        return Ok(Some(part));
                    }
                    self.follow(target)?;
                }
                _ => return Ok(Some(part)),
            }
        }
        Ok(None)
    }

    fn follow(&mut self, target: &[u8]) -> Result<(), BuildError> {
        if self.links == SYMLINKS_MAX {
            return Err(too_many_links(self.path));
        }
        self.links += 1;
        if target.first() == Some(&b'/') {
            self.at = NodeId::ROOT;
            self.above.clear();
        }
        for part in target.split(|b| *b == b'/').rev() {
            self.rest.push_front(part.to_vec());
        }
        Ok(())
    }
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
        assert_eq!(directory(&tree, b"lib").unwrap(), Some(lib));
        assert_eq!(directory(&tree, b"usr/abs").unwrap(), Some(lib));
        assert_eq!(directory(&tree, b"lib/none").unwrap(), None);
        tree.put_symlink(NodeId::ROOT, b"loop", META, b"loop").unwrap();
        assert!(directory_or_make(&mut tree, b"loop/x").is_err());
    }
}
