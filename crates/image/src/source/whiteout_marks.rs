//! Marks in image layers: names, devices and attributes that are not files of the image but say
//! what a layer hides.
//!
//! In layer tars, marks are names that begin with `.wh.` (OCI image-spec, layer.md); AUFS keeps
//! further files of its own under `.wh..wh.`. In directories of overlayfs (Linux,
//! Documentation/filesystems/overlayfs.rst) they are devices 0:0 and attributes.

use super::tree_paths;
use crate::BuildError;
use crate::tree::{Hidden, Kind, NodeId, Payload, Step, Tree, Xattr};
use extant_format::UintExt;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Prefix of AUFS's private files, and of [`OPAQUE`].
const PRIVATE: &[u8] = b".wh..wh.";

/// The meaning of a path in a layer that is not a file of the image.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Hides something in lower layers.
    Hides(Hidden),
    /// This path and everything below it are left out of the image. Hard links may still lead to
    /// files there.
    Private(Vec<u8>),
}

/// Whether a name by itself is a mark.
pub(super) fn is_mark(name: &[u8]) -> bool {
    name.starts_with(WHITEOUT)
}

pub(super) fn mark_of(path: &[u8]) -> Option<Mark> {
    let parts = tree_paths::parts(path);
    let (name, dir) = parts.split_last()?;
    let private = |parts: &[&[u8]]| Some(Mark::Private(parts.join(&b'/')));
    if let Some(at) = dir.iter().position(|part| is_mark(part)) {
        return private(&parts[..=at]);
    }
    let steps = || dir.iter().map(|part| Step { name: part.to_vec(), listed: false }).collect();
    match name.strip_prefix(WHITEOUT)? {
        _ if *name == OPAQUE => Some(Mark::Hides(Hidden { dir: steps(), name: None })),
        b"" | b"." | b".." => private(&parts),
        _ if name.starts_with(PRIVATE) => private(&parts),
        hidden => Some(Mark::Hides(Hidden { dir: steps(), name: Some(hidden.to_vec()) })),
    }
}

/// Removes private files from a layer's tree.
pub(super) fn remove_private(
    tree: &mut Tree,
    paths: impl IntoIterator<Item = Vec<u8>>,
) -> Result<(), BuildError> {
    for path in paths {
        if let Some((parent, name)) = tree_paths::split(&path)
            && let Some(dir) = tree_paths::directory(tree, &parent)?
        {
            tree.remove(dir, &name);
        }
    }
    Ok(())
}

/// Removes all marks from a layer's tree and records what they hide. `source` names the layer in
/// messages.
pub(super) fn take_marks(tree: &mut Tree, source: &str) -> Result<(), BuildError> {
    let mut pending = vec![NodeId::ROOT];
    while let Some(dir) = pending.pop() {
        if take_attributes(tree, dir, source)? == Attributes::Opaque {
            tree.hide_contents(dir);
        }
        for entry in tree.sorted_children(dir) {
            let (name, id) = (tree.entry_name(entry).to_vec(), tree.entry_node(entry));
            match mark_of(&name) {
                Some(Mark::Hides(Hidden { name: Some(hidden), .. })) => tree.hide(dir, &hidden),
                Some(Mark::Hides(_)) => tree.hide_contents(dir),
                Some(Mark::Private(_)) => {}
                None if tree.node(id).kind == Kind::Directory => {
                    pending.push(id);
                    continue;
                }
                None if is_whiteout(tree, id) => tree.hide(dir, &name),
                None => match take_attributes(tree, id, source)? {
                    Attributes::Whiteout => tree.hide(dir, &name),
                    _ => continue,
                },
            }
            tree.remove(dir, &name);
        }
    }
    Ok(())
}

/// Whether a layer's tree has overlayfs marks.
pub(super) fn has_overlay_marks(tree: &Tree) -> bool {
    tree.xattr_sets().any(|set| set.iter().any(|xattr| overlay_name(&xattr.name).is_some()))
        || (0..tree.node_slots().fit_u32()).any(|id| is_whiteout(tree, NodeId(id)))
}

/// Whether a character device with these numbers is an overlayfs mark.
pub(super) fn is_whiteout_device(device: Payload) -> bool {
    device == Payload::Device { major: 0, minor: 0 }
}

fn is_whiteout(tree: &Tree, id: NodeId) -> bool {
    tree.node(id).kind == Kind::CharDevice && is_whiteout_device(tree.node(id).payload)
}

#[derive(PartialEq, Eq)]
enum Attributes {
    None,
    Opaque,
    Whiteout,
}

/// The part of an attribute's name after the prefix of overlayfs or fuse-overlayfs; `None` for
/// other attributes.
fn overlay_name(name: &[u8]) -> Option<&[u8]> {
    let prefixes: [&[u8]; 3] = [b"trusted.overlay.", b"user.overlay.", b"user.fuseoverlayfs."];
    prefixes.iter().find_map(|prefix| name.strip_prefix(*prefix))
}

/// Removes overlayfs attributes from a node, and returns what they mean.
fn take_attributes(tree: &mut Tree, id: NodeId, source: &str) -> Result<Attributes, BuildError> {
    let node = *tree.node(id);
    let mut means = Attributes::None;
    let mut kept: Vec<Xattr> = Vec::new();
    for xattr in tree.xattrs(node.xattrs) {
        match overlay_name(&xattr.name) {
            None => kept.push(xattr.clone()),
            Some(b"opaque") if *xattr.value == *b"y" => means = Attributes::Opaque,
            Some(b"whiteout") if node.kind == Kind::File && node.size == 0 => means = Attributes::Whiteout,
            Some(b"redirect" | b"metacopy") => {
                let problem = format!(
                    "it has {}, so that its contents lie in another layer; pack the layer with the tool that made it, or \
                     build from the mounted overlay",
                    crate::quoted(&xattr.name)
                );
                let path = format!("{} of {source}", crate::quoted(&tree.any_path(id)));
                return Err(BuildError::Layer { path, problem });
            }
            Some(_) => {}
        }
    }
    if kept.len() < tree.xattrs(node.xattrs).len() {
        tree.node_mut(id).xattrs = tree.intern_xattrs(kept);
    }
    Ok(means)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_something() {
        let hides = |dir: &[&str], name: Option<&str>| {
            let step = |name: &&str| Step { name: name.as_bytes().to_vec(), listed: false };
            let dir = dir.iter().map(step).collect();
            Some(Mark::Hides(Hidden { dir, name: name.map(|name| name.as_bytes().to_vec()) }))
        };
        let private = |path: &[u8]| Some(Mark::Private(path.to_vec()));
        assert_eq!(mark_of(b"./a/.wh.b"), hides(&["a"], Some("b")));
        assert_eq!(mark_of(b"../.wh.b"), hides(&[], Some("b")));
        assert_eq!(mark_of(b"a/.wh..wh..opq"), hides(&["a"], None));
        assert_eq!(mark_of(b".wh..wh.plnk/1.2"), private(b".wh..wh.plnk"));
        assert_eq!(mark_of(b"a/.wh.b/.wh.c"), private(b"a/.wh.b"));
        assert_eq!(mark_of(b"a/.wh..wh.orph"), private(b"a/.wh..wh.orph"));
        for name in [&b".wh."[..], b".wh..", b".wh..."] {
            assert_eq!(mark_of(name), private(name));
        }
        assert_eq!(mark_of(b"a/.whatever"), None);
        assert_eq!(mark_of(b"/"), None);
    }
}
