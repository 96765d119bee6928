//! Names: look up, create, link, move, remove.

use crate::caller::Who;
use crate::errno::{Errno, Failure, Result};
use crate::listing::look_up;
use crate::object::{Object, ROOT, kind_of, no_entry, nodeid, unpacked};
use crate::served::Served;
use crate::wire::{EntryOut, LinkIn, MkdirIn, MknodIn, Reply};
use crate::writers::inode_of;
use extant_format::FileKind;
use extant_fs::{Caller, Node, RenameMode};

/// The reply that introduces an inode to the kernel.
pub(super) fn entry(served: &Served, object: &Object) -> Result<Reply> {
    let entry = object.entry(&served.volume, &served.shown)?;
    served.nodes.tell(object);
    Ok(Reply::Entry(entry))
}

pub(super) async fn dir(served: &Served, nodeid: u64) -> Result<Node> {
    Ok(served.nodes.get(nodeid).await?.live()?.clone())
}

pub(crate) async fn lookup(served: &Served, dir: u64, who: &Who<'_>, name: &[u8]) -> Result<Reply> {
    if dir == ROOT
        && let Some(number) = inode_of(name)
        && who.administers()
    {
        let object = served.nodes.get(nodeid(number)).await?;
        // The kernel would move a directory here.
        if object.kind() != Some(FileKind::Regular) {
            return Ok(Reply::Entry(no_entry()));
        }
        // Who looks it up is asked each time.
        let entry = EntryOut { entry_valid: 0, ..object.entry(&served.volume, &served.shown)? };
        served.nodes.tell(&object);
        return Ok(Reply::Entry(entry));
    }
    let dir = served.nodes.get(dir).await?;
    match look_up(&dir, &served.volume, &who.caller(0), name).await {
        Ok(Some(object)) => entry(served, &object),
        // The kernel may cache that the name does not exist.
        Ok(None) => Ok(Reply::Entry(no_entry())),
        Err(failure) if failure.is_missing() => Ok(Reply::Entry(no_entry())),
        Err(failure) => Err(failure),
    }
}

pub(crate) async fn readlink(served: &Served, nodeid: u64) -> Result<Reply> {
    let target = match served.nodes.get(nodeid).await? {
        Object::Live(node) => {
            let target = node.read_link().await?;
            if served.relatime {
                // The read itself has succeeded.
                let _ = node.note_access().await;
            }
            target
        }
        Object::Stored(inode) => served.volume.read_link(&inode).await?,
    };
    Ok(Reply::Data(target))
}

pub(crate) async fn symlink(
    served: &Served,
    parent: u64,
    caller: &Caller,
    name: &[u8],
    target: &[u8],
) -> Result<Reply> {
    let made = dir(served, parent).await?.symlink(caller, name, target).await?;
    entry(served, &Object::Live(made))
}

pub(crate) async fn mknod(
    served: &Served,
    parent: u64,
    caller: &Caller,
    args: &MknodIn,
    name: &[u8],
) -> Result<Reply> {
    let kind = kind_of(args.mode)?;
    let mode = (args.mode & 0o7777) as u16;
    let made = dir(served, parent).await?.mknod(caller, name, kind, mode, unpacked(args.rdev)).await?;
    entry(served, &Object::Live(made))
}

pub(crate) async fn mkdir(
    served: &Served,
    parent: u64,
    caller: &Caller,
    args: &MkdirIn,
    name: &[u8],
) -> Result<Reply> {
    let made = dir(served, parent).await?.mkdir(caller, name, (args.mode & 0o7777) as u16).await?;
    entry(served, &Object::Live(made))
}

pub(crate) async fn unlink(served: &Served, parent: u64, caller: &Caller, name: &[u8]) -> Result<Reply> {
    let removed = dir(served, parent).await?.unlink_keeping(caller, name).await?;
    removed.into_iter().for_each(|node| served.nodes.lost_name(node));
    Ok(Reply::Done)
}

pub(crate) async fn rmdir(served: &Served, parent: u64, caller: &Caller, name: &[u8]) -> Result<Reply> {
    let removed = dir(served, parent).await?.rmdir_keeping(caller, name).await?;
    removed.into_iter().for_each(|node| served.nodes.lost_name(node));
    Ok(Reply::Done)
}

pub(crate) async fn rename(
    served: &Served,
    caller: &Caller,
    (from, name): (u64, &[u8]),
    (to, new_name): (u64, &[u8]),
    flags: u32,
) -> Result<Reply> {
    const NOREPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;
    const WHITEOUT: u32 = 4;
    const WHITEOUT_NOREPLACE: u32 = WHITEOUT | NOREPLACE;
    let mode = match flags {
        0 => RenameMode::Replace,
        NOREPLACE => RenameMode::NoReplace,
        EXCHANGE => RenameMode::Exchange,
        WHITEOUT => RenameMode::Whiteout,
        WHITEOUT_NOREPLACE => RenameMode::WhiteoutNoReplace,
        _ => return Err(Failure::Request(Errno::INVAL)),
    };
    let (from, to) = (dir(served, from).await?, dir(served, to).await?);
    let replaced = from.rename_keeping(caller, name, &to, new_name, mode).await?;
    replaced.into_iter().for_each(|node| served.nodes.lost_name(node));
    Ok(Reply::Done)
}

pub(crate) async fn link(
    served: &Served,
    parent: u64,
    caller: &Caller,
    args: &LinkIn,
    name: &[u8],
) -> Result<Reply> {
    let target = served.nodes.get(args.oldnodeid).await?;
    dir(served, parent).await?.link(caller, target.live()?, name).await?;
    entry(served, &target)
}
