//! Attribute names: a number for a well-known prefix, and the rest as bytes.

use std::cmp::Ordering;
use std::fmt;

/// `e_name_index`: the prefix of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrIndex(pub u8);

impl XattrIndex {
    /// `user.`
    pub const USER: Self = Self(1);
    /// `system.posix_acl_access`, a whole name.
    pub const ACL_ACCESS: Self = Self(2);
    /// `system.posix_acl_default`, a whole name.
    pub const ACL_DEFAULT: Self = Self(3);
    /// `trusted.`
    pub const TRUSTED: Self = Self(4);
    /// Reserved for Lustre; Linux shows no name for it.
    pub const LUSTRE: Self = Self(5);
    /// `security.`
    pub const SECURITY: Self = Self(6);
    /// `system.`: only `data`, the tail of inline data.
    pub const SYSTEM: Self = Self(7);
    /// `system.richacl`, a whole name.
    pub const RICHACL: Self = Self(8);
    /// The encryption context; Linux shows no name for it.
    pub const ENCRYPTION: Self = Self(9);
    /// `gnu.`
    pub const HURD: Self = Self(10);

    /// The prefixes; if one is the start of another, the longer comes first.
    const PREFIXES: [(Self, &'static str); 8] = [
        (Self::ACL_ACCESS, "system.posix_acl_access"),
        (Self::ACL_DEFAULT, "system.posix_acl_default"),
        (Self::RICHACL, "system.richacl"),
        (Self::SYSTEM, "system."),
        (Self::USER, "user."),
        (Self::TRUSTED, "trusted."),
        (Self::SECURITY, "security."),
        (Self::HURD, "gnu."),
    ];

    /// The prefix, if the index has one.
    pub fn prefix(self) -> Option<&'static str> {
        Self::PREFIXES.iter().find(|(index, _)| *index == self).map(|(_, prefix)| *prefix)
    }

    /// Whether the prefix is a complete name, with nothing after it.
    pub const fn is_whole_name(self) -> bool {
        matches!(self, Self::ACL_ACCESS | Self::ACL_DEFAULT | Self::RICHACL)
    }

    /// Whether programs can see such attributes; those internal to the file system are hidden.
    pub fn is_visible(self) -> bool {
        self != Self::SYSTEM && self.prefix().is_some()
    }
}

/// An attribute name. Ordered as in blocks: by index, then length, then bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct XattrName<'a> {
    /// The prefix, `e_name_index`.
    pub index: XattrIndex,
    /// The name after the prefix, `e_name`: up to 255 bytes, none of them 0.
    pub suffix: &'a [u8],
}

impl<'a> XattrName<'a> {
    /// The tail of inline data, `system.data`.
    pub const INLINE_DATA: Self = Self { index: XattrIndex::SYSTEM, suffix: b"data" };

    /// From a full name. `None` if ext4 has no index for its prefix, or the name is only a prefix.
    pub fn from_full(name: &'a [u8]) -> Option<Self> {
        XattrIndex::PREFIXES.iter().find_map(|&(index, prefix)| {
            let suffix = name.strip_prefix(prefix.as_bytes())?;
            (suffix.is_empty() == index.is_whole_name()).then_some(Self { index, suffix })
        })
    }

    /// The full name. `None` if the index has no prefix.
    pub fn to_full(&self) -> Option<Vec<u8>> {
        Some([self.index.prefix()?.as_bytes(), self.suffix].concat())
    }
}

impl Ord for XattrName<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |name: &Self| (name.index, name.suffix.len());
        key(self).cmp(&key(other)).then_with(|| self.suffix.cmp(other.suffix))
    }
}

impl PartialOrd for XattrName<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for XattrName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index.prefix() {
            Some(prefix) => f.write_str(prefix)?,
            None => write!(f, "#{}.", self.index.0)?,
        }
        self.suffix.escape_ascii().fmt(f)
    }
}
