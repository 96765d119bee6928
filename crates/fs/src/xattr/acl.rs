//! Evaluating access control lists: permission checks, inheritance by new files, and keeping a list
//! and a mode consistent.
//!
//! The rules are those of POSIX 1003.1e draft 17 as Linux applies them (fs/posix_acl.c:
//! `posix_acl_permission`, `posix_acl_create_masq`, `__posix_acl_chmod_masq`,
//! `posix_acl_equiv_mode`).

use extant_format::{Acl, AclTag, UintExt};

/// Mode bits for owner, group and others.
const MODE_BITS: u16 = 0o777;

/// Whether a list grants `want` (4 read, 2 write, 1 execute) to a user who is neither the file's
/// owner nor privileged. `in_group` says whether the user is in a given group; `owning_group` is
/// the file's.
pub(crate) fn grants(
    acl: &Acl,
    user: u32,
    owning_group: u32,
    in_group: impl Fn(u32) -> bool,
    want: u8,
) -> bool {
    let mask = mask(acl).unwrap_or(7);
    let mut group_found = false;
    for entry in acl.entries() {
        let permissions = entry.permissions;
        match entry.tag {
            AclTag::User(id) if id == user => return permissions & mask & want == want,
            AclTag::OwningGroup if in_group(owning_group) => {
                group_found = true;
                if permissions & want == want {
                    return mask & want == want;
                }
            }
            AclTag::Group(id) if in_group(id) => {
                group_found = true;
                if permissions & want == want {
                    return mask & want == want;
                }
            }
            AclTag::Other => return !group_found && permissions & want == want,
            _ => {}
        }
    }
    false
}

fn mask(acl: &Acl) -> Option<u8> {
    acl.entries().iter().find(|entry| entry.tag == AclTag::Mask).map(|entry| entry.permissions)
}

/// The list and mode of a file created with `mode` in a directory with this default list. The umask
/// does not apply. No list is returned if the mode alone expresses it.
pub(crate) fn inherit(default: &Acl, mode: u16) -> (Option<Acl>, u16) {
    let has_mask = mask(default).is_some();
    let access = default.with_permissions(|tag, permissions| match tag {
        AclTag::Owner => permissions & (mode >> 6).low_u8(),
        AclTag::Mask => permissions & (mode >> 3).low_u8(),
        AclTag::OwningGroup if !has_mask => permissions & (mode >> 3).low_u8(),
        AclTag::Other => permissions & mode.low_u8(),
        _ => permissions,
    });
    let (bits, exact) = mode_of(&access);
    let mode = mode & !MODE_BITS | bits;
    (if exact { None } else { Some(access) }, mode)
}

/// The mode bits equivalent to a list, and whether they express all of it.
pub(crate) fn mode_of(acl: &Acl) -> (u16, bool) {
    let mut bits = 0;
    let mut exact = true;
    for entry in acl.entries() {
        let permissions = u16::from(entry.permissions);
        match entry.tag {
            AclTag::Owner => bits |= permissions << 6,
            AclTag::OwningGroup => bits |= permissions << 3,
            AclTag::Other => bits |= permissions,
            AclTag::Mask => {}
            AclTag::User(_) | AclTag::Group(_) => exact = false,
        }
    }
    match mask(acl) {
        Some(mask) => (bits & !0o070 | u16::from(mask) << 3, false),
        None => (bits, exact),
    }
}

/// The list of a file after its mode was changed.
pub(crate) fn with_mode(acl: &Acl, mode: u16) -> Acl {
    let has_mask = mask(acl).is_some();
    acl.with_permissions(|tag, permissions| match tag {
        AclTag::Owner => (mode >> 6).low_u8(),
        AclTag::Mask => (mode >> 3).low_u8(),
        AclTag::OwningGroup if !has_mask => (mode >> 3).low_u8(),
        AclTag::Other => mode.low_u8(),
        _ => permissions,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::InodeNumber;

    fn acl(entries: &[(u16, u16, Option<u32>)]) -> Acl {
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.unwrap_or(u32::MAX).to_le_bytes());
        }
        Acl::parse_xattr(&bytes, InodeNumber(12)).unwrap()
    }

    fn full() -> Acl {
        acl(&[
            (1, 7, None),
            (2, 6, Some(1000)),
            (4, 5, None),
            (8, 7, Some(50)),
            (0x10, 4, None),
            (0x20, 1, None),
        ])
    }

    #[test]
    fn the_mask_limits_users_and_groups() {
        let may = |user, groups: &[u32], want| grants(&full(), user, 10, |id| groups.contains(&id), want);
        assert!(may(1000, &[], 4) && !may(1000, &[], 2));
        assert!(may(1, &[10], 4) && !may(1, &[10], 1));
        assert!(may(1, &[50], 4) && !may(1, &[50], 2));
        assert!(may(1, &[], 1) && !may(1, &[], 4));
        assert!(!may(1, &[10], 2), "members of a listed group are not others");
    }

    #[test]
    fn a_new_file_gets_the_default_list_within_its_mode() {
        let (access, mode) = inherit(&full(), 0o100_640);
        assert_eq!(mode, 0o100_640);
        let access = access.unwrap();
        assert_eq!(
            access.to_string(),
            "user::rw-,user:1000:rw-,group::r-x,group:50:rwx,mask::r--,other::---"
        );
        let plain = acl(&[(1, 7, None), (4, 5, None), (0x20, 5, None)]);
        assert_eq!(inherit(&plain, 0o040_777), (None, 0o040_755));
    }

    #[test]
    fn a_mode_changes_owner_mask_and_others() {
        let changed = with_mode(&full(), 0o712);
        assert_eq!(
            changed.to_string(),
            "user::rwx,user:1000:rw-,group::r-x,group:50:rwx,mask::--x,other::-w-"
        );
        assert_eq!(mode_of(&changed), (0o712, false));
        let plain = with_mode(&acl(&[(1, 7, None), (4, 5, None), (0x20, 5, None)]), 0o640);
        assert_eq!(mode_of(&plain), (0o640, true));
    }
}
