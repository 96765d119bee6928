//! Attributes of inodes and of the volume.

use crate::errno::Result;
use crate::handles::Handle;
use crate::object::Object;
use crate::served::Served;
use crate::settings::VALID_SECONDS;
use crate::wire::{Reply, SetattrIn, StatfsOut, StatxOut, fattr};
use extant_format::{NAME_MAX, Timestamp};
use extant_fs::{Caller, FileOptions, Node, SetAttributes, SetTime};

pub(crate) async fn getattr(served: &Served, nodeid: u64) -> Result<Reply> {
    Ok(Reply::Attr(served.nodes.get(nodeid).await?.attr_out(&served.volume, &served.shown)?))
}

pub(crate) async fn statx(served: &Served, nodeid: u64) -> Result<Reply> {
    let attributes = served.nodes.get(nodeid).await?.attributes(&served.volume)?;
    let stat = crate::object::statx(&attributes, &served.volume, &served.shown);
    Ok(Reply::Statx(Box::new(StatxOut { attr_valid: VALID_SECONDS, stat, ..StatxOut::default() })))
}

pub(crate) async fn setattr(
    served: &Served,
    nodeid: u64,
    caller: &Caller,
    args: &SetattrIn,
) -> Result<Reply> {
    let object = served.nodes.get(nodeid).await?;
    let node = object.live()?;
    let has = |bit: u32| args.valid & bit != 0;
    if has(fattr::SIZE) {
        set_size(served, node, caller, args).await?;
    }
    let time = |bit: u32, now: u32, seconds: i64, nanos: u32| match (has(bit), has(now)) {
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::To(Timestamp { seconds, nanos: nanos.min(999_999_999) })),
        (false, _) => None,
    };
    let owners = &served.shown.owners;
    let set = SetAttributes {
        permissions: has(fattr::MODE).then_some((args.mode & 0o7777) as u16),
        uid: has(fattr::UID).then(|| owners.stored_user(args.uid)).transpose()?,
        gid: has(fattr::GID).then(|| owners.stored_group(args.gid)).transpose()?,
        accessed: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
        modified: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec),
    };
    if set != SetAttributes::default() {
        node.set_attributes(caller, &set).await?;
    }
    Ok(Reply::Attr(object.attr_out(&served.volume, &served.shown)?))
}

/// An open file can be truncated whatever its mode is now.
async fn set_size(served: &Served, node: &Node, caller: &Caller, args: &SetattrIn) -> Result<()> {
    if args.valid & fattr::FH != 0
        && let Handle::Live(live) = served.handles.get(args.fh)?
        && live.writes
    {
        return Ok(live.file.set_size(args.size).await?);
    }
    node.check_access(caller, 2).await?;
    let file = node.open(caller, FileOptions::default())?;
    Ok(file.set_size(args.size).await?)
}

pub(crate) async fn access(served: &Served, nodeid: u64, caller: &Caller, mask: u32) -> Result<Reply> {
    let want = (mask & 7) as u8;
    match served.nodes.get(nodeid).await? {
        Object::Live(node) => node.check_access(caller, want).await?,
        Object::Stored(inode) => served.volume.check_access(caller, &inode, want).await?,
    }
    Ok(Reply::Done)
}

/// Waits for pending deletions, so that the space of removed files counts as free, as on ext4.
pub(crate) async fn statfs(served: &Served) -> Reply {
    served.volume.finish_deletions().await;
    let space = served.volume.space();
    Reply::Statfs(StatfsOut {
        blocks: space.blocks,
        bfree: space.blocks_free,
        bavail: space.blocks_available,
        files: space.inodes,
        ffree: space.inodes_free,
        bsize: space.block_bytes,
        namelen: NAME_MAX as u32,
        frsize: space.block_bytes,
        ..StatfsOut::default()
    })
}
