//! `/proc` for a process namespace.

use rustix::mount::MountFlags;

/// Mounts a new `/proc`. Returns false if that is not allowed, as in a container that hides parts
/// of its own `/proc`. Programs then see the processes of the container.
pub fn mount_own_proc() -> bool {
    at("/proc").is_ok()
}

/// Mounts a new `/proc` at `place`.
pub(super) fn at(place: &str) -> rustix::io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    rustix::mount::mount("proc", place, "proc", flags, None)
}
