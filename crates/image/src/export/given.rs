//! What the host gives new files by itself, so that it is not set once more.

use super::host::{HostDir, Target};

/// The permission bits of a file that only its owner may open.
const PRIVATE: u16 = 0o600;
const PERMISSIONS: u16 = 0o777;
const OWNER_WRITES: u16 = 0o200;

/// What every new file in a directory gets, as far as the host tells.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    owner: (u32, u32),
    /// The directory passes on an access list, which also decides about permissions.
    has_list: bool,
}

impl Given {
    /// Asks about a directory and the first new file in it.
    pub(super) fn ask(dir: &HostDir, first: Target<'_>) -> Option<Self> {
        Some(Self { owner: first.owner().ok()?, has_list: dir.passes_on_list() })
    }

    pub(super) fn has_list(self) -> bool {
        self.has_list
    }

    pub(super) fn is_owned_by(self, uid: u32, gid: u32) -> bool {
        self.owner == (uid, gid)
    }

    /// The permissions to create a file with that gets this mode and owner in the end. Only its
    /// creator may open it at first, if others must not before its owner is set, or if not even its
    /// owner may write: user attributes can only be set on a writable file.
    pub(super) fn first_permissions(given: Option<Self>, mode: u16, owner: (u32, u32)) -> u16 {
        match given {
            Some(given) if given.owner == owner && !given.has_list && mode & OWNER_WRITES != 0 => {
                mode & PERMISSIONS
            }
            _ => PRIVATE,
        }
    }
}

/// The mask of new files' permissions; `None` if the host does not say.
pub(super) fn umask() -> Option<u16> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let told = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u16::from_str_radix(told.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_with_its_permissions_if_its_owner_may_write() {
        let given = Some(Given { owner: (1, 2), has_list: false });
        for (mode, first) in [(0o644, 0o644), (0o4755, 0o755), (0o444, PRIVATE), (0o555, PRIVATE)] {
            assert_eq!(Given::first_permissions(given, mode, (1, 2)), first, "{mode:o}");
        }
        assert_eq!(Given::first_permissions(given, 0o644, (1, 3)), PRIVATE);
        assert_eq!(Given::first_permissions(None, 0o644, (1, 2)), PRIVATE);
    }
}
