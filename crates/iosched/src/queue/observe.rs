//! Reports the queue's actions to its traces.

use crate::Event;
use extant_block::blktrace::{Action, Blktrace, Subject};
use extant_block::{IoError, Op};
use extant_rt::{Nanos, Rt};

/// Passes events to a blktrace and to the world's own trace.
#[derive(Debug)]
pub(super) struct Observer {
    pub(super) rt: Rt,
    pub(super) blktrace: Option<Blktrace>,
    /// The device's number: major << 20 | minor.
    pub(super) device: u32,
    /// The elevator's name.
    pub(super) rule: &'static str,
}

impl Observer {
    /// `since` is when the completed request was queued.
    #[inline]
    pub(super) fn tell(
        &self,
        now: Nanos,
        action: Action,
        subject: impl Into<Subject>,
        result: Result<(), &IoError>,
        since: Nanos,
    ) {
        if self.blktrace.is_some() || self.rt.is_tracing() {
            self.pass_on(now, action, subject.into(), result, since);
        }
    }

    #[cold]
    fn pass_on(
        &self,
        now: Nanos,
        action: Action,
        subject: Subject,
        result: Result<(), &IoError>,
        since: Nanos,
    ) {
        if let Some(trace) = &self.blktrace {
            trace.record(now, action, &subject, result);
        }
        let (device, sector, bytes) = (self.device, subject.start.0, subject.bytes);
        let op = word(subject.op);
        let event = match action {
            Action::Queued => Event::BioQueued { device, op, sector, bytes, stream: subject.stream.0 },
            Action::BackMerged => Event::BioMerged { device, sector, bytes, side: "back" },
            Action::FrontMerged => Event::BioMerged { device, sector, bytes, side: "front" },
            Action::Issued => Event::BioDispatched { device, op, sector, bytes, rule: self.rule },
            Action::Completed => {
                Event::BioCompleted { device, op, sector, bytes, took: now.saturating_sub(since) }
            }
            _ => return,
        };
        self.rt.trace(event);
    }
}

fn word(op: Op) -> &'static str {
    match op {
        Op::Read => "read",
        Op::Write => "write",
        Op::Flush => "flush",
        Op::Discard => "discard",
        Op::WriteZeroes => "write-zeroes",
    }
}
