//! A FUSE server that answers from memory and does no work, to measure the cost of the protocol. It
//! uses our transport, and asks the kernel for the same features as our server. Like ours, it tells
//! when a file was made: without an answer the kernel would not ask again, and a program's first
//! look at a file would cost one request instead of two.

use super::Result;
use extant_fuse::wire::*;
use extant_fuse::{Device, MountOptions, Received, Transport, WANTED_FEATURES, mount};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes kept of each file. Writes beyond this are dropped, and reads return zeroes.
const KEPT_BYTES: u64 = 64 << 20;
const MAX_WRITE: u32 = 1 << 20;
const VALID_SECONDS: u64 = 86_400;
const ROOT: u64 = 1;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
/// The features that our server asks for, except ioctls on directories, which this server does not
/// answer.
const WANTED: u64 = WANTED_FEATURES & !init::IOCTL_DIR;

/// The program: mounts on `at`, serves until it is unmounted, and mounts the same files again for
/// each line of its input.
pub(super) fn program(at: &Path, allow_other: bool) -> Result<()> {
    let mut served = Null::new(allow_other);
    let options = MountOptions {
        source: "null".into(),
        read_only: false,
        allow_other,
        kernel_checks: false,
        suid: false,
        dev: false,
        exec: true,
    };
    loop {
        let device = mount(at, &options)?;
        println!("mounted");
        std::io::stdout().flush()?;
        served.serve(&device)?;
        if std::io::stdin().lock().read_line(&mut String::new())? == 0 {
            return Ok(());
        }
    }
}

enum Content {
    Dir(BTreeMap<Vec<u8>, u64>),
    Data(Vec<u8>),
}

struct Node {
    attr: Attr,
    content: Content,
}

struct Null {
    nodes: Vec<Option<Node>>,
    /// Names of open directories.
    listings: BTreeMap<u64, Vec<(Vec<u8>, u64)>>,
    last_handle: u64,
    asks_for: u64,
    zeroes: Vec<u8>,
}

/// The answer to a request, or an error number.
type Answer = std::result::Result<Reply, i32>;

const NO_ENTRY: i32 = 2;
const EXISTS: i32 = 17;
const NO_TTY: i32 = 25;
const NOT_EMPTY: i32 = 39;
const NO_CALL: i32 = 38;
const NO_DATA: i32 = 61;
const NOT_SUPPORTED: i32 = 95;
const STALE: i32 = 116;

impl Null {
    fn new(allow_other: bool) -> Self {
        let attr = Attr { ino: ROOT, mode: DIRECTORY | 0o755, nlink: 2, blksize: 4096, ..Attr::default() };
        let root = Node { attr, content: Content::Dir(BTreeMap::new()) };
        Self {
            nodes: vec![None, Some(root)],
            listings: BTreeMap::new(),
            last_handle: 0,
            asks_for: WANTED | if allow_other { init::POSIX_ACL } else { 0 },
            zeroes: vec![0; MAX_WRITE as usize],
        }
    }

    fn serve(&mut self, device: &Device) -> Result<()> {
        let mut buffer = vec![0; MAX_WRITE as usize + 4096];
        loop {
            let Received::Request(bytes) = device.read(&mut buffer, true)? else { return Ok(()) };
            let Ok(request) = Request::parse(&buffer[..bytes]) else { continue };
            let unique = request.header.unique;
            let reply = |error: i32, parts: [&[u8]; 2]| {
                let len = size_of::<ReplyHeader>() + parts[0].len() + parts[1].len();
                let header = ReplyHeader { len: len as u32, error, unique };
                // An error is fine: the caller may have gone away.
                let _ = device.write(&[header.as_bytes(), parts[0], parts[1]]);
            };
            match request.operation {
                Some(Operation::Forget(_)) => self.forget(request.header.nodeid),
                Some(Operation::BatchForget { mut records }) => {
                    while let Ok((one, rest)) = ForgetOne::read_from_prefix(records) {
                        self.forget(one.nodeid);
                        records = rest;
                    }
                }
                Some(Operation::Interrupt(_) | Operation::NotifyReply) => {}
                Some(Operation::Read(args)) => match self.read(request.header.nodeid, &args) {
                    Some(parts) => reply(0, parts),
                    None => reply(-STALE, [&[], &[]]),
                },
                Some(operation) => match self.perform(&request.header, operation) {
                    Ok(answer) => answer.with_parts(|parts| reply(0, parts)),
                    Err(error) => reply(-error, [&[], &[]]),
                },
                None => reply(-NO_CALL, [&[], &[]]),
            }
        }
    }

    fn node(&mut self, nodeid: u64) -> std::result::Result<&mut Node, i32> {
        self.nodes.get_mut(nodeid as usize).and_then(Option::as_mut).ok_or(STALE)
    }

    fn dir(&mut self, nodeid: u64) -> std::result::Result<&mut BTreeMap<Vec<u8>, u64>, i32> {
        match &mut self.node(nodeid)?.content {
            Content::Dir(names) => Ok(names),
            Content::Data(_) => Err(NO_ENTRY),
        }
    }

    fn child(&mut self, dir: u64, name: &[u8]) -> std::result::Result<u64, i32> {
        self.dir(dir)?.get(name).copied().ok_or(NO_ENTRY)
    }

    fn entry(&mut self, nodeid: u64) -> std::result::Result<EntryOut, i32> {
        let attr = self.node(nodeid)?.attr;
        let (entry_valid, attr_valid) = (VALID_SECONDS, VALID_SECONDS);
        Ok(EntryOut { nodeid, entry_valid, attr_valid, attr, ..EntryOut::default() })
    }

    fn make(&mut self, who: &RequestHeader, name: &[u8], mode: u32, content: Content) -> Answer {
        let nodeid = self.nodes.len() as u64;
        if self.dir(who.nodeid)?.contains_key(name) {
            return Err(EXISTS);
        }
        self.dir(who.nodeid)?.insert(name.to_vec(), nodeid);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (seconds, nanos) = (now.as_secs() as i64, now.subsec_nanos());
        let size = match &content {
            Content::Data(data) => data.len() as u64,
            Content::Dir(_) => 4096,
        };
        let attr = Attr {
            ino: nodeid,
            size,
            mode,
            nlink: if mode & DIRECTORY == DIRECTORY { 2 } else { 1 },
            uid: who.uid,
            gid: who.gid,
            blksize: 4096,
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            atimensec: nanos,
            mtimensec: nanos,
            ctimensec: nanos,
            ..Attr::default()
        };
        self.nodes.push(Some(Node { attr, content }));
        Ok(Reply::Entry(self.entry(nodeid)?))
    }

    /// The kernel forgets an inode, since its last user has gone. Without links the inode is
    /// removed.
    fn forget(&mut self, nodeid: u64) {
        if self.node(nodeid).is_ok_and(|node| node.attr.nlink == 0) {
            self.nodes[nodeid as usize] = None;
        }
    }

    fn remove(&mut self, dir: u64, name: &[u8]) -> Answer {
        let nodeid = self.child(dir, name)?;
        let node = self.node(nodeid)?;
        if matches!(&node.content, Content::Dir(names) if !names.is_empty()) {
            return Err(NOT_EMPTY);
        }
        node.attr.nlink -= if matches!(node.content, Content::Dir(_)) { 2 } else { 1 };
        self.dir(dir)?.remove(name);
        Ok(Reply::Done)
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Answer {
        let moved = self.child(from.0, from.1)?;
        if self.child(to.0, to.1).is_ok_and(|replaced| replaced != moved) {
            self.remove(to.0, to.1)?;
        }
        self.dir(from.0)?.remove(from.1);
        self.dir(to.0)?.insert(to.1.to_vec(), moved);
        Ok(Reply::Done)
    }

    fn perform(&mut self, header: &RequestHeader, operation: Operation<'_>) -> Answer {
        let nodeid = header.nodeid;
        match operation {
            Operation::Init { args, flags } => Ok(Reply::Init(self.init(&args, flags))),
            Operation::Lookup { name } => match self.child(nodeid, name) {
                Ok(child) => Ok(Reply::Entry(self.entry(child)?)),
                Err(_) => Ok(Reply::Entry(EntryOut { entry_valid: VALID_SECONDS, ..EntryOut::default() })),
            },
            Operation::Getattr(_) => self.attr(nodeid),
            Operation::Statx(_) => self.statx(nodeid),
            Operation::Setattr(args) => self.setattr(nodeid, &args),
            Operation::Readlink => match &self.node(nodeid)?.content {
                Content::Data(target) => Ok(Reply::Data(target.clone())),
                Content::Dir(_) => Err(NO_ENTRY),
            },
            Operation::Symlink { name, target } => {
                self.make(header, name, LINK | 0o777, Content::Data(target.to_vec()))
            }
            Operation::Mknod { args, name } => {
                self.make(header, name, args.mode & !args.umask, Content::Data(Vec::new()))
            }
            Operation::Mkdir { args, name } => {
                let mode = DIRECTORY | (args.mode & 0o7777 & !args.umask);
                self.make(header, name, mode, Content::Dir(BTreeMap::new()))
            }
            Operation::Unlink { name } | Operation::Rmdir { name } => self.remove(nodeid, name),
            Operation::Rename { newdir, flags: 0 | 1, name, new_name } => {
                self.rename((nodeid, name), (newdir, new_name))
            }
            Operation::Link { args, name } => {
                self.node(args.oldnodeid)?.attr.nlink += 1;
                self.dir(nodeid)?.insert(name.to_vec(), args.oldnodeid);
                Ok(Reply::Entry(self.entry(args.oldnodeid)?))
            }
            Operation::Open(args) => {
                const TRUNCATE: u32 = 0o1000;
                if args.flags & TRUNCATE != 0 {
                    self.resize(nodeid, 0)?;
                }
                Ok(Reply::Opened(self.opened()))
            }
            Operation::Create { args, name } => {
                let mode = REGULAR | (args.mode & 0o7777 & !args.umask);
                let Reply::Entry(entry) = self.make(header, name, mode, Content::Data(Vec::new()))? else {
                    return Err(STALE);
                };
                Ok(Reply::Created(entry, self.opened()))
            }
            Operation::Write { args, data } => self.write(nodeid, args.offset, data),
            Operation::Statfs => {
                let free = 1 << 28;
                Ok(Reply::Statfs(StatfsOut {
                    blocks: free,
                    bfree: free,
                    bavail: free,
                    files: free,
                    ffree: free,
                    bsize: 4096,
                    frsize: 4096,
                    namelen: 255,
                    ..StatfsOut::default()
                }))
            }
            Operation::Release(_) | Operation::Fsync(_) | Operation::Fsyncdir(_) | Operation::Syncfs => {
                Ok(Reply::Done)
            }
            Operation::Fallocate(args) if args.mode == 0 => {
                let end = args.offset + args.length;
                if self.node(nodeid)?.attr.size < end {
                    self.resize(nodeid, end)?;
                }
                Ok(Reply::Done)
            }
            Operation::Fallocate(_) => Err(NOT_SUPPORTED),
            Operation::Opendir(_) => {
                let names = self.dir(nodeid)?;
                let names = names.iter().map(|(name, nodeid)| (name.clone(), *nodeid)).collect();
                let opened = self.opened();
                self.listings.insert(opened.fh, names);
                Ok(Reply::Opened(opened))
            }
            Operation::Readdir { args, plus } => self.list(&args, plus),
            Operation::Releasedir(args) => {
                self.listings.remove(&args.fh);
                Ok(Reply::Done)
            }
            Operation::Getxattr { .. } => Err(NO_DATA),
            Operation::Listxattr { size: 0 } => Ok(Reply::Xattr(Xattr::Length(0))),
            Operation::Listxattr { .. } => Ok(Reply::Xattr(Xattr::Value(Vec::new()))),
            Operation::Ioctl { .. } => Err(NO_TTY),
            _ => Err(NO_CALL),
        }
    }

    fn init(&self, args: &InitIn, offered: u64) -> InitOut {
        let agreed = self.asks_for & offered;
        InitOut {
            major: MAJOR,
            minor: MINOR.min(args.minor),
            max_readahead: args.max_readahead,
            flags: agreed as u32,
            flags2: (agreed >> 32) as u32,
            max_background: 128,
            congestion_threshold: 96,
            max_write: MAX_WRITE,
            max_pages: (MAX_WRITE / 4096) as u16,
            time_gran: 1,
            ..InitOut::default()
        }
    }

    fn opened(&mut self) -> OpenOut {
        self.last_handle += 1;
        let open_flags = fopen::KEEP_CACHE | fopen::NOFLUSH | fopen::PARALLEL_DIRECT_WRITES;
        OpenOut { fh: self.last_handle, open_flags, backing_id: 0 }
    }

    fn attr(&mut self, nodeid: u64) -> Answer {
        let attr = self.node(nodeid)?.attr;
        Ok(Reply::Attr(AttrOut { attr_valid: VALID_SECONDS, attr, ..AttrOut::default() }))
    }

    fn statx(&mut self, nodeid: u64) -> Answer {
        const BASIC: u32 = 0x7ff;
        const BTIME: u32 = 0x800;
        let attr = self.node(nodeid)?.attr;
        let time = |tv_sec: i64, tv_nsec: u32| StatxTime { tv_sec, tv_nsec, reserved: 0 };
        // It never changes the time of change.
        let changed = time(attr.ctime, attr.ctimensec);
        let stat = Statx {
            mask: BASIC | BTIME,
            blksize: attr.blksize,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino,
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime, attr.atimensec),
            btime: changed,
            ctime: changed,
            mtime: time(attr.mtime, attr.mtimensec),
            ..Statx::default()
        };
        Ok(Reply::Statx(Box::new(StatxOut { attr_valid: VALID_SECONDS, stat, ..StatxOut::default() })))
    }

    fn setattr(&mut self, nodeid: u64, args: &SetattrIn) -> Answer {
        let has = |bit: u32| args.valid & bit != 0;
        if has(fattr::SIZE) {
            self.resize(nodeid, args.size)?;
        }
        let attr = &mut self.node(nodeid)?.attr;
        if has(fattr::MODE) {
            attr.mode = (attr.mode & !0o7777) | (args.mode & 0o7777);
        }
        if has(fattr::UID) {
            attr.uid = args.uid;
        }
        if has(fattr::GID) {
            attr.gid = args.gid;
        }
        if has(fattr::MTIME) {
            (attr.mtime, attr.mtimensec) = (args.mtime, args.mtimensec);
        }
        self.attr(nodeid)
    }

    fn resize(&mut self, nodeid: u64, size: u64) -> std::result::Result<(), i32> {
        let node = self.node(nodeid)?;
        (node.attr.size, node.attr.blocks) = (size, size.div_ceil(512));
        if let Content::Data(data) = &mut node.content {
            data.truncate(size.min(KEPT_BYTES) as usize);
        }
        Ok(())
    }

    fn write(&mut self, nodeid: u64, offset: u64, written: &[u8]) -> Answer {
        let node = self.node(nodeid)?;
        let end = offset + written.len() as u64;
        node.attr.size = node.attr.size.max(end);
        node.attr.blocks = node.attr.size.div_ceil(512);
        if let Content::Data(data) = &mut node.content
            && end <= KEPT_BYTES
        {
            let (from, to) = (offset as usize, end as usize);
            if data.len() < to {
                data.resize(to, 0);
            }
            data[from..to].copy_from_slice(written);
        }
        Ok(Reply::Written(written.len() as u32))
    }

    /// Bytes of a file, and the zeroes after them.
    fn read(&self, nodeid: u64, args: &ReadIn) -> Option<[&[u8]; 2]> {
        let node = self.nodes.get(nodeid as usize)?.as_ref()?;
        let Content::Data(data) = &node.content else { return None };
        let wanted = u64::from(args.size.min(MAX_WRITE)).min(node.attr.size.saturating_sub(args.offset));
        let from = data.len().min(args.offset as usize);
        let to = data.len().min((args.offset + wanted) as usize);
        let kept = &data[from..to];
        Some([kept, &self.zeroes[..wanted as usize - kept.len()]])
    }

    fn list(&mut self, args: &ReadIn, plus: bool) -> Answer {
        let Some(names) = self.listings.remove(&args.fh) else { return Err(STALE) };
        let mut bytes = Vec::with_capacity(args.size as usize);
        for (at, (name, nodeid)) in names.iter().enumerate().skip(args.offset as usize) {
            let Ok(entry) = self.entry(*nodeid) else { continue };
            let plus_bytes = if plus { size_of::<EntryOut>() } else { 0 };
            let record = plus_bytes + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
            if bytes.len() + record > args.size as usize {
                break;
            }
            let dirent = Dirent {
                ino: *nodeid,
                off: at as u64 + 1,
                namelen: name.len() as u32,
                kind: (entry.attr.mode >> 12) & 15,
            };
            if plus {
                bytes.extend_from_slice(entry.as_bytes());
            }
            bytes.extend_from_slice(dirent.as_bytes());
            bytes.extend_from_slice(name);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        self.listings.insert(args.fh, names);
        Ok(Reply::Listing(bytes, Vec::new()))
    }
}
