//! Access control lists in tar archives' text form (`SCHILY.acl.access`):
//! `user::rw-,user:joe:r--:1000,mask::rw-,…`.

/// What a name in a list refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameOf {
    User,
    Group,
}

/// Converts a text list to the value of `system.posix_acl_*`. If a number follows a name, the
/// number is used. `number_of` looks up other names, unless the name itself is a number.
///
/// # Errors
/// The list is malformed, or `number_of` fails.
pub(crate) fn acl_from_text(
    text: &[u8],
    mut number_of: impl FnMut(NameOf, &str) -> Result<u32, String>,
) -> Result<Vec<u8>, String> {
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let text = std::str::from_utf8(text).map_err(|_| "an access control list is not text")?;
    let mut entries = Vec::new();
    for line in
        text.split([',', '\n']).map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let malformed = || format!("malformed entry {line:?} in an access control list");
        let mut parts = line.split(':');
        let (Some(kind), Some(name)) = (parts.next(), parts.next()) else { return Err(malformed()) };
        let rest: Vec<_> = parts.collect();
        // "mask::rw-" and "other::r--" may also be written with one colon.
        let (name, rest) = match (kind, &rest[..]) {
            ("mask" | "m" | "other" | "o", []) => ("", vec![name]),
            _ => (name, rest),
        };
        let permissions = rest.first().and_then(|bits| permissions(bits)).ok_or_else(malformed)?;
        let tag: u16 = match (kind, name.is_empty()) {
            ("user" | "u", true) => 0x01,
            ("user" | "u", false) => 0x02,
            ("group" | "g", true) => 0x04,
            ("group" | "g", false) => 0x08,
            ("mask" | "m", true) => 0x10,
            ("other" | "o", true) => 0x20,
            _ => return Err(malformed()),
        };
        let id = match (rest.get(1), name.is_empty()) {
            (_, true) => NO_ID,
            (Some(number), false) => number.parse().map_err(|_| malformed())?,
            (None, false) => match name.parse() {
                Ok(number) => number,
                Err(_) => number_of(if tag == 0x02 { NameOf::User } else { NameOf::Group }, name)?,
            },
        };
        entries.push((tag, permissions, id));
    }
    entries.sort_unstable_by_key(|&(tag, _, id)| (tag, id));
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(value)
}

fn permissions(bits: &str) -> Option<u16> {
    bits.trim_end().chars().try_fold(0, |sum, c| match c {
        'r' => Some(sum | 4),
        'w' => Some(sum | 2),
        'x' => Some(sum | 1),
        '-' => Some(sum),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::{Acl, InodeNumber};

    fn unknown(_: NameOf, name: &str) -> Result<u32, String> {
        Err(format!("who is {name}?"))
    }

    #[test]
    fn lists_of_both_spellings() {
        let expected = "user::rw-,user:1000:r--,group::r--,group:33:r-x,mask::rwx,other::---";
        for text in [
            "user::rw-,user:joe:r--:1000,group::r--,group:33:r-x,mask::rwx,other::---",
            "other:---\nmask:rwx\nuser::rw-\ngroup:www:r-x:33\ngroup::r--\nuser:1000:r--\n",
        ] {
            let value = acl_from_text(text.as_bytes(), unknown).unwrap();
            assert_eq!(Acl::parse_xattr(&value, InodeNumber(2)).unwrap().to_string(), expected);
        }
        for text in ["user", "user::rwz", "user:joe:rw-:x", "user:joe:rw-"] {
            assert!(acl_from_text(text.as_bytes(), unknown).is_err(), "{text}");
        }
        let known = |of, name: &str| match (of, name) {
            (NameOf::User, "joe") => Ok(1000),
            (NameOf::Group, "www") => Ok(33),
            other => Err(format!("{other:?}")),
        };
        let text = b"user::rw-,user:joe:r--,group::r--,group:www:r-x,mask::rwx,other::---";
        let value = acl_from_text(text, known).unwrap();
        assert_eq!(Acl::parse_xattr(&value, InodeNumber(2)).unwrap().to_string(), expected);
    }
}
