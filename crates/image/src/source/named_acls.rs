//! Access lists of archives that name users and groups (`SCHILY.acl.*`, as GNU tar writes them).
//!
//! The names come from the machine that packed the archive. Numbers are looked up in the archive's
//! headers, then in the sources' own `/etc/passwd` and `/etc/group`, or else in those of the volume
//! that they are added to, then in this host's, with a note.

use super::acl_text::{NameOf, acl_from_text};
use super::known_owners::KnownOwners;
use super::owners::Owners;
use super::{LoadOptions, Stores};
use crate::tree::{NodeId, Tree, Xattr, XattrSetId};
use crate::{BuildError, Note, quoted};
use extant_format::UintExt;
use std::collections::BTreeMap;

/// Names of attributes whose value is an access list in text. On a volume, no attribute has such a
/// name.
pub(crate) const ACCESS_TEXT: &[u8] = b"SCHILY.acl.access";
pub(crate) const DEFAULT_TEXT: &[u8] = b"SCHILY.acl.default";
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

/// Converts all lists in text to the binary form that inodes store.
///
/// # Errors
/// A list is malformed, or contains a name that is not found anywhere.
pub(crate) fn resolve(
    tree: &mut Tree,
    stores: &mut Stores,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let is_text = |set: &[Xattr]| set.iter().any(|xattr| binary_name(&xattr.name).is_some());
    if !tree.xattr_sets().any(is_text) {
        return Ok(());
    }
    stores.finish()?;
    let others = KnownOwners::of(tree, stores, options.below.as_ref())?;
    let mut known = Known { headers: &stores.owners, others };
    let mut sets: BTreeMap<XattrSetId, XattrSetId> = BTreeMap::new();
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
        let (old, names) = (tree.node(id).xattrs, tree.node(id).names);
        if id != NodeId::ROOT && names == 0 || !is_text(tree.xattrs(old)) {
            continue;
        }
        let new = match sets.get(&old) {
            Some(&new) => new,
            None => {
                let resolved = known.resolve_set(tree.xattrs(old)).map_err(|problem| {
                    let path = if id == NodeId::ROOT { b"/".to_vec() } else { tree.any_path(id) };
                    BuildError::AccessList { path: quoted(&path), problem }
                })?;
                let new = tree.intern_xattrs(resolved);
                sets.insert(old, new);
                new
            }
        };
        tree.node_mut(id).xattrs = new;
    }
    notes.extend(known.others.note());
    Ok(())
}

/// Returns the name of the binary attribute for an access list in text.
fn binary_name(name: &[u8]) -> Option<&'static [u8]> {
    match name {
        ACCESS_TEXT => Some(ACCESS),
        DEFAULT_TEXT => Some(DEFAULT),
        _ => None,
    }
}

struct Known<'a> {
    headers: &'a Owners,
    others: KnownOwners,
}

impl Known<'_> {
    fn resolve_set(&mut self, set: &[Xattr]) -> Result<Vec<Xattr>, String> {
        let mut resolved = Vec::with_capacity(set.len());
        for xattr in set {
            match binary_name(&xattr.name) {
                None => resolved.push(xattr.clone()),
                // The same header also contains the list in binary form, with numbers.
                Some(name) if set.iter().any(|other| *other.name == *name) => {}
                Some(name) => {
                    let value = acl_from_text(&xattr.value, |of, name| self.number_of(of, name))?;
                    // Lists without entries, which GNU tar writes, are dropped by `settle`.
                    resolved.push(Xattr { name: name.into(), value: value.into() });
                }
            }
        }
        Ok(resolved)
    }

    fn number_of(&mut self, of: NameOf, name: &str) -> Result<u32, String> {
        if let Some(number) = self.headers.get(of, name) {
            return Ok(number);
        }
        self.others.number_of(of, name.as_bytes()).map_err(|unknown| {
            format!(
                "it names someone whom the archive does not know, and {unknown}; pack with tar --no-acls, or with \
                 bsdtar, which writes numbers"
            )
        })
    }
}
