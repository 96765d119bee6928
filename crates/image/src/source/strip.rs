//! Leaves out access lists and other attributes of the sources.

use super::acl_text::acl_from_text;
use super::named_acls::{ACCESS_TEXT, DEFAULT_TEXT};
use crate::tree::{Kind, NodeId, Tree, Xattr, XattrSetId};
use extant_format::{Acl, AclTag, InodeNumber, UintExt};
use std::collections::BTreeMap;

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Removes access lists, or all other extended attributes, from every node.
pub(super) fn strip(tree: &mut Tree, no_acls: bool, no_xattrs: bool) {
    if !no_acls && !no_xattrs {
        return;
    }
    // For each set, what remains of it, and the permissions that its list gives the owning group.
    let mut sets: BTreeMap<XattrSetId, (XattrSetId, Option<u16>)> = BTreeMap::new();
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
        let old = tree.node(id).xattrs;
        if old == XattrSetId::EMPTY {
            continue;
        }
        let (new, group) = match sets.get(&old) {
            Some(&known) => known,
            None => {
                let is_kept = |xattr: &&Xattr| !if is_list(&xattr.name) { no_acls } else { no_xattrs };
                let group = if no_acls { group_of(tree.xattrs(old)) } else { None };
                let kept = tree.xattrs(old).iter().filter(is_kept).cloned().collect();
                let known = (tree.intern_xattrs(kept), group);
                sets.insert(old, known);
                known
            }
        };
        let node = tree.node_mut(id);
        node.xattrs = new;
        if let Some(group) = group.filter(|_| node.kind != Kind::Symlink) {
            node.mode = node.mode & !0o070 | group << 3;
        }
    }
}

fn is_list(name: &[u8]) -> bool {
    [ACCESS, DEFAULT, ACCESS_TEXT, DEFAULT_TEXT].contains(&name)
}

/// The permissions of the owning group under an access list. In the mode, the list's mask takes
/// their place; without the list, it would grant the group permissions that only others in the list
/// had.
fn group_of(set: &[Xattr]) -> Option<u16> {
    let list = set.iter().find_map(|xattr| match &*xattr.name {
        ACCESS => Some(xattr.value.to_vec()),
        // It does not matter whom the names refer to.
        ACCESS_TEXT => acl_from_text(&xattr.value, |_, _| Ok(0)).ok(),
        _ => None,
    })?;
    let list = Acl::parse_xattr(&list, InodeNumber(0)).ok()?;
    let of =
        |tag| list.entries().iter().find(|entry| entry.tag == tag).map(|entry| u16::from(entry.permissions));
    Some(of(AclTag::OwningGroup)? & of(AclTag::Mask).unwrap_or(0o7))
}
