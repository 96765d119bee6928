//! Adjusts what sources may contain but a volume cannot store: times out of range, attributes that
//! ext cannot store, modes that contradict access lists.

use crate::tree::{Kind, NodeId, Tree, Xattr, XattrSetId, is_storable};
use crate::{Note, quoted};
use extant_format::{Acl, AclTag, InodeNumber, Timestamp, UintExt};
use std::collections::BTreeMap;

/// An attribute removed from a tree.
pub(crate) struct LeftOut {
    pub(crate) name: Box<[u8]>,
    /// Linux supports such attributes, but not on files of this type.
    pub(crate) is_misplaced: bool,
    /// The first node that had it.
    pub(crate) first: NodeId,
    /// Number of nodes that had it.
    pub(crate) files: u64,
}

impl LeftOut {
    /// Makes a note about the attribute; `path` is that of the first node, quoted.
    pub(crate) fn note(&self, path: String) -> Note {
        let (name, files) = (quoted(&self.name), self.files);
        match self.is_misplaced {
            true => Note::XattrMisplaced { name, path, files },
            false => Note::XattrLeftOut { name, path, files },
        }
    }
}

/// An attribute's name.
type Name = Box<[u8]>;
/// Whether it could be stored on another type of file.
type IsMisplaced = bool;

/// Removes attributes that ext or Linux cannot store from the nodes in `order`; returns them by
/// name.
pub(crate) fn leave_out_xattrs(tree: &mut Tree, order: impl IntoIterator<Item = NodeId>) -> Vec<LeftOut> {
    // The reduced set for each old one; for each name, its first node and the number of nodes.
    let mut sets: BTreeMap<(XattrSetId, Kind), XattrSetId> = BTreeMap::new();
    let mut names: BTreeMap<(Name, IsMisplaced), (NodeId, u64)> = BTreeMap::new();
    for node in order {
        let (old, kind) = (tree.node(node).xattrs, tree.node(node).kind);
        let has_place = |xattr: &Xattr| is_storable(&xattr.name) && !is_misplaced(&xattr.name, kind);
        let is_kept = |xattr: &Xattr| has_place(xattr) && !is_empty_list(xattr);
        let set = tree.xattrs(old);
        if set.iter().all(is_kept) {
            continue;
        }
        for xattr in set.iter().filter(|xattr| !has_place(xattr)) {
            let name = (xattr.name.clone(), is_storable(&xattr.name));
            names.entry(name).or_insert((node, 0)).1 += 1;
        }
        let new = match sets.get(&(old, kind)) {
            Some(&new) => new,
            None => {
                let kept = set.iter().filter(|xattr| is_kept(xattr)).cloned().collect();
                let new = tree.intern_xattrs(kept);
                sets.insert((old, kind), new);
                new
            }
        };
        tree.node_mut(node).xattrs = new;
    }
    let left_out = |((name, is_misplaced), (first, files))| LeftOut { name, is_misplaced, first, files };
    names.into_iter().map(left_out).collect()
}

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";
/// The first word of a list's value (`linux/posix_acl_xattr.h`).
const VERSION_OF_LISTS: u32 = 2;

/// Whether Linux does not allow an attribute of this name on files of this type (xattr(7), acl(5)).
fn is_misplaced(name: &[u8], kind: Kind) -> bool {
    match kind {
        Kind::Directory => false,
        _ if name == DEFAULT_LIST => true,
        Kind::File => false,
        _ if name == ACCESS_LIST => kind == Kind::Symlink,
        _ => name.starts_with(b"user."),
    }
}

/// Whether an access list has no entries. Linux stores no attribute for such a list; GNU tar writes
/// one as the default list of a directory that has only an access list.
fn is_empty_list(xattr: &Xattr) -> bool {
    [ACCESS_LIST, DEFAULT_LIST].contains(&&*xattr.name) && *xattr.value == VERSION_OF_LISTS.to_le_bytes()
}

/// Sets the mode of every node with an access list as Linux does: the group bits are the list's
/// mask.
///
/// Archives may store the owning group's permissions there instead (bsdtar). As in Linux, a list
/// equivalent to a mode is dropped.
pub(crate) fn follow_access_lists(tree: &mut Tree) {
    // By set: the permissions, and the set that is kept.
    let mut sets: BTreeMap<XattrSetId, Option<(u16, XattrSetId)>> = BTreeMap::new();
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
        let (set, kind) = (tree.node(id).xattrs, tree.node(id).kind);
        if set == XattrSetId::EMPTY || kind == Kind::Symlink {
            continue;
        }
        let found = match sets.get(&set) {
            Some(&found) => found,
            None => {
                let found = access_list(tree, set);
                sets.insert(set, found);
                found
            }
        };
        if let Some((permissions, kept)) = found {
            let node = tree.node_mut(id);
            node.mode = node.mode & !0o777 | permissions;
            node.xattrs = kept;
        }
    }
}

/// Returns the mode bits for the access list in a set, and the set to keep: without the list if it
/// is equivalent to a mode (kernel: `posix_acl_equiv_mode`).
fn access_list(tree: &mut Tree, set: XattrSetId) -> Option<(u16, XattrSetId)> {
    let list = tree.xattrs(set).iter().find(|xattr| *xattr.name == *ACCESS_LIST)?;
    // An invalid list is reported later, when it is placed.
    let list = Acl::parse_xattr(&list.value, InodeNumber(0)).ok()?;
    let of =
        |tag| list.entries().iter().find(|entry| entry.tag == tag).map(|entry| u16::from(entry.permissions));
    let mask = of(AclTag::Mask);
    let group = mask.or(of(AclTag::OwningGroup))?;
    let permissions = of(AclTag::Owner)? << 6 | group << 3 | of(AclTag::Other)?;
    if mask.is_some() {
        return Some((permissions, set));
    }
    let others = tree.xattrs(set).iter().filter(|xattr| *xattr.name != *ACCESS_LIST).cloned().collect();
    Some((permissions, tree.intern_xattrs(others)))
}

/// Clamps times to at most `clamp` and to `range`, the earliest and latest second that an inode can
/// store. Returns the nodes whose times were out of range.
pub(crate) fn clamp_times(tree: &mut Tree, range: (i64, i64), clamp: Option<Timestamp>) -> Vec<NodeId> {
    let mut clamped = Vec::new();
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
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
    }
    clamped
}
