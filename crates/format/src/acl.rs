//! POSIX access control lists, as stored by ext4 (version 1) and as seen by programs
//! (`system.posix_acl_*`, version 2).
//!
//! Kernel sources: fs/ext4/acl.h for the stored form, include/uapi/linux/posix_acl_xattr.h for the
//! other. The stored form omits the id of entries that have none.
//!
//! Both have the same content:
//!
//! ```
//! use extant_format::{Acl, InodeNumber};
//!
//! let stored = [
//!     1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 0x10, 0, 6, 0, 0x20, 0, 0, 0,
//! ];
//! let acl = Acl::parse_stored(&stored, InodeNumber(12))?;
//! assert_eq!(acl.to_string(), "user::rw-,user:1000:r--,group::r--,mask::rw-,other::---");
//! assert_eq!(acl.to_stored(), stored);
//! # Ok::<(), extant_format::Corrupt>(())
//! ```

use crate::{Corrupt, InodeNumber, Place, UintExt};
use std::fmt;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `ext4_acl_entry_short`, and the start of every entry.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawAclEntryShort {
    /// 0x0: the subject.
    pub e_tag: U16,
    /// 0x2: `rwx`.
    pub e_perm: U16,
}

/// `ext4_acl_entry` (stored, for named users and groups) and `posix_acl_xattr_entry` (all).
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct RawAclEntry {
    /// 0x0: tag and permissions.
    pub short: RawAclEntryShort,
    /// 0x4: user or group id.
    pub e_id: U32,
}

const STORED_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
/// `ACL_UNDEFINED_ID`.
const NO_ID: u32 = u32::MAX;

/// The subject of an entry, in the order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclTag {
    /// The file's owner, `ACL_USER_OBJ`.
    Owner,
    /// A user, `ACL_USER`.
    User(u32),
    /// The file's group, `ACL_GROUP_OBJ`.
    OwningGroup,
    /// A group, `ACL_GROUP`.
    Group(u32),
    /// Upper bound for users, groups and the file's group, `ACL_MASK`.
    Mask,
    /// Everybody else, `ACL_OTHER`.
    Other,
}

impl AclTag {
    const fn number(self) -> u16 {
        match self {
            Self::Owner => 0x01,
            Self::User(_) => 0x02,
            Self::OwningGroup => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn id(self) -> Option<u32> {
        match self {
            Self::User(id) | Self::Group(id) => Some(id),
            _ => None,
        }
    }

    const fn from_number(number: u16, id: u32) -> Option<Self> {
        Some(match number {
            0x01 => Self::Owner,
            0x02 => Self::User(id),
            0x04 => Self::OwningGroup,
            0x08 => Self::Group(id),
            0x10 => Self::Mask,
            0x20 => Self::Other,
            _ => return None,
        })
    }
}

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AclEntry {
    /// The entry's subject.
    pub tag: AclTag,
    /// Permissions: 4 read, 2 write, 1 execute.
    pub permissions: u8,
}

/// An access control list: one owner, then users, one owning group, then groups, a mask if a user
/// or group is named, and one entry for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// Parses the value stored on a volume.
    ///
    /// # Errors
    /// An unknown version or tag, bytes left over, or a list that breaks the rules of [`Acl`].
    pub fn parse_stored(bytes: &[u8], inode: InodeNumber) -> Result<Self, Corrupt> {
        let place = Place::Acl(inode);
        let mut rest = version(bytes, STORED_VERSION, place)?;
        let mut entries = Vec::with_capacity(rest.len() / size_of::<RawAclEntryShort>());
        while !rest.is_empty() {
            let (short, after) = take::<RawAclEntryShort>(rest, bytes.len(), place)?;
            let tag = parse_tag(short, NO_ID, place)?;
            rest = if tag.id().is_some() {
                let (raw, after) = take::<RawAclEntry>(rest, bytes.len(), place)?;
                entries.push(parse_entry(&raw.short, raw.e_id.get(), place)?);
                after
            } else {
                entries.push(parse_entry(short, NO_ID, place)?);
                after
            };
        }
        Self::check(entries, place)
    }

    /// Parses the value of `system.posix_acl_access` or `system.posix_acl_default` as passed by
    /// programs.
    ///
    /// # Errors
    /// As [`Self::parse_stored`].
    pub fn parse_xattr(bytes: &[u8], inode: InodeNumber) -> Result<Self, Corrupt> {
        let place = Place::Acl(inode);
        let mut rest = version(bytes, XATTR_VERSION, place)?;
        let mut entries = Vec::with_capacity(rest.len() / size_of::<RawAclEntry>());
        while !rest.is_empty() {
            let (raw, after) = take::<RawAclEntry>(rest, bytes.len(), place)?;
            entries.push(parse_entry(&raw.short, raw.e_id.get(), place)?);
            rest = after;
        }
        Self::check(entries, place)
    }

    /// Applies the rules of `posix_acl_valid`.
    fn check(entries: Vec<AclEntry>, place: Place) -> Result<Self, Corrupt> {
        let bad = |tag: AclTag, rule| Err(Corrupt::field(place, "e_tag", tag.number().into(), rule));
        let single = |tag: AclTag| tag.id().is_none();
        if let Some(pair) = entries.windows(2).find(|pair| {
            let (a, b) = (pair[0].tag, pair[1].tag);
            a.number() > b.number() || (a.number() == b.number() && single(a))
        }) {
            return bad(pair[1].tag, "after the tags below it, and unique unless it has an id");
        }
        let has = |number| entries.iter().any(|entry| entry.tag.number() == number);
        for tag in [AclTag::Owner, AclTag::OwningGroup, AclTag::Other] {
            if !has(tag.number()) {
                return bad(tag, "in every list");
            }
        }
        if (has(AclTag::User(0).number()) || has(AclTag::Group(0).number())) && !has(AclTag::Mask.number()) {
            return bad(AclTag::Mask, "in every list that names users or groups");
        }
        Ok(Self { entries })
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[AclEntry] {
        &self.entries
    }

    /// Returns the list with permissions mapped by `permissions`, which gets each entry's tag and
    /// current permissions; only the low three bits of its result are used.
    pub fn with_permissions(&self, permissions: impl Fn(AclTag, u8) -> u8) -> Self {
        let entry = |&AclEntry { tag, permissions: old }: &AclEntry| AclEntry {
            tag,
            permissions: permissions(tag, old) & 7,
        };
        Self { entries: self.entries.iter().map(entry).collect() }
    }

    /// The value to store on a volume.
    pub fn to_stored(&self) -> Vec<u8> {
        let mut bytes = STORED_VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, permissions } in &self.entries {
            bytes.extend(tag.number().to_le_bytes());
            bytes.extend(u16::from(*permissions).to_le_bytes());
            bytes.extend(tag.id().map(u32::to_le_bytes).iter().flatten());
        }
        bytes
    }

    /// The value as seen by programs.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut bytes = XATTR_VERSION.to_le_bytes().to_vec();
        for AclEntry { tag, permissions } in &self.entries {
            bytes.extend(tag.number().to_le_bytes());
            bytes.extend(u16::from(*permissions).to_le_bytes());
            bytes.extend(tag.id().unwrap_or(NO_ID).to_le_bytes());
        }
        bytes
    }
}

fn version(bytes: &[u8], expected: u32, place: Place) -> Result<&[u8], Corrupt> {
    let Some((found, rest)) = bytes.split_first_chunk::<4>() else {
        return Err(Corrupt::truncated(place, 4, bytes.len()));
    };
    match u32::from_le_bytes(*found) {
        found if found == expected => Ok(rest),
        found => {
            let rule =
                if expected == STORED_VERSION { "1, as volumes store it" } else { "2, as programs see it" };
            Err(Corrupt::field(place, "a_version", found.into(), rule))
        }
    }
}

fn take<T: FromBytes + KnownLayout + Immutable + Unaligned>(
    rest: &[u8],
    total: usize,
    place: Place,
) -> Result<(&T, &[u8]), Corrupt> {
    T::ref_from_prefix(rest)
        .map_err(|_| Corrupt::truncated(place, total - rest.len() + size_of::<T>(), total))
}

fn parse_tag(raw: &RawAclEntryShort, id: u32, place: Place) -> Result<AclTag, Corrupt> {
    let number = raw.e_tag.get();
    AclTag::from_number(number, id).ok_or(Corrupt::field(
        place,
        "e_tag",
        number.into(),
        "1, 2, 4, 8, 16 or 32",
    ))
}

fn parse_entry(raw: &RawAclEntryShort, id: u32, place: Place) -> Result<AclEntry, Corrupt> {
    let tag = parse_tag(raw, id, place)?;
    if tag.id() == Some(NO_ID) {
        return Err(Corrupt::field(place, "e_id", NO_ID.into(), "the number of a user or group"));
    }
    match raw.e_perm.get() {
        permissions @ 0..=7 => Ok(AclEntry { tag, permissions: permissions.fit_u8() }),
        other => Err(Corrupt::field(place, "e_perm", other.into(), "at most 7")),
    }
}

impl fmt::Display for AclEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tag {
            AclTag::Owner => write!(f, "user::"),
            AclTag::User(id) => write!(f, "user:{id}:"),
            AclTag::OwningGroup => write!(f, "group::"),
            AclTag::Group(id) => write!(f, "group:{id}:"),
            AclTag::Mask => write!(f, "mask::"),
            AclTag::Other => write!(f, "other::"),
        }?;
        let bit = |bit, letter| if self.permissions & bit != 0 { letter } else { '-' };
        write!(f, "{}{}{}", bit(4, 'r'), bit(2, 'w'), bit(1, 'x'))
    }
}

impl fmt::Display for Acl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, entry) in self.entries.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            entry.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODE: InodeNumber = InodeNumber(13);
    const PLACE: Place = Place::Acl(INODE);

    /// The value stored by Linux, and the one it was given, for the same list.
    fn kernel_pair() -> (Vec<u8>, Vec<u8>) {
        let block = include_bytes!("../tests/data/xattr_block_kernel.bin");
        let given = "0200000001000600ffffffff02000400e803000002000700e903000004000400ffffffff080005002100000010000700ff\
                     ffffff20000400ffffffff";
        let given =
            (0..given.len()).step_by(2).map(|i| u8::from_str_radix(&given[i..i + 2], 16).unwrap()).collect();
        (block[0x280..0x2ac].to_vec(), given)
    }

    #[test]
    fn stored_and_seen_forms_are_those_of_linux() {
        let (stored, given) = kernel_pair();
        let acl = Acl::parse_stored(&stored, INODE).unwrap();
        assert_eq!(
            acl.to_string(),
            "user::rw-,user:1000:r--,user:1001:rwx,group::r--,group:33:r-x,mask::rwx,other::r--"
        );
        assert_eq!(acl.to_xattr(), given);
        assert_eq!(Acl::parse_xattr(&given, INODE), Ok(acl.clone()));
        assert_eq!(acl.to_stored(), stored);
    }

    #[test]
    fn one_wrong_field_is_named() {
        let (stored, given) = kernel_pair();
        let with = |at: usize, byte: u8| {
            let mut bytes = stored.clone();
            bytes[at] = byte;
            Acl::parse_stored(&bytes, INODE).unwrap_err()
        };
        assert_eq!(with(0, 2), Corrupt::field(PLACE, "a_version", 2, "1, as volumes store it"));
        assert_eq!(with(4, 3), Corrupt::field(PLACE, "e_tag", 3, "1, 2, 4, 8, 16 or 32"));
        assert_eq!(with(6, 8), Corrupt::field(PLACE, "e_perm", 8, "at most 7"));
        assert_eq!(
            with(4, 0x20),
            Corrupt::field(PLACE, "e_tag", 2, "after the tags below it, and unique unless it has an id")
        );
        assert_eq!(
            Acl::parse_stored(&stored[..stored.len() - 1], INODE).unwrap_err(),
            Corrupt::truncated(PLACE, 44, 43)
        );
        assert_eq!(
            Acl::parse_stored(&stored[..stored.len() - 4], INODE).unwrap_err(),
            Corrupt::field(PLACE, "e_tag", 0x20, "in every list")
        );
        let mut unnamed = given.clone();
        unnamed[16..20].fill(0xff);
        assert_eq!(
            Acl::parse_xattr(&unnamed, INODE).unwrap_err(),
            Corrupt::field(PLACE, "e_id", u32::MAX.into(), "the number of a user or group")
        );
        let mut maskless = given.clone();
        maskless.drain(4 + 5 * 8..4 + 6 * 8);
        assert_eq!(
            Acl::parse_xattr(&maskless, INODE).unwrap_err(),
            Corrupt::field(PLACE, "e_tag", 0x10, "in every list that names users or groups")
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(0u8..40, 0..120)) {
            for acl in [Acl::parse_stored(&bytes, INODE), Acl::parse_xattr(&bytes, INODE)].into_iter().flatten() {
                assert_eq!(Acl::parse_stored(&acl.to_stored(), INODE), Ok(acl.clone()));
                assert_eq!(Acl::parse_xattr(&acl.to_xattr(), INODE), Ok(acl));
            }
        }
    }
}
