//! When the thread that reads requests makes a sync's flushes itself.
//!
//! The kernel hands a flush to a thread of its own, unless the caller makes a system call that
//! blocks. The two threads then wake each other, and on busy processors a woken thread waits for
//! the next tick (4 ms). But a thread that blocks reads no other requests. So it blocks only for a
//! sync without company: no other request waits, and none has arrived. Syncs of several programs
//! at once still share their flushes. A slow flush, as on many rotating disks, must not keep other
//! programs waiting: after one, the next syncs do not block.

use crate::wire::opcode;
use extant_rt::{Nanos, Rt};
use std::sync::atomic::{AtomicU32, Ordering};

/// A sync that takes longer than this keeps others waiting. On busy processors one takes up to 12
/// ms, because it waits for two ticks of 4 ms.
const LONG: Nanos = Nanos::from_millis(20);
/// How many syncs do not block after one that took long.
const LEFT_OUT: u32 = 64;

#[derive(Debug)]
pub(crate) struct LoneSyncs {
    /// The image lies on a disk of this host. Behind a network or a program a flush may never end,
    /// and would stop the mount.
    flushes_soon: bool,
    /// How many of the next syncs do not block.
    left_out: AtomicU32,
}

impl LoneSyncs {
    pub(crate) fn new(flushes_soon: bool) -> Self {
        Self { flushes_soon, left_out: AtomicU32::new(0) }
    }

    /// Whether the thread may block for a request with this opcode if no other waits.
    pub(crate) fn may_block(&self, opcode: u32) -> bool {
        let syncs = matches!(opcode, opcode::FSYNC | opcode::FSYNCDIR | opcode::SYNCFS);
        let count_down = |left: u32| left.checked_sub(1);
        syncs
            && self.flushes_soon
            && self.left_out.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count_down).is_err()
    }

    /// Polls a sync that has no company.
    pub(crate) fn poll<T>(&self, rt: &Rt, poll: impl FnOnce() -> T) -> T {
        let began = rt.now();
        let polled = rt.alone(poll);
        self.note(rt.now().saturating_sub(began));
        polled
    }

    /// Notes how long a sync has blocked the thread.
    fn note(&self, took: Nanos) {
        if took > LONG {
            self.left_out.store(LEFT_OUT, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_does_not_block_for_long_again_and_again() {
        let syncs = LoneSyncs::new(true);
        assert!(syncs.may_block(opcode::FSYNC) && syncs.may_block(opcode::SYNCFS));
        assert!(!syncs.may_block(opcode::READ));
        syncs.note(Nanos::from_millis(1));
        assert!(syncs.may_block(opcode::FSYNCDIR));
        syncs.note(Nanos::from_millis(30));
        let left_out = (0..1000).take_while(|_| !syncs.may_block(opcode::FSYNC)).count();
        assert_eq!(left_out, LEFT_OUT as usize);
        assert!(!LoneSyncs::new(false).may_block(opcode::FSYNC));
    }
}
