//! A real-time task that wakes periodically and measures how late it runs.

use super::measure::Latency;
use extant_rt::{Class, Nanos, Rt};
use parking_lot::Mutex;
use serde::Deserialize;
use std::sync::Arc;

/// The task's settings, corresponding to options of `cyclictest` (rt-tests).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cyclictest {
    /// Interval between alarms in microseconds (`-i`).
    pub interval_us: u64,
    /// Real-time priority (`-p`).
    pub priority: u8,
}

/// Latencies so far, from each alarm until the task runs.
pub(super) type LatencySink = Arc<Mutex<Latency>>;

impl Cyclictest {
    /// Starts the task, which ends with the world. Alarms that it missed fire at once, and each
    /// counts with its own delay.
    pub(super) fn start(self, rt: &Rt) -> LatencySink {
        let seen = LatencySink::default();
        let (rt_inside, latencies) = (rt.clone(), seen.clone());
        drop(rt.spawn("cyclictest", Class::RealTime(self.priority), async move {
            let mut alarm = rt_inside.now();
            loop {
                alarm = alarm.saturating_add(Nanos::from_micros(self.interval_us.max(1)));
                rt_inside.sleep_until(alarm).await;
                latencies.lock().add(rt_inside.now().saturating_sub(alarm));
            }
        }));
        seen
    }
}
