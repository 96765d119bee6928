//! What the supervisor tells the server, over the mount.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Setting this attribute to a [`NewOwner`] changes the owner of a file of any kind.
pub(crate) const OWNER_ATTRIBUTE: &str = "system.extant.owner";

/// In place of an id: leave it as it is (chown(2)).
pub(super) const KEEP: u32 = u32::MAX;

/// A change of owner.
#[derive(Clone, Copy, Debug, FromBytes, Immutable, IntoBytes, KnownLayout, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct NewOwner {
    /// Whose credentials the process has that makes the change.
    pub(super) number: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl NewOwner {
    /// The user, unless it stays.
    pub(crate) fn user(&self) -> Option<u32> {
        (self.uid != KEEP).then_some(self.uid)
    }

    /// The group, unless it stays.
    pub(crate) fn group(&self) -> Option<u32> {
        (self.gid != KEEP).then_some(self.gid)
    }
}

/// Type and number of the ioctl on the root directory that tells the server of credentials: their
/// number, the user and the group that act on files, and the supplementary groups. Unlike an
/// attribute, it can be sent on a mount that is read-only.
const REGISTRATION: u32 = 0x58ee;
/// `_IOC_WRITE`, on the processors that the filter knows.
const WRITES: u32 = 1 << 30;
/// Bits of an ioctl's command that hold the length of its argument (`_IOC_SIZEBITS`).
const LENGTH_BITS: u32 = 14;
/// Maximum number of supplementary groups that fit. Linux itself allows 65,536.
pub(super) const GROUPS_MAX: usize = ((1 << LENGTH_BITS) - 1) / size_of::<u32>() - 3;

/// The command that registers credentials with an argument of this many bytes.
pub(super) fn registration(bytes: u32) -> u32 {
    WRITES | bytes << 16 | REGISTRATION
}

pub(crate) fn is_registration(command: u32) -> bool {
    command & (WRITES | 0xffff) == WRITES | REGISTRATION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_groups_fit_into_one_command() {
        let bytes = u32::try_from(4 * (GROUPS_MAX + 3)).unwrap();
        assert!(bytes < 1 << LENGTH_BITS && bytes + 4 >= 1 << LENGTH_BITS);
        assert_eq!(registration(bytes) >> 16 & 0x3fff, bytes);
        assert!(is_registration(registration(12)) && is_registration(registration(bytes)));
        assert!(!is_registration(0x4008_6602));
    }
}
