//! Writers, flushers and the accounting of dirty memory around a controller: the loop closed, in virtual time.

use crate::disks::{Disks, MS, Machine, Ns, REQUEST_PAGES, Request, SECOND};
use extant_cache::control::{
    Amounts, Background, DeviceIndex, DirtyControl, DirtyLimits, Numbers, Verdict, Writer,
};
use extant_rt::Nanos;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

/// Requests that a queue takes before whoever submits waits.
const QUEUE_REQUESTS: usize = 128;
/// A writer that writes back itself takes so much of a file at a time.
const FOREGROUND_PAGES: u64 = 1024;
/// A page's copy and its accounting.
const PAGE_COST: Ns = 2_000;
/// A writer dirties so many pages between two looks at the clock.
const STEP_PAGES: u64 = 256;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) machine: Machine,
    pub(crate) limits: DirtyLimits,
    pub(crate) writers_per_disk: usize,
    /// Each writer spends this elsewhere after every 256 pages.
    pub(crate) think: Ns,
    pub(crate) warm_up: Ns,
    pub(crate) measure: Ns,
    /// A disk that stops working when measuring begins.
    pub(crate) dies: Option<usize>,
    /// Whether memory comes back when all of a file's pages that were submitted together are written, as from XFS of that
    /// time (an `ioend`), and not with each request.
    pub(crate) whole_runs: bool,
    /// Whether the limits themselves hold writers back, whatever the controller says: as in the cache, and not in Linux.
    pub(crate) wall: bool,
    pub(crate) seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Pages written per disk while measuring.
    pub(crate) written: Vec<u64>,
    /// Pages dirtied per writer while measuring.
    pub(crate) dirtied: Vec<u64>,
    pub(crate) seconds: f64,
    pub(crate) pauses: u64,
    pub(crate) longest_pause: Ns,
    /// The longest time in which a writer dirtied nothing.
    pub(crate) longest_standstill: Ns,
    /// The longest wait for room below the limits themselves, which is no controller's decision.
    pub(crate) longest_wall: Ns,
    pub(crate) most_dirty: u64,
    pub(crate) most_on_disk: Vec<u64>,
}

impl Outcome {
    /// All disks together.
    pub(crate) fn mib_per_s(&self) -> f64 {
        self.written.iter().sum::<u64>() as f64 / 256.0 / self.seconds
    }
}

#[derive(Debug, Default)]
struct File {
    disk: usize,
    /// Pages ever dirtied and pages ever submitted; what is between is dirty.
    size: u64,
    submitted: u64,
    /// Its place among its disk's dirty files.
    listed: Option<(Ns, u64)>,
}

impl File {
    fn dirty(&self) -> u64 {
        self.size - self.submitted
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// Will go on when its event comes.
    Running,
    /// Will ask again when its event comes.
    Asking,
    /// Waits for the limits since then.
    Wall(Ns),
    /// Writes back so much itself, waits for the queue.
    Foreground(u64),
}

#[derive(Debug)]
struct Task {
    writer: Writer,
    doing: Doing,
    last_progress: Ns,
    since_thought: u64,
}

#[derive(Debug, Default)]
struct Bdi {
    amounts: Amounts,
    dirtied: u64,
    written: u64,
    limit: u64,
    listed: BTreeMap<(Ns, u64), usize>,
    /// What the flusher is at: a file and what is left of the chunk.
    at: Option<(usize, u64)>,
    stuck: VecDeque<usize>,
}

pub(crate) struct World {
    load: Load,
    control: Box<dyn DirtyControl>,
    disks: Disks,
    bdis: Vec<Bdi>,
    global: Amounts,
    /// A writer each.
    files: Vec<File>,
    tasks: Vec<Task>,
    events: BinaryHeap<Reverse<(Ns, u64, usize)>>,
    at_wall: Vec<usize>,
    /// Pages of each run on its way: not yet written, and all.
    runs: BTreeMap<u64, (u64, u64)>,
    sequence: u64,
    now: Ns,
    outcome: Outcome,
}

/// Runs a load under a controller.
pub(crate) fn run(load: Load, control: Box<dyn DirtyControl>) -> Outcome {
    let mut world = World::new(load, control);
    world.run_until(load.warm_up);
    world.start_measuring();
    world.run_until(load.warm_up + load.measure);
    world.finish()
}

impl World {
    fn new(load: Load, control: Box<dyn DirtyControl>) -> Self {
        let disks = load.machine.disks;
        let count = disks * load.writers_per_disk;
        let limit = load.limits.limit_pages;
        let mut world = Self {
            load,
            control,
            disks: Disks::new(load.machine, load.seed),
            bdis: (0..disks).map(|_| Bdi { limit, ..Bdi::default() }).collect(),
            global: Amounts::default(),
            files: (0..count).map(|i| File { disk: i % disks, ..File::default() }).collect(),
            tasks: Vec::new(),
            events: BinaryHeap::new(),
            at_wall: Vec::new(),
            runs: BTreeMap::new(),
            sequence: 0,
            now: 0,
            outcome: Outcome::default(),
        };
        for id in 0..count {
            world.tasks.push(Task {
                writer: Writer::default(),
                doing: Doing::Running,
                last_progress: 0,
                since_thought: 0,
            });
            world.at(id as Ns * MS, id);
        }
        world
    }

    fn at(&mut self, when: Ns, task: usize) {
        self.sequence += 1;
        self.events.push(Reverse((when, self.sequence, task)));
    }

    fn run_until(&mut self, end: Ns) {
        let mut ended = Vec::new();
        loop {
            let event = self.events.peek().map_or(Ns::MAX, |Reverse((at, ..))| *at);
            let next = event.min(self.disks.next()).max(self.now);
            if next >= end {
                self.now = end;
                self.disks.advance(end, &mut ended);
                self.completed(&mut ended);
                return;
            }
            self.now = next;
            self.disks.advance(next, &mut ended);
            self.completed(&mut ended);
            if event <= next {
                let Reverse((_, _, task)) = self.events.pop().expect("peeked");
                self.go_on(task);
            }
        }
    }

    fn start_measuring(&mut self) {
        self.outcome = Outcome {
            written: self.bdis.iter().map(|bdi| bdi.written).collect(),
            dirtied: self.files.iter().map(|file| file.size).collect(),
            most_on_disk: vec![0; self.bdis.len()],
            ..Outcome::default()
        };
        for task in &mut self.tasks {
            task.last_progress = self.now;
        }
        if let Some(dead) = self.load.dies {
            self.disks.disks[dead].dead = true;
        }
    }

    fn finish(mut self) -> Outcome {
        let mut outcome = std::mem::take(&mut self.outcome);
        for (index, task) in self.tasks.iter().enumerate() {
            if self.load.dies != Some(self.files[index].disk) {
                outcome.longest_standstill = outcome.longest_standstill.max(self.now - task.last_progress);
            }
        }
        outcome.written.iter_mut().zip(&self.bdis).for_each(|(was, bdi)| *was = bdi.written - *was);
        outcome.dirtied.iter_mut().zip(&self.files).for_each(|(was, file)| *was = file.size - *was);
        outcome.seconds = self.load.measure as f64 / SECOND as f64;
        outcome
    }

    fn numbers(&self, disk: usize) -> Numbers {
        Numbers {
            limits: self.load.limits,
            global: self.global,
            device: DeviceIndex(disk as u32),
            on_device: self.bdis[disk].amounts,
            dirtied_total: self.bdis[disk].dirtied,
            written_total: self.bdis[disk].written,
            devices: self.bdis.len() as u32,
        }
    }

    fn completed(&mut self, ended: &mut Vec<(usize, Request)>) {
        for (disk, request) in ended.drain(..) {
            let Some(request) = self.ended(request) else { continue };
            let bdi = &mut self.bdis[disk];
            bdi.amounts.writeback_pages -= request.pages;
            bdi.written += request.pages;
            self.global.writeback_pages -= request.pages;
            let numbers = self.numbers(disk);
            let took = Nanos(self.now - request.submitted);
            self.control.written(Nanos(self.now), &numbers, request.pages, took);
            while self.disks.disks[disk].queued() < QUEUE_REQUESTS
                && let Some(task) = self.bdis[disk].stuck.pop_front()
            {
                self.go_on(task);
            }
            self.flush(disk);
            // Whoever waits for the limits of the process may be any disk's writer; first come, first served.
            for id in std::mem::take(&mut self.at_wall) {
                self.step(id);
            }
        }
    }

    /// What comes back when a request has ended.
    fn ended(&mut self, request: Request) -> Option<Request> {
        let run = self.runs.get_mut(&request.run).expect("submitted");
        run.0 -= request.pages;
        if run.0 > 0 {
            return (!self.load.whole_runs).then_some(request);
        }
        let (_, pages) = self.runs.remove(&request.run).expect("found above");
        Some(Request { pages: if self.load.whole_runs { pages } else { request.pages }, ..request })
    }

    fn room(&self, disk: usize) -> u64 {
        if !self.load.wall {
            return u64::MAX;
        }
        let bdi = &self.bdis[disk];
        let global = self.load.limits.limit_pages.saturating_sub(self.global.total());
        global.min(bdi.limit.saturating_sub(bdi.amounts.total()))
    }

    fn go_on(&mut self, id: usize) {
        match self.tasks[id].doing {
            Doing::Running => self.step(id),
            Doing::Asking => self.ask(id),
            Doing::Foreground(left) => self.foreground(id, left),
            Doing::Wall(_) => {}
        }
    }

    /// The writer dirties a few pages.
    fn step(&mut self, id: usize) {
        let disk = self.files[id].disk;
        let room = self.room(disk);
        let now = self.now;
        if room == 0 {
            if !matches!(self.tasks[id].doing, Doing::Wall(_)) {
                self.tasks[id].doing = Doing::Wall(now);
            }
            self.at_wall.push(id);
            self.flush(disk);
            return;
        }
        let task = &mut self.tasks[id];
        if let Doing::Wall(since) = task.doing {
            self.outcome.longest_wall = self.outcome.longest_wall.max(now - since);
        }
        let wanted = task.writer.ask_after_pages.saturating_sub(task.writer.dirtied_pages);
        let pages = wanted.clamp(1, STEP_PAGES).min(room);
        task.writer.dirtied_pages += pages;
        self.outcome.longest_standstill = self.outcome.longest_standstill.max(now - task.last_progress);
        task.last_progress = now;
        task.since_thought += pages;
        let mut took = pages * PAGE_COST;
        if self.load.think > 0 && task.since_thought >= STEP_PAGES {
            task.since_thought = 0;
            took += self.load.think;
        }
        task.doing = if task.writer.dirtied_pages >= task.writer.ask_after_pages {
            Doing::Asking
        } else {
            Doing::Running
        };
        let file = &mut self.files[id];
        file.size += pages;
        let bdi = &mut self.bdis[disk];
        bdi.amounts.dirty_pages += pages;
        bdi.dirtied += pages;
        self.global.dirty_pages += pages;
        if file.listed.is_none() {
            self.sequence += 1;
            file.listed = Some((now, self.sequence));
            bdi.listed.insert((now, self.sequence), id);
        }
        self.outcome.most_dirty = self.outcome.most_dirty.max(self.global.total());
        if let Some(most) = self.outcome.most_on_disk.get_mut(disk) {
            *most = (*most).max(bdi.amounts.total());
        }
        self.at(now + took, id);
    }

    fn ask(&mut self, id: usize) {
        let disk = self.files[id].disk;
        self.flush(disk);
        let numbers = self.numbers(disk);
        let writer = &mut self.tasks[id].writer;
        if writer.dirtied_pages < writer.ask_after_pages {
            return self.step(id);
        }
        match self.control.balance(Nanos(self.now), &numbers, writer) {
            Verdict::Go => {
                self.tasks[id].doing = Doing::Running;
                self.step(id);
            }
            Verdict::Pause { until, .. } => {
                assert!(until.0 > self.now, "a pause of no length");
                self.outcome.pauses += 1;
                self.outcome.longest_pause = self.outcome.longest_pause.max(until.0 - self.now);
                self.tasks[id].doing = Doing::Asking;
                // Nobody wakes to the nanosecond.
                let late = self.disks.random.below(MS / 10);
                self.at(until.0 + late, id);
            }
            Verdict::WriteBack { pages, .. } => self.foreground(id, pages),
        }
    }

    fn foreground(&mut self, id: usize, mut left: u64) {
        let disk = self.files[id].disk;
        while left > 0 {
            if self.disks.disks[disk].queued() >= QUEUE_REQUESTS {
                self.tasks[id].doing = Doing::Foreground(left);
                self.bdis[disk].stuck.push_back(id);
                return;
            }
            let Some(&file) = self.bdis[disk].listed.values().next() else { break };
            let pages = self.submit(file, left.min(FOREGROUND_PAGES));
            left -= pages;
            self.tasks[id].writer.written_pages += pages;
            self.put_last(file);
        }
        self.tasks[id].doing = Doing::Asking;
        self.at(self.now, id);
    }

    /// A file that had its chunk and is still dirty: the others come first.
    fn put_last(&mut self, file: usize) {
        let Some(place) = self.files[file].listed else { return };
        self.sequence += 1;
        let last = (self.now, self.sequence);
        let bdi = &mut self.bdis[self.files[file].disk];
        bdi.listed.remove(&place);
        bdi.listed.insert(last, file);
        self.files[file].listed = Some(last);
    }

    /// Puts pages of a file under write-back.
    fn submit(&mut self, file: usize, most: u64) -> u64 {
        let most = if self.load.whole_runs { most } else { most.min(REQUEST_PAGES) };
        let at = &mut self.files[file];
        let pages = at.dirty().min(most);
        let page = at.submitted;
        at.submitted += pages;
        let bdi = &mut self.bdis[at.disk];
        if at.dirty() == 0
            && let Some(place) = at.listed.take()
        {
            bdi.listed.remove(&place);
        }
        for amounts in [&mut bdi.amounts, &mut self.global] {
            amounts.dirty_pages -= pages;
            amounts.writeback_pages += pages;
        }
        let disk = at.disk;
        self.sequence += 1;
        self.runs.insert(self.sequence, (pages, pages));
        for start in (0..pages).step_by(REQUEST_PAGES as usize) {
            let pages = REQUEST_PAGES.min(pages - start);
            let request = Request { file, run: self.sequence, pages, submitted: self.now };
            self.disks.submit(disk, page + start, request);
        }
        pages
    }

    /// What a flusher does, as far as it gets without waiting.
    fn flush(&mut self, disk: usize) {
        let now = Nanos(self.now);
        loop {
            let numbers = self.numbers(disk);
            let limit = self.control.device_limit(now, &numbers).max(1);
            self.bdis[disk].limit = limit;
            let Background::Run { chunk_pages, in_flight_pages } = self.control.background(now, &numbers)
            else {
                return;
            };
            if numbers.on_device.writeback_pages >= in_flight_pages
                || self.disks.disks[disk].queued() >= QUEUE_REQUESTS
            {
                return;
            }
            let (file, left) = match self.bdis[disk].at.take() {
                Some((file, left)) if left > 0 && self.files[file].dirty() > 0 => (file, left),
                used_up => {
                    if let Some((file, 0)) = used_up {
                        self.put_last(file);
                    }
                    let least = self.control.least_run(now, &numbers);
                    let bdi = &self.bdis[disk];
                    let long = bdi.listed.values().find(|file| self.files[**file].dirty() >= least);
                    let Some(&file) = long.or_else(|| bdi.listed.values().next()) else { return };
                    (file, chunk_pages)
                }
            };
            let pages = self.submit(file, left);
            self.bdis[disk].at = Some((file, left - pages));
        }
    }
}
