//! Leaves the namespaces of other programs.
#![allow(unsafe_code)]

use rustix::io::Errno;
use rustix::mount::MountPropagationFlags;
use rustix::thread::UnshareFlags;
use thiserror::Error;

/// Why a process could not get namespaces of its own.
#[derive(Debug, Error)]
pub enum NamespaceError {
    /// The kernel does not allow it for this user.
    #[error(
        "a user namespace of its own: {0}; allow them with: sysctl user.max_user_namespaces=10000 \
         kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0 (those that exist here), \
         and in a container: --security-opt seccomp=unconfined"
    )]
    Refused(Errno),
    /// Mounts would also appear in the surrounding namespace, and this could not be prevented.
    #[error("mounts of its own: {0}")]
    Mounts(Errno),
}

/// Moves this process into new user and mount namespaces, and its future children into a new
/// process namespace. The process must have only one thread.
///
/// # Errors
/// [`NamespaceError::Refused`].
pub fn leave_namespaces() -> Result<(), NamespaceError> {
    let flags = UnshareFlags::NEWUSER | UnshareFlags::NEWNS | UnshareFlags::NEWPID;
    // SAFETY: only `FILES`, which is not among the flags, can take descriptors from another thread.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(NamespaceError::Refused)
}

/// Keeps future mounts from the namespace that this one was copied from.
///
/// # Errors
/// [`NamespaceError::Mounts`].
pub fn private_mounts() -> Result<(), NamespaceError> {
    // Let unmounts outside take effect here too, so that this namespace does not keep a file system
    // busy.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).map_err(NamespaceError::Mounts)
}
