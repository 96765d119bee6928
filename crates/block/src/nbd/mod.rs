//! A device behind a network: an export of an NBD server.

mod durable;
mod handshake;
mod link;
mod mend;
mod nbd_error;
mod socket;
#[cfg(test)]
mod tests;
mod uri;
mod wire;

pub use nbd_error::NbdError;
pub use uri::{NbdAddress, NbdTarget};

use crate::device::OneClaim;
use crate::split::{Piece, split};
use crate::{Bio, Buf, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector, Segment, end_all};
use durable::Durability;
use extant_rt::{Class, Driver, DriverHandle, Nanos, Rt, Wait};
use handshake::Export;
use link::{Ended, Link, Terms};
use mend::{After, Mending};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use socket::{Socket, connect};
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use wire::ExportFlags;

/// Settings of an [`NbdDevice`].
#[derive(Clone, Copy, Debug)]
pub struct NbdOptions {
    /// Connections to use if the server allows several. More than one lets server and network work
    /// in parallel.
    pub connections: usize,
    /// Refuse writes, even if the export accepts them.
    pub read_only: bool,
    /// How long to try to restore a lost connection before bios fail. Meanwhile they wait.
    pub reconnect_for: Nanos,
    /// How long the server may take for an answer, or for a whole handshake, before the connection
    /// counts as lost.
    pub answer_within: Nanos,
    /// Acknowledged writes are safe even if the connection is lost.
    ///
    /// Unless this is set, the first flush after a reconnection fails if anything was written since
    /// the last flush, because the server may have died along with the connection.
    pub server_never_forgets: bool,
}

impl Default for NbdOptions {
    /// Four connections, half a minute of patience.
    fn default() -> Self {
        Self {
            connections: 4,
            read_only: false,
            reconnect_for: Nanos::from_secs(30),
            answer_within: Nanos::from_secs(30),
            server_never_forgets: false,
        }
    }
}

/// An export of an NBD server (`nbdkit`, `qemu-nbd`, or a storage cluster behind either), over TCP
/// or a Unix socket.
///
/// Speaks the fixed newstyle protocol with structured replies; TLS is not supported. A lost
/// connection is re-established, and unanswered requests are sent again. Bios fail with
/// [`IoErrorKind::Gone`] only if that takes longer than [`NbdOptions::reconnect_for`]; the device
/// continues with the next bio if the server is back by then. A server that violates the protocol
/// is disconnected, and its pending requests fail with [`IoErrorKind::Protocol`].
///
/// A flush is `NBD_CMD_FLUSH`; a server without it is assumed to have no volatile cache. Discard is
/// `NBD_CMD_TRIM`, or [`IoErrorKind::Unsupported`] if the server lacks it; in that case
/// write-zeroes become writes.
///
/// Bios end on threads that wait ([`extant_rt::Driver`]), as with [`crate::FileDevice`]. Dropping
/// the device waits until all its bios have ended. [`Device::claim`] only covers users of this
/// object; the protocol has no claim against other clients.
pub struct NbdDevice {
    shared: Arc<Shared>,
    _driver: DriverHandle,
}

struct Shared {
    /// A reference for the tasks and completions that this starts.
    myself: Weak<Shared>,
    target: NbdTarget,
    options: NbdOptions,
    rt: Rt,
    limits: Limits,
    export: Export,
    berths: Vec<Berth>,
    durability: Durability,
    epoll: OwnedFd,
    /// Interrupts the waiting thread.
    bell: OwnedFd,
    /// Fires periodically, to check for late answers.
    alarm: OwnedFd,
    in_flight: AtomicUsize,
    /// Current time to poll before sleeping, in nanoseconds.
    look_ns: AtomicU64,
    draining: AtomicUsize,
    closing: AtomicBool,
    claim: OneClaim,
}

/// The slot of one connection.
struct Berth {
    line: Mutex<Line>,
    /// Bios in flight there; can be read without the lock.
    load: AtomicUsize,
}

/// A connection, or what remains of it.
#[derive(Debug)]
struct Line {
    link: Link,
    socket: Option<Socket>,
    /// Whether a task is connecting a new socket.
    mending: bool,
    /// The socket is full; epoll will report when it is writable again.
    full: bool,
}

/// Identify the bell and the alarm among epoll's events; lines are identified by their index.
const BELL: u64 = u64::MAX;
const ALARM: u64 = u64::MAX - 1;
/// Bios in flight on a connection before another one is used. On a single connection, requests and
/// answers are batched, which costs both sides less. But servers work on 16 requests per connection
/// at a time (`MAX_NBD_REQUESTS` of qemu-nbd, the default of nbdkit's `--threads`), and should find
/// as many more waiting when those are done.
const FULL: usize = 32;
/// How long to poll for answers before sleeping, when polling has paid off: at first and at most.
/// As in QEMU's event loop (`poll-max-ns`): if an answer arrives within a few microseconds, a
/// wake-up costs more than polling for it.
const LOOK_FIRST: Nanos = Nanos(4_000);
const LOOK_MOST: Nanos = Nanos(32_000);
/// Zeros to send at a time to a server that has no command for them.
const ZEROES_BYTES: u64 = 1 << 20;
/// The longest command for a server that states no limit (proto.md, "Block size constraints").
const DEFAULT_MAX_BYTES: u32 = 32 << 20;

impl NbdDevice {
    /// Connects to an export.
    ///
    /// # Errors
    /// The server cannot be reached in time, speaks another protocol, or refuses the export; its
    /// connections disagree ([`NbdError::Changed`]); or the world is virtual.
    pub async fn connect(rt: &Rt, target: &NbdTarget, options: NbdOptions) -> Result<Self, NbdError> {
        if rt.is_virtual() {
            return Err(NbdError::Virtual);
        }
        let dial = || {
            let (world, target) = (rt.clone(), target.clone());
            rt.spawn_blocking("nbd connect", move || connect(&world, &target, options.answer_within))
        };
        let (socket, export) = flatten(dial().await)?;
        let mut sockets = vec![socket];
        if export.flags.contains(ExportFlags::CAN_MULTI_CONN) {
            while sockets.len() < options.connections {
                let (socket, other) = flatten(dial().await)?;
                if other != export {
                    return Err(NbdError::Changed);
                }
                sockets.push(socket);
            }
        }
        let (epoll, bell, alarm) = events(options.answer_within).map_err(std::io::Error::from)?;
        let terms = Terms {
            structured: export.structured,
            fua: export.flags.contains(ExportFlags::SEND_FUA),
            flush: export.flags.contains(ExportFlags::SEND_FLUSH),
        };
        let berth = |_| Berth {
            line: Mutex::new(Line { link: Link::new(terms), socket: None, mending: false, full: false }),
            load: AtomicUsize::new(0),
        };
        let shared = Arc::new_cyclic(|myself| Shared {
            myself: myself.clone(),
            limits: limits(target, &export, options),
            target: target.clone(),
            options,
            rt: rt.clone(),
            export,
            berths: (0..sockets.len()).map(berth).collect(),
            durability: Durability::default(),
            epoll,
            bell,
            alarm,
            in_flight: AtomicUsize::new(0),
            look_ns: AtomicU64::new(0),
            draining: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            claim: OneClaim::default(),
        });
        for (index, socket) in sockets.into_iter().enumerate() {
            shared
                .install(index, &mut shared.berths[index].line.lock(), socket)
                .map_err(std::io::Error::from)?;
        }
        let driver = rt.register_driver(shared.clone());
        Ok(Self { shared, _driver: driver })
    }

    /// Number of connections in use.
    pub fn connections(&self) -> usize {
        self.shared.berths.len()
    }

    /// Turns a write-zeroes into writes.
    fn write_zeroes(&self, bio: Bio, mut each: impl FnMut(Bio)) {
        let zeroes = Arc::new(Buf::zeroed(bio.bytes.min(ZEROES_BYTES) as usize));
        for piece in split_at(bio, ZEROES_BYTES) {
            let mut write = Bio::new(
                Op::Write,
                piece.start,
                vec![Segment::shared(zeroes.clone(), 0, piece.bytes as usize)],
            );
            (write.flags, write.stream) = (piece.flags, piece.stream);
            write.on_end(Box::new(move |_, result| piece.end(result)));
            each(write);
        }
    }

    /// Turns the bio into bios that the server accepts and calls `each` with them. A bio that can
    /// end right away ends here.
    fn admit(&self, bio: Bio, mut each: impl FnMut(Bio)) {
        let limits = &self.shared.limits;
        if let Err(kind) = limits.admit(&bio) {
            return bio.end_as(&limits.name, Err(kind));
        }
        let flags = self.shared.export.flags;
        match bio.op {
            _ if bio.is_flush() && !limits.volatile_cache => bio.end(Ok(())),
            _ if bio.is_flush() => each(bio),
            _ if bio.bytes == 0 => bio.end(Ok(())),
            Op::Discard if !flags.contains(ExportFlags::SEND_TRIM) => {
                bio.end_as(&limits.name, Err(IoErrorKind::Unsupported));
            }
            Op::WriteZeroes if !flags.contains(ExportFlags::SEND_WRITE_ZEROES) => {
                self.write_zeroes(bio, each)
            }
            _ => {
                let most = limits.max_bytes - limits.max_bytes % u64::from(limits.block_bytes);
                if bio.bytes <= most {
                    each(bio);
                } else {
                    split_at(bio, most).into_iter().for_each(each);
                }
            }
        }
    }
}

/// Descriptors that a thread waits on: an epoll that contains a bell and an alarm.
fn events(answer_within: Nanos) -> rustix::io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let alarm = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
    let period = (answer_within.0 / 4).max(1_000_000);
    let period =
        Timespec { tv_sec: (period / 1_000_000_000) as i64, tv_nsec: (period % 1_000_000_000) as i64 };
    let setting = Itimerspec { it_interval: period, it_value: period };
    timerfd_settime(&alarm, TimerfdTimerFlags::empty(), &setting)?;
    epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &alarm, epoll::EventData::new_u64(ALARM), epoll::EventFlags::IN)?;
    Ok((epoll, bell, alarm))
}

fn flatten<T>(result: Result<Result<T, NbdError>, extant_rt::RtError>) -> Result<T, NbdError> {
    result.map_err(|e| NbdError::Io(std::io::Error::other(e)))?
}

fn limits(target: &NbdTarget, export: &Export, options: NbdOptions) -> Limits {
    let [least, preferred, most] = export.block_sizes.unwrap_or([512, 4096, DEFAULT_MAX_BYTES]);
    let block_bytes = least.max(512);
    Limits {
        block_bytes,
        physical_block_bytes: preferred.max(block_bytes),
        max_bytes: u64::from(most.min(DEFAULT_MAX_BYTES).max(block_bytes)),
        max_segments: u32::MAX,
        volatile_cache: export.flags.contains(ExportFlags::SEND_FLUSH),
        read_only: options.read_only || export.flags.contains(ExportFlags::READ_ONLY),
        ..Limits::new(target.to_string(), export.bytes - export.bytes % Sector::BYTES)
    }
}

/// Splits a bio into pieces of at most `most` bytes.
fn split_at(bio: Bio, most: u64) -> Vec<Bio> {
    if bio.bytes <= most {
        return vec![bio];
    }
    let count = bio.bytes.div_ceil(most);
    let piece = |i| Piece {
        start: Sector(bio.start.0 + i * most / Sector::BYTES),
        bytes: most.min(bio.bytes - i * most),
    };
    let pieces: Vec<Piece> = (0..count).map(piece).collect();
    split(bio, &pieces)
}

impl Device for NbdDevice {
    fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    fn submit(&self, bio: Bio) {
        self.admit(bio, |bio| self.shared.start([bio]));
    }

    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        // Bios are admitted before a line is locked, because a refused bio's completion may submit
        // again.
        let mut admitted = Vec::new();
        bios.for_each(|bio| self.admit(bio, |bio| admitted.push(bio)));
        self.shared.start(admitted);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.shared.claim.take_for(&self.shared.limits)
    }
}

impl Shared {
    /// Sends bios, with one system call per line, or keeps them until there is a connection.
    fn start(&self, bios: impl IntoIterator<Item = Bio>) {
        let mut bios = bios.into_iter().peekable();
        while bios.peek().is_some() {
            let (index, room) = self.choose();
            let Berth { line, load } = &self.berths[index];
            let mut after = After::default();
            {
                let mut line = line.lock();
                for bio in bios.by_ref().take(room) {
                    self.in_flight.fetch_add(1, Ordering::SeqCst);
                    load.fetch_add(1, Ordering::Relaxed);
                    line.link.start(bio, self.rt.now(), &self.durability);
                }
                if line.socket.is_some() {
                    self.send(index, &mut line, &mut after);
                } else {
                    self.mend(index, &mut line, &mut after);
                }
            }
            self.settle(index, after);
        }
        self.rt.io_started();
    }

    /// The line for the next bios, and how many it may take.
    fn choose(&self) -> (usize, usize) {
        let load = |berth: &Berth| berth.load.load(Ordering::Relaxed);
        let free = self.berths.iter().map(load).enumerate().find(|(_, load)| *load < FULL);
        let least = || self.berths.iter().map(load).enumerate().min_by_key(|(_, load)| *load);
        match free.or_else(least) {
            Some((index, load)) if load < FULL => (index, FULL - load),
            Some((index, _)) => (index, FULL),
            None => unreachable!("a device has a connection at least"),
        }
    }

    /// Carries out the work deferred until the line's lock was released.
    fn settle(&self, index: usize, after: After) {
        self.finish(index, after.ended);
        if let Some(mending) = after.mending {
            // A world that has ended drops the task here, and the guard with it.
            drop(self.rt.spawn("nbd reconnect", Class::Normal, mending.redial()));
        }
    }

    fn finish(&self, index: usize, ended: Vec<Ended>) {
        if ended.is_empty() {
            return;
        }
        self.berths[index].load.fetch_sub(ended.len(), Ordering::Relaxed);
        let left = self.in_flight.fetch_sub(ended.len(), Ordering::SeqCst) - ended.len();
        if left == 0 && self.draining.load(Ordering::SeqCst) > 0 {
            self.interrupt();
        }
        end_all(ended.into_iter().map(|(bio, result)| {
            let result = result.map_err(|kind| bio.error(&self.limits.name, kind));
            (bio, result)
        }));
    }

    /// Starts using a socket.
    fn install(&self, index: usize, line: &mut Line, socket: Socket) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(index as u64), epoll::EventFlags::IN)?;
        line.socket = Some(socket);
        (line.mending, line.full) = (false, false);
        Ok(())
    }

    /// Sends what the socket accepts, and asks epoll to report when it accepts more.
    fn send(&self, index: usize, line: &mut Line, after: &mut After) {
        let Some(socket) = &mut line.socket else { return };
        let sent = line.link.send(socket).and_then(|all| {
            if line.full == all {
                let out = if all { epoll::EventFlags::empty() } else { epoll::EventFlags::OUT };
                let data = epoll::EventData::new_u64(index as u64);
                epoll::modify(&self.epoll, &*socket, data, epoll::EventFlags::IN | out)?;
                line.full = !all;
            }
            Ok(())
        });
        if let Err(error) = sent {
            self.lose(index, line, &error.into(), after);
        }
    }

    fn receive(&self, index: usize) {
        let mut after = After::default();
        {
            let mut line = self.berths[index].line.lock();
            let Line { link, socket, .. } = &mut *line;
            let Some(socket) = socket else { return };
            match link.receive(socket, &self.durability, &mut after.ended) {
                // An answer may have moved a bio to its next stage.
                Ok(()) => self.send(index, &mut line, &mut after),
                Err(error) => self.lose(index, &mut line, &error, &mut after),
            }
        }
        self.settle(index, after);
    }

    /// The connection is no longer usable.
    fn lose(&self, index: usize, line: &mut Line, error: &NbdError, after: &mut After) {
        // Closing the socket removes it from epoll.
        line.socket = None;
        if !self.options.server_never_forgets {
            self.durability.connection_lost();
        }
        if error.is_protocol() {
            line.link.fail_all(&IoErrorKind::Protocol(error.to_string()), &mut after.ended);
        } else if line.link.in_flight() > 0 {
            self.mend(index, line, after);
        }
    }

    /// Gets a new connection in the background, unless that is under way. The task starts after the
    /// line's lock is released.
    fn mend(&self, index: usize, line: &mut Line, after: &mut After) {
        if line.mending {
            return;
        }
        if self.closing.load(Ordering::SeqCst) {
            let kind = IoErrorKind::Gone("the device is being closed".into());
            return line.link.fail_all(&kind, &mut after.ended);
        }
        line.mending = true;
        let shared = self.myself.upgrade().expect("called through a handle");
        after.mending = Some(Mending::new(shared, index));
    }

    /// Drops connections whose answers are late.
    fn check_answers(&self) {
        let now = self.rt.now();
        for (index, berth) in self.berths.iter().enumerate() {
            let mut after = After::default();
            {
                let mut line = berth.line.lock();
                let oldest = line.link.oldest();
                let late = oldest.is_some_and(|since| now.saturating_sub(since) > self.options.answer_within);
                if late && line.socket.is_some() {
                    self.lose(index, &mut line, &NbdError::Silent, &mut after);
                }
            }
            self.settle(index, after);
        }
    }

    /// Fetches the events that have arrived, without waiting.
    fn look(&self, events: &mut [epoll::Event]) -> usize {
        epoll::wait(&self.epoll, events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap_or(0)
    }

    /// Waits for events: polls for a while if the last ones arrived that soon, then sleeps.
    fn wait(&self, events: &mut [epoll::Event]) -> usize {
        let began = self.rt.now();
        let look = Nanos(self.look_ns.load(Ordering::Relaxed));
        while self.rt.now() - began < look {
            let count = self.look(events);
            if count > 0 {
                return count;
            }
            std::hint::spin_loop();
        }
        // An interrupted system call is an early return, which is allowed.
        let count = epoll::wait(&self.epoll, events, None).unwrap_or(0);
        let soon = self.rt.now() - began <= LOOK_MOST;
        let next = if soon { Nanos(2 * look.0).clamp(LOOK_FIRST, LOOK_MOST) } else { Nanos::ZERO };
        self.look_ns.store(next.0, Ordering::Relaxed);
        count
    }

    /// Receives what has arrived, after waiting for it if requested.
    fn poll(&self, wait: Wait) {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 16];
        let count = match wait {
            Wait::Not => self.look(&mut events),
            Wait::UntilSome => self.wait(&mut events),
        };
        for event in &events[..count] {
            match event.data.u64() {
                BELL => {
                    let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
                }
                ALARM => {
                    let _ = rustix::io::read(&self.alarm, &mut [0_u8; 8]);
                    self.check_answers();
                }
                index => self.receive(index as usize),
            }
        }
    }
}

impl Driver for Shared {
    fn drive(&self, wait: Wait) {
        self.poll(wait);
    }

    fn interrupt(&self) {
        // The write can only fail if the counter is full, and then the bell is ringing already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.draining.fetch_add(1, Ordering::SeqCst);
        while shared.in_flight() > 0 {
            shared.drive(Wait::UntilSome);
        }
        shared.draining.fetch_sub(1, Ordering::SeqCst);
        shared.closing.store(true, Ordering::SeqCst);
        for berth in &shared.berths {
            if let Some(mut socket) = berth.line.lock().socket.take() {
                // A polite goodbye; the server would notice the closed socket anyway.
                let goodbye = wire::request(0, wire::Command::Disconnect, 0, 0, 0);
                let _ = std::io::Write::write_all(&mut socket, &goodbye);
            }
        }
    }
}

impl fmt::Debug for NbdDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, count) = (&self.shared.limits.name, self.shared.berths.len());
        write!(f, "NbdDevice({name}, {count} connections, {} in flight)", self.shared.in_flight())
    }
}
