//! The files that programs have open for writing, so that `extant sync` can sync each.
//!
//! Only the kernel knows what it has not sent yet: pages of shared mappings, and everything written
//! with a write-back cache. It sends them for an fsync, and before the last close of a file. There
//! is no request by which a server could ask for them without waiting inside the kernel, where not
//! even SIGKILL would end it. So the command that syncs opens each of these files under a name that
//! only it may look up, and syncs it.

use crate::object::number_of;
use crate::served::Served;
use extant_format::InodeNumber;

/// Extended attribute of a mounted root directory with the protocol's numbers of the files that are
/// open for writing, 8 bytes each, in the host's byte order. It is not listed.
pub const WRITERS_ATTRIBUTE: &str = "system.extant.writers";

/// Begins the names of [`inode_name`]. No program makes a name with this byte by chance.
const PREFIX: &str = "\x01extant-inode-";

/// The name in the root directory under which the mounting user and root find a file that is open
/// for writing.
pub fn inode_name(nodeid: u64) -> String {
    format!("{PREFIX}{nodeid}")
}

/// The file that such a name means.
pub(crate) fn inode_of(name: &[u8]) -> Option<InodeNumber> {
    let digits = name.strip_prefix(PREFIX.as_bytes())?;
    number_of(std::str::from_utf8(digits).ok()?.parse().ok()?).ok()
}

/// The value of [`WRITERS_ATTRIBUTE`].
pub(crate) fn list(served: &Served) -> Vec<u8> {
    let mut all: Vec<u64> = served.handles.writers();
    all.sort_unstable();
    all.dedup();
    all.into_iter().flat_map(u64::to_ne_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_back_to_its_inode() {
        assert_eq!(inode_of(inode_name(12).as_bytes()), Some(InodeNumber(12)));
        for other in ["12", "\x01extant-inode-", "\x01extant-inode-x", "\x01extant-inode-5000000000"] {
            assert_eq!(inode_of(other.as_bytes()), None);
        }
    }
}
