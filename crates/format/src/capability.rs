//! File capabilities: the value of `security.capability` (linux/capability.h: `vfs_cap_data`,
//! `vfs_ns_cap_data`).
//!
//! A version 3 value applies to user namespaces whose root is the user it names, and to those below
//! them. Older versions imply root 0, that of the volume's own namespace.

/// The extended attribute that holds them.
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// The version in the first word (`VFS_CAP_REVISION_MASK`).
const VERSION_MASK: u32 = 0xff00_0000;
const VERSION_1: u32 = 0x0100_0000;
const VERSION_2: u32 = 0x0200_0000;
const VERSION_3: u32 = 0x0300_0000;
/// Length of a version 2 value in bytes: the first word, and two words each of permitted and
/// inheritable capabilities.
///
/// A version 1 value has one word each, and a version 3 value adds the root's id.
const VERSION_2_BYTES: usize = 20;
const VERSION_1_BYTES: usize = 12;
const ID_BYTES: usize = 4;

/// The user whose namespaces a value applies to; `None` for an unknown version.
pub fn capability_root(value: &[u8]) -> Option<u32> {
    match (version(value)?, value.len()) {
        (VERSION_1, VERSION_1_BYTES) | (VERSION_2, VERSION_2_BYTES) => Some(0),
        (VERSION_3, _) => {
            let (capabilities, root) = value.split_at_checked(VERSION_2_BYTES)?;
            (version(capabilities)? == VERSION_3).then_some(u32::from_le_bytes(root.try_into().ok()?))
        }
        _ => None,
    }
}

/// Returns the same capabilities for the namespaces of `root`: as version 2 for 0, otherwise as
/// version 3. `None` as for [`capability_root`].
pub fn with_capability_root(value: &[u8], root: u32) -> Option<Vec<u8>> {
    if capability_root(value)? == root {
        return Some(value.to_vec());
    }
    let mut new = value[..value.len().min(VERSION_2_BYTES)].to_vec();
    new.resize(VERSION_2_BYTES, 0);
    let flags = first_word(value)? & !VERSION_MASK;
    let version = if root == 0 { VERSION_2 } else { VERSION_3 };
    new[..4].copy_from_slice(&(version | flags).to_le_bytes());
    if root != 0 {
        new.extend_from_slice(&root.to_le_bytes());
    }
    Some(new)
}

fn first_word(value: &[u8]) -> Option<u32> {
    value.first_chunk::<ID_BYTES>().map(|word| u32::from_le_bytes(*word))
}

fn version(value: &[u8]) -> Option<u32> {
    Some(first_word(value)? & VERSION_MASK)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cap_net_raw=ep`, as written by `setcap`.
    const PLAIN: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    /// As written by `setcap -n 100000`.
    fn in_namespace() -> Vec<u8> {
        let mut value = PLAIN.to_vec();
        value[3] = 3;
        value.extend_from_slice(&100_000_u32.to_le_bytes());
        value
    }

    #[test]
    fn a_root_is_named_by_version_3_only() {
        assert_eq!(capability_root(&PLAIN), Some(0));
        assert_eq!(capability_root(&in_namespace()), Some(100_000));
        assert_eq!(with_capability_root(&in_namespace(), 0), Some(PLAIN.to_vec()));
        assert_eq!(with_capability_root(&PLAIN, 100_000), Some(in_namespace()));
        assert_eq!(with_capability_root(&PLAIN, 0), Some(PLAIN.to_vec()));
        let other = with_capability_root(&in_namespace(), 7).unwrap();
        assert_eq!((other.len(), capability_root(&other)), (24, Some(7)));
    }

    #[test]
    fn capabilities_of_the_first_version_have_one_word_each() {
        let first = [1, 0, 0, 1, 0, 0x20, 0, 0, 0, 0, 0, 0];
        assert_eq!(capability_root(&first), Some(0));
        assert_eq!(with_capability_root(&first, 100_000), Some(in_namespace()));
    }

    #[test]
    fn other_values_are_left_alone() {
        let mut odd = in_namespace();
        odd[3] = 4;
        for value in [&b""[..], b"\x01\0\0", &PLAIN[..19], &in_namespace()[..22], &odd] {
            assert_eq!(capability_root(value), None, "{value:?}");
            assert_eq!(with_capability_root(value, 1), None, "{value:?}");
        }
    }
}
