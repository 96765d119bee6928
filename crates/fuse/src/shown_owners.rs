//! Owners and access lists as programs see them.

use crate::ids::{IdMap, shown_owner};
use crate::owners::Owners;

/// How the volume's owners appear, and which ids exist in the mount's user namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct ShownOwners {
    pub(crate) owners: Owners,
    /// The users and groups of that namespace, if it is not the server's.
    pub(crate) ids: Option<IdMap>,
    /// The kernel checks permissions.
    pub(crate) kernel_checks: bool,
}

impl ShownOwners {
    /// The owner and group that programs see.
    pub(crate) fn owner(&self, user: u32, group: u32) -> (u32, u32) {
        let (user, group) = self.owners.shown(user, group, self.kernel_checks);
        shown_owner(self.ids.as_ref(), user, group)
    }

    /// An access list as programs see it.
    pub(crate) fn list(&self, list: &[u8]) -> Vec<u8> {
        let list = self.owners.shown_list(list);
        match &self.ids {
            Some(ids) => ids.shown_list(&list),
            None => list,
        }
    }
}
