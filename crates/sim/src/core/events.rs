//! Timed events: timers, and callbacks of modelled devices.

use super::{Call, Core, Happening, Target, TaskId, Timer};
use extant_rt::{Nanos, TimerId};
use std::task::Waker;

impl Core {
    /// Whether `waker` is the task's own waker. If so, a timer can store the task id instead.
    pub(crate) fn is_waker_of(&self, id: TaskId, waker: &Waker) -> bool {
        let task = self.tasks.get(id.index as usize).and_then(Option::as_ref);
        task.is_some_and(|task| task.serial == id.serial && waker.will_wake(&task.waker))
    }

    /// Arms a timer that wakes `task` or, if that is `None`, `waker`. Fires at once if `at` is
    /// past.
    pub(crate) fn arm(&mut self, at: Nanos, task: Option<TaskId>, waker: &Waker) -> TimerId {
        let target = match task {
            Some(id) => Target::Task(id),
            None => Target::Waker(waker.clone()),
        };
        let slot = self.free_timers.pop().unwrap_or_else(|| {
            self.timers.push(Timer { turn: 0, target: None });
            u32::try_from(self.timers.len() - 1).expect("a world has fewer than 2^32 timers at a time")
        });
        let timer = &mut self.timers[slot as usize];
        timer.target = Some(target);
        let turn = timer.turn;
        self.events.push(at.max(self.now), Happening::Timer { slot, turn });
        TimerId(u64::from(slot) << 32 | u64::from(turn))
    }

    pub(super) fn take_timer(&mut self, slot: u32, turn: u32) -> Option<Target> {
        let timer = self.timers.get_mut(slot as usize).filter(|timer| timer.turn == turn)?;
        timer.turn = timer.turn.wrapping_add(1);
        self.free_timers.push(slot);
        timer.target.take()
    }

    /// Disarms a timer. Returns what it held, for the caller to drop outside the lock.
    pub(crate) fn disarm(&mut self, id: TimerId) -> Option<impl Sized + use<>> {
        let (slot, turn) = ((id.0 >> 32) as u32, id.0 as u32);
        let target = self.take_timer(slot, turn)?;
        self.stale += 1;
        // Purge disarmed timers, or they would fill the queue.
        if self.stale > 1024 && self.stale > self.events.len() / 2 {
            let timers = &self.timers;
            self.events.retain(|event| match event {
                Happening::Timer { slot, turn } => timers[*slot as usize].turn == *turn,
                _ => true,
            });
            self.stale = 0;
        }
        Some(target)
    }

    /// Schedules `call` to run at `at`.
    pub(crate) fn call_at(&mut self, at: Nanos, call: Call) {
        let slot = self.free_calls.pop().unwrap_or_else(|| {
            self.calls.push(None);
            u32::try_from(self.calls.len() - 1).expect("a world has fewer than 2^32 calls at a time")
        });
        self.calls[slot as usize] = Some(call);
        self.events.push(at.max(self.now), Happening::Call(slot));
    }
}
