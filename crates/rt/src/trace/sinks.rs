//! Sinks that keep events in memory.

use super::{EventKind, Record, Sink};
use crate::Nanos;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Counts events of each kind and keeps a histogram (HDR, two significant digits) of how long they took.
pub struct CountingSink(Mutex<Vec<Tally>>);

#[derive(Clone)]
struct Tally {
    count: u64,
    took: Option<Histogram<u64>>,
}

impl Default for CountingSink {
    fn default() -> Self {
        Self(Mutex::new(vec![Tally { count: 0, took: None }; EventKind::ALL.len()]))
    }
}

impl CountingSink {
    /// How many events of this kind came.
    pub fn count(&self, kind: EventKind) -> u64 {
        self.0.lock()[kind as usize].count
    }

    /// How long events of this kind took, in nanoseconds; `None` where none came, or none took time.
    pub fn took(&self, kind: EventKind) -> Option<Histogram<u64>> {
        self.0.lock()[kind as usize].took.clone()
    }
}

impl Sink for CountingSink {
    fn record(&self, record: &Record) {
        let mut tallies = self.0.lock();
        let tally = &mut tallies[record.event.kind() as usize];
        tally.count += 1;
        if let Some(Nanos(took)) = record.event.took() {
            let histogram = tally.took.get_or_insert_with(|| {
                Histogram::new(2).expect("two significant digits are within one to five")
            });
            // Not `saturating_record`, which does not let the histogram grow.
            histogram.record(took).expect("a histogram that resizes takes all values");
        }
    }
}

impl fmt::Display for CountingSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, tally) in EventKind::ALL.iter().zip(&*self.0.lock()) {
            if tally.count == 0 {
                continue;
            }
            write!(f, "{:<18} {:>12}", kind.name(), tally.count)?;
            if let Some(took) = &tally.took {
                let at = |q| Nanos(took.value_at_quantile(q));
                write!(f, "  p50 {}  p99 {}  max {}", at(0.5), at(0.99), Nanos(took.max()))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Keeps the last events.
pub struct RingSink {
    capacity: usize,
    ring: Mutex<(VecDeque<Record>, u64)>,
}

impl RingSink {
    /// Room for `capacity` events; when full, the oldest goes.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a ring without room keeps nothing");
        Self { capacity, ring: Mutex::new((VecDeque::with_capacity(capacity), 0)) }
    }

    /// The events kept, oldest first.
    pub fn records(&self) -> Vec<Record> {
        self.ring.lock().0.iter().copied().collect()
    }

    /// How many events had to go.
    pub fn lost(&self) -> u64 {
        self.ring.lock().1
    }
}

impl Sink for RingSink {
    fn record(&self, record: &Record) {
        let mut ring = self.ring.lock();
        if ring.0.len() == self.capacity {
            ring.0.pop_front();
            ring.1 += 1;
        }
        ring.0.push_back(*record);
    }
}

/// Passes events on to several sinks.
pub struct Tee(pub Vec<Arc<dyn Sink>>);

impl Sink for Tee {
    fn record(&self, record: &Record) {
        self.0.iter().for_each(|sink| sink.record(record));
    }

    fn task_name(&self, task: u32, name: &str) {
        self.0.iter().for_each(|sink| sink.task_name(task, name));
    }

    fn device_name(&self, device: u32, name: &str) {
        self.0.iter().for_each(|sink| sink.device_name(device, name));
    }
}
