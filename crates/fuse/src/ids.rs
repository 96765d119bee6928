//! The users and groups of a mount in its own user namespace.

/// A range of ids, as numbered in the mount's namespace and in the surrounding one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// First id inside the namespace.
    pub inside: u32,
    /// The same id outside the namespace.
    pub outside: u32,
    /// Number of ids.
    pub count: u32,
}

impl IdRange {
    /// A range that is the same on both sides.
    pub const fn same(first: u32, count: u32) -> Self {
        Self { inside: first, outside: first, count }
    }
}

/// The ids of one kind that exist inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdRanges(pub Vec<IdRange>);

impl IdRanges {
    fn contain(&self, id: u32) -> bool {
        self.0.iter().any(|range| id.checked_sub(range.inside).is_some_and(|at| at < range.count))
    }

    /// The outside number for an inside number.
    pub(crate) fn outside(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|range| {
            let at = id.checked_sub(range.inside).filter(|at| *at < range.count)?;
            range.outside.checked_add(at)
        })
    }

    /// The inside number for an outside number.
    pub fn inside(&self, id: u32) -> Option<u32> {
        self.0.iter().find_map(|range| {
            let at = id.checked_sub(range.outside).filter(|at| *at < range.count)?;
            range.inside.checked_add(at)
        })
    }
}

/// Users and groups that exist inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdMap {
    /// The users.
    pub users: IdRanges,
    /// The groups.
    pub groups: IdRanges,
}

impl IdMap {
    fn shown_user(&self, id: u32) -> u32 {
        if self.users.contain(id) { id } else { 0 }
    }

    fn shown_group(&self, id: u32) -> u32 {
        if self.groups.contain(id) { id } else { 0 }
    }

    /// An access list (`posix_acl_xattr.h`) without the entries of users and groups that do not
    /// exist inside. They cannot apply to any process there, but the kernel would refuse the whole
    /// list.
    pub(crate) fn shown_list(&self, list: &[u8]) -> Vec<u8> {
        let own = |ranges: &IdRanges, id: u32| ranges.contain(id).then_some(id);
        renumbered_list(list, |user| own(&self.users, user), |group| own(&self.groups, group)).0
    }

    /// Whether there is only one user, or only one group. The kernel then refuses most access
    /// lists.
    pub fn is_single(&self) -> bool {
        let count = |ranges: &IdRanges| ranges.0.iter().map(|range| u64::from(range.count)).sum::<u64>();
        count(&self.users) <= 1 || count(&self.groups) <= 1
    }
}

/// The user and group to report to the kernel. Ids that do not exist inside are reported as root's:
/// the kernel has no number for them, and would refuse to open their files for writing, even for
/// root.
pub(crate) fn shown_owner(ids: Option<&IdMap>, user: u32, group: u32) -> (u32, u32) {
    ids.map_or((user, group), |ids| (ids.shown_user(user), ids.shown_group(group)))
}

/// Changes the numbers in an access list. Leaves out entries without a new number; returns whether
/// all entries have one.
pub(crate) fn renumbered_list(
    list: &[u8],
    user: impl Fn(u32) -> Option<u32>,
    group: impl Fn(u32) -> Option<u32>,
) -> (Vec<u8>, bool) {
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    let (version, entries) = list.split_at(list.len().min(4));
    let mut changed = version.to_vec();
    let mut is_whole = true;
    for entry in entries.chunks(8) {
        let moved = match *entry {
            [a, b, c, d, e, f, g, h] => {
                let id = u32::from_le_bytes([e, f, g, h]);
                let id = match u16::from_le_bytes([a, b]) {
                    USER => user(id),
                    GROUP => group(id),
                    _ => Some(id),
                };
                id.map(|id| [&[a, b, c, d][..], &id.to_le_bytes()].concat())
            }
            _ => Some(entry.to_vec()),
        };
        is_whole &= moved.is_some();
        changed.extend(moved.unwrap_or_default());
    }
    (changed, is_whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_do_not_exist_inside_are_shown_as_root() {
        let subordinate = IdRange { inside: 1, outside: 100_000, count: 65_535 };
        let users = IdRanges(vec![IdRange { inside: 0, outside: 1000, count: 1 }, subordinate]);
        let map = IdMap { users: users.clone(), groups: IdRanges(vec![users.0[0]]) };
        assert_eq!([0, 1, 65_535, 65_536, u32::MAX].map(|id| map.shown_user(id)), [0, 1, 65_535, 0, 0]);
        assert_eq!([0, 1].map(|id| map.shown_group(id)), [0, 0]);
        assert_eq!(
            [1000, 0, 100_000, 165_534, 165_535].map(|id| users.inside(id)),
            [Some(0), None, Some(1), Some(65_535), None]
        );
        assert!(map.is_single());
        let entry = |tag: u8, id: u32| [&[tag, 0, 7, 0][..], &id.to_le_bytes()].concat();
        let list = |entries: &[(u8, u32)]| {
            let entries = entries.iter().flat_map(|&(tag, id)| entry(tag, id));
            [2, 0, 0, 0].into_iter().chain(entries).collect::<Vec<_>>()
        };
        // The owner, users 5 and 70000, the group, groups 0 and 5, the mask and others.
        let all = [(1, u32::MAX), (2, 5), (2, 70_000), (4, u32::MAX), (8, 0), (8, 5), (16, u32::MAX)];
        let expected = [all[0], all[1], all[3], all[4], all[6]];
        assert_eq!(map.shown_list(&list(&all)), list(&expected));
        assert_eq!(map.shown_list(&[2, 0]), [2, 0]);
        assert!(!IdMap { groups: users.clone(), users }.is_single());
    }
}
