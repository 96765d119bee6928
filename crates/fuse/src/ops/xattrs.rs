//! Extended attributes, including access lists.

use crate::caller::Who;
use crate::emulation::OWNER_ATTRIBUTE;
use crate::errno::{Errno, Failure, Result};
use crate::object::{Object, ROOT};
use crate::ops::emulated;
use crate::served::Served;
use crate::wire::{Reply, Xattr};
use crate::{METRICS_ATTRIBUTE, SERVER_ATTRIBUTE, SYNC_ATTRIBUTE, WRITERS_ATTRIBUTE};
use extant_format::FileKind;
use extant_fs::{Caller, Capabilities, Node, SetMode};

/// Prefix of the names of access lists.
pub(crate) const ACCESS_LIST: &[u8] = b"system.posix_acl_";

/// Fits an answer to the caller's buffer: if `size` is 0, returns only the length.
fn sized(bytes: Vec<u8>, size: u32) -> Result<Reply> {
    match size {
        0 => Ok(Reply::Xattr(Xattr::Length(bytes.len() as u32))),
        _ if bytes.len() > size as usize => Err(Errno::RANGE.into()),
        _ => Ok(Reply::Xattr(Xattr::Value(bytes))),
    }
}

pub(crate) async fn getxattr(
    served: &Served,
    nodeid: u64,
    caller: &Caller,
    name: &[u8],
    size: u32,
) -> Result<Reply> {
    if nodeid == ROOT && name == SERVER_ATTRIBUTE.as_bytes() {
        return sized(std::process::id().to_string().into_bytes(), size);
    }
    if nodeid == ROOT && name == METRICS_ATTRIBUTE.as_bytes() {
        return sized(served.metrics_text().into_bytes(), size);
    }
    if nodeid == ROOT && name == WRITERS_ATTRIBUTE.as_bytes() {
        return sized(crate::writers::list(served), size);
    }
    let value = match served.nodes.get(nodeid).await? {
        Object::Live(node) => node.xattr(caller, name).await?,
        Object::Stored(_) if served.ignores_acls && name.starts_with(ACCESS_LIST) => {
            return Err(Errno::OPNOTSUPP.into());
        }
        Object::Stored(inode) => {
            let missing = || Failure::Request(Errno::NODATA);
            if name.starts_with(b"trusted.") && !caller.can(Capabilities::SYS_ADMIN) {
                return Err(missing());
            }
            if name.starts_with(b"user.") {
                if !matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory)) {
                    return Err(missing());
                }
                served.volume.check_access(caller, &inode, 4).await?;
            }
            let all = served.volume.xattrs(&inode).await?;
            all.into_iter().find(|attribute| attribute.name == name).ok_or_else(missing)?.value
        }
    };
    match name.starts_with(ACCESS_LIST) {
        true => sized(served.shown.list(&value), size),
        false => sized(value, size),
    }
}

pub(crate) async fn listxattr(served: &Served, nodeid: u64, caller: &Caller, size: u32) -> Result<Reply> {
    let names: Vec<Vec<u8>> = match served.nodes.get(nodeid).await? {
        Object::Live(node) => node.xattrs(caller).await?,
        Object::Stored(inode) => {
            let all = served.volume.xattrs(&inode).await?.into_iter().map(|attribute| attribute.name);
            let trusted = caller.can(Capabilities::SYS_ADMIN);
            let is_shown = |name: &Vec<u8>| {
                let is_ignored = served.ignores_acls && name.starts_with(ACCESS_LIST);
                !is_ignored && (trusted || !name.starts_with(b"trusted."))
            };
            all.filter(is_shown).collect()
        }
    };
    let mut bytes = Vec::new();
    for name in names {
        bytes.extend_from_slice(&name);
        bytes.push(0);
    }
    sized(bytes, size)
}

/// Refuses to change an access list with hidden entries: a program writes back only the entries
/// that it has seen, so the others would be lost.
async fn check_hidden(served: &Served, node: &Node, name: &[u8]) -> Result<()> {
    let owners = &served.shown.owners;
    if !name.starts_with(ACCESS_LIST) || !owners.are_changed() {
        return Ok(());
    }
    match node.xattr(&Caller::root(), name).await {
        Ok(list) if owners.hides_of(&list) => Err(Errno::OVERFLOW.into()),
        _ => Ok(()),
    }
}

pub(crate) async fn setxattr(
    served: &Served,
    nodeid: u64,
    who: &Who<'_>,
    name: &[u8],
    value: &[u8],
    flags: u32,
) -> Result<Reply> {
    const CREATE: u32 = 1;
    const REPLACE: u32 = 2;
    if name == OWNER_ATTRIBUTE.as_bytes()
        && let Some(identities) = who.supervised(served)
    {
        return emulated::set_owner(served, nodeid, identities, value).await;
    }
    if nodeid == ROOT && name == SYNC_ATTRIBUTE.as_bytes() {
        // The kernel lets every user set attributes of this class, even on a private mount.
        if !who.administers() {
            return Err(Errno::PERM.into());
        }
        served.volume.sync().await?;
        return Ok(Reply::Done);
    }
    let mode = match flags {
        0 => SetMode::Any,
        CREATE => SetMode::Create,
        REPLACE => SetMode::Replace,
        _ => return Err(Errno::INVAL.into()),
    };
    let list = name.starts_with(ACCESS_LIST).then(|| served.shown.owners.stored_list(value)).transpose()?;
    let value = list.as_deref().unwrap_or(value);
    let object = served.nodes.get(nodeid).await?;
    let node = object.live()?;
    check_hidden(served, node, name).await?;
    node.set_xattr(&who.caller(0), name, value, mode).await?;
    Ok(Reply::Done)
}

pub(crate) async fn removexattr(served: &Served, nodeid: u64, caller: &Caller, name: &[u8]) -> Result<Reply> {
    let object = served.nodes.get(nodeid).await?;
    let node = object.live()?;
    check_hidden(served, node, name).await?;
    // The kernel removes capabilities when a file is written or its owner changes, whatever
    // privileges the writer has. If a process removes them by name, Linux itself has already
    // checked CAP_SETFCAP.
    let root = Caller::root();
    let caller = if name == b"security.capability" { &root } else { caller };
    node.remove_xattr(caller, name).await?;
    Ok(Reply::Done)
}
