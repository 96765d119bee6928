//! Processors: which task has one, for how long, and when another takes it.

use super::dynamic::is_interactive;
use super::{After, Core, Happening, Phase, State, TaskId};
use crate::event::Event;
use crate::machine::{Preemption, Wakeup};
use extant_rt::{Class, Nanos, TaskFuture, TaskUsage};

impl Core {
    pub(super) fn idle_processor(&self, preferred: u32) -> Option<u32> {
        if self.idle[preferred as usize / 64] >> (preferred % 64) & 1 == 1 {
            return Some(preferred);
        }
        let (word, bits) = self.idle.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    /// Updates the bitmap of idle processors. Call it after setting the phase to idle, and before
    /// setting it to anything else.
    pub(super) fn set_idle(&mut self, processor: u32, idle: bool) {
        let (word, bit) = (processor as usize / 64, 1 << (processor % 64));
        if idle {
            self.idle[word] |= bit;
        } else {
            self.idle[word] &= !bit;
        }
    }

    fn push_turn(&mut self, number: u32, at: Nanos) {
        let processor = &mut self.processors[number as usize];
        processor.turn = processor.turn.wrapping_add(1);
        let turn = processor.turn;
        self.events.push(at, Happening::Processor { number, turn });
    }

    /// Assigns an idle processor to a task.
    pub(super) fn assign(&mut self, number: u32, index: u32, mut delay: Nanos) {
        let now = self.now;
        let (context_switch, migration) = (self.model.context_switch, self.model.migration);
        self.note_load(number);
        self.set_idle(number, false);
        let task = self.task(index);
        task.state = State::OnProcessor;
        task.processor = number;
        task.stint = Nanos::ZERO;
        task.expired = false;
        task.usage.turns += 1;
        if task.ran_on.replace(number).is_some_and(|other| other != number) {
            delay = delay.saturating_add(migration);
            self.stats.migrations += 1;
        }
        let task = self.task(index);
        let (serial, ready_at) = (task.serial, task.ready_at);
        let processor = &mut self.processors[number as usize];
        processor.task = index;
        let from = processor.last_serial;
        if from != serial {
            delay = delay.saturating_add(context_switch);
            processor.last_serial = serial;
            self.stats.switches += 1;
            self.trace(now, number, serial, Event::TaskSwitched { from });
        }
        let start = now.saturating_add(delay);
        self.trace(start, number, serial, Event::TaskRan { took: start.saturating_sub(ready_at) });
        if delay > Nanos::ZERO {
            self.processors[number as usize].phase = Phase::Switching(start);
            self.processors[number as usize].busy += delay;
            self.push_turn(number, start);
        } else {
            self.begin(number);
        }
    }

    /// The task starts running: it continues an unfinished stretch, or is polled.
    pub(super) fn begin(&mut self, number: u32) {
        let index = self.processors[number as usize].task;
        if self.task(index).after.is_some() {
            self.stretch(number);
        } else {
            self.processors[number as usize].phase = Phase::Polling;
            self.to_poll.push_back(number);
        }
    }

    /// Keeps the processor busy with the time its task owes.
    fn stretch(&mut self, number: u32) {
        let now = self.now;
        let (full, slice) = (self.model.preemption == Preemption::Full, self.model.timeslice);
        let index = self.processors[number as usize].task;
        let lasts = self.model.wakeup == Wakeup::O1;
        let task = self.task(index);
        // Under full preemption a long stretch is cut at the end of the time slice, to check for
        // other tasks.
        let slice = if lasts { slice.saturating_sub(task.slice_used).max(Nanos(1)) } else { slice };
        let length = if full && task.class == Class::Normal { task.owed.min(slice) } else { task.owed };
        task.owed = task.owed - length;
        let until = now.saturating_add(length);
        let processor = &mut self.processors[number as usize];
        processor.phase = Phase::Busy { since: now, until };
        self.push_turn(number, until);
    }

    /// Records the result of a poll whose charges reached `end`.
    pub(crate) fn polled(&mut self, id: TaskId, future: Option<TaskFuture>, after: After, end: Nanos) {
        let now = self.now;
        let task = self.task(id.index);
        task.future = future;
        task.after = Some(after);
        task.owed = end - now;
        let number = task.processor;
        if end == now {
            self.settle(number);
        } else if self.model.preemption == Preemption::Full && self.is_beaten(number, id.index) {
            // A more urgent task became ready at this very instant, before the poll.
            self.stats.preemptions += 1;
            self.release(number, id.index, true);
        } else {
            self.stretch(number);
        }
    }

    /// Accounts the time that the current stretch has run so far. The task keeps the processor.
    fn account(&mut self, number: u32) -> u32 {
        let now = self.now;
        let processor = &mut self.processors[number as usize];
        let index = processor.task;
        if let Phase::Busy { since, until } = processor.phase {
            processor.busy += now - since;
            let task = self.task(index);
            task.stint += now - since;
            task.usage.cpu += now - since;
            task.slice_used += now - since;
            task.sleepiness = task.sleepiness.ran(now - since);
            task.owed += until - now;
        }
        index
    }

    /// Starts a new time slice under dynamic priorities, once the last one is used up. The new
    /// slice is in the next round unless the task is interactive.
    fn expire(&mut self, number: u32, index: u32) {
        let slice = self.model.timeslice;
        if self.rank_of(index).is_none() || self.task(index).slice_used < slice {
            return;
        }
        let round = self.queues[number as usize].round();
        let task = self.task(index);
        let priority = task.sleepiness.priority(slice);
        task.rank = (round + u64::from(!is_interactive(priority)), priority);
        task.slice_used = Nanos::ZERO;
        task.expired = true;
    }

    /// Ends a stretch: the task waits, ends, continues, or gives way.
    pub(super) fn settle(&mut self, number: u32) {
        let now = self.now;
        let index = self.account(number);
        self.expire(number, index);
        let lasts = self.model.wakeup == Wakeup::O1;
        let task = self.task(index);
        let (class, serial, expired) = (task.class, task.serial, task.expired);
        let used = if lasts { task.slice_used } else { task.stint };
        if task.owed > Nanos::ZERO {
            // Only the time slice has ended.
            if self.most_urgent_class(number).is_some_and(|waiting| waiting >= class) {
                self.stats.preemptions += 1;
                self.release(number, index, false);
            } else {
                self.stretch(number);
            }
            return;
        }
        let task = self.task(index);
        let after = task.after.take();
        if after == Some(After::End) {
            self.trace(self.now, number, serial, Event::TaskEnded {});
            self.remove(index);
            self.pick(number);
        } else if !task.woken {
            task.state = State::Waiting;
            task.slept_at = now;
            self.pick(number);
        } else if !task.offered {
            self.release(number, index, false);
        } else if self.is_wanted(number, index, used) {
            let in_turn = if lasts { expired } else { self.most_urgent_class(number) == Some(class) };
            self.stats.preemptions += 1;
            self.release(number, index, !in_turn);
        } else {
            self.begin(number);
        }
    }

    /// Requeues a runnable task and gives its processor to the most urgent one.
    fn release(&mut self, number: u32, index: u32, front: bool) {
        let now = self.now;
        self.task(index).ready_at = now;
        self.queue(index, front);
        self.pick(number);
    }

    fn pick(&mut self, number: u32) {
        if self.first_waiting(number).is_none() {
            self.note_load(number);
            self.processors[number as usize].phase = Phase::Idle;
            self.pull_before_idle(number);
        }
        match self.take_most_urgent(number) {
            Some(index) => self.assign(number, index, Nanos::ZERO),
            None => {
                self.set_idle(number, true);
                self.arm_balance(number);
            }
        }
    }

    /// Preempts the least urgent running task, if it is less urgent than `class`.
    pub(super) fn preempt_for(&mut self, class: Class) {
        let least = (0..self.processors.len() as u32)
            .filter(|n| {
                matches!(self.processors[*n as usize].phase, Phase::Busy { .. } | Phase::Switching(_))
            })
            .map(|n| {
                (self.tasks[self.processors[n as usize].task as usize].as_ref().map(|task| task.class), n)
            })
            .min();
        if let Some((Some(victim_class), number)) = least
            && victim_class < class
        {
            self.preempt(number);
        }
    }

    /// Preempts the processor's task if its queue holds one that goes first.
    pub(super) fn preempt_on(&mut self, number: u32) {
        let processor = &self.processors[number as usize];
        let is_cut = matches!(processor.phase, Phase::Busy { .. } | Phase::Switching(_));
        if is_cut && self.is_beaten(number, processor.task) {
            self.preempt(number);
        }
    }

    fn preempt(&mut self, number: u32) {
        let now = self.now;
        let index = self.account(number);
        let processor = &mut self.processors[number as usize];
        if let Phase::Switching(until) = processor.phase {
            processor.busy = processor.busy.saturating_sub(until - now);
        }
        processor.turn = processor.turn.wrapping_add(1);
        self.stats.preemptions += 1;
        let victim = self.task(index).serial;
        let by = self.first_waiting(number).map_or(0, |index| self.task(index).serial);
        self.trace(now, number, victim, Event::TaskPreempted { by });
        self.release(number, index, true);
    }

    /// Takes interrupt time from a processor. On an idle processor the time is returned, to delay
    /// whatever the interrupt starts; otherwise returns zero.
    pub(crate) fn steal(&mut self, number: u32, span: Nanos) -> Nanos {
        if span == Nanos::ZERO {
            return Nanos::ZERO;
        }
        self.stats.interrupts += span;
        let processor = &mut self.processors[number as usize];
        let end = match &mut processor.phase {
            Phase::Idle => {
                processor.busy += span;
                return span;
            }
            Phase::Polling => return Nanos::ZERO,
            Phase::Switching(until) => {
                *until = until.saturating_add(span);
                *until
            }
            Phase::Busy { until, .. } => {
                *until = until.saturating_add(span);
                *until
            }
        };
        if matches!(processor.phase, Phase::Switching(_)) {
            processor.busy += span;
        }
        self.push_turn(number, end);
        Nanos::ZERO
    }

    /// Whether a task charged up to `at` in its current poll should enter the scheduler at this
    /// preemption point. Always true once the charges reach `long`.
    pub(crate) fn offers(&mut self, id: TaskId, at: Nanos, long: Nanos) -> bool {
        let (now, lasts) = (self.now, self.model.wakeup == Wakeup::O1);
        let task = self.task(id.index);
        let number = task.processor;
        let used = if lasts { task.slice_used } else { task.stint }.saturating_add(at - now);
        // An event due by `at` may wake a more urgent task.
        let wanted = at - self.now >= long.max(Nanos(1))
            || self.is_wanted(number, id.index, used)
            || (at > self.now && self.events.next_time().is_some_and(|t| t <= at));
        self.task(id.index).offered = wanted;
        wanted
    }

    /// Processor time the running task has used since it got its processor, with charges up to
    /// `at`.
    pub(crate) fn stint(&mut self, id: TaskId, at: Nanos) -> Nanos {
        let now = self.now;
        self.task(id.index).stint.saturating_add(at - now)
    }

    /// Total processor use of the running task, with charges up to `at`.
    pub(crate) fn usage(&mut self, id: TaskId, at: Nanos) -> TaskUsage {
        let now = self.now;
        let TaskUsage { cpu, turns } = self.task(id.index).usage;
        TaskUsage { cpu: cpu.saturating_add(at - now), turns }
    }
}
