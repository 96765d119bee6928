//! Re-establishes a lost connection.

use super::link::Ended;
use super::socket::{Socket, connect};
use super::{NbdError, Shared, flatten};
use crate::IoErrorKind;
use extant_rt::Nanos;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Work deferred until a line's lock is released.
#[derive(Default)]
pub(super) struct After {
    pub(super) ended: Vec<Ended>,
    pub(super) mending: Option<Mending>,
}

/// A lost connection that is being re-established. Created together with the line's `mending` mark,
/// before the task starts. If the world ends or accepts no more tasks, the task is dropped, and
/// this with it. Dropping this before it is done fails the bios that no connection will answer.
pub(super) struct Mending {
    shared: Arc<Shared>,
    index: usize,
    reason: String,
    is_done: bool,
}

impl Mending {
    pub(super) fn new(shared: Arc<Shared>, index: usize) -> Self {
        Self { shared, index, reason: "its world has ended".to_owned(), is_done: false }
    }

    /// Retries until there is a connection, or patience runs out.
    pub(super) async fn redial(mut self) {
        let shared = self.shared.clone();
        let patience = shared.options.answer_within.min(shared.options.reconnect_for);
        let deadline = shared.rt.now().saturating_add(shared.options.reconnect_for);
        let mut pause = Nanos::from_millis(10);
        self.reason = loop {
            let (world, target) = (shared.rt.clone(), shared.target.clone());
            let dial = move || connect(&world, &target, patience);
            let dialled = shared.rt.spawn_blocking("nbd connect", dial).await;
            let error = match flatten(dialled) {
                Ok((socket, export)) if export == shared.export => match self.resume(socket) {
                    Ok(()) => return,
                    Err(errno) => NbdError::Io(errno.into()),
                },
                Ok(_) => NbdError::Changed,
                Err(error) => error,
            };
            if shared.rt.now().saturating_add(pause) > deadline || shared.closing.load(Ordering::SeqCst) {
                break error.to_string();
            }
            shared.rt.sleep(pause).await;
            pause = Nanos((pause.0 * 2).min(Nanos::from_secs(1).0));
        };
    }

    /// Resends over a new socket what had not been answered.
    fn resume(&mut self, socket: Socket) -> rustix::io::Result<()> {
        let Self { shared, index, .. } = self;
        let mut after = After::default();
        let installed = {
            let mut line = shared.berths[*index].line.lock();
            line.link.restart(shared.rt.now(), &shared.durability, &mut after.ended);
            let installed = shared.install(*index, &mut line, socket);
            if installed.is_ok() {
                shared.send(*index, &mut line, &mut after);
            }
            installed
        };
        // If the connection was lost again during this send, another `Mending` takes care of it.
        self.is_done = installed.is_ok();
        shared.settle(*index, after);
        installed
    }
}

impl Drop for Mending {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let mut ended = Vec::new();
        {
            let mut line = self.shared.berths[self.index].line.lock();
            line.mending = false;
            line.link.fail_all(&IoErrorKind::Gone(std::mem::take(&mut self.reason)), &mut ended);
        }
        self.shared.finish(self.index, ended);
    }
}
