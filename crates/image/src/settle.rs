//! Times beyond those that inodes store, and attributes that ext has no place for, taken out of a tree.

use crate::tree::{NodeId, Tree, XattrSetId, is_storable};
use extant_format::Timestamp;
use std::collections::BTreeMap;

/// An attribute that was taken out of a tree.
pub(crate) struct LeftOut {
    pub(crate) name: Box<[u8]>,
    /// The first node that had it.
    pub(crate) first: NodeId,
    /// Nodes that had it.
    pub(crate) files: u64,
}

/// Takes attributes that ext has no place for out of the nodes of `order`; returns them by name.
pub(crate) fn leave_out_xattrs(tree: &mut Tree, order: impl IntoIterator<Item = NodeId>) -> Vec<LeftOut> {
    // Sets without them by old set; for each name its first node and the number of nodes.
    let mut sets: BTreeMap<XattrSetId, XattrSetId> = BTreeMap::new();
    let mut names: BTreeMap<Box<[u8]>, (NodeId, u64)> = BTreeMap::new();
    for node in order {
        let old = tree.node(node).xattrs;
        let set = tree.xattrs(old);
        if set.iter().all(|xattr| is_storable(&xattr.name)) {
            continue;
        }
        for xattr in set.iter().filter(|xattr| !is_storable(&xattr.name)) {
            names.entry(xattr.name.clone()).or_insert((node, 0)).1 += 1;
        }
        let new = match sets.get(&old) {
            Some(&new) => new,
            None => {
                let kept = set.iter().filter(|xattr| is_storable(&xattr.name)).cloned().collect();
                let new = tree.intern_xattrs(kept);
                sets.insert(old, new);
                new
            }
        };
        tree.node_mut(node).xattrs = new;
    }
    names.into_iter().map(|(name, (first, files))| LeftOut { name, first, files }).collect()
}

/// Makes no time later than `clamp` nor outside `range`, the first and the last second that an inode stores. Returns the
/// nodes whose times were outside, and the latest time.
pub(crate) fn clamp_times(
    tree: &mut Tree,
    range: (i64, i64),
    clamp: Option<Timestamp>,
) -> (Vec<NodeId>, Option<Timestamp>) {
    let mut clamped = Vec::new();
    let mut latest = None;
    for id in (0..tree.node_slots() as u32).map(NodeId) {
        let node = tree.node_mut(id);
        if node.names == 0 || node.implied {
            continue;
        }
        if let Some(clamp) = clamp {
            node.mtime = node.mtime.min(clamp);
        }
        let nearest = node.mtime.seconds.clamp(range.0, range.1);
        if nearest != node.mtime.seconds {
            node.mtime.seconds = nearest;
            clamped.push(id);
        }
        latest = latest.max(Some(node.mtime));
    }
    (clamped, latest)
}
