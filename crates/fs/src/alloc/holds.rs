//! Freed blocks that wait for I/O: a block is not allocated again while a data or home write to it is in flight.

use crate::meta::PhysicalRun;
use std::collections::BTreeMap;

/// Runs with I/O in flight, and freed runs that wait for it. Pure.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    held: BTreeMap<u64, PhysicalRun>,
    next: u64,
    waiting: Vec<PhysicalRun>,
}

impl Holds {
    /// I/O to `run` begins; the number ends it.
    pub(crate) fn begin(&mut self, run: PhysicalRun) -> u64 {
        self.next += 1;
        self.held.insert(self.next, run);
        self.next
    }

    fn holds(&self, run: PhysicalRun) -> bool {
        self.held.values().any(|held| held.start < run.end() && run.start < held.end())
    }

    /// Whether freed blocks may be allocated again now; those that may not are kept until [`Self::end`].
    pub(crate) fn admits(&mut self, run: PhysicalRun) -> bool {
        let held = self.holds(run);
        if held {
            self.waiting.push(run);
        }
        !held
    }

    /// I/O has ended; returns the freed runs that waited for it alone.
    pub(crate) fn end(&mut self, number: u64) -> Vec<PhysicalRun> {
        self.held.remove(&number);
        let waiting = std::mem::take(&mut self.waiting);
        let (wait, go) = waiting.into_iter().partition(|run| self.holds(*run));
        self.waiting = wait;
        go
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::VolumeBlock;

    #[test]
    fn a_freed_run_waits_for_every_write_to_any_of_its_blocks() {
        let run = |start, blocks| PhysicalRun::new(VolumeBlock(start), blocks);
        let mut holds = Holds::default();
        let (a, b) = (holds.begin(run(10, 4)), holds.begin(run(12, 4)));
        assert!(holds.admits(run(16, 4)) && holds.admits(run(6, 4)));
        assert!(!holds.admits(run(13, 10)));
        assert_eq!(holds.end(a), []);
        assert_eq!(holds.end(b), [run(13, 10)]);
        assert!(holds.admits(run(13, 10)));
    }
}
