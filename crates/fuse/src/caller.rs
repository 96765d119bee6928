//! Who asks.

use crate::served::Served;
use crate::wire::{Operation, RequestHeader, fattr};
use extant_fs::{Caller, Capabilities};

/// Where an operation's caller comes from.
///
/// The kernel sends no supplementary groups, except one for a new inode. `/proc` has them, but to
/// read it costs more than most operations. So it is read if an operation is denied without them,
/// and for those whose result depends on them otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    header: &'a RequestHeader,
    /// The group that the kernel sent.
    group: Option<u32>,
    reads_groups: bool,
    served: &'a Served,
}

impl<'a> Who<'a> {
    pub(crate) fn new(
        header: &'a RequestHeader,
        group: Option<u32>,
        operation: &Operation<'_>,
        served: &'a Served,
    ) -> Self {
        const SET_GID: u32 = 0o2000;
        let reads_groups = match operation {
            Operation::Setattr(args) => args.valid & fattr::MODE != 0 && args.mode & SET_GID != 0,
            // An access list may take the set-group-ID bit away.
            Operation::Setxattr { name, .. } => name.starts_with(b"system."),
            Operation::Mknod { args, .. } => args.mode & SET_GID != 0,
            Operation::Create { args, .. } | Operation::Tmpfile(args) => args.mode & SET_GID != 0,
            _ => false,
        };
        Self { header, group, reads_groups: reads_groups && header.uid != 0, served }
    }

    /// The same caller with all groups, if this was one without.
    pub(crate) fn with_groups(self) -> Option<Self> {
        let may_help = self.header.uid != 0 && !self.reads_groups;
        may_help.then_some(Self { reads_groups: true, ..self })
    }

    /// Root of the mount's namespace has all capabilities, others none.
    pub(crate) fn caller(&self, umask: u32) -> Caller {
        let RequestHeader { uid, gid, pid, .. } = *self.header;
        let umask = (umask & 0o777) as u16;
        if uid == 0 {
            return Caller { gid, umask, ..Caller::root() };
        }
        let mut groups = if self.reads_groups { self.served.groups_of(pid) } else { Vec::new() };
        groups.extend(self.group);
        Caller { uid, gid, groups, capabilities: Capabilities::empty(), umask, checked: true }
    }
}
