//! Work that completes even if its caller goes away.

use crate::{Class, Rt};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Work that runs on its caller's task, and continues as a task of its own if the caller drops it:
/// see [`Rt::unstoppable`].
pub struct Unstoppable<T: Send + 'static> {
    rt: Rt,
    name: &'static str,
    work: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
}

impl Rt {
    /// Runs `work` on the caller that awaits the result. If the result is dropped first, a task
    /// named `name` completes the work, even if it was never awaited.
    pub fn unstoppable<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Unstoppable<T> {
        Unstoppable { rt: self.clone(), name, work: Some(Box::pin(work)) }
    }
}

impl<T: Send + 'static> Future for Unstoppable<T> {
    type Output = T;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // Work that panics is dropped along with the panic.
        let mut work = self.work.take().expect("not polled again after its end");
        let poll = work.as_mut().poll(cx);
        if poll.is_pending() {
            self.work = Some(work);
        }
        poll
    }
}

impl<T: Send + 'static> Drop for Unstoppable<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            drop(self.rt.spawn(self.name, Class::Normal, async move { drop(work.await) }));
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Unstoppable<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unstoppable({})", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Waker;

    #[test]
    fn work_that_is_dropped_half_done_is_done_by_a_task() {
        let rt = Rt::real(crate::RealConfig::default());
        let done = Arc::new(AtomicBool::new(false));
        let (inside, told) = (rt.clone(), done.clone());
        let mut work = rt.unstoppable("work", async move {
            inside.yield_now().await;
            told.store(true, Ordering::SeqCst);
        });
        assert!(Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(work);
        rt.block_on(async {
            while !done.load(Ordering::SeqCst) {
                rt.yield_now().await;
            }
        })
        .unwrap();
    }
}
