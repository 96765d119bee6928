//! Bios that a task has in flight concurrently.

use extant_block::{Bio, Device, IoError};
use extant_rt::{Rt, WaitsOn};
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

/// Bios in flight.
#[derive(Default)]
pub(super) struct BiosInFlight {
    state: Mutex<(usize, Option<Waker>, Option<IoError>)>,
}

impl BiosInFlight {
    pub(super) fn submit(self: &Arc<Self>, device: &dyn Device, mut bio: Bio) {
        self.state.lock().0 += 1;
        let port = self.clone();
        bio.on_end(Box::new(move |_, result| {
            let waker = {
                let mut state = port.state.lock();
                state.0 -= 1;
                state.2 = state.2.take().or(result.err());
                state.1.take()
            };
            waker.into_iter().for_each(Waker::wake);
        }));
        device.submit(bio);
    }

    /// Waits until at most `most` bios are in flight.
    pub(super) async fn at_most(&self, rt: &Rt, most: usize) -> Result<(), IoError> {
        poll_fn(|cx| {
            let mut state = self.state.lock();
            if let Some(error) = state.2.clone() {
                return Poll::Ready(Err(error));
            }
            if state.0 <= most {
                return Poll::Ready(Ok(()));
            }
            state.1 = Some(cx.waker().clone());
            drop(state);
            rt.waits_on(|| WaitsOn::Other("bios of a file", 0));
            Poll::Pending
        })
        .await
    }
}
