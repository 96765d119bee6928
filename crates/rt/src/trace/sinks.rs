//! Sinks that keep events in memory.

use super::{Record, Sink};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

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
