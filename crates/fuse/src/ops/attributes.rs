//! Attributes of inodes and of the volume.

use crate::errno::Result;
use crate::handles::Handle;
use crate::object::Object;
use crate::served::Served;
use crate::settings::VALID_SECONDS;
use crate::wire::{Reply, SetattrIn, StatfsOut, StatxOut, fattr};
use extant_format::{NAME_MAX, Timestamp};
use extant_fs::{Caller, Dates, FileOptions, Node, SetAttributes, SetTime};

/// Attributes that are neither the size nor a time, nor say how others are to be set.
const OTHERS: u32 = fattr::MODE | fattr::UID | fattr::GID;

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
    if is_date_of_contents(served, args)? {
        let at = |seconds: i64, nanos: u32| Timestamp { seconds, nanos: nanos.min(999_999_999) };
        node.date_contents(at(args.mtime, args.mtimensec), at(args.ctime, args.ctimensec)).await?;
        return Ok(Reply::Attr(object.attr_out(&served.volume, &served.shown)?));
    }
    let time = |bit: u32, now: u32, seconds: i64, nanos: u32| match (has(bit), has(now)) {
        (true, true) => Some(SetTime::Now),
        (true, false) => Some(SetTime::To(Timestamp { seconds, nanos: nanos.min(999_999_999) })),
        (false, _) => None,
    };
    let owners = &served.shown.owners;
    let mut set = SetAttributes {
        permissions: has(fattr::MODE).then_some((args.mode & 0o7777) as u16),
        uid: has(fattr::UID).then(|| owners.stored_user(args.uid)).transpose()?,
        gid: has(fattr::GID).then(|| owners.stored_group(args.gid)).transpose()?,
        accessed: time(fattr::ATIME, fattr::ATIME_NOW, args.atime, args.atimensec),
        modified: time(fattr::MTIME, fattr::MTIME_NOW, args.mtime, args.mtimensec),
        // Only a kernel that keeps what is written sends it.
        changed: has(fattr::CTIME)
            .then(|| Timestamp { seconds: args.ctime, nanos: args.ctimensec.min(999_999_999) }),
    };
    // Then it has also judged a change of times, and given a time of its own to what the caller
    // wanted to be now.
    let is_judged = served.writeback && args.valid & OTHERS == 0;
    if has(fattr::SIZE) {
        // With a size, Linux sends nothing but times, and those only if it keeps what is written.
        let mut dates = Dates::default();
        if is_judged {
            dates = taken_dates(&mut set);
        }
        set_size(served, node, caller, args, dates).await?;
    }
    if set != SetAttributes::default() {
        let root = Caller::root();
        node.set_attributes(if is_judged { &root } else { caller }, &set).await?;
    }
    Ok(Reply::Attr(object.attr_out(&served.volume, &served.shown)?))
}

/// Takes out the times that a change of size can set in the same step.
fn taken_dates(set: &mut SetAttributes) -> Dates {
    let take = |time: &mut Option<SetTime>| match *time {
        Some(SetTime::To(at)) => {
            *time = None;
            Some(at)
        }
        Some(SetTime::Now) | None => None,
    };
    Dates {
        accessed: take(&mut set.accessed),
        modified: take(&mut set.modified),
        changed: set.changed.take(),
    }
}

/// Whether a request only carries the times of pages that the kernel has written back, through the
/// handle of a writer. The kernel sends these by itself, without a call of a program.
fn is_date_of_contents(served: &Served, args: &SetattrIn) -> Result<bool> {
    let is_date = args.valid & !fattr::LOCKOWNER == fattr::MTIME | fattr::CTIME | fattr::FH;
    let is_own = is_date && served.writeback;
    Ok(is_own && matches!(served.handles.get(args.fh)?, Handle::Live(live) if live.writes))
}

/// An open file can be truncated whatever its mode is now.
async fn set_size(
    served: &Served,
    node: &Node,
    caller: &Caller,
    args: &SetattrIn,
    dates: Dates,
) -> Result<()> {
    if args.valid & fattr::FH != 0
        && let Handle::Live(live) = served.handles.get(args.fh)?
        && live.writes
    {
        return Ok(live.file.set_size_dated(args.size, dates).await?);
    }
    node.check_access(caller, 2).await?;
    let options = FileOptions { keeps_times: served.writeback, ..FileOptions::default() };
    let file = node.open(caller, options)?;
    Ok(file.set_size_dated(args.size, dates).await?)
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
