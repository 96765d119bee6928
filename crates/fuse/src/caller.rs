//! The caller of an operation.

use crate::emulation::{Identities, Identity};
use crate::owners::{Owners, StoredCaller};
use crate::served::Served;
use crate::wire::{Operation, RequestHeader, fattr};
use extant_fs::{Caller, Capabilities};

/// Where an operation's caller comes from.
///
/// The kernel sends no supplementary groups, except one for a new inode. `/proc` lists them, but
/// reading it costs more than most operations. So the groups are read only if an operation is
/// denied without them, or if its result depends on them in another way.
#[derive(Clone, Debug)]
pub(crate) struct Who<'a> {
    header: &'a RequestHeader,
    owners: &'a Owners,
    stored: StoredCaller,
    /// The group that the kernel sent.
    group: Option<u32>,
    /// All groups, once they have been read.
    groups: Option<Vec<u32>>,
}

impl<'a> Who<'a> {
    pub(crate) fn new(header: &'a RequestHeader, owners: &'a Owners, group: Option<u32>) -> Self {
        let stored = owners.caller(header.uid, header.gid);
        Self { header, owners, stored, group, groups: None }
    }

    /// The caller as another user than the one that the kernel has sent.
    pub(crate) fn acting_as(self, identity: &Identity) -> Self {
        let Identity { user: uid, group: gid, ref supplementary } = *identity;
        let stored = StoredCaller { uid, gid, is_root: uid == 0, can_own: true };
        Self { stored, group: None, groups: Some(supplementary.clone()), ..self }
    }

    /// The credentials of other programs, if the caller is the one that decides about them.
    pub(crate) fn supervised<'s>(&self, served: &'s Served) -> Option<&'s Identities> {
        served.identities.as_ref().filter(|identities| identities.is_supervisor(self.header.pid))
    }

    /// Whether the caller is root or the user who has mounted, of whom the server is a process.
    pub(crate) fn administers(&self) -> bool {
        self.header.uid == rustix::process::geteuid().as_raw() || self.caller(0).can(Capabilities::SYS_ADMIN)
    }

    /// Whether the volume has numbers for the caller, so that it can own new inodes.
    pub(crate) fn can_own(&self) -> bool {
        self.stored.can_own
    }

    /// Whether the result of an operation depends on groups even if the operation is not denied.
    pub(crate) fn needs_groups(&self, operation: &Operation<'_>) -> bool {
        const SET_GID: u32 = 0o2000;
        let depends = match operation {
            Operation::Setattr(args) => args.valid & fattr::MODE != 0 && args.mode & SET_GID != 0,
            // Setting an access list may clear the set-group-ID bit.
            Operation::Setxattr { name, .. } => name.starts_with(b"system."),
            Operation::Mknod { args, .. } => args.mode & SET_GID != 0,
            Operation::Create { args, .. } | Operation::Tmpfile(args) => args.mode & SET_GID != 0,
            _ => false,
        };
        depends && self.may_be_helped()
    }

    /// Whether groups that have not been read yet may allow the caller more.
    pub(crate) fn may_be_helped(&self) -> bool {
        self.groups.is_none() && !self.stored.is_root
    }

    /// Reads the groups. May take as long as another process takes to answer.
    pub(crate) async fn read_groups(&mut self, served: &Served) {
        self.groups = Some(served.groups_of(self.header.pid).await);
    }

    /// Returns the caller. Root of the mount's namespace has all capabilities, other users have
    /// none.
    pub(crate) fn caller(&self, umask: u32) -> Caller {
        let StoredCaller { uid, gid, is_root, .. } = self.stored;
        let umask = (umask & 0o777) as u16;
        if is_root {
            return Caller { uid, gid, umask, ..Caller::root() };
        }
        let mut groups = self.groups.clone().unwrap_or_default();
        groups.extend(self.group);
        let groups = self.owners.stored_groups(&groups);
        Caller { uid, gid, groups, capabilities: Capabilities::empty(), umask, checked: true }
    }
}
