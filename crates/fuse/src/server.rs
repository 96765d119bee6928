//! Running requests and replying.

use crate::buffers::Buffers;
use crate::caller::Who;
use crate::emulation::{OWNER_ATTRIBUTE, is_registration};
use crate::errno::{Errno, Failure, Result};
use crate::lane::{self, Waits, Work};
use crate::lone_syncs::LoneSyncs;
use crate::metrics::UNKNOWN;
use crate::ops::xattrs::ACCESS_LIST;
use crate::responders::{RequestSlot, Responder, Responders};
use crate::served::{MAX_WRITE, Served};
use crate::settings::Settings;
use crate::wire::{
    FSYNC_FDATASYNC, ForgetOne, InitIn, InitOut, InvalInodeOut, MAJOR, MINOR, MINOR_MIN, Malformed,
    NOTIFY_INVAL_INODE, Operation, Reply, ReplyHeader, Request, RequestHeader, init,
};
use crate::{OpenVolume, Transport, ops};
use extant_rt::{Nanos, Rt};
use parking_lot::Mutex;
use std::fmt;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use zerocopy::{FromBytes, IntoBytes};

/// Room for a request's header, the largest structure and a name, besides the data.
const BUFFER_BYTES: usize = MAX_WRITE as usize + 4096;
/// Features that a server requests from the kernel, as flags of [`init`]; POSIX access lists are
/// added if the kernel checks permissions, unless they are ignored.
pub const WANTED_FEATURES: u64 = init::ASYNC_READ
    | init::ATOMIC_O_TRUNC
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::IOCTL_DIR
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::CACHE_SYMLINKS
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::DIRECT_IO_ALLOW_MMAP;
/// ENOSPC, and EDQUOT.
const NO_ROOM: [i32; 2] = [28, 122];
/// How long each attempt waits for the last close of a deleted file, before a full volume is
/// reported.
const DELETED_STEP: Nanos = Nanos::from_millis(5);
/// How often to check whether a thread with a pending signal is being killed.
const KILLED_STEP: Nanos = Nanos::from_millis(50);
/// Maximum number of read-ahead and write-back requests that the kernel has in flight at once.
const MAX_BACKGROUND: u16 = 128;

/// A server of one volume.
pub struct Server {
    rt: Rt,
    kernel_checks: bool,
    transport: Arc<dyn Transport>,
    served: Served,
    /// The open volume; taken out and closed when the server ends.
    open: Mutex<Option<OpenVolume>>,
    ready: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// For long requests.
    buffers: Buffers,
    lone_syncs: LoneSyncs,
    is_initialised: AtomicBool,
    /// There is no protocol version that both the kernel and we support.
    is_refused: AtomicBool,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("served", &self.served).finish_non_exhaustive()
    }
}

impl Server {
    /// Creates a server that answers the requests of `transport`. Calls `ready` once the kernel has
    /// accepted the server.
    pub fn new(
        rt: &Rt,
        volume: OpenVolume,
        transport: Arc<dyn Transport>,
        settings: Settings,
        ready: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            rt: rt.clone(),
            kernel_checks: settings.kernel_checks,
            transport,
            served: Served::new(rt, &volume, settings),
            lone_syncs: LoneSyncs::new(volume.flushes_soon),
            open: Mutex::new(Some(volume)),
            ready: Mutex::new(Some(Box::new(ready))),
            buffers: Buffers::default(),
            is_initialised: AtomicBool::new(false),
            is_refused: AtomicBool::new(false),
        })
    }

    /// Answers requests on this thread until the directory is unmounted and all are answered. Call
    /// it on a thread that may wait.
    ///
    /// # Errors
    /// The connection is broken, or the kernel is too old.
    pub fn serve(self: &Arc<Self>) -> std::io::Result<()> {
        let responders = Arc::<Responders>::default();
        lane::serve(&self.rt, &self.transport, &self.lone_syncs, BUFFER_BYTES, |buffer, bytes, is_alone| {
            let waiting = self.begin(&responders, buffer, bytes, is_alone);
            if self.is_refused.load(Ordering::Relaxed) {
                let words = "the kernel's FUSE is too old; Linux 5.13 or newer is needed";
                return Err(std::io::Error::new(std::io::ErrorKind::Unsupported, words));
            }
            Ok(waiting)
        })
    }

    /// Forgets what programs had open, and closes the volume.
    ///
    /// # Errors
    /// Something could not be written.
    pub async fn close(&self) -> extant_fs::Result<()> {
        self.served.handles.clear();
        self.served.nodes.clear();
        let open = self.open.lock().take();
        match open {
            Some(open) => open.close().await,
            None => Ok(()),
        }
    }

    /// Starts the request in a buffer, and returns it if it has to wait. A long one takes the
    /// buffer with it. A sync blocks the thread if the request `is_alone`.
    fn begin(
        self: &Arc<Self>,
        responders: &Arc<Responders>,
        buffer: &mut Vec<u8>,
        bytes: usize,
        is_alone: &dyn Fn() -> bool,
    ) -> Option<Waits> {
        let opcode = RequestHeader::read_from_prefix(&buffer[..bytes]).map_or(0, |(header, _)| header.opcode);
        let blocks = self.lone_syncs.may_block(opcode) && is_alone();
        let respond = |slot| -> Work { Box::pin(self.clone().respond(slot)) };
        let mut responder = responders.call().unwrap_or_else(|| Responder::new(respond));
        responder.take(buffer, bytes, &self.buffers);
        // It is polled again with its own waker if it has to wait.
        let mut cx = Context::from_waker(Waker::noop());
        // After a panic the dropped ticket has sent EIO, and the panic was printed.
        let mut poll = || catch_unwind(AssertUnwindSafe(|| responder.poll(&mut cx)));
        let polled = if blocks { self.lone_syncs.poll(&self.rt, poll) } else { poll() };
        match polled {
            Ok(Poll::Ready(())) => {
                responders.keep(responder);
                None
            }
            Ok(Poll::Pending) => {
                let responders = responders.clone();
                let work = Box::pin(async move {
                    poll_fn(|cx| responder.poll(cx)).await;
                    responders.keep(responder);
                });
                Some(Waits { work, blocks })
            }
            Err(_) => None,
        }
    }

    /// Answers the requests of a slot, one after another.
    async fn respond(self: Arc<Self>, slot: Arc<RequestSlot>) {
        loop {
            let request = slot.next().await;
            self.answer(request.bytes()).await;
            slot.answered(request, &self.buffers);
        }
    }

    async fn answer(self: &Arc<Self>, bytes: &[u8]) {
        let Request { header, operation, group } = match Request::parse(bytes) {
            Ok(request) => request,
            Err(Malformed::Length) => return,
            Err(Malformed::Body(unique)) => return self.ticket(unique).fail(Errno::INVAL.into()),
        };
        match operation {
            // These requests get no reply.
            Some(Operation::Forget(args)) => self.forget(header.nodeid, args.nlookup),
            Some(Operation::BatchForget { mut records }) => {
                while let Ok((one, rest)) = ForgetOne::read_from_prefix(records) {
                    self.forget(one.nodeid, one.nlookup);
                    records = rest;
                }
            }
            Some(Operation::Interrupt(args)) => self.interrupt(args.unique).await,
            Some(Operation::NotifyReply) => {}
            Some(operation) => {
                let (ticket, began) = (self.ticket(header.unique), self.rt.now());
                let set_id = self.set_id_of(&header, &operation).await;
                let work = pin!(self.perform(&header, group, &operation));
                let done = self.served.interrupts.run(&header, &operation, work).await;
                self.note(&header, &operation, done.as_ref().err(), began);
                // Before the reply: the program may look at the file as soon as it has that.
                if self.changes_unseen(&operation) {
                    self.invalidate(header.nodeid);
                }
                if let Some(nodeid) = set_id {
                    self.invalidate(nodeid);
                }
                match done {
                    Ok(reply) => ticket.send(reply),
                    Err(failure) => ticket.fail(failure),
                }
                self.after(&operation);
            }
            None => {
                let failure = Failure::from(Errno::NOSYS);
                self.served.metrics.count(UNKNOWN, Some(&failure), Nanos::ZERO);
                self.ticket(header.unique).fail(failure);
            }
        }
    }

    /// A thread has got a signal while it waits for a request. Stops the request once that thread
    /// is being killed; ends when the request does. The kernel reports only the first signal, which
    /// may be a harmless one.
    async fn interrupt(&self, unique: u64) {
        let Some(thread) = self.served.interrupts.watch(unique) else { return };
        while self.served.interrupts.is_waiting(unique) {
            if self.served.is_killed(thread).await {
                return self.served.interrupts.stop(unique);
            }
            self.rt.sleep(KILLED_STEP).await;
        }
    }

    /// Counts a request before its reply is sent, so that its caller already finds it in the
    /// counters.
    fn note(
        &self,
        header: &RequestHeader,
        operation: &Operation<'_>,
        failure: Option<&Failure>,
        began: Nanos,
    ) {
        let ended = self.rt.now();
        self.served.metrics.count(header.opcode, failure, ended.saturating_sub(began));
        if let Some(trace) = &self.served.trace {
            trace.line(header, operation, failure, [began, ended]);
        }
    }

    /// The counters of the server, in Prometheus' text format.
    pub fn metrics(&self) -> String {
        self.served.metrics_text()
    }

    async fn perform(
        &self,
        header: &RequestHeader,
        group: Option<u32>,
        operation: &Operation<'_>,
    ) -> Result<Reply> {
        match self.perform_once(header, group, operation).await {
            Err(failure) if NO_ROOM.contains(&failure.errno()) => {
                self.wait_for_deleted().await;
                Box::pin(self.perform_once(header, group, operation)).await
            }
            done => done,
        }
    }

    /// Waits until the space of deleted files is free. On ext4 the last close frees it; here the
    /// kernel reports that close a moment later, and a task then frees the space.
    async fn wait_for_deleted(&self) {
        self.rt.sleep(DELETED_STEP).await;
        self.served.volume.finish_deletions().await;
    }

    async fn perform_once(
        &self,
        header: &RequestHeader,
        group: Option<u32>,
        operation: &Operation<'_>,
    ) -> Result<Reply> {
        let mut who = Who::new(header, &self.served.shown.owners, group);
        if let Some(identity) =
            self.served.identities.as_ref().and_then(|identities| identities.of(header.pid))
        {
            who = who.acting_as(&identity);
        }
        if operation.makes_inode() && !who.can_own() {
            return Err(Errno::OVERFLOW.into());
        }
        if who.needs_groups(operation) {
            Box::pin(who.read_groups(&self.served)).await;
        }
        match self.perform_as(header.nodeid, &who, operation).await {
            Err(failure) if failure.is_denied() && who.may_be_helped() => {
                Box::pin(async {
                    who.read_groups(&self.served).await;
                    self.perform_as(header.nodeid, &who, operation).await
                })
                .await
            }
            done => done,
        }
    }

    async fn perform_as(&self, node: u64, who: &Who<'_>, operation: &Operation<'_>) -> Result<Reply> {
        let (served, asking, who) = (&self.served, who, |umask: u32| who.caller(umask));
        match *operation {
            Operation::Init { args, flags } => {
                let agreed = self.init(args, flags);
                self.is_refused.store(agreed.is_err(), Ordering::Relaxed);
                agreed.map(Reply::Init)
            }
            Operation::Lookup { name } => ops::names::lookup(served, node, asking, name).await,
            Operation::Readlink => ops::names::readlink(served, node).await,
            Operation::Symlink { name, target } => {
                ops::names::symlink(served, node, &who(0), name, target).await
            }
            Operation::Mknod { args, name } => {
                ops::names::mknod(served, node, &who(args.umask), &args, name).await
            }
            Operation::Mkdir { args, name } => {
                ops::names::mkdir(served, node, &who(args.umask), &args, name).await
            }
            Operation::Unlink { name } => ops::names::unlink(served, node, &who(0), name).await,
            Operation::Rmdir { name } => ops::names::rmdir(served, node, &who(0), name).await,
            Operation::Rename { newdir, flags, name, new_name } => {
                ops::names::rename(served, &who(0), (node, name), (newdir, new_name), flags).await
            }
            Operation::Link { args, name } => ops::names::link(served, node, &who(0), &args, name).await,
            Operation::Getattr(_) => ops::attributes::getattr(served, node).await,
            Operation::Statx(_) => ops::attributes::statx(served, node).await,
            Operation::Setattr(args) => ops::attributes::setattr(served, node, &who(0), &args).await,
            Operation::Access(args) => ops::attributes::access(served, node, &who(0), args.mask).await,
            Operation::Statfs => Ok(ops::attributes::statfs(served).await),
            Operation::Open(args) => ops::files::open(served, node, &who(0), &args).await,
            Operation::Create { args, name } => {
                ops::files::create(served, node, &who(args.umask), &args, name).await
            }
            Operation::Tmpfile(args) => ops::files::tmpfile(served, node, &who(args.umask), &args).await,
            Operation::Read(args) => ops::files::read(served, &args).await,
            Operation::Write { args, data } => ops::files::write(served, node, &args, data).await,
            // Like ext4 in the kernel, report no errors on close; fsync reports them.
            Operation::Flush => Err(Errno::NOSYS.into()),
            Operation::Release(args) | Operation::Releasedir(args) => {
                drop(self.served.handles.release(args.fh));
                Ok(Reply::Done)
            }
            Operation::Fsync(args) => {
                ops::files::fsync(served, args.fh, args.flags & FSYNC_FDATASYNC != 0).await
            }
            Operation::Fsyncdir(_) => ops::files::fsyncdir(served, node).await,
            Operation::Syncfs => ops::files::syncfs(served).await,
            Operation::Fallocate(args) => ops::files::fallocate(served, &args).await,
            Operation::Lseek { args, seek } => ops::files::lseek(served, &args, seek).await,
            Operation::CopyFileRange { args, wide } => ops::files::copy(served, &args, wide).await,
            Operation::Opendir(args) => ops::dirs::opendir(served, node, &who(0), &args).await,
            Operation::Readdir { args, plus } => {
                ops::dirs::readdir(served, &args, plus.then(|| who(0)).as_ref()).await
            }
            Operation::Getxattr { size, name } => {
                ops::xattrs::getxattr(served, node, &who(0), name, size).await
            }
            Operation::Listxattr { size } => ops::xattrs::listxattr(served, node, &who(0), size).await,
            Operation::Setxattr { flags, name, value } => {
                ops::xattrs::setxattr(served, node, asking, name, value, flags).await
            }
            Operation::Removexattr { name } => ops::xattrs::removexattr(served, node, &who(0), name).await,
            Operation::Ioctl { args, data }
                if is_registration(args.cmd)
                    && let Some(identities) = asking.supervised(served) =>
            {
                ops::emulated::register(identities, data)
            }
            Operation::Ioctl { args, data } => ops::ioctl::ioctl(served, node, &who(0), &args, data).await,
            Operation::Destroy => Ok(Reply::Done),
            Operation::Forget(_)
            | Operation::BatchForget { .. }
            | Operation::Interrupt(_)
            | Operation::NotifyReply => Err(Errno::NOSYS.into()),
        }
    }

    /// Does what has to happen after the reply is sent.
    fn after(&self, operation: &Operation<'_>) {
        if matches!(operation, Operation::Init { .. })
            && self.is_initialised.load(Ordering::Relaxed)
            && let Some(ready) = self.ready.lock().take()
        {
            ready();
        }
    }

    /// Whether an operation changes attributes of its inode without the kernel's knowledge.
    fn changes_unseen(&self, operation: &Operation<'_>) -> bool {
        match operation {
            // It changes the inode's ctime.
            Operation::Ioctl { args, .. } => ops::ioctl::changes(args.cmd),
            // An access list changes the mode, and so does a change of owner.
            Operation::Setxattr { name, .. } | Operation::Removexattr { name } => {
                name.starts_with(ACCESS_LIST) || *name == OWNER_ATTRIBUTE.as_bytes()
            }
            // A copy reads its source.
            Operation::CopyFileRange { .. } => self.served.relatime,
            _ => false,
        }
    }

    /// Returns the file that an operation writes to, if it has set-ID bits. The server may clear
    /// these bits, and the kernel must then read the mode again.
    async fn set_id_of(&self, header: &RequestHeader, operation: &Operation<'_>) -> Option<u64> {
        const KILL_PRIVILEGES: u32 = 4;
        const SET_IDS: u16 = 0o6000;
        let nodeid = match operation {
            Operation::Write { args, .. } if args.write_flags & KILL_PRIVILEGES != 0 => header.nodeid,
            Operation::Fallocate(_) => header.nodeid,
            Operation::CopyFileRange { args, .. } => args.nodeid_out,
            _ => return None,
        };
        let attributes = self.served.nodes.get(nodeid).await.ok()?.attributes(&self.served.volume).ok()?;
        (attributes.permissions & SET_IDS != 0).then_some(nodeid)
    }

    fn init(&self, args: InitIn, offered: u64) -> Result<InitOut> {
        let mut out = InitOut { major: MAJOR, minor: MINOR.min(args.minor), ..InitOut::default() };
        if args.major > MAJOR {
            // The kernel will ask again with a version that we support.
            return Ok(out);
        }
        if args.major < MAJOR || args.minor < MINOR_MIN {
            return Err(Errno::PROTO.into());
        }
        let mut wanted = WANTED_FEATURES;
        if self.kernel_checks && !self.served.ignores_acls {
            wanted |= init::POSIX_ACL;
        }
        if self.served.writeback {
            wanted |= init::WRITEBACK_CACHE;
        }
        if self.served.relatime {
            // A target that the kernel keeps is read without our knowledge.
            wanted &= !init::CACHE_SYMLINKS;
        }
        let agreed = wanted & offered;
        // Without the first, the kernel sends a shorter structure. All kernels that have it have
        // the other, and whether times are ours or the kernel's is settled by now.
        let needed = init::SETXATTR_EXT | wanted & init::WRITEBACK_CACHE;
        if agreed & needed != needed {
            return Err(Errno::PROTO.into());
        }
        (out.flags, out.flags2) = (agreed as u32, (agreed >> 32) as u32);
        out.max_readahead = args.max_readahead;
        out.max_background = MAX_BACKGROUND;
        out.congestion_threshold = MAX_BACKGROUND / 4 * 3;
        out.max_write = MAX_WRITE;
        out.max_pages = (MAX_WRITE / 4096) as u16;
        let has_nanoseconds =
            usize::from(self.served.volume.superblock().inode_size()) > extant_format::GOOD_OLD_INODE_SIZE;
        out.time_gran = if has_nanoseconds { 1 } else { 1_000_000_000 };
        self.is_initialised.store(true, Ordering::Relaxed);
        Ok(out)
    }

    /// Subtracts lookups. A task of the volume frees deleted inodes, so that no request waits for
    /// that.
    fn forget(&self, nodeid: u64, lookups: u64) {
        self.served.nodes.forget(nodeid, lookups);
    }

    /// Number of inodes that the kernel knows.
    pub fn known_inodes(&self) -> usize {
        self.served.nodes.count()
    }

    /// Memory that these inodes take, in bytes.
    pub fn known_bytes(&self) -> u64 {
        self.served.nodes.bytes()
    }

    fn invalidate(&self, nodeid: u64) {
        // A negative offset invalidates only the attributes, not the data.
        let out = InvalInodeOut { ino: nodeid, off: -1, len: 0 };
        let len = (size_of::<ReplyHeader>() + size_of::<InvalInodeOut>()) as u32;
        let header = ReplyHeader { len, error: NOTIFY_INVAL_INODE, unique: 0 };
        // The kernel may have forgotten the inode.
        let _ = self.transport.write(&[header.as_bytes(), out.as_bytes()]);
    }

    fn ticket(self: &Arc<Self>, unique: u64) -> Ticket<'_> {
        Ticket { server: self, unique, is_open: true }
    }
}

/// A request that awaits its reply. If it is dropped without a reply, because its operation has
/// panicked, the caller gets EIO.
struct Ticket<'a> {
    server: &'a Arc<Server>,
    unique: u64,
    is_open: bool,
}

impl Ticket<'_> {
    fn fail(mut self, failure: Failure) {
        self.write(-failure.errno(), [&[], &[]]);
    }

    fn send(mut self, reply: Reply) {
        let is_taken = reply.with_parts(|parts| self.write(0, parts));
        match reply {
            Reply::Data(bytes) => self.server.served.buffers.keep(bytes),
            _ if is_taken => {}
            // Nobody waits for it, so the kernel does not count what it tells.
            Reply::Entry(entry) => self.server.forget(entry.nodeid, 1),
            Reply::Created(entry, opened) => {
                drop(self.server.served.handles.release(opened.fh));
                self.server.forget(entry.nodeid, 1);
            }
            Reply::Opened(opened) => drop(self.server.served.handles.release(opened.fh)),
            Reply::Listing(_, told) => told.into_iter().for_each(|nodeid| self.server.forget(nodeid, 1)),
            _ => {}
        }
    }

    /// Returns whether the kernel has accepted the reply.
    fn write(&mut self, error: i32, parts: [&[u8]; 2]) -> bool {
        self.is_open = false;
        let len = size_of::<ReplyHeader>() + parts.iter().map(|part| part.len()).sum::<usize>();
        let header = ReplyHeader { len: len as u32, error, unique: self.unique };
        self.server.transport.write(&[header.as_bytes(), parts[0], parts[1]]).is_ok()
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        if self.is_open {
            self.write(-Failure::from(Errno::IO).errno(), [&[], &[]]);
        }
    }
}
