//! Tasks: made, queued by class, woken, ended.

use super::{Core, Happening, State, Task, TaskId};
use crate::event::Event;
use crate::machine::Preemption;
use extant_rt::{Class, Nanos, TaskFuture, TaskUsage, WaitsOn};
use std::cmp::Reverse;
use std::task::Waker;

impl Core {
    /// Makes a task, which waits until it is woken for the first time.
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

    /// A task's future, lent for a poll, and its waker.
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

    /// The class's queue takes a task in, at its end or (for one that was cut short) at its front.
    pub(super) fn queue(&mut self, index: u32, front: bool) {
        let task = self.task(index);
        task.state = State::Queued;
        match task.class {
            Class::RealTime(priority) => {
                let order = if front {
                    self.realtime_order.0 -= 1;
                    self.realtime_order.0
                } else {
                    self.realtime_order.1 += 1;
                    self.realtime_order.1
                };
                self.realtime.insert((Reverse(priority), order), index);
            }
            Class::Normal if front => self.normal.push_front(index),
            Class::Normal => self.normal.push_back(index),
            Class::Idle if front => self.background.push_front(index),
            Class::Idle => self.background.push_back(index),
        }
    }

    pub(super) fn take_most_urgent(&mut self) -> Option<u32> {
        if !self.realtime.is_empty() {
            return self.realtime.pop_first().map(|(_, index)| index);
        }
        self.normal.pop_front().or_else(|| self.background.pop_front())
    }

    pub(super) fn most_urgent_class(&self) -> Option<Class> {
        if let Some(((Reverse(priority), _), _)) = self.realtime.first_key_value() {
            Some(Class::RealTime(*priority))
        } else if !self.normal.is_empty() {
            Some(Class::Normal)
        } else if !self.background.is_empty() {
            Some(Class::Idle)
        } else {
            None
        }
    }

    /// Whether a task of this class should let go, having used so much since it was given its processor.
    pub(super) fn is_wanted(&self, class: Class, stint: Nanos) -> bool {
        self.most_urgent_class().is_some_and(|waiting| {
            let in_turn = !matches!(class, Class::RealTime(_)) && waiting == class;
            waiting > class || (in_turn && stint >= self.model.timeslice)
        })
    }

    /// A task is woken at `at`, which is now or later.
    pub(crate) fn wake(&mut self, id: TaskId, at: Nanos) {
        if at > self.now {
            self.events.push(at, Happening::Wake(id));
        } else {
            self.woken(id, Nanos::ZERO);
        }
    }

    /// Whether waking the task does anything to it; a task that is to be polled anyway cannot be woken more.
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

    pub(super) fn woken(&mut self, id: TaskId, delay: Nanos) {
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
                if let Some(processor) = self.idle_processor(last) {
                    let delay = delay.saturating_add(self.model.idle_exit);
                    self.stats.idle_exits += 1;
                    self.assign(processor, id.index, delay);
                } else {
                    self.queue(id.index, false);
                    if self.model.preemption == Preemption::Full {
                        self.preempt_for(class);
                    }
                }
            }
            // Its stretch is not over, or it is still to be polled: it hears of it then.
            State::OnProcessor | State::Queued => task.woken = true,
        }
    }
}
