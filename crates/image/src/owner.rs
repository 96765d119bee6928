//! Owners on the volume: the source's, root, or mapped ids.

use crate::tree::{NodeId, Tree, Xattr, XattrSetId};
use crate::{BuildError, IdRange, OwnerMap, Ownership};
use extant_format::{
    Acl, AclTag, CAPABILITY_XATTR, InodeNumber, UintExt, capability_root, with_capability_root,
};
use std::collections::BTreeMap;

/// Sets owners throughout the tree.
pub(crate) fn apply(tree: &mut Tree, ownership: &Ownership) -> Result<(), BuildError> {
    let map = match ownership {
        Ownership::Source => return Ok(()),
        Ownership::AllRoot => None,
        Ownership::Map(map) => Some(map),
    };
    let mut sets = BTreeMap::new();
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
        let (uid, gid, xattrs) = {
            let node = tree.node(id);
            // Directories that no source lists belong to root, regardless of the map.
            if node.names == 0 || node.implied {
                continue;
            }
            (node.uid, node.gid, node.xattrs)
        };
        let (uid, gid) = match map {
            None => (0, 0),
            Some(map) => {
                let unmapped =
                    |what, id_of| BuildError::Unmapped { path: some_path(tree, id), what, id: id_of };
                let uid = mapped(&map.users, uid).ok_or_else(|| unmapped("user", uid))?;
                (uid, mapped(&map.groups, gid).ok_or_else(|| unmapped("group", gid))?)
            }
        };
        let xattrs = match sets.get(&xattrs) {
            Some(&set) => set,
            None => {
                let set = mapped_xattrs(tree, id, xattrs, map)?;
                sets.insert(xattrs, set);
                set
            }
        };
        let node = tree.node_mut(id);
        (node.uid, node.gid, node.xattrs) = (uid, gid, xattrs);
    }
    Ok(())
}

fn mapped(ranges: &[IdRange], id: u32) -> Option<u32> {
    ranges.iter().find_map(|range| {
        let offset = id.checked_sub(range.from).filter(|&n| n < range.count)?;
        range.to.checked_add(offset)
    })
}

fn some_path(tree: &Tree, id: NodeId) -> String {
    crate::quoted(&tree.any_path(id))
}

/// The set, in which the users and groups of access control lists and capabilities are mapped, too.
/// If everything belongs to root, lists are not changed.
fn mapped_xattrs(
    tree: &mut Tree,
    id: NodeId,
    set: XattrSetId,
    map: Option<&OwnerMap>,
) -> Result<XattrSetId, BuildError> {
    let mut xattrs: Vec<Xattr> = tree.xattrs(set).to_vec();
    let mut changed = false;
    for xattr in &mut xattrs {
        let unmapped =
            |what, unmapped| BuildError::Unmapped { path: some_path(tree, id), what, id: unmapped };
        let new = match map {
            _ if *xattr.name == *CAPABILITY_XATTR => mapped_capability(&xattr.value, map),
            Some(map) if xattr.name.starts_with(b"system.posix_acl_") => mapped_acl(&xattr.value, map),
            _ => continue,
        };
        if let Some(new) = new.map_err(|(what, id)| unmapped(what, id))? {
            xattr.value = new.into();
            changed = true;
        }
    }
    Ok(if changed { tree.intern_xattrs(xattrs) } else { set })
}

/// An id outside every range, and what kind of id it is.
type Unmapped = (&'static str, u32);

/// Maps the ids in an access list. An invalid list is reported later, when it is placed.
fn mapped_acl(value: &[u8], map: &OwnerMap) -> Result<Option<Vec<u8>>, Unmapped> {
    let Ok(acl) = Acl::parse_xattr(value, InodeNumber(0)) else { return Ok(None) };
    // Version, then 8 bytes per entry with the id last, so a valid list can be changed in place.
    let mut value = value.to_vec();
    for (slot, entry) in value[4..].chunks_exact_mut(8).zip(acl.entries()) {
        let new = match entry.tag {
            AclTag::User(id) => mapped(&map.users, id).ok_or(("access list's user", id)),
            AclTag::Group(id) => mapped(&map.groups, id).ok_or(("access list's group", id)),
            _ => continue,
        };
        slot[4..].copy_from_slice(&new?.to_le_bytes());
    }
    Ok(Some(value))
}

/// Maps the root user of namespaced capabilities; without a map, to 0.
fn mapped_capability(value: &[u8], map: Option<&OwnerMap>) -> Result<Option<Vec<u8>>, Unmapped> {
    let Some(old) = capability_root(value) else { return Ok(None) };
    let new = match map {
        None => 0,
        Some(map) => match mapped(&map.users, old) {
            Some(new) => new,
            // Capabilities without a root id apply everywhere.
            None if old == 0 => return Ok(None),
            None => return Err(("capabilities' root user", old)),
        },
    };
    Ok(with_capability_root(value, new).filter(|_| new != old))
}
