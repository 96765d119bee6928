//! The caller of an operation, and the permission checks.
//!
//! The checks and their order follow Linux (fs/namei.c: `generic_permission`, `may_create_dentry`,
//! `may_delete_dentry`; fs/attr.c: `setattr_prepare`), so that programs get the same errno as on a
//! mount.

use crate::view::View;
use crate::xattr::acl;
use crate::xattr::live::may_have_any;
use crate::{Error, Result};
use bitflags::bitflags;
use extant_format::{Acl, FileKind, Inode, InodeFlags, UintExt};

bitflags! {
    /// The capabilities that a file system checks (capabilities(7)).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Change owners and groups.
        const CHOWN = 1 << 0;
        /// Read, write and search anything.
        const DAC_OVERRIDE = 1 << 1;
        /// Read anything and search any directory.
        const DAC_READ_SEARCH = 1 << 2;
        /// Do what otherwise only an owner may.
        const FOWNER = 1 << 3;
        /// Keep the set-group-ID bit for a group that the caller is not in.
        const FSETID = 1 << 4;
        /// Set and clear the immutable and append-only flags.
        const LINUX_IMMUTABLE = 1 << 9;
        /// Read and set `trusted.` attributes, and `security.` ones.
        const SYS_ADMIN = 1 << 21;
        /// Use the blocks reserved for the administrator, and set data=journal on inodes.
        const SYS_RESOURCE = 1 << 24;
        /// Create device nodes.
        const MKNOD = 1 << 27;
    }
}

/// The identity an operation runs under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User ID; new inodes get it as their owner.
    pub uid: u32,
    /// Group ID; new inodes get it unless they inherit the directory's group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Capabilities, which override file permissions.
    pub capabilities: Capabilities,
    /// Permission bits cleared in new inodes.
    pub umask: u16,
    /// Whether to check permissions. False if the caller has already checked them.
    pub checked: bool,
}

impl Caller {
    /// The administrator, with all capabilities and no umask.
    pub const fn root() -> Self {
        let capabilities = Capabilities::all();
        Self { uid: 0, gid: 0, groups: Vec::new(), capabilities, umask: 0, checked: true }
    }

    /// A user without capabilities or umask.
    pub const fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        Self { uid, gid, groups, capabilities: Capabilities::empty(), umask: 0, checked: true }
    }

    /// Whether the caller has a capability.
    pub fn can(&self, capability: Capabilities) -> bool {
        !self.checked || self.capabilities.contains(capability)
    }

    /// Whether the caller is in a group.
    pub fn in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    pub(crate) fn in_group_or_can_set_id(&self, group: u32) -> bool {
        self.in_group(group) || self.can(Capabilities::FSETID)
    }

    /// Whether the caller may do what the inode's owner may.
    pub(crate) fn owns(&self, inode: &Inode) -> bool {
        self.uid == inode.uid() || self.can(Capabilities::FOWNER)
    }
}

/// Access requested on an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Want(u8);

impl Want {
    pub(crate) const READ: Self = Self(4);
    pub(crate) const WRITE: Self = Self(2);
    /// Execute a file; search a directory.
    pub(crate) const SEARCH: Self = Self(1);
    /// Change a directory's names.
    pub(crate) const CHANGE_NAMES: Self = Self(3);

    pub(crate) const fn from_bits(bits: u8) -> Self {
        Self(bits & 7)
    }

    const fn within(self, granted: u8) -> bool {
        self.0 & !granted == 0
    }
}

/// Checks whether `caller` may access `inode`, which has the access list `acl`. `subject` names it
/// in an error.
pub(crate) fn check(
    caller: &Caller,
    inode: &Inode,
    acl: Option<&Acl>,
    want: Want,
    subject: impl FnOnce() -> String,
) -> Result<()> {
    let writes = want.0 & Want::WRITE.0 != 0;
    if writes && inode.flags().contains(InodeFlags::IMMUTABLE) {
        return Err(Error::Permission(subject()));
    }
    if !caller.checked || by_mode(caller, inode, acl, want) || by_capability(caller, inode, want) {
        return Ok(());
    }
    Err(Error::Access(subject()))
}

/// Like [`check`], for an inode as stored on the volume. Its access list may be ignored.
///
/// # Errors
/// [`Error::Access`]; attributes that are damaged or cannot be read.
pub(crate) async fn check_stored(
    view: &View,
    caller: &Caller,
    inode: &Inode,
    want: Want,
    ignores_acls: bool,
) -> Result<()> {
    let subject = || format!("inode {}", inode.number);
    if ignores_acls {
        return check(caller, inode, None, want, subject);
    }
    if !caller.checked || (check(caller, inode, None, want, String::new).is_ok() && !may_have_any(inode)) {
        return Ok(());
    }
    let attributes = view.xattrs(inode).await?;
    let list = attributes.iter().find(|attribute| attribute.name == b"system.posix_acl_access");
    let list = list.map(|list| Acl::parse_xattr(&list.value, inode.number)).transpose()?;
    check(caller, inode, list.as_ref(), want, subject)
}

fn by_mode(caller: &Caller, inode: &Inode, acl: Option<&Acl>, want: Want) -> bool {
    let mode = inode.mode();
    if caller.uid == inode.uid() {
        return want.within((mode >> 6).low_u8() & 7);
    }
    // With a list, the group bits are its mask. If none is set, the list grants nothing and the
    // bits for others apply.
    match acl {
        Some(list) if mode & 0o070 != 0 => {
            acl::grants(list, caller.uid, inode.gid(), |group| caller.in_group(group), want.0)
        }
        _ if caller.in_group(inode.gid()) => want.within((mode >> 3).low_u8() & 7),
        _ => want.within(mode.low_u8() & 7),
    }
}

fn by_capability(caller: &Caller, inode: &Inode, want: Want) -> bool {
    let writes = want.0 & Want::WRITE.0 != 0;
    if inode.kind() == Some(FileKind::Directory) {
        return caller.can(Capabilities::DAC_OVERRIDE)
            || (!writes && caller.can(Capabilities::DAC_READ_SEARCH));
    }
    // Even a privileged caller cannot execute a file without an execute bit.
    let executable = want.0 & Want::SEARCH.0 == 0 || inode.mode() & 0o111 != 0;
    (want == Want::READ && caller.can(Capabilities::DAC_READ_SEARCH))
        || (executable && caller.can(Capabilities::DAC_OVERRIDE))
}

/// The inode fields that decide whether a name may be removed, both for the directory and for the
/// victim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protection {
    kind: Option<FileKind>,
    mode: u16,
    uid: u32,
    flags: InodeFlags,
}

impl Protection {
    pub(crate) fn of(inode: &Inode) -> Self {
        Self { kind: inode.kind(), mode: inode.mode(), uid: inode.uid(), flags: inode.flags() }
    }
}

/// Checks whether an entry of `dir` that names `victim` may be removed. `directory` is true if the
/// caller wants to remove a directory. The caller has already passed [`check`] for changing the
/// directory's names.
pub(crate) fn check_removal(
    caller: &Caller,
    dir: Protection,
    victim: Protection,
    directory: bool,
    subject: impl Fn() -> String,
) -> Result<()> {
    let fixed = InodeFlags::APPEND | InodeFlags::IMMUTABLE;
    let sticky = dir.mode & 0o1000 != 0
        && caller.uid != victim.uid
        && caller.uid != dir.uid
        && !caller.can(Capabilities::FOWNER);
    let append_only = dir.flags.contains(InodeFlags::APPEND);
    if append_only || (caller.checked && sticky) || victim.flags.intersects(fixed) {
        return Err(Error::Permission(subject()));
    }
    match (directory, victim.kind == Some(FileKind::Directory)) {
        (true, false) => Err(Error::NotADirectory(subject())),
        (false, true) => Err(Error::IsADirectory(subject())),
        _ => Ok(()),
    }
}

/// Returns mode and group for a new inode that `caller` creates in `dir` with `mode`, before a
/// umask or default list is applied.
pub(crate) fn new_mode(caller: &Caller, dir: &Inode, kind: FileKind, mode: u16) -> (u16, u32) {
    let mode = kind.mode_bits() | mode & 0o7777;
    if dir.mode() & SET_GID == 0 {
        return (mode, caller.gid);
    }
    let mode = if kind == FileKind::Directory {
        mode | SET_GID
    } else if mode & (SET_GID | GROUP_EXEC) == SET_GID | GROUP_EXEC
        && !caller.in_group_or_can_set_id(dir.gid())
    {
        mode & !SET_GID
    } else {
        mode
    };
    (mode, dir.gid())
}

pub(crate) const SET_UID: u16 = 0o4000;
pub(crate) const SET_GID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;

/// The mode after a change of owner: without set-user-ID, and without a set-group-ID bit that
/// grants anything.
pub(crate) fn mode_after_chown(caller: &Caller, inode: &Inode) -> u16 {
    let mode = inode.mode();
    if inode.kind() == Some(FileKind::Directory) {
        return mode;
    }
    mode & !SET_UID & !dropped_set_gid(caller, inode)
}

fn dropped_set_gid(caller: &Caller, inode: &Inode) -> u16 {
    let executable = inode.mode() & GROUP_EXEC != 0;
    if executable || !caller.in_group_or_can_set_id(inode.gid()) { SET_GID } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::{InodeNumber, Superblock};

    fn inode(mode: u16, uid: u32, gid: u32) -> Inode {
        let sb = Superblock::parse(include_bytes!("../../../format/tests/data/superblock.bin"))
            .expect("a superblock that mke2fs wrote");
        let mut inode = Inode::new(InodeNumber(12), &sb);
        inode.raw.i_mode = mode.into();
        inode.set_owner(uid, gid);
        inode
    }

    fn errno(result: Result<()>) -> i32 {
        result.map_or_else(|error| error.errno(), |()| 0)
    }

    #[test]
    fn owner_group_and_others_have_each_their_bits() {
        let file = inode(0o100_640, 1, 2);
        let may = |caller: &Caller, want| errno(check(caller, &file, None, want, || "f".into()));
        let (owner, member, other) =
            (Caller::user(1, 9, vec![]), Caller::user(3, 9, vec![2]), Caller::user(3, 9, vec![]));
        assert_eq!((may(&owner, Want::WRITE), may(&owner, Want::SEARCH)), (0, 13));
        assert_eq!((may(&member, Want::READ), may(&member, Want::WRITE)), (0, 13));
        assert_eq!(may(&other, Want::READ), 13);
        let root = Caller::root();
        assert_eq!((may(&root, Want::WRITE), may(&root, Want::SEARCH)), (0, 13), "it has no execute bit");
        let unlisted = inode(0o100_007, 1, 2);
        assert_eq!(
            errno(check(&owner, &unlisted, None, Want::READ, || "f".into())),
            13,
            "owners are not others"
        );
    }

    #[test]
    fn immutable_comes_before_permission() {
        let mut dir = inode(0o040_555, 1, 1);
        dir.raw.i_flags = InodeFlags::IMMUTABLE.bits().into();
        let user = Caller::user(5, 5, vec![]);
        assert_eq!(errno(check(&user, &dir, None, Want::CHANGE_NAMES, || "d".into())), 1);
        assert_eq!(errno(check(&Caller::root(), &dir, None, Want::CHANGE_NAMES, || "d".into())), 1);
        assert_eq!(errno(check(&user, &dir, None, Want::SEARCH, || "d".into())), 0);
    }

    #[test]
    fn sticky_directories_keep_what_others_own() {
        let (dir, file) = (inode(0o041_777, 0, 0), inode(0o100_666, 7, 7));
        let remove = |uid, directory| {
            let (dir, file) = (Protection::of(&dir), Protection::of(&file));
            errno(check_removal(&Caller::user(uid, uid, vec![]), dir, file, directory, || "f".into()))
        };
        assert_eq!((remove(7, false), remove(8, false), remove(8, true), remove(7, true)), (0, 1, 1, 20));
    }

    #[test]
    fn groups_are_inherited_from_directories_that_say_so() {
        let dir = inode(0o042_775, 0, 50);
        let user = Caller::user(1, 1, vec![]);
        assert_eq!(new_mode(&user, &dir, FileKind::Directory, 0o755), (0o042_755, 50));
        assert_eq!(new_mode(&user, &dir, FileKind::Regular, 0o2755), (0o100_755, 50));
        assert_eq!(new_mode(&user, &dir, FileKind::Regular, 0o2745), (0o102_745, 50));
        let member = Caller::user(1, 1, vec![50]);
        assert_eq!(new_mode(&member, &dir, FileKind::Regular, 0o2755), (0o102_755, 50));
    }

    #[test]
    fn a_change_of_owner_takes_set_id_bits_away() {
        let user = Caller::user(1, 1, vec![]);
        assert_eq!(mode_after_chown(&Caller::root(), &inode(0o106_755, 1, 1)), 0o100_755);
        assert_eq!(mode_after_chown(&user, &inode(0o106_745, 1, 1)), 0o102_745);
        assert_eq!(mode_after_chown(&user, &inode(0o046_755, 1, 1)), 0o046_755);
    }
}
