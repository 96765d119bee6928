//! Typed events with time and place, and the sinks they go to.

mod chrome;
mod event;
mod sinks;

pub use chrome::ChromeSink;
pub use event::{Event, TaskEvent, Value};
pub use sinks::{RingSink, Tee};

use crate::{Nanos, Origin};
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An event with its time and place.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it happened; for an event with a duration, when it ended.
    pub at: Nanos,
    /// Where it happened.
    pub origin: Origin,
    /// The event, as its layer declared it: `record.event.of::<extant_cache::Event>()`.
    pub event: Arc<dyn Event>,
}

/// Receives events.
///
/// Any thread may call a sink, in the middle of its work: a sink must be quick, and must not wait
/// for anything that is traced.
pub trait Sink: Send + Sync {
    /// Takes one event.
    fn record(&self, record: &Record);
    /// Names an object of some kind ("task", "device"); later records identify it by its number.
    fn name(&self, kind: &'static str, number: u32, name: &str) {
        let _ = (kind, number, name);
    }
}

/// The switch between a world and its sink. A clone is another handle to the same switch.
#[derive(Clone, Default)]
pub struct Tracer(Arc<Switch>);

#[derive(Default)]
struct Switch {
    on: AtomicBool,
    sink: RwLock<Option<Arc<dyn Sink>>>,
}

impl Tracer {
    /// Sends events to `sink` from now on; `None` switches them off.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        let on = sink.is_some();
        *self.0.sink.write() = sink;
        self.0.on.store(on, Ordering::Release);
    }

    /// Whether a sink is set.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.0.on.load(Ordering::Relaxed)
    }

    /// Passes on one event.
    pub fn record(&self, at: Nanos, origin: Origin, event: impl Event) {
        if let Some(sink) = &*self.0.sink.read() {
            sink.record(&Record { at, origin, event: Arc::new(event) });
        }
    }

    /// Tells the sink the name of an object; see [`Sink::name`].
    pub fn name(&self, kind: &'static str, number: u32, name: &str) {
        if let Some(sink) = &*self.0.sink.read() {
            sink.name(kind, number, name);
        }
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tracer({})", if self.is_on() { "on" } else { "off" })
    }
}
