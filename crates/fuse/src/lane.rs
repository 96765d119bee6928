//! The thread that reads requests, runs them and waits: for more of them and for the disk at once.
//!
//! To hand a request or a completion to another thread costs more than most operations. So a
//! request is first polled where it was read. If it has to wait, the thread keeps it, reaps the I/O
//! that it waits for, and goes on with it. While no request waits, the thread sleeps in the system
//! call that reads the next one, and workers reap what is in flight.

use crate::lone_syncs::LoneSyncs;
use crate::{Received, Transport};
use extant_rt::{Driver, Nanos, Rt, Wait};
use futures_util::Stream;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use std::future::poll_fn;
use std::io::Result;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// Requests read before the thread looks after the disk although more requests have arrived.
const READ_MAX: usize = 16;

/// How long the thread may read requests before it looks after the disk.
const PASS_MAX: Nanos = Nanos::from_micros(100);

/// A request that is being answered.
pub(crate) type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A request that has to wait.
pub(crate) struct Waits {
    pub(crate) work: Work,
    /// It may block the thread while no other request waits.
    pub(crate) blocks: bool,
}

/// A request that waits. Its panic ends itself only: the caller gets EIO from the ticket that is
/// dropped, and the panic has been printed.
struct Waiting(Option<Work>);

impl Future for Waiting {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.0 else { return Poll::Ready(()) };
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(())) | Err(_) => {
                let work = self.0.take();
                let _ = catch_unwind(AssertUnwindSafe(|| drop(work)));
                Poll::Ready(())
            }
        }
    }
}

/// The transport as something that a thread waits for together with the disk.
struct Gate {
    transport: Arc<dyn Transport>,
    /// Woken when a request arrives.
    reader: Mutex<Option<Waker>>,
    /// Interrupts a thread that waits here only.
    bell: OwnedFd,
}

impl Driver for Gate {
    fn drive(&self, wait: Wait) {
        if wait == Wait::UntilSome {
            let fds = [self.transport.poll_fd(), self.bell.as_fd()];
            let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // A signal ends it early, which is allowed.
            let _ = poll(&mut fds, None);
            if !fds[1].revents().is_empty() {
                let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
            }
        }
        // It sees for itself whether there is a request.
        let reader = self.reader.lock().take();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    fn interrupt(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    fn in_flight(&self) -> usize {
        usize::from(self.reader.lock().is_some())
    }

    fn poll_fd(&self) -> BorrowedFd<'_> {
        self.transport.poll_fd()
    }

    fn is_for_workers(&self) -> bool {
        false
    }
}

/// Reads requests until the connection ends, and returns when all are done. `begin` gets a buffer
/// with a request of so many bytes, may leave another buffer in its place, and returns what has to
/// wait. Its last argument tells whether the request is alone: no other waits, and none has
/// arrived.
///
/// # Errors
/// The connection is broken, or `begin` ends it.
pub(crate) fn serve(
    rt: &Rt,
    transport: &Arc<dyn Transport>,
    lone_syncs: &LoneSyncs,
    buffer_bytes: usize,
    mut begin: impl FnMut(&mut Vec<u8>, usize, &dyn Fn() -> bool) -> Result<Option<Waits>>,
) -> Result<()> {
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let gate = Arc::new(Gate { transport: transport.clone(), reader: Mutex::default(), bell });
    let mut registered = Some(rt.register_driver(gate.clone()));
    let mut waiting = FuturesUnordered::<Waiting>::new();
    // A sync that may block waits, and nothing else does.
    let mut is_lone = false;
    // Held while requests wait.
    let mut reaping = None;
    let mut buffer = Vec::new();
    let mut ended = None;
    let lane = poll_fn(|cx| {
        *gate.reader.lock() = None;
        let began = rt.now();
        for nth in 0..READ_MAX {
            let is_idle = if is_lone && !has_request(&**transport) {
                // The thread will not reap while it blocks.
                reaping = None;
                lone_syncs.poll(rt, || go_on(&mut waiting, cx))
            } else {
                go_on(&mut waiting, cx)
            };
            is_lone &= !is_idle;
            if is_lone {
                reaping.get_or_insert_with(|| rt.reaping());
            }
            if nth > 0 && !is_idle && rt.now().saturating_sub(began) > PASS_MAX {
                break;
            }
            match (is_idle, ended.take()) {
                (true, Some(end)) => return Poll::Ready(end),
                (true, None) => {
                    // The thread will not reap while it waits for the next request only.
                    reaping = None;
                    rt.ensure_driven();
                }
                (false, Some(end)) => {
                    ended = Some(end);
                    // A connection that has ended is always ready, and what waits now may wait for
                    // other threads.
                    registered = None;
                    reaping = None;
                    return Poll::Pending;
                }
                (false, None) => {}
            }
            buffer.resize(buffer_bytes, 0);
            let begun = match transport.read(&mut buffer, is_idle) {
                Ok(Received::Request(bytes)) => {
                    begin(&mut buffer, bytes, &|| is_idle && !has_request(&**transport))
                }
                Ok(Received::Nothing) => {
                    *gate.reader.lock() = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Ok(Received::End) => {
                    ended = Some(Ok(()));
                    continue;
                }
                Err(error) => Err(error),
            };
            match begun {
                Ok(None) => {}
                // It is polled again above, with its own waker.
                Ok(Some(Waits { work, blocks })) => {
                    reaping.get_or_insert_with(|| rt.reaping());
                    is_lone = blocks && waiting.is_empty();
                    waiting.push(Waiting(Some(work)));
                }
                Err(error) => ended = Some(Err(error)),
            }
        }
        // Others first, and those whose I/O has completed.
        pin!(rt.yield_now()).poll(cx).map(Ok)
    });
    let served = rt.attend(lane);
    drop(registered);
    served.map_err(std::io::Error::other)?
}

/// Goes on with requests that have waited. Returns whether none is left. Otherwise the thread is
/// woken when one can go on.
fn go_on(waiting: &mut FuturesUnordered<Waiting>, cx: &mut Context<'_>) -> bool {
    loop {
        match Pin::new(&mut *waiting).poll_next(cx) {
            Poll::Ready(Some(())) => {}
            Poll::Ready(None) => return true,
            Poll::Pending => return false,
        }
    }
}

/// Whether another request has arrived.
fn has_request(transport: &dyn Transport) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(transport.poll_fd(), PollFlags::IN)];
    // After an error, or a signal, the next read tells.
    poll(&mut fds, Some(&Timespec::default())).map_or(true, |ready| ready > 0)
}
