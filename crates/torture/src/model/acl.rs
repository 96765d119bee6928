//! Access control lists in `system.posix_acl_*` form, and the modes they imply.
//!
//! POSIX 1003.1e draft 17 as applied by Linux, acl(5): the mode's group bits are the mask, if there
//! is one.

/// Names of the attributes.
pub(super) const ACCESS: &str = "system.posix_acl_access";
pub(super) const DEFAULT: &str = "system.posix_acl_default";

const OWNER: u16 = 0x01;
const OWNING_GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// The version, before the 8-byte entries.
const HEADER_BYTES: usize = 4;

fn entries(list: &[u8]) -> impl Iterator<Item = (u16, u16)> {
    let word = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    list.get(HEADER_BYTES..).unwrap_or_default().chunks_exact(8).map(move |e| (word(e), word(&e[2..])))
}

/// The entry that corresponds to the mode's group bits.
fn group_class(list: &[u8]) -> u16 {
    if entries(list).any(|(tag, _)| tag == MASK) { MASK } else { OWNING_GROUP }
}

/// The permission bits of a list, and whether they express it completely.
pub(super) fn mode_of(list: &[u8]) -> (u32, bool) {
    let class = group_class(list);
    let bits = entries(list).fold(0, |bits, (tag, permissions)| {
        bits | match tag {
            OWNER => u32::from(permissions) << 6,
            OTHER => u32::from(permissions),
            tag if tag == class => u32::from(permissions) << 3,
            _ => 0,
        }
    });
    (bits, entries(list).all(|(tag, _)| matches!(tag, OWNER | OWNING_GROUP | OTHER)))
}

fn with(list: &[u8], change: impl Fn(u16, u16) -> u16) -> Vec<u8> {
    let mut list = list.to_vec();
    for entry in list[HEADER_BYTES..].chunks_exact_mut(8) {
        let (tag, old) = (u16::from_le_bytes([entry[0], entry[1]]), u16::from_le_bytes([entry[2], entry[3]]));
        entry[2..4].copy_from_slice(&change(tag, old).to_le_bytes());
    }
    list
}

/// The list of a file after its mode is changed.
pub(super) fn with_mode(list: &[u8], mode: u32) -> Vec<u8> {
    let class = group_class(list);
    with(list, |tag, old| match tag {
        OWNER => (mode >> 6 & 7) as u16,
        OTHER => (mode & 7) as u16,
        tag if tag == class => (mode >> 3 & 7) as u16,
        _ => old,
    })
}

/// List and mode of a file created with `mode` below a directory with this default list; no list if
/// the mode expresses it completely.
pub(super) fn inherited(default: &[u8], mode: u32) -> (Option<Vec<u8>>, u32) {
    let class = group_class(default);
    let list = with(default, |tag, old| match tag {
        OWNER => old & (mode >> 6) as u16,
        OTHER => old & mode as u16,
        tag if tag == class => old & (mode >> 3) as u16,
        _ => old,
    });
    let (bits, exact) = mode_of(&list);
    ((!exact).then_some(list), mode & !0o777 | bits)
}
