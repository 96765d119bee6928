//! Futures that answer requests, one after another.
//!
//! Such a future takes some kilobytes, because it has room for any operation. Allocating one for
//! each request, moving it there and freeing it took longer than some operations. So each future
//! answers many requests.

use crate::buffers::Buffers;
use crate::lane::Work;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Requests up to this length are copied out of their buffer, so that requests that wait do not
/// each hold a mebibyte.
const SHORT_BYTES: usize = 64 << 10;
/// Number of idle responders kept. Most requests do not wait and use the same one. More are needed
/// while requests wait.
const IDLE_MAX: usize = 8;

/// A request, in a buffer that may be longer.
pub(crate) struct InBuffer {
    buffer: Vec<u8>,
    bytes: usize,
}

impl InBuffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.bytes]
    }
}

/// Where a responder finds its next request.
#[derive(Default)]
pub(crate) struct RequestSlot(Mutex<InSlot>);

#[derive(Default)]
struct InSlot {
    request: Option<InBuffer>,
    /// The last request has not been answered.
    is_busy: bool,
    /// For the next short request.
    spare: Vec<u8>,
}

impl RequestSlot {
    /// Waits for the next request. No waker is needed: the thread that puts a request here polls
    /// the responder next.
    pub(crate) async fn next(&self) -> InBuffer {
        poll_fn(|_| self.0.lock().request.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    /// The last request has been answered. A long one's buffer goes to `buffers`.
    pub(crate) fn answered(&self, request: InBuffer, buffers: &Buffers) {
        let mut slot = self.0.lock();
        slot.is_busy = false;
        if request.bytes <= SHORT_BYTES {
            slot.spare = request.buffer;
        } else {
            buffers.keep(request.buffer);
        }
    }

    /// Puts a request of so many bytes in the slot. A long one takes the buffer with it, and leaves
    /// another in its place.
    fn put(&self, buffer: &mut Vec<u8>, bytes: usize, buffers: &Buffers) {
        let mut slot = self.0.lock();
        let buffer = if bytes <= SHORT_BYTES {
            let mut short = std::mem::take(&mut slot.spare);
            short.clear();
            short.extend_from_slice(&buffer[..bytes]);
            short
        } else {
            let next = buffers.take(buffer.len());
            std::mem::replace(buffer, next)
        };
        slot.request = Some(InBuffer { buffer, bytes });
        slot.is_busy = true;
    }
}

/// A future that answers requests, and its slot.
pub(crate) struct Responder {
    slot: Arc<RequestSlot>,
    work: Work,
}

impl Responder {
    pub(crate) fn new(respond: impl FnOnce(Arc<RequestSlot>) -> Work) -> Self {
        let slot = Arc::<RequestSlot>::default();
        Self { work: respond(slot.clone()), slot }
    }

    /// See [`RequestSlot::put`]. The last request has been answered.
    pub(crate) fn take(&self, buffer: &mut Vec<u8>, bytes: usize, buffers: &Buffers) {
        self.slot.put(buffer, bytes, buffers);
    }

    /// Goes on with the request; ready once it is answered.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_over = self.work.as_mut().poll(cx).is_ready();
        if is_over || !self.slot.0.lock().is_busy { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Responders that have nothing to do.
#[derive(Default)]
pub(crate) struct Responders(Mutex<Vec<Responder>>);

impl Responders {
    pub(crate) fn call(&self) -> Option<Responder> {
        self.0.lock().pop()
    }

    /// Takes back a responder after it has answered its request.
    pub(crate) fn keep(&self, responder: Responder) {
        let mut idle = self.0.lock();
        if idle.len() < IDLE_MAX {
            idle.push(responder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Answers by the length of the request; an empty one waits until it is polled again.
    fn responder(answers: &Arc<Mutex<Vec<usize>>>, buffers: &Arc<Buffers>) -> Responder {
        let (answers, buffers) = (answers.clone(), buffers.clone());
        Responder::new(|slot| {
            Box::pin(async move {
                loop {
                    let request = slot.next().await;
                    let bytes = request.bytes().len();
                    if bytes == 0 {
                        let mut waited = false;
                        poll_fn(|_| {
                            if std::mem::replace(&mut waited, true) { Poll::Ready(()) } else { Poll::Pending }
                        })
                        .await;
                    }
                    answers.lock().push(bytes);
                    slot.answered(request, &buffers);
                }
            })
        })
    }

    #[test]
    fn a_responder_answers_one_request_after_another_whether_they_wait_or_not() {
        let (answers, buffers) = (Arc::default(), Arc::default());
        let mut responder = responder(&answers, &buffers);
        let mut cx = Context::from_waker(Waker::noop());
        let mut buffer = vec![7; 100_000];
        for bytes in [3, 0, SHORT_BYTES, SHORT_BYTES + 1, 0, 5] {
            responder.take(&mut buffer, bytes, &buffers);
            if bytes == 0 {
                assert!(responder.poll(&mut cx).is_pending());
            }
            assert!(responder.poll(&mut cx).is_ready(), "{bytes}");
            assert_eq!(buffer.len(), 100_000);
        }
        assert_eq!(*answers.lock(), [3, 0, SHORT_BYTES, SHORT_BYTES + 1, 0, 5]);
    }
}
