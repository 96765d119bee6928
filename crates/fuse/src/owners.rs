//! Owners that appear under numbers other than the volume's, and callers that act as the volume's
//! root.

use crate::errno::{Errno, Result};
use crate::ids::{IdRanges, renumbered_list};

/// Programs see this number for ids outside all ranges, as on Linux (`overflowuid`).
const NOBODY: u32 = 65_534;
const ROOT: u32 = 0;
/// Stands for a user or group without a number. It cannot own anything: to chown(2), this number
/// means no change.
const NONE: u32 = u32::MAX;

/// How the volume's users, or its groups, appear to programs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShownIds {
    /// Under their own numbers.
    #[default]
    Own,
    /// All under this number, whose user acts as the volume's root. New files belong to root on the
    /// volume.
    AllAs(u32),
    /// By ranges: `inside` is the number on the volume, `outside` the one that programs see. Ids
    /// outside all ranges appear as nobody (65534).
    Ranges(IdRanges),
}

impl ShownIds {
    fn shown(&self, id: u32) -> Option<u32> {
        match self {
            Self::Own => Some(id),
            Self::AllAs(one) => (id == ROOT).then_some(*one),
            Self::Ranges(ranges) => ranges.outside(id),
        }
    }

    /// The number on the volume for a number that programs use.
    fn stored(&self, id: u32) -> Option<u32> {
        match self {
            Self::Own => Some(id),
            Self::AllAs(one) => (id == *one || id == ROOT).then_some(ROOT),
            Self::Ranges(ranges) => ranges.inside(id),
        }
    }

    fn shown_owner(&self, id: u32) -> Option<u32> {
        match self {
            Self::AllAs(one) => Some(*one),
            _ => self.shown(id),
        }
    }
}

/// How owners appear, and which user acts as root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The users.
    pub users: ShownIds,
    /// The groups.
    pub groups: ShownIds,
    /// This user acts as root: nothing is forbidden, and new files belong to root.
    pub fakeroot: Option<u32>,
}

/// A caller, in the volume's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredCaller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The caller has all capabilities.
    pub(crate) is_root: bool,
    /// The caller has numbers on the volume, so it can own something there.
    pub(crate) can_own: bool,
}

impl Owners {
    /// Whether anything differs from the volume's own numbers. Set-ID programs and device nodes of
    /// the volume must then have no effect.
    pub fn are_changed(&self) -> bool {
        *self != Self::default()
    }

    /// The owner and group that programs see. Hidden owners appear as nobody. If the kernel checks
    /// permissions, they get an invalid number instead, because a process may run as nobody.
    pub(crate) fn shown(&self, user: u32, group: u32, kernel_checks: bool) -> (u32, u32) {
        let absent = if kernel_checks { NONE } else { NOBODY };
        let shown = |ids: &ShownIds, id: u32| ids.shown_owner(id).unwrap_or(absent);
        (shown(&self.users, user), shown(&self.groups, group))
    }

    /// # Errors
    /// The volume has no number for it.
    pub(crate) fn stored_user(&self, user: u32) -> Result<u32> {
        self.users.stored(user).ok_or_else(|| Errno::OVERFLOW.into())
    }

    /// # Errors
    /// The volume has no number for it.
    pub(crate) fn stored_group(&self, group: u32) -> Result<u32> {
        self.groups.stored(group).ok_or_else(|| Errno::OVERFLOW.into())
    }

    pub(crate) fn caller(&self, user: u32, group: u32) -> StoredCaller {
        if self.fakeroot.is_some_and(|root| user == root || user == ROOT) {
            return StoredCaller { uid: ROOT, gid: ROOT, is_root: true, can_own: true };
        }
        let (uid, gid) = (self.users.stored(user), self.groups.stored(group));
        StoredCaller {
            uid: uid.unwrap_or(NONE),
            gid: gid.unwrap_or(NONE),
            // Root of this host keeps its privileges even if it has no number.
            is_root: uid == Some(ROOT) || user == ROOT,
            can_own: uid.is_some() && gid.is_some(),
        }
    }

    /// A program's groups in the volume's numbers. Groups without a number are left out.
    pub(crate) fn stored_groups(&self, groups: &[u32]) -> Vec<u32> {
        groups.iter().filter_map(|&group| self.groups.stored(group)).collect()
    }

    /// An access list as programs see it, without the entries of hidden users and groups.
    pub(crate) fn shown_list(&self, list: &[u8]) -> Vec<u8> {
        self.shown_entries(list).0
    }

    /// Whether an access list contains entries of hidden users or groups.
    pub(crate) fn hides_of(&self, list: &[u8]) -> bool {
        !self.shown_entries(list).1
    }

    /// The entries of an access list that programs see, and whether these are all.
    fn shown_entries(&self, list: &[u8]) -> (Vec<u8>, bool) {
        renumbered_list(list, |user| self.users.shown(user), |group| self.groups.shown(group))
    }

    /// An access list from a program, in the volume's numbers.
    ///
    /// # Errors
    /// The volume has no number for a user or group in the list.
    pub(crate) fn stored_list(&self, list: &[u8]) -> Result<Vec<u8>> {
        let (list, is_whole) =
            renumbered_list(list, |user| self.users.stored(user), |group| self.groups.stored(group));
        is_whole.then_some(list).ok_or_else(|| Errno::OVERFLOW.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::IdRange;

    fn ranges(ranges: &[(u32, u32, u32)]) -> ShownIds {
        let range = |&(inside, outside, count): &_| IdRange { inside, outside, count };
        ShownIds::Ranges(IdRanges(ranges.iter().map(range).collect()))
    }

    #[test]
    fn one_user_stands_for_all() {
        let owners =
            Owners { users: ShownIds::AllAs(1000), groups: ShownIds::AllAs(100), ..Owners::default() };
        assert_eq!([0, 33, 1000].map(|user| owners.shown(user, user, true)), [(1000, 100); 3]);
        assert_eq!([0, 1000].map(|user| owners.stored_user(user).ok()), [Some(0); 2]);
        assert_eq!(owners.stored_user(33).unwrap_err().errno(), 75);
        let caller = owners.caller(1000, 100);
        assert_eq!(caller, StoredCaller { uid: 0, gid: 0, is_root: true, can_own: true });
        let other = owners.caller(1001, 100);
        assert_eq!(other, StoredCaller { uid: u32::MAX, gid: 0, is_root: false, can_own: false });
    }

    #[test]
    fn ranges_move_ids() {
        let users = ranges(&[(0, 1000, 1), (1, 100_000, 65_535)]);
        let owners = Owners { groups: users.clone(), users, fakeroot: None };
        assert_eq!(
            [0, 1, 65_535, 65_536].map(|user| owners.shown(user, 0, false).0),
            [1000, 100_000, 165_534, 65_534]
        );
        assert_eq!(owners.shown(65_536, 0, true).0, u32::MAX);
        assert_eq!([1000, 100_000, 5].map(|user| owners.stored_user(user).ok()), [Some(0), Some(1), None]);
        assert!(owners.caller(1000, 1000).is_root && !owners.caller(100_005, 1000).is_root);
        let root = owners.caller(0, 0);
        assert!(root.is_root && !root.can_own);
        assert_eq!(owners.stored_groups(&[100_001, 7]), [2]);
    }

    #[test]
    fn with_fakeroot_only_the_user_who_mounts_is_root() {
        let owners = Owners { fakeroot: Some(1000), ..Owners::default() };
        assert_eq!(owners.shown(33, 5, false), (33, 5));
        assert!(owners.caller(1000, 1000).is_root && owners.caller(0, 0).is_root);
        let other = owners.caller(1001, 5);
        assert_eq!(other, StoredCaller { uid: 1001, gid: 5, is_root: false, can_own: true });
        assert!(owners.are_changed() && !Owners::default().are_changed());
    }

    #[test]
    fn access_lists_are_moved_both_ways() {
        let entry = |tag: u8, id: u32| [&[tag, 0, 7, 0][..], &id.to_le_bytes()].concat();
        let list = |entries: &[(u8, u32)]| {
            let entries = entries.iter().flat_map(|&(tag, id)| entry(tag, id));
            [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<_>>()
        };
        let owners =
            Owners { users: ranges(&[(0, 1000, 10)]), groups: ranges(&[(0, 2000, 10)]), fakeroot: None };
        let stored = list(&[(1, u32::MAX), (2, 5), (8, 5), (32, u32::MAX)]);
        let shown = list(&[(1, u32::MAX), (2, 1005), (8, 2005), (32, u32::MAX)]);
        assert_eq!(owners.shown_list(&stored), shown);
        assert_eq!(owners.stored_list(&shown).unwrap(), stored);
        assert_eq!(owners.shown_list(&list(&[(2, 70)])), list(&[]));
        assert!(owners.hides_of(&list(&[(2, 5), (2, 70)])) && !owners.hides_of(&stored));
        assert!(owners.stored_list(&stored).is_err());
    }
}
