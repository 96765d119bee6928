//! The ids of a process, and the rules by which it may change them (credentials(7)). They follow
//! Linux (kernel/sys.c, kernel/groups.c), so that programs get the same answers.

use super::agreed::KEEP;
use rustix::io::Errno;

/// The ids of one kind: users or groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ids {
    pub(super) real: u32,
    pub(super) effective: u32,
    pub(super) saved: u32,
    /// The one that acts on files.
    pub(super) fs: u32,
}

impl Ids {
    const fn all(id: u32) -> Self {
        Self { real: id, effective: id, saved: id, fs: id }
    }

    fn has(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }

    /// setuid(2), setgid(2).
    fn set(self, id: u32, privileged: bool) -> Result<Self, Errno> {
        match id {
            KEEP => Err(Errno::INVAL),
            _ if privileged => Ok(Self::all(id)),
            _ if id == self.real || id == self.saved => Ok(Self { effective: id, fs: id, ..self }),
            _ => Err(Errno::PERM),
        }
    }

    /// setreuid(2), setregid(2).
    fn set_two(self, [real, effective]: [u32; 2], privileged: bool) -> Result<Self, Errno> {
        let allowed =
            [(real, [self.real, self.effective, KEEP]), (effective, [self.real, self.effective, self.saved])];
        if !privileged && allowed.iter().any(|(id, own)| *id != KEEP && !own.contains(id)) {
            return Err(Errno::PERM);
        }
        let mut next = self.with([real, effective, KEEP]);
        if real != KEEP || (effective != KEEP && effective != self.real) {
            next.saved = next.effective;
        }
        Ok(next)
    }

    /// setresuid(2), setresgid(2).
    fn set_three(self, ids: [u32; 3], privileged: bool) -> Result<Self, Errno> {
        let [real, effective, saved] = ids;
        let is = |id: u32, own: u32| id == KEEP || id == own;
        if is(real, self.real)
            && is(effective, self.effective)
            && is(effective, self.fs)
            && is(saved, self.saved)
        {
            return Ok(self);
        }
        if !privileged && ids.iter().any(|id| *id != KEEP && !self.has(*id)) {
            return Err(Errno::PERM);
        }
        Ok(self.with(ids))
    }

    /// setfsuid(2), setfsgid(2): never fails.
    fn set_fs(self, id: u32, privileged: bool) -> Self {
        let allowed = id != KEEP && (privileged || self.has(id) || id == self.fs);
        if allowed { Self { fs: id, ..self } } else { self }
    }

    fn with(self, [real, effective, saved]: [u32; 3]) -> Self {
        let or = |id: u32, kept: u32| if id == KEEP { kept } else { id };
        let effective = or(effective, self.effective);
        Self { real: or(real, self.real), effective, saved: or(saved, self.saved), fs: effective }
    }
}

/// Users or groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    User,
    Group,
}

/// A change of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    One(u32),
    Two([u32; 2]),
    Three([u32; 3]),
    Fs(u32),
}

/// The ids of a process. A process starts as root without supplementary groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Credentials {
    pub(super) users: Ids,
    pub(super) groups: Ids,
    /// Supplementary groups, sorted as Linux reports them.
    pub(super) supplementary: Vec<u32>,
}

impl Credentials {
    /// Whether the process may take any id: CAP_SETUID and CAP_SETGID come and go with an effective
    /// user of root, unless it keeps them.
    pub(super) fn is_privileged(&self) -> bool {
        self.users.effective == 0
    }

    pub(super) fn ids(&self, kind: Kind) -> Ids {
        match kind {
            Kind::User => self.users,
            Kind::Group => self.groups,
        }
    }

    /// The credentials after a change by a process that may take any id if it is privileged.
    pub(super) fn changed(&self, kind: Kind, change: Change, privileged: bool) -> Result<Self, Errno> {
        let ids = self.ids(kind);
        let ids = match change {
            Change::One(id) => ids.set(id, privileged)?,
            Change::Two(two) => ids.set_two(two, privileged)?,
            Change::Three(three) => ids.set_three(three, privileged)?,
            Change::Fs(id) => ids.set_fs(id, privileged),
        };
        Ok(match kind {
            Kind::User => Self { users: ids, ..self.clone() },
            Kind::Group => Self { groups: ids, ..self.clone() },
        })
    }

    /// After execve(2), the saved ids and those that act on files are the effective ones.
    pub(super) fn of_next_program(&self) -> Self {
        let [users, groups] = [self.users, self.groups].map(|Ids { real, effective, .. }| Ids {
            real,
            effective,
            saved: effective,
            fs: effective,
        });
        Self { users, groups, supplementary: self.supplementary.clone() }
    }

    /// setgroups(2).
    pub(super) fn with_groups(&self, mut groups: Vec<u32>, privileged: bool) -> Result<Self, Errno> {
        if !privileged {
            return Err(Errno::PERM);
        }
        if groups.contains(&KEEP) {
            return Err(Errno::INVAL);
        }
        groups.sort_unstable();
        Ok(Self { supplementary: groups, ..self.clone() })
    }

    /// Whether the process may give away a file outside of the volume, whose owner is not known.
    pub(super) fn may_give(&self, user: u32, group: u32) -> bool {
        let is_own_group = || group == self.groups.fs || self.supplementary.contains(&group);
        self.users.fs == 0 || ((user == KEEP || user == self.users.fs) && (group == KEEP || is_own_group()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Change::{Fs, One, Three, Two};

    fn changed(mut of: Credentials, changes: &[Change]) -> Result<[u32; 4], Errno> {
        for change in changes {
            of = of.changed(Kind::User, *change, of.is_privileged())?;
        }
        let Ids { real, effective, saved, fs } = of.users;
        Ok([real, effective, saved, fs])
    }

    /// The expected ids are those that Linux gives to root in a namespace with all ids (checked by
    /// `ids_change_as_the_kernel_changes_them` of the tests of the command).
    #[test]
    fn ids_change_as_in_linux() {
        let root = Credentials::default;
        for (changes, expected) in [
            (&[One(5)][..], Ok([5, 5, 5, 5])),
            (&[One(5), One(0)], Err(Errno::PERM)),
            (&[One(KEEP)], Err(Errno::INVAL)),
            (&[Two([KEEP, 5])], Ok([0, 5, 5, 5])),
            (&[Two([5, KEEP])], Ok([5, 0, 0, 0])),
            (&[Two([5, 6]), Two([6, 5])], Ok([6, 5, 5, 5])),
            (&[Two([5, 6]), Two([7, KEEP])], Err(Errno::PERM)),
            (&[Three([KEEP, 5, KEEP])], Ok([0, 5, 0, 5])),
            (&[Three([KEEP, 5, KEEP]), One(7)], Err(Errno::PERM)),
            (&[Three([KEEP, 5, KEEP]), One(0)], Ok([0, 0, 0, 0])),
            (&[Three([1, 2, 3]), Three([3, 1, 2])], Ok([3, 1, 2, 1])),
            (&[Three([1, 2, 3]), One(2)], Err(Errno::PERM)),
            (&[Three([1, 2, 3]), One(3)], Ok([1, 3, 3, 3])),
            (&[Three([1, 2, 3]), Three([KEEP, 0, KEEP])], Err(Errno::PERM)),
            (&[Fs(5)], Ok([0, 0, 0, 5])),
            (&[Fs(5), Three([KEEP; 3])], Ok([0, 0, 0, 5])),
            (&[Fs(5), Three([KEEP, 0, KEEP])], Ok([0, 0, 0, 0])),
            (&[One(5), Fs(6)], Ok([5, 5, 5, 5])),
            (&[Fs(KEEP)], Ok([0, 0, 0, 0])),
        ] {
            assert_eq!(changed(root(), changes), expected, "{changes:?}");
        }
    }

    #[test]
    fn only_root_changes_groups() {
        let root = Credentials::default();
        let many = root.with_groups(vec![7, 3], true).unwrap();
        assert_eq!(many.supplementary, [3, 7]);
        assert_eq!(root.with_groups(vec![KEEP], true), Err(Errno::INVAL));
        let user =
            many.changed(Kind::Group, One(2), true).unwrap().changed(Kind::User, One(5), true).unwrap();
        assert!(many.is_privileged() && !user.is_privileged());
        assert_eq!(user.with_groups(Vec::new(), false), Err(Errno::PERM));
        assert_eq!(user.changed(Kind::Group, One(0), false), Err(Errno::PERM));
        assert!(many.may_give(9, 9) && user.may_give(5, 7) && user.may_give(KEEP, 2));
        assert!(!user.may_give(0, KEEP) && !user.may_give(KEEP, 0));
    }
}
