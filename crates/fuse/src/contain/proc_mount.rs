//! `/proc` of a process namespace of one's own.

use rustix::mount::MountFlags;

/// Mounts it on `/proc`. Returns whether it did: a container that hides parts of its own does not
/// allow another one. Programs then see the processes of the container.
pub fn mount_own_proc() -> bool {
    at("/proc").is_ok()
}

/// Mounts it elsewhere.
pub(super) fn at(place: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", place, "proc", flags, None)
}
