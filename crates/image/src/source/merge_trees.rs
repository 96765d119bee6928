//! Merges one tree over another: first removes what the upper one hides, then its nodes replace or
//! join those below.

use super::LoadOptions;
use super::apply_whiteouts;
use super::lost::Lost;
use super::tree_paths;
use crate::tree::{Kind, Meta, Node, NodeId, Payload, Tree};
use crate::{BuildError, Note};
use extant_format::UintExt;
use std::collections::{BTreeMap, BTreeSet};

/// Merges the tree of one source over that of the earlier sources. `source` names it in notes.
pub(super) fn lay(
    tree: &mut Tree,
    upper: Tree,
    source: &str,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let below = (0..upper.node_slots().fit_u32()).filter_map(|id| match upper.node(NodeId(id)).payload {
        Payload::Below { node } => Some(node),
        _ => None,
    });
    let below = below.collect::<BTreeSet<_>>();
    if !below.is_empty() {
        tree.keep_host_paths(below);
    }
    let mut hidden = upper.hidden().to_vec();
    // An archive's entries may be in any order. Hide a directory before anything inside it.
    hidden.sort_by(|a, b| (a.dir.len(), a).cmp(&(b.dir.len(), b)));
    for hidden in hidden {
        apply_whiteouts::hide(tree, &upper, hidden);
    }
    match &options.below {
        _ if upper.is_layered() => tree.mark_layered(),
        Some(below) => below.imply_links(tree, &upper)?,
        None => {}
    }
    if tree.is_blank() {
        let (hidden, is_layered) = (tree.hidden().to_vec(), tree.is_layered());
        *tree = upper;
        tree.set_hidden(hidden);
        if is_layered {
            tree.mark_layered();
        }
        return Ok(());
    }
    notes.extend(graft(tree, &upper)?.note(source));
    Ok(())
}

/// Returns entries of `upper` that others of its entries replace: through a symbolic link below,
/// two paths may be the same.
fn graft(tree: &mut Tree, upper: &Tree) -> Result<Lost, BuildError> {
    // Nodes from here on come from `upper`.
    let first_own = NodeId(tree.node_slots().fit_u32());
    let mut lost = Lost::default();
    let sets: Vec<_> = upper.xattr_sets().map(|set| tree.intern_xattrs(set.to_vec())).collect();
    let meta = |node: &Node| Meta {
        mode: node.mode,
        uid: node.uid,
        gid: node.gid,
        mtime: node.mtime,
        xattrs: sets[node.xattrs.0.to_usize()],
    };
    let mut done: BTreeMap<NodeId, NodeId> = BTreeMap::new();
    // Directories of `upper`, the directories that they merge with, and whether these have a
    // different path, because of a link.
    let mut pending = vec![(NodeId::ROOT, NodeId::ROOT, false)];
    // Paths of unlisted directories that collide with something else. They wait until all links to
    // directories are in place.
    let mut late: Vec<(NodeId, Vec<u8>)> = Vec::new();
    // Directories that meet a link of an earlier source. They may merge with the link's target,
    // except in layers: these list what is a directory in the resulting image.
    let mut behind: Vec<(NodeId, NodeId, Vec<u8>)> = Vec::new();
    if !upper.node(NodeId::ROOT).implied {
        tree.set_meta(NodeId::ROOT, meta(upper.node(NodeId::ROOT)));
    }
    loop {
        let Some((from, to, is_moved)) = pending.pop() else {
            if let Some((from, dir, name)) = behind.pop() {
                let path = [&tree.path(dir)[..], b"/", &name].concat();
                // A link in a cycle leads nowhere.
                let target = tree_paths::find_followed(tree, &path).ok().flatten();
                let target = target.filter(|&target| tree.node(target).kind == Kind::Directory);
                let node = upper.node(from);
                let to = match target {
                    Some(target) if node.implied => target,
                    Some(target) => {
                        tree.set_meta(target, meta(node));
                        target
                    }
                    None if node.implied => tree.imply_directory(dir, &name)?,
                    None => tree.put_directory(dir, &name, meta(node))?,
                };
                pending.push((from, to, true));
                continue;
            }
            let Some((from, path)) = late.pop() else { return Ok(lost) };
            // Do not remove a file that the layer lists in favour of a directory that it does not
            // list.
            match tree_paths::directory_or_make_unless(tree, &path, |node| node >= first_own)? {
                Some(to) => pending.push((from, to, false)),
                None => lost.count_below(upper, from, NodeId::ROOT),
            }
            continue;
        };
        for entry in upper.sorted_children(from) {
            let (id, name) = (upper.entry_node(entry), upper.entry_name(entry));
            let node = upper.node(id);
            let there = tree.lookup(to, name).map(|entry| tree.entry_node(entry));
            if let Some(there) = there {
                match (node.kind, tree.node(there).kind) {
                    (Kind::Directory, Kind::Directory) => {}
                    (Kind::Directory, Kind::Symlink) if there < first_own && !upper.is_layered() => {
                        behind.push((id, to, name.to_vec()));
                        continue;
                    }
                    (Kind::Directory, Kind::Symlink) if node.implied => {}
                    (Kind::Directory, _) if there >= first_own => {
                        if !node.implied {
                            lost.count(|| upper.entry_path(entry));
                        }
                        lost.count_below(upper, id, NodeId::ROOT);
                        continue;
                    }
                    (_, Kind::Directory) => lost.count_below(tree, there, first_own),
                    _ if there >= first_own && done.get(&id) != Some(&there) && !upper.is_layered() => {
                        lost.count(|| [&tree.path(to)[..], b"/", name].concat());
                    }
                    _ => {}
                }
            }
            if let Some(&first) = done.get(&id) {
                tree.link(to, name, first)?;
                continue;
            }
            let made = match (node.kind, node.payload) {
                (Kind::Directory, _) => {
                    let meets = there.map(|there| tree.node(there).kind);
                    if node.implied && upper.is_layered() && meets.is_some_and(|kind| kind != Kind::Directory)
                    {
                        late.push((id, [&tree.path(to)[..], b"/", name].concat()));
                        continue;
                    }
                    let made = match node.implied {
                        true => tree.imply_directory(to, name)?,
                        false => tree.put_directory(to, name, meta(node))?,
                    };
                    pending.push((id, made, is_moved));
                    continue;
                }
                (_, Payload::Below { node }) => {
                    tree.link(to, name, node)?;
                    node
                }
                (Kind::Symlink, _) => tree.put_symlink(to, name, meta(node), upper.symlink_target(id))?,
                (kind, payload) => {
                    // Any of several names may turn out to belong to a file that moved.
                    let payload = match payload {
                        Payload::Host { root } if is_moved || node.names > 1 => {
                            tree.host_at(root, upper.entry_path(entry))
                        }
                        payload => payload,
                    };
                    let sparse = upper.sparse_map(id).map(<[_]>::to_vec);
                    tree.put(to, name, kind, meta(node), payload, node.size, sparse)?
                }
            };
            if node.names > 1 {
                done.insert(id, made);
            }
        }
    }
}
