//! Files: open, read, write, allocate, sync.

use super::names::dir;
use crate::errno::{Errno, Failure, Result};
use crate::handles::{Handle, LiveFile};
use crate::object::Object;
use crate::served::{MAX_WRITE, Served};
use crate::wire::{
    CopyFileRangeIn, CreateIn, EntryOut, FallocateIn, LseekIn, O_TRUNC, OpenIn, OpenOut, ReadIn, Reply, Seek,
    WriteIn, fopen,
};
use extant_block::Buf;
use extant_format::InodeFlags;
use extant_fs::{Caller, Error, Fallocate, FileOptions, Node, OpenFile};
use rustix::fs::OFlags;
use std::sync::Arc;

/// Flags of an open file (asm-generic/fcntl.h).
#[derive(Clone, Copy, Debug)]
struct Flags(u32);

impl Flags {
    const EXCL: u32 = 0o200;
    const TRUNC: u32 = O_TRUNC;
    const APPEND: u32 = 0o2000;
    const DIRECT: u32 = OFlags::DIRECT.bits();
    const DSYNC: u32 = OFlags::DSYNC.bits();
    const NOATIME: u32 = 0o1_000_000;
    /// Set by the kernel when it opens a program to execute it.
    const EXEC: u32 = 0x20;

    const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    const fn writes(self) -> bool {
        matches!(self.0 & 3, 1..=3)
    }

    const fn reads(self) -> bool {
        self.0 & 3 != 1
    }

    /// The permissions that opening with these flags requires.
    const fn want(self) -> u8 {
        let access = match self.0 & 3 {
            0 if self.has(Self::EXEC) => 1,
            0 => 4,
            1 => 2,
            _ => 6,
        };
        if self.has(Self::TRUNC) { access | 2 } else { access }
    }
}

/// Whether reads through a handle with these flags change the time of access.
pub(super) fn notes_access(served: &Served, flags: u32) -> bool {
    served.relatime && Flags(flags).reads() && !Flags(flags).has(Flags::NOATIME)
}

/// The kernel may keep its cached pages, because all writes to the file pass through its cache. But
/// a read that changes the time of access has to reach the server, so the kernel then drops them.
fn opened(served: &Served, handle: Handle) -> OpenOut {
    let mut open_flags = fopen::KEEP_CACHE | fopen::NOFLUSH | fopen::PARALLEL_DIRECT_WRITES;
    if let Handle::Live(live) = &handle
        && live.notes_access
        && live.node.is_access_due()
    {
        open_flags &= !fopen::KEEP_CACHE;
    }
    OpenOut { fh: served.handles.open(handle), open_flags, backing_id: 0 }
}

/// A handle of an open file.
fn live(served: &Served, node: &Node, file: OpenFile, flags: Flags) -> Handle {
    let notes_access = notes_access(served, flags.0);
    Handle::Live(Arc::new(LiveFile::new(node.clone(), file, flags.writes(), notes_access)))
}

/// How a handle writes. The kernel sends the offset of every write, of those that append, too. So
/// nothing appends here, except to a file that can only grow.
fn options(served: &Served, grows_only: bool) -> FileOptions {
    // With a write-back cache, the kernel may send pages before the end of the file late.
    let append = grows_only && !served.writeback;
    FileOptions { append, keeps_times: served.writeback, ..FileOptions::default() }
}

/// Opens a file whose permissions have been checked.
async fn open_live(served: &Served, node: &Node, caller: &Caller, flags: Flags) -> Result<Handle> {
    let grows_only = node.attributes()?.flags.contains(InodeFlags::APPEND);
    if grows_only && ((flags.writes() && !flags.has(Flags::APPEND)) || flags.has(Flags::TRUNC)) {
        return Err(Errno::PERM.into());
    }
    let file = node.open(caller, options(served, grows_only))?;
    if flags.has(Flags::TRUNC) {
        file.empty().await?;
    }
    Ok(live(served, node, file, flags))
}

pub(crate) async fn open(served: &Served, nodeid: u64, caller: &Caller, args: &OpenIn) -> Result<Reply> {
    let flags = Flags(args.flags);
    let handle = match served.nodes.get(nodeid).await? {
        Object::Live(node) => {
            node.check_access(caller, flags.want()).await?;
            open_live(served, &node, caller, flags).await?
        }
        Object::Stored(_) if flags.writes() || flags.has(Flags::TRUNC) => {
            return Err(Error::ReadOnly.into());
        }
        Object::Stored(inode) => {
            served.volume.check_access(caller, &inode, flags.want()).await?;
            Handle::Stored(Arc::new(served.volume.open_file((*inode).clone()).await?))
        }
    };
    Ok(Reply::Opened(opened(served, handle)))
}

fn created(served: &Served, node: Node, handle: Handle) -> Result<Reply> {
    let object = Object::Live(node);
    let entry: EntryOut = object.entry(&served.volume, &served.shown)?;
    served.nodes.tell(&object);
    Ok(Reply::Created(entry, opened(served, handle)))
}

pub(crate) async fn create(
    served: &Served,
    parent: u64,
    caller: &Caller,
    args: &CreateIn,
    name: &[u8],
) -> Result<Reply> {
    let flags = Flags(args.flags);
    let dir = dir(served, parent).await?;
    loop {
        match dir.create(caller, name, (args.mode & 0o7777) as u16).await {
            Ok(node) => {
                // The caller has just created the file, so its mode does not matter.
                let file = node.open(caller, options(served, false))?;
                let handle = live(served, &node, file, flags);
                return created(served, node, handle);
            }
            Err(Error::Exists(_)) if !flags.has(Flags::EXCL) => {}
            Err(error) => return Err(error.into()),
        }
        match dir.lookup(caller, name).await {
            Ok(node) => {
                node.check_access(caller, flags.want()).await?;
                let handle = open_live(served, &node, caller, flags).await?;
                return created(served, node, handle);
            }
            // The file has been removed since.
            Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(crate) async fn tmpfile(served: &Served, parent: u64, caller: &Caller, args: &CreateIn) -> Result<Reply> {
    let node = dir(served, parent).await?.create_unnamed(caller, (args.mode & 0o7777) as u16).await?;
    let file = node.open(caller, options(served, false))?;
    let handle = live(served, &node, file, Flags(args.flags));
    created(served, node, handle)
}

/// Reads this long are read ahead of.
const LONG_BYTES: usize = 64 << 10;

pub(crate) async fn read(served: &Served, args: &ReadIn) -> Result<Reply> {
    let (at, asked) = (args.offset, args.size.min(MAX_WRITE) as usize);
    let handle = served.handles.get(args.fh)?;
    let is_direct = Flags(args.flags).has(Flags::DIRECT);
    if let Handle::Live(live) = &handle
        && (is_direct || asked < LONG_BYTES)
    {
        return read_past(live, at, asked).await;
    }
    let mut bytes = served.buffers.take(asked);
    let read = match handle {
        Handle::Live(live) => {
            let read = live.file.read(at, &mut bytes).await?;
            live.file.drop_clean(at..at + read as u64).await;
            live.note_access().await;
            read
        }
        Handle::Stored(file) => {
            let read = file.read_at(at, &mut bytes).await?;
            file.drop_clean(at..at + read as u64).await;
            read
        }
        Handle::Dir(_) => return Err(Errno::BADF.into()),
    };
    bytes.truncate(read);
    Ok(Reply::Data(bytes))
}

/// Reads past the cache, unless all of it is there already.
///
/// The kernel, or with `O_DIRECT` the program, keeps what it has read. A second copy here would
/// take a frame, and often fresh memory, for each page. What has just been written still comes from
/// the cache, so it need not go to the device first.
async fn read_past(live: &LiveFile, at: u64, bytes: usize) -> Result<Reply> {
    let mut buf = Buf::stale(bytes);
    let (buf, read) = match live.file.try_read(at, &mut buf) {
        Ok(read) => (buf, Ok(read)),
        Err(_) => live.file.read_direct(at, buf).await,
    };
    let read = read?;
    live.note_access().await;
    Ok(Reply::Buf(buf, read))
}

pub(crate) async fn write(served: &Served, nodeid: u64, args: &WriteIn, data: &[u8]) -> Result<Reply> {
    const WRITE_CACHE: u32 = 1;
    let Handle::Live(live) = served.handles.get(args.fh)? else { return Err(Errno::BADF.into()) };
    if args.write_flags & WRITE_CACHE == 0 {
        let done = match live.file.try_write(args.offset, data) {
            Ok(done) => done,
            // It has written nothing.
            Err(_) => live.file.write(args.offset, data).await?,
        };
        // After an asynchronous write with O_DIRECT and O_DSYNC or O_SYNC, the kernel sends no
        // FSYNC. After others it does, but nothing tells which this one is.
        let flags = Flags(args.flags);
        if flags.has(Flags::DIRECT) && flags.has(Flags::DSYNC) {
            live.file.sync().await?;
        }
        return Ok(Reply::Written(done as u32));
    }
    // Nothing but a shared mapping puts pages of a file that only grows into the kernel's cache, if
    // the kernel does not keep what is written.
    if !served.writeback
        && let Object::Live(node) = served.nodes.get(nodeid).await?
        && node.attributes()?.flags.contains(InodeFlags::APPEND)
    {
        return Err(Errno::PERM.into());
    }
    // The kernel takes the pages as written, however few are. An error it tells to the next sync.
    let (file, mut done) = (live.behind_cache(), 0);
    while done < data.len() {
        done += file.write(args.offset + done as u64, &data[done..]).await?;
    }
    Ok(Reply::Written(args.size))
}

pub(crate) async fn fsync(served: &Served, fh: u64, data_only: bool) -> Result<Reply> {
    match served.handles.get(fh)? {
        Handle::Live(live) if data_only => live.file.datasync().await?,
        Handle::Live(live) => live.file.sync().await?,
        Handle::Stored(_) | Handle::Dir(_) => {}
    }
    Ok(Reply::Done)
}

pub(crate) async fn fsyncdir(served: &Served, nodeid: u64) -> Result<Reply> {
    if let Object::Live(node) = served.nodes.get(nodeid).await? {
        node.sync().await?;
    }
    Ok(Reply::Done)
}

pub(crate) async fn syncfs(served: &Served) -> Result<Reply> {
    served.volume.sync().await?;
    Ok(Reply::Done)
}

/// The modes that Linux allows (`vfs_fallocate`). NO_HIDE_STALE is never allowed.
fn mode(bits: u32) -> Result<Fallocate> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const COLLAPSE_RANGE: u32 = 0x08;
    const ZERO_RANGE: u32 = 0x10;
    const INSERT_RANGE: u32 = 0x20;
    const UNSHARE_RANGE: u32 = 0x40;
    let keep_size = bits & KEEP_SIZE != 0;
    match bits & !KEEP_SIZE {
        // Blocks are never shared, so there is nothing to unshare.
        0 | UNSHARE_RANGE => Ok(Fallocate::Allocate { keep_size }),
        ZERO_RANGE => Ok(Fallocate::ZeroRange { keep_size }),
        PUNCH_HOLE if keep_size => Ok(Fallocate::PunchHole),
        COLLAPSE_RANGE if !keep_size => Ok(Fallocate::CollapseRange),
        INSERT_RANGE if !keep_size => Ok(Fallocate::InsertRange),
        PUNCH_HOLE | COLLAPSE_RANGE | INSERT_RANGE => Err(Errno::INVAL.into()),
        _ => Err(Errno::OPNOTSUPP.into()),
    }
}

pub(crate) async fn fallocate(served: &Served, args: &FallocateIn) -> Result<Reply> {
    let handle = served.handles.get(args.fh)?;
    handle.live()?.fallocate(mode(args.mode)?, args.offset, args.length).await?;
    Ok(Reply::Done)
}

pub(crate) async fn lseek(served: &Served, args: &LseekIn, seek: Seek) -> Result<Reply> {
    if served.writeback {
        // What is a hole here may have contents in the kernel's cache. It then knows no holes.
        return Err(Errno::NOSYS.into());
    }
    let from = args.offset;
    let found = match (served.handles.get(args.fh)?, seek) {
        (Handle::Live(live), Seek::Data) => live.file.seek_data(from).await?,
        (Handle::Live(live), Seek::Hole) => live.file.seek_hole(from).await?,
        (Handle::Stored(file), Seek::Data) => file.seek_data(from).await?,
        (Handle::Stored(file), Seek::Hole) => file.seek_hole(from).await?,
        (Handle::Dir(_), _) | (_, Seek::Other(_)) => return Err(Errno::INVAL.into()),
    };
    found.map(Reply::Offset).ok_or(Failure::Request(Errno::NXIO))
}

pub(crate) async fn copy(served: &Served, args: &CopyFileRangeIn, wide: bool) -> Result<Reply> {
    /// Maximum length of a copy in one request. The caller asks again for the rest.
    const MAX_BYTES: u64 = 64 << 20;
    if args.flags != 0 {
        return Err(Errno::INVAL.into());
    }
    let (from, to) = (served.handles.get(args.fh_in)?, served.handles.get(args.fh_out)?);
    let len = args.len.min(MAX_BYTES);
    let copied = from.live()?.copy_range(args.off_in, to.live()?, args.off_out, len).await?;
    if let Handle::Live(live) = &from {
        live.note_access().await;
    }
    Ok(if wide { Reply::Copied(copied) } else { Reply::Written(copied as u32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_modes_of_fallocate_that_linux_allows_are_taken() {
        assert_eq!(mode(0).unwrap(), Fallocate::Allocate { keep_size: false });
        assert_eq!(mode(0x11).unwrap(), Fallocate::ZeroRange { keep_size: true });
        assert_eq!(mode(3).unwrap(), Fallocate::PunchHole);
        let errno = |bits: u32| mode(bits).unwrap_err().errno();
        assert_eq!([2, 9, 0x18, 4].map(errno), [22, 22, 95, 95]);
    }
}
