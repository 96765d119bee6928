//! Writes a blktrace of the bios that pass.

use crate::blktrace::{Action, Blktrace, Subject};
use crate::{Bio, Claim, Device, IoError, Limits};
use extant_rt::Rt;
use std::ops::Range;
use std::sync::Arc;

/// Passes bios on and records their progress in a [`Blktrace`]: queued and issued (at the same
/// time, since there is no queue here), and completed. A request queue records more, and takes a
/// [`Blktrace`] itself.
#[derive(Debug)]
pub struct Trace {
    inner: Arc<dyn Device>,
    trace: Blktrace,
    rt: Rt,
}

impl Trace {
    /// Traces bios sent to `inner`.
    pub fn new(inner: Arc<dyn Device>, trace: Blktrace, rt: &Rt) -> Self {
        Self { inner, trace, rt: rt.clone() }
    }
}

impl Device for Trace {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, mut bio: Bio) {
        let subject = Subject::from(&bio);
        let now = self.rt.now();
        self.trace.record(now, Action::Queued, &subject, Ok(()));
        self.trace.record(now, Action::Issued, &subject, Ok(()));
        let (trace, rt) = (self.trace.clone(), self.rt.clone());
        bio.before_end(move |result| {
            trace.record(rt.now(), Action::Completed, &subject, result.as_ref().copied());
        });
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.inner.claim()
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}
