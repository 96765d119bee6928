//! Processors, run queues and time: who runs when. A state machine that runs nothing itself.
//!
//! A task that gets a processor is polled at that instant; what it is charged during the poll becomes a *stretch*: the
//! processor is busy with it from the poll to the poll's time plus the charges. Only then does the task count as waiting
//! or ready again, and only then (or, under full preemption, anywhere in between) can another task have the processor.
//! What a task does to others during its poll happens at the instant that its charges had reached.

use crate::machine::{Preemption, Processors};
use crate::queue::EventQueue;
use extant_rt::{Class, Event, Nanos, Place, RtError, TaskFuture, TimerId, Tracer, WaitsOn};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

/// A task's place in the table of tasks, and its number in order of spawning, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TaskId {
    pub(crate) index: u32,
    pub(crate) serial: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Queued,
    OnProcessor,
}

/// What a task wants once the stretch of its last poll is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// To wait, unless it was woken meanwhile.
    Wait,
    /// Nothing: it has ended.
    End,
}

struct Task {
    serial: u32,
    name: Box<str>,
    class: Class,
    state: State,
    future: Option<TaskFuture>,
    waker: Waker,
    /// Woken since its last poll began.
    woken: bool,
    /// Its last poll ended at a point where it only offered its processor.
    offered: bool,
    /// The rest of a stretch that was cut short.
    owed: Nanos,
    /// Set between a poll and the end of its stretch.
    after: Option<After>,
    processor: u32,
    /// Processor time used since it was last given a processor, up to the last poll.
    stint: Nanos,
    ready_at: Nanos,
    waits_on: Option<WaitsOn>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Switching to its task until then.
    Switching(Nanos),
    /// To be polled now, or being polled.
    Polling,
    /// Busy with a stretch until then.
    Busy {
        since: Nanos,
        until: Nanos,
    },
}

struct Processor {
    phase: Phase,
    task: u32,
    /// The task that ran last, to know when to switch.
    last_serial: u32,
    /// Makes events for a phase that was cut short stale.
    turn: u32,
    busy: Nanos,
}

enum Happening {
    Wake(TaskId),
    Timer { slot: u32, turn: u32 },
    Processor { number: u32, turn: u32 },
    Call(u32),
}

struct Timer {
    turn: u32,
    target: Option<Target>,
}

enum Target {
    Task(TaskId),
    Waker(Waker),
}

/// Code of a modelled device, run at its time.
pub(crate) type Call = Box<dyn FnOnce() + Send>;

/// What the world has to do next.
pub(crate) enum Step {
    /// Poll this task on this processor.
    Poll { id: TaskId, processor: u32 },
    /// Wake this.
    Wake(Waker),
    /// Run this.
    Call(Call),
    /// The main task has ended.
    Done,
    /// Nothing is left to happen.
    Stuck,
}

/// Numbers about a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events that happened: timers, wake-ups, ends of switches and stretches, calls of devices.
    pub events: u64,
    /// Times a task was polled.
    pub polls: u64,
    /// Times a processor turned to another task than it ran last.
    pub switches: u64,
    /// Times a task that could go on lost its processor.
    pub preemptions: u64,
    /// Time each processor spent with tasks and switches.
    pub busy: Vec<Nanos>,
}

pub(crate) struct Core {
    pub(crate) now: Nanos,
    model: Processors,
    pub(crate) tracer: Tracer,
    tasks: Vec<Option<Task>>,
    free_tasks: Vec<u32>,
    last_serial: u32,
    processors: Vec<Processor>,
    /// One bit a processor, set while it is idle.
    idle: Vec<u64>,
    to_poll: VecDeque<u32>,
    realtime: BTreeMap<(Reverse<u8>, i64), u32>,
    normal: VecDeque<u32>,
    background: VecDeque<u32>,
    /// Orders equal real-time tasks; grows at the back, shrinks at the front.
    realtime_order: (i64, i64),
    events: EventQueue<Happening>,
    timers: Vec<Timer>,
    free_timers: Vec<u32>,
    stale: usize,
    calls: Vec<Option<Call>>,
    free_calls: Vec<u32>,
    pub(crate) main: Option<TaskId>,
    main_ended: bool,
    pub(crate) fatal: Option<RtError>,
    pub(crate) polls_at_once: u64,
    pub(crate) stats: Stats,
}

impl Core {
    pub(crate) fn new(model: Processors, tracer: Tracer) -> Self {
        let count = model.count;
        let processor =
            || Processor { phase: Phase::Idle, task: 0, last_serial: 0, turn: 0, busy: Nanos::ZERO };
        let mut idle = vec![0; count.div_ceil(64)];
        (0..count).for_each(|n| idle[n / 64] |= 1 << (n % 64));
        Self {
            now: Nanos::ZERO,
            model,
            tracer,
            tasks: Vec::new(),
            free_tasks: Vec::new(),
            last_serial: 0,
            processors: (0..count).map(|_| processor()).collect(),
            idle,
            to_poll: VecDeque::new(),
            realtime: BTreeMap::new(),
            normal: VecDeque::new(),
            background: VecDeque::new(),
            realtime_order: (0, 0),
            events: EventQueue::new(),
            timers: Vec::new(),
            free_timers: Vec::new(),
            stale: 0,
            calls: Vec::new(),
            free_calls: Vec::new(),
            main: None,
            main_ended: false,
            fatal: None,
            polls_at_once: 0,
            stats: Stats::default(),
        }
    }

    fn task(&mut self, index: u32) -> &mut Task {
        self.tasks[index as usize].as_mut().expect("a task on a processor or in a queue has not ended")
    }

    fn is_alive(&self, id: TaskId) -> bool {
        self.tasks
            .get(id.index as usize)
            .and_then(Option::as_ref)
            .is_some_and(|task| task.serial == id.serial)
    }

    pub(crate) fn name(&self, id: TaskId) -> String {
        match self.tasks.get(id.index as usize).and_then(Option::as_ref) {
            Some(task) if task.serial == id.serial => task.name.to_string(),
            _ => "(none)".to_owned(),
        }
    }

    fn trace(&self, at: Nanos, processor: u32, serial: u32, event: Event) {
        if self.tracer.is_on() {
            self.tracer.record(at, Place { lane: processor, task: serial }, event);
        }
    }

    // Tasks.

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
            ready_at: self.now,
            waits_on: None,
        });
        if self.tracer.is_on() {
            self.tracer.task_name(id.serial, name);
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

    /// The class's queue takes a task in, at its end or (for one that was cut short) at its front.
    fn queue(&mut self, index: u32, front: bool) {
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

    fn take_most_urgent(&mut self) -> Option<u32> {
        if !self.realtime.is_empty() {
            return self.realtime.pop_first().map(|(_, index)| index);
        }
        self.normal.pop_front().or_else(|| self.background.pop_front())
    }

    fn most_urgent_class(&self) -> Option<Class> {
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
    fn is_wanted(&self, class: Class, stint: Nanos) -> bool {
        self.most_urgent_class().is_some_and(|waiting| {
            let in_turn = !matches!(class, Class::RealTime(_)) && waiting == class;
            waiting > class || (in_turn && stint >= self.model.timeslice)
        })
    }

    /// Somebody wakes a task, at `at`, which is now or later.
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

    fn woken(&mut self, id: TaskId, delay: Nanos) {
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

    // Processors.

    fn idle_processor(&self, preferred: u32) -> Option<u32> {
        if self.idle[preferred as usize / 64] >> (preferred % 64) & 1 == 1 {
            return Some(preferred);
        }
        let (word, bits) = self.idle.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        Some(word as u32 * 64 + bits.trailing_zeros())
    }

    fn set_idle(&mut self, processor: u32, idle: bool) {
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

    /// Gives a processor that has nothing to do to a task.
    fn assign(&mut self, number: u32, index: u32, mut delay: Nanos) {
        let now = self.now;
        let context_switch = self.model.context_switch;
        self.set_idle(number, false);
        let task = self.task(index);
        task.state = State::OnProcessor;
        task.processor = number;
        task.stint = Nanos::ZERO;
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

    /// The task has its processor: goes on with what it owes, or is polled.
    fn begin(&mut self, number: u32) {
        let index = self.processors[number as usize].task;
        if self.task(index).after.is_some() {
            self.stretch(number);
        } else {
            self.processors[number as usize].phase = Phase::Polling;
            self.to_poll.push_back(number);
        }
    }

    /// Keeps the processor busy with what its task owes.
    fn stretch(&mut self, number: u32) {
        let now = self.now;
        let (full, slice) = (self.model.preemption == Preemption::Full, self.model.timeslice);
        let index = self.processors[number as usize].task;
        let task = self.task(index);
        // Under full preemption a long stretch ends with the time slice, to see whether it is another's turn.
        let length = if full && task.class == Class::Normal { task.owed.min(slice) } else { task.owed };
        task.owed = task.owed - length;
        let until = now.saturating_add(length);
        let processor = &mut self.processors[number as usize];
        processor.phase = Phase::Busy { since: now, until };
        self.push_turn(number, until);
    }

    /// A task was polled and charged up to `end`.
    pub(crate) fn polled(&mut self, id: TaskId, future: Option<TaskFuture>, after: After, end: Nanos) {
        let now = self.now;
        let task = self.task(id.index);
        task.future = future;
        task.after = Some(after);
        task.owed = end - now;
        let number = task.processor;
        let class = task.class;
        if end == now {
            self.settle(number);
        } else if self.model.preemption == Preemption::Full && self.most_urgent_class() > Some(class) {
            // Somebody more urgent came at this very instant, before the poll.
            self.stats.preemptions += 1;
            self.release(number, id.index, true);
        } else {
            self.stretch(number);
        }
    }

    /// Takes the time that the running stretch lasted off the books. The processor stays the task's.
    fn account(&mut self, number: u32) -> u32 {
        let now = self.now;
        let processor = &mut self.processors[number as usize];
        let index = processor.task;
        if let Phase::Busy { since, until } = processor.phase {
            processor.busy += now - since;
            let task = self.task(index);
            task.stint += now - since;
            task.owed += until - now;
        }
        index
    }

    /// A stretch is over: the task waits, ends, goes on, or makes room.
    fn settle(&mut self, number: u32) {
        let index = self.account(number);
        let task = self.task(index);
        let (class, stint, serial) = (task.class, task.stint, task.serial);
        if task.owed > Nanos::ZERO {
            // Only the time slice is over.
            if self.most_urgent_class().is_some_and(|waiting| waiting >= class) {
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
            self.pick(number);
        } else if !task.offered {
            self.release(number, index, false);
        } else if self.is_wanted(class, stint) {
            let in_turn = self.most_urgent_class() == Some(class);
            self.stats.preemptions += 1;
            self.release(number, index, !in_turn);
        } else {
            self.begin(number);
        }
    }

    /// Puts a task that could go on back into its queue and gives its processor to the most urgent.
    fn release(&mut self, number: u32, index: u32, front: bool) {
        let now = self.now;
        self.task(index).ready_at = now;
        self.queue(index, front);
        self.pick(number);
    }

    fn pick(&mut self, number: u32) {
        match self.take_most_urgent() {
            Some(index) => self.assign(number, index, Nanos::ZERO),
            None => {
                self.processors[number as usize].phase = Phase::Idle;
                self.set_idle(number, true);
            }
        }
    }

    /// Takes the processor that runs the least urgent task away from it, if that is less urgent than `class`.
    fn preempt_for(&mut self, class: Class) {
        let least = (0..self.processors.len() as u32)
            .filter(|n| {
                matches!(self.processors[*n as usize].phase, Phase::Busy { .. } | Phase::Switching(_))
            })
            .map(|n| {
                (self.tasks[self.processors[n as usize].task as usize].as_ref().map(|task| task.class), n)
            })
            .min();
        let Some((Some(victim_class), number)) = least else { return };
        if victim_class >= class {
            return;
        }
        let now = self.now;
        let index = self.account(number);
        let processor = &mut self.processors[number as usize];
        if let Phase::Switching(until) = processor.phase {
            processor.busy = processor.busy.saturating_sub(until - now);
        }
        processor.turn = processor.turn.wrapping_add(1);
        self.stats.preemptions += 1;
        let victim = self.task(index).serial;
        let by = self.realtime.first_key_value().map(|(_, index)| *index).or(self.normal.front().copied());
        let by = by.map_or(0, |index| self.task(index).serial);
        self.trace(now, number, victim, Event::TaskPreempted { by });
        self.release(number, index, true);
    }

    /// An interrupt takes time from a processor, whatever it does. An idle one has it to spare: then the time is returned,
    /// to delay what the interrupt starts.
    pub(crate) fn steal(&mut self, number: u32, span: Nanos) -> Nanos {
        if span == Nanos::ZERO {
            return Nanos::ZERO;
        }
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

    /// Whether a task that was charged up to `at` in its present poll should go through the scheduler at this point.
    pub(crate) fn offers(&mut self, id: TaskId, at: Nanos) -> bool {
        let task = self.task(id.index);
        let (class, stint) = (task.class, task.stint.saturating_add(at - self.now));
        // What happens until `at` may wake somebody more urgent.
        let wanted = self.is_wanted(class, stint)
            || (at > self.now && self.events.next_time().is_some_and(|t| t <= at));
        self.task(id.index).offered = wanted;
        wanted
    }

    /// Processor time of the running task since it was given its processor, when its poll has been charged up to `at`.
    pub(crate) fn stint(&mut self, id: TaskId, at: Nanos) -> Nanos {
        let now = self.now;
        self.task(id.index).stint.saturating_add(at - now)
    }

    // Events.

    /// Whether the task's own waker, is this one: then a timer can do without it.
    pub(crate) fn is_waker_of(&self, id: TaskId, waker: &Waker) -> bool {
        let task = self.tasks.get(id.index as usize).and_then(Option::as_ref);
        task.is_some_and(|task| task.serial == id.serial && waker.will_wake(&task.waker))
    }

    /// Arms a timer that wakes a task or, where it is not the running task's, a waker.
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
        self.events.push(at, Happening::Timer { slot, turn });
        TimerId(u64::from(slot) << 32 | u64::from(turn))
    }

    fn take_timer(&mut self, slot: u32, turn: u32) -> Option<Target> {
        let timer = self.timers.get_mut(slot as usize).filter(|timer| timer.turn == turn)?;
        timer.turn = timer.turn.wrapping_add(1);
        self.free_timers.push(slot);
        timer.target.take()
    }

    /// Disarms a timer; what it held is returned, to be dropped outside.
    pub(crate) fn disarm(&mut self, id: TimerId) -> Option<impl Sized + use<>> {
        let (slot, turn) = ((id.0 >> 32) as u32, id.0 as u32);
        let target = self.take_timer(slot, turn)?;
        self.stale += 1;
        // Timers that are always disarmed in time must not fill the queue.
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

    /// Has `call` run at `at`.
    pub(crate) fn call_at(&mut self, at: Nanos, call: Call) {
        let slot = self.free_calls.pop().unwrap_or_else(|| {
            self.calls.push(None);
            u32::try_from(self.calls.len() - 1).expect("a world has fewer than 2^32 calls at a time")
        });
        self.calls[slot as usize] = Some(call);
        self.events.push(at.max(self.now), Happening::Call(slot));
    }

    fn happens(&mut self, at: Nanos) {
        debug_assert!(at >= self.now, "time does not run backwards");
        if at > self.now {
            self.now = at;
            self.polls_at_once = 0;
        }
        self.stats.events += 1;
    }

    /// Goes on to whatever the world has to do next.
    pub(crate) fn step(&mut self) -> Step {
        loop {
            if self.main_ended {
                self.main_ended = false;
                return Step::Done;
            }
            if let Some(processor) = self.to_poll.pop_front() {
                let index = self.processors[processor as usize].task;
                let serial = self.task(index).serial;
                self.stats.polls += 1;
                self.polls_at_once += 1;
                return Step::Poll { id: TaskId { index, serial }, processor };
            }
            let Some((at, event)) = self.events.pop() else { return Step::Stuck };
            match event {
                Happening::Processor { number, turn } => {
                    if self.processors[number as usize].turn == turn {
                        self.happens(at);
                        match self.processors[number as usize].phase {
                            Phase::Switching(_) => self.begin(number),
                            _ => self.settle(number),
                        }
                    }
                }
                Happening::Wake(id) => {
                    self.happens(at);
                    self.woken(id, Nanos::ZERO);
                }
                Happening::Timer { slot, turn } => match self.take_timer(slot, turn) {
                    None => self.stale = self.stale.saturating_sub(1),
                    Some(target) => {
                        self.happens(at);
                        match target {
                            Target::Task(id) if self.is_alive(id) => {
                                let processor = self.task(id.index).processor;
                                let delay = self.steal(processor, self.model.timer_interrupt);
                                self.woken(id, delay);
                            }
                            Target::Task(_) => {}
                            Target::Waker(waker) => {
                                self.steal(0, self.model.timer_interrupt);
                                return Step::Wake(waker);
                            }
                        }
                    }
                },
                Happening::Call(slot) => {
                    self.happens(at);
                    self.free_calls.push(slot);
                    if let Some(call) = self.calls[slot as usize].take() {
                        return Step::Call(call);
                    }
                }
            }
        }
    }

    fn remove(&mut self, index: u32) {
        let task = self.tasks[index as usize].take();
        self.free_tasks.push(index);
        if let (Some(task), Some(main)) = (task, self.main)
            && task.serial == main.serial
        {
            self.main = None;
            self.main_ended = true;
        }
    }

    /// Takes the main task out of a world that cannot go on.
    pub(crate) fn abandon_main(&mut self) {
        self.main_ended = false;
        if let Some(main) = self.main.take() {
            self.realtime.retain(|_, index| *index != main.index);
            self.normal.retain(|index| *index != main.index);
            self.background.retain(|index| *index != main.index);
            for number in 0..self.processors.len() as u32 {
                let processor = &mut self.processors[number as usize];
                if processor.phase != Phase::Idle && processor.task == main.index {
                    processor.phase = Phase::Idle;
                    processor.turn = processor.turn.wrapping_add(1);
                    self.to_poll.retain(|n| *n != number);
                    self.set_idle(number, true);
                }
            }
            self.tasks[main.index as usize] = None;
            self.free_tasks.push(main.index);
        }
    }

    /// One line for every task that waits: its name and what it waits on.
    pub(crate) fn waiters(&self) -> String {
        let mut tasks: Vec<&Task> = self.tasks.iter().flatten().collect();
        tasks.sort_by_key(|task| task.serial);
        let line = |task: &Task| match &task.waits_on {
            Some(what) => format!("  {} waits on {what}", task.name),
            None => format!("  {} waits on something that it did not name", task.name),
        };
        tasks.into_iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Everything that is left, to be dropped outside, and the names of its tasks.
    pub(crate) fn clear(&mut self) -> (Vec<String>, impl Sized + use<>) {
        let mut tasks: Vec<Task> = std::mem::take(&mut self.tasks).into_iter().flatten().collect();
        tasks.sort_by_key(|task| task.serial);
        let names = tasks.iter().map(|task| task.name.to_string()).collect();
        let (model, tracer, now) = (self.model.clone(), self.tracer.clone(), self.now);
        let fresh = Self { now, last_serial: self.last_serial, ..Self::new(model, tracer) };
        let old = std::mem::replace(self, fresh);
        self.stats = old.stats.clone();
        (names, (tasks, old.timers, old.calls))
    }

    pub(crate) fn busy(&self) -> Vec<Nanos> {
        self.processors.iter().map(|processor| processor.busy).collect()
    }
}
