//! Sinks that keep events in memory.

use super::{Record, Sink};
use crate::Nanos;
use hdrhistogram::Histogram;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Counts events by name and keeps a histogram (HDR, two significant digits) of their durations.
#[derive(Default)]
pub struct CountingSink(Mutex<BTreeMap<&'static str, Tally>>);

#[derive(Clone, Default)]
struct Tally {
    count: u64,
    took: Option<Histogram<u64>>,
}

impl CountingSink {
    /// How many events had this name.
    pub fn count(&self, name: &str) -> u64 {
        self.0.lock().get(name).map_or(0, |tally| tally.count)
    }

    /// Durations of events with this name, in nanoseconds; `None` if there were none, or none had a
    /// duration.
    pub fn took(&self, name: &str) -> Option<Histogram<u64>> {
        self.0.lock().get(name)?.took.clone()
    }
}

impl Sink for CountingSink {
    fn record(&self, record: &Record) {
        let mut tallies = self.0.lock();
        let tally = tallies.entry(record.event.name()).or_default();
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
        for (name, tally) in &*self.0.lock() {
            write!(f, "{:<18} {:>12}", name, tally.count)?;
            if let Some(took) = &tally.took {
                let at = |q| Nanos(took.value_at_quantile(q));
                write!(f, "  p50 {}  p99 {}  max {}", at(0.5), at(0.99), Nanos(took.max()))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Keeps the most recent events.
pub struct RingSink {
    capacity: usize,
    ring: Mutex<(VecDeque<Record>, u64)>,
}

impl RingSink {
    /// Keeps up to `capacity` events; when full, drops the oldest.
    pub fn new(capacity: usize) -> Self {
        assert!(capacity > 0, "a ring without room keeps nothing");
        Self { capacity, ring: Mutex::new((VecDeque::with_capacity(capacity), 0)) }
    }

    /// The events kept, oldest first.
    pub fn records(&self) -> Vec<Record> {
        self.ring.lock().0.iter().cloned().collect()
    }

    /// How many events were dropped.
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
        ring.0.push_back(record.clone());
    }
}

/// Passes events on to several sinks.
pub struct Tee(pub Vec<Arc<dyn Sink>>);

impl Sink for Tee {
    fn record(&self, record: &Record) {
        self.0.iter().for_each(|sink| sink.record(record));
    }

    fn name(&self, kind: &'static str, number: u32, name: &str) {
        self.0.iter().for_each(|sink| sink.name(kind, number, name));
    }
}
