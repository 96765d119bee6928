//! Tasks: creation, queueing, waking and ending.

use super::{Core, Happening, Sleepiness, State, Task, TaskId};
use crate::event::Event;
use crate::machine::{Preemption, Wakeup};
use extant_rt::{Class, Nanos, TaskFuture, TaskUsage, WaitsOn};
use std::task::Waker;

impl Core {
    /// Creates a task, which waits until it is first woken.
    pub(crate) fn add(
        &mut self,
        name: &str,
        class: Class,
        future: Option<TaskFuture>,
        waker: impl FnOnce(TaskId) -> Waker,
    ) -> TaskId {
        self.last_serial = self.last_serial.checked_add(1).expect("a world has fewer than 2^32 tasks");
        let index = self.free_tasks.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            u32::try_from(self.tasks.len() - 1).expect("a world has fewer than 2^32 tasks")
        });
        let id = TaskId { index, serial: self.last_serial };
        self.tasks[index as usize] = Some(Task {
            serial: id.serial,
            name: name.into(),
            class,
            state: State::Waiting,
            future,
            waker: waker(id),
            woken: false,
            offered: false,
            owed: Nanos::ZERO,
            after: None,
            processor: 0,
            ran_on: None,
            slept_at: self.now,
            rank: (0, Sleepiness::default().priority(self.model.timeslice)),
            sleepiness: Sleepiness::default(),
            slice_used: Nanos::ZERO,
            expired: false,
            stint: Nanos::ZERO,
            usage: TaskUsage::default(),
            ready_at: self.now,
            waits_on: None,
        });
        if self.tracer.is_on() {
            self.tracer.name("task", id.serial, name);
        }
        id
    }

    /// Takes out a task's future for a poll, and clones its waker.
    pub(crate) fn lend(&mut self, id: TaskId) -> (Option<TaskFuture>, Waker) {
        let task = self.task(id.index);
        task.waits_on = None;
        task.woken = false;
        task.offered = false;
        (task.future.take(), task.waker.clone())
    }

    pub(crate) fn set_waits_on(&mut self, id: TaskId, what: WaitsOn) {
        if self.is_alive(id) {
            self.task(id.index).waits_on = Some(what);
        }
    }

    pub(super) fn remove(&mut self, index: u32) {
        let task = self.tasks[index as usize].take();
        self.free_tasks.push(index);
        if let (Some(task), Some(main)) = (task, self.main)
            && task.serial == main.serial
        {
            self.main = None;
            self.main_ended = true;
        }
    }

    fn queue_of(&self, number: u32) -> usize {
        if self.is_per_processor() { number as usize } else { 0 }
    }

    /// Queues a task on its processor: at the end or, if `front` (it was cut short), at the front.
    pub(super) fn queue(&mut self, index: u32, front: bool) {
        self.enqueue(index, front);
        self.arm_all_balances();
    }

    pub(super) fn enqueue(&mut self, index: u32, front: bool) {
        let rank = self.rank_of(index);
        let task = self.task(index);
        task.state = State::Queued;
        let (class, number) = (task.class, task.processor);
        self.note_load(number);
        let queue = self.queue_of(number);
        self.queues[queue].push(index, class, rank, front);
        self.queued += 1;
    }

    /// Removes the most urgent task queued for this processor.
    pub(super) fn take_most_urgent(&mut self, number: u32) -> Option<u32> {
        self.note_load(number);
        let queue = self.queue_of(number);
        let index = self.queues[queue].pop()?;
        self.queued -= 1;
        Some(index)
    }

    /// The most urgent task queued for this processor.
    pub(super) fn first_waiting(&self, number: u32) -> Option<u32> {
        self.queues[self.queue_of(number)].first().map(|(index, ..)| index)
    }

    pub(super) fn most_urgent_class(&self, number: u32) -> Option<Class> {
        self.queues[self.queue_of(number)].first().map(|(_, class, _)| class)
    }

    /// Whether a task queued for this processor goes before the running task `index`: by class or,
    /// with dynamic priorities, by priority.
    pub(super) fn is_beaten(&self, number: u32, index: u32) -> bool {
        let Some((_, waiting, rank)) = self.queues[self.queue_of(number)].first() else { return false };
        let class = self.tasks[index as usize].as_ref().map(|task| task.class);
        Some(waiting) > class || (Some(waiting) == class && rank.is_some() && rank < self.rank_of(index))
    }

    /// Whether the running task should give up its processor. `used` is its processor time since it
    /// got it or, if slices outlast waits, the used part of its slice.
    pub(super) fn is_wanted(&self, number: u32, index: u32, used: Nanos) -> bool {
        let Some(task) = self.tasks[index as usize].as_ref() else { return false };
        let is_over = used >= self.model.timeslice || task.expired;
        let in_turn = || {
            !matches!(task.class, Class::RealTime(_)) && self.most_urgent_class(number) == Some(task.class)
        };
        self.is_beaten(number, index) || (is_over && in_turn())
    }

    /// Updates the priority of a woken task for the time it slept.
    fn rank_anew(&mut self, index: u32) {
        if self.model.wakeup == Wakeup::O1 {
            let (now, slice) = (self.now, self.model.timeslice);
            let number = self.task(index).processor;
            let queue = self.queue_of(number);
            let round = self.queues[queue].round();
            let task = self.task(index);
            task.sleepiness = task.sleepiness.slept(now - task.slept_at, slice);
            task.rank = (round, task.sleepiness.priority(slice));
            task.expired = false;
        }
    }

    /// Wakes a task at `at` (now or later) from processor `waker`.
    pub(crate) fn wake(&mut self, id: TaskId, at: Nanos, waker: u32) {
        if at > self.now {
            self.events.push(at, Happening::Wake(id, waker));
        } else {
            self.woken(id, Nanos::ZERO, waker);
        }
    }

    /// Whether waking the task has any effect; a task that will be polled anyway cannot be woken
    /// again.
    pub(crate) fn can_be_woken(&self, id: TaskId) -> bool {
        match self.tasks.get(id.index as usize).and_then(Option::as_ref) {
            Some(task) if task.serial == id.serial => match task.state {
                State::Waiting => true,
                State::OnProcessor => !task.woken,
                State::Queued => task.after.is_some() && !task.woken,
            },
            _ => false,
        }
    }

    pub(super) fn woken(&mut self, id: TaskId, delay: Nanos, waker: u32) {
        if !self.is_alive(id) {
            return;
        }
        let now = self.now;
        let task = self.task(id.index);
        match task.state {
            State::Waiting => {
                task.ready_at = now;
                let (class, last) = (task.class, task.processor);
                self.trace(now, last, 0, Event::TaskWoken { woken: id.serial });
                let place = if self.is_per_processor() {
                    let place = self.place(id.index, waker);
                    self.task(id.index).processor = place;
                    self.rank_anew(id.index);
                    Some(place).filter(|place| self.is_idle(*place))
                } else {
                    self.idle_processor(last)
                };
                if let Some(processor) = place {
                    self.stats.idle_exits += 1;
                    self.assign(processor, id.index, delay.saturating_add(self.model.idle_exit));
                    // The interrupt's time is already accounted, on the processor that took it.
                    let busy = &mut self.processors[processor as usize].busy;
                    *busy = busy.saturating_sub(delay);
                    return;
                }
                self.queue(id.index, false);
                if self.model.preemption == Preemption::Full {
                    if self.is_per_processor() {
                        let number = self.task(id.index).processor;
                        self.preempt_on(number);
                    } else {
                        self.preempt_for(class);
                    }
                }
            }
            // The task's stretch is not over, or its poll is still to come. It sees the flag then.
            State::OnProcessor | State::Queued => task.woken = true,
        }
    }
}
