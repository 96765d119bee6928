//! Yielding the processor in time.

use crate::handle::{Rt, Which};
use crate::{Nanos, ReschedPoint};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

impl Rt {
    /// An allowance of processor time for a long loop; see [`Budget`].
    pub fn budget(&self, limit: Nanos) -> Budget<'_> {
        Budget::new(self, limit)
    }

    /// Lets all other runnable tasks go first, including those whose I/O has completed but not been
    /// reaped yet.
    pub fn yield_now(&self) -> impl Future<Output = ()> + Send + use<> {
        if let Which::Real(real) = self.world() {
            real.before_yield();
        }
        YieldNow::default()
    }

    /// Yields if another task should have this processor (Linux's `cond_resched`).
    ///
    /// In the real world this costs nothing and does nothing, since the runtime does not see which
    /// threads wait for a processor. A long loop that must be fair in both worlds uses a
    /// [`Budget`].
    pub fn resched(&self) -> impl Future<Output = ()> + Send + '_ {
        MaybeYield { rt: self, point: ReschedPoint::Explicit }.run()
    }

    /// A place where a kernel function might sleep (Linux's `might_sleep`). Under voluntary and
    /// full preemption the same as [`Rt::resched`]; does nothing otherwise.
    pub fn might_sleep(&self) -> impl Future<Output = ()> + Send + '_ {
        MaybeYield { rt: self, point: ReschedPoint::MightSleep }.run()
    }
}

/// An allowance of processor time for a long loop to check itself against.
///
/// ```
/// # use extant_rt::{Nanos, Rt};
/// # async fn write_back(rt: &Rt, pages: &[u64]) {
/// let mut budget = rt.budget(Nanos::from_micros(100));
/// for batch in pages.chunks(14) {
///     // … work on the batch …
///     budget.resched().await;
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Budget<'a> {
    rt: &'a Rt,
    limit: Nanos,
    since: Nanos,
}

impl<'a> Budget<'a> {
    pub(crate) fn new(rt: &'a Rt, limit: Nanos) -> Self {
        Self { rt, limit, since: rt.stint() }
    }

    /// Whether the allowance is used up.
    pub fn is_spent(&self) -> bool {
        // A task that slept in between has a newer stint, and all of it counts.
        let stint = self.rt.stint();
        let used = if stint >= self.since { stint - self.since } else { stint };
        used >= self.limit
    }

    /// Yields to other tasks if the allowance is used up, and then starts a new one.
    ///
    /// Reads the clock, which takes about 25 ns in the real world. So call it per batch, not per
    /// page.
    pub async fn resched(&mut self) {
        if self.is_spent() {
            self.rt.yield_now().await;
            self.since = self.rt.stint();
        }
    }
}

/// Yields once.
#[derive(Debug, Default)]
pub(crate) struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Yields once if the world says that the task should.
#[derive(Debug)]
pub(crate) struct MaybeYield<'a> {
    pub(crate) rt: &'a Rt,
    pub(crate) point: ReschedPoint,
}

impl MaybeYield<'_> {
    pub(crate) async fn run(self) {
        if self.rt.should_yield(self.point) {
            YieldNow::default().await;
        }
    }
}
