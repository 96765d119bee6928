//! Modelled disks as block devices of a virtual world.

use super::{Command, Contents, DiskModel, Rack, Report, Tag};
use crate::{DeviceClock, Sim};
use extant_block::{Bio, BioFlags, Device, IoError, IoErrorKind, Limits, Op, Sector};
use extant_rt::{Nanos, Rng};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// The disks of a machine, attached to its world.
#[derive(Clone)]
pub struct Disks {
    shared: Arc<Shared>,
    limits: Arc<[Limits]>,
}

/// One of the [`Disks`].
#[derive(Clone)]
pub struct ModelDisk {
    shared: Arc<Shared>,
    limits: Arc<[Limits]>,
    number: usize,
}

struct Shared {
    clock: DeviceClock,
    state: Mutex<State>,
}

struct State {
    /// The disks on the bus, and those that have their own link.
    racks: [Rack; 2],
    disks: Vec<Disk>,
    /// The disk in each slot of the racks.
    owners: [Vec<usize>; 2],
    /// Commands in flight in each rack.
    in_flight: [usize; 2],
    /// Bios for which the disk had room but its rack had not, in order of arrival (kernel:
    /// `starved_list`).
    starved: [VecDeque<(usize, Bio)>; 2],
    reports: Vec<(usize, Report)>,
    /// Reusable buffer for bios that end together.
    ended: Vec<Bio>,
    /// Submitted bios in time order: a task submits at its own time, which may be ahead of other
    /// tasks'.
    arriving: VecDeque<(Nanos, usize, Bio)>,
    /// When the next [`Shared::run`] is scheduled.
    armed: Option<Nanos>,
    /// Set while bio completions run, which may submit more.
    running: bool,
}

struct Disk {
    rack: usize,
    slot: usize,
    depth: usize,
    volatile: bool,
    keeps_discarded: bool,
    contents: Contents,
    under_way: Vec<Option<Bio>>,
    free: Vec<u32>,
    /// Bios waiting for a slot in the disk's queue.
    waiting: VecDeque<Bio>,
}

type Ended = (usize, Bio, Result<(), IoErrorKind>);

/// The seed of nominal runs: all platters start at angle 0, and tasks that start together start at
/// the same instant. Other seeds draw these at random.
pub const NOMINAL_SEED: u64 = 1;

impl Disks {
    /// Attaches the disks of the world's machine to the world, empty.
    pub fn attach(sim: &Sim) -> Self {
        let machine = sim.machine();
        let mut drives: [Vec<_>; 2] = Default::default();
        let mut owners: [Vec<usize>; 2] = Default::default();
        let (mut disks, mut limits) = (Vec::new(), Vec::new());
        for model in &machine.disks {
            for number in 0..model.count {
                let name =
                    if model.count == 1 { model.name.clone() } else { format!("{}{number}", model.name) };
                let seed = Rng::labelled(sim.rt().seed(), &name).next_u64();
                // At the start of a run the platters' angles are arbitrary.
                let is_nominal = sim.rt().seed() == NOMINAL_SEED;
                let turn =
                    if is_nominal { 0 } else { Rng::labelled(seed, "platters").below(1_000_000) as u32 };
                let drive = model.build_turned(seed, turn);
                let rack = usize::from(!model.on_bus);
                limits.push(limits_of(model, name, drive.has_volatile_cache()));
                disks.push(Disk {
                    rack,
                    slot: drives[rack].len(),
                    depth: drive.queue_depth(),
                    volatile: drive.has_volatile_cache(),
                    keeps_discarded: model.is_rotational(),
                    contents: Contents::new(model.capacity_bytes()),
                    under_way: Vec::new(),
                    free: Vec::new(),
                    waiting: VecDeque::new(),
                });
                drives[rack].push(drive);
                owners[rack].push(disks.len() - 1);
            }
        }
        let [shared, own] = drives;
        let state = State {
            racks: [Rack::new(shared, machine.bus.clone()), Rack::new(own, None)],
            disks,
            owners,
            in_flight: [0; 2],
            starved: Default::default(),
            reports: Vec::new(),
            ended: Vec::new(),
            arriving: VecDeque::new(),
            armed: None,
            running: false,
        };
        Self {
            shared: Arc::new(Shared { clock: sim.devices(), state: Mutex::new(state) }),
            limits: limits.into(),
        }
    }

    /// Number of disks.
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// A disk, counted from 0.
    ///
    /// # Panics
    /// If there is no such disk.
    pub fn device(&self, number: usize) -> Arc<ModelDisk> {
        assert!(number < self.len(), "there is no disk {number}, only {} disks", self.len());
        let (shared, limits) = (self.shared.clone(), self.limits.clone());
        Arc::new(ModelDisk { shared, limits, number })
    }

    /// All of them.
    pub fn devices(&self) -> Vec<Arc<ModelDisk>> {
        (0..self.len()).map(|number| self.device(number)).collect()
    }

    /// How long the shared link has been held so far.
    pub fn bus_busy(&self) -> Nanos {
        self.shared.state.lock().racks[0].bus_busy()
    }

    /// Simulates a power failure: bios in flight fail, and data only in write caches is lost.
    pub fn crash(&self) {
        let now = self.shared.clock.now();
        let mut ended: Vec<Ended> = Vec::new();
        {
            let mut state = self.shared.state.lock();
            state.racks.iter_mut().for_each(|rack| rack.lose_power(now));
            let gone = |number| move |bio| (number, bio, Err(IoErrorKind::Os(EIO)));
            for (number, disk) in state.disks.iter_mut().enumerate() {
                disk.contents.crash();
                ended.extend(disk.under_way.drain(..).flatten().map(gone(number)));
                ended.extend(disk.waiting.drain(..).map(gone(number)));
                disk.free.clear();
            }
            state.in_flight = [0; 2];
            ended.extend(state.starved.iter_mut().flat_map(|all| all.drain(..)).map(|(n, bio)| gone(n)(bio)));
            ended.extend(state.arriving.drain(..).map(|(_, number, bio)| gone(number)(bio)));
        }
        for (number, bio, result) in ended {
            bio.end_as(&self.limits[number].name, result);
        }
    }
}

/// Linux errno for an input/output error.
const EIO: i32 = 5;

fn limits_of(model: &DiskModel, name: String, volatile_cache: bool) -> Limits {
    Limits {
        max_bytes: model.max_command_bytes,
        max_segments: 1024,
        volatile_cache,
        ..Limits::new(name, model.capacity_bytes() / 512 * 512)
    }
}

impl Shared {
    /// Schedules [`Shared::run`] for the next event, unless it is scheduled that early already.
    fn arm(self: &Arc<Self>, state: &mut State) {
        let arriving = state.arriving.front().map(|first| first.0);
        let next = state.racks.iter().filter_map(Rack::next_event).chain(arriving).min();
        if let Some(next) = next
            && state.armed.is_none_or(|armed| next < armed)
        {
            state.armed = Some(next);
            let me = self.clone();
            self.clock.call_at(next, move || me.run(next));
        }
    }

    /// Runs at the scheduled time `now`.
    fn run(self: &Arc<Self>, now: Nanos) {
        let mut state = self.state.lock();
        if state.armed == Some(now) {
            state.armed = None;
        }
        if state.running {
            return;
        }
        state.running = true;
        let mut ended = std::mem::take(&mut state.ended);
        loop {
            state.advance(now, &mut ended);
            if ended.is_empty() {
                break;
            }
            // Completions run without the lock, since they may submit.
            parking_lot::MutexGuard::unlocked(&mut state, || {
                ended.drain(..).for_each(|bio| bio.end(Ok(())));
            });
        }
        state.running = false;
        state.ended = ended;
        self.arm(&mut state);
    }
}

impl State {
    /// Handles everything due by `now`, in time order.
    fn advance(&mut self, now: Nanos, ended: &mut Vec<Bio>) {
        loop {
            let arrival = self.arriving.front().map(|first| first.0).filter(|at| *at <= now);
            let event = self.racks.iter().filter_map(Rack::next_event).min().filter(|at| *at <= now);
            match (arrival, event) {
                (None, None) => break,
                (Some(at), event) if event.is_none_or(|event| at <= event) => {
                    let (at, number, bio) = self.arriving.pop_front().expect("one was just seen");
                    self.start(at, number, bio);
                }
                (_, Some(at)) => {
                    for rack in 0..2 {
                        let mut reports = std::mem::take(&mut self.reports);
                        self.racks[rack].advance(at, &mut |slot, report| reports.push((slot, report)));
                        for (slot, report) in reports.drain(..) {
                            self.report(at, self.owners[rack][slot], report, ended);
                        }
                        self.reports = reports;
                    }
                    // Completions run before later events: waiters may submit bios that arrive
                    // earlier.
                    if !ended.is_empty() {
                        break;
                    }
                }
                (Some(_), None) => unreachable!("an arrival without an event is taken above"),
            }
        }
    }
}

impl State {
    /// Sends a bio to its disk as soon as both disk and rack have room.
    fn start(&mut self, now: Nanos, number: usize, bio: Bio) {
        let disk = &mut self.disks[number];
        let rack = disk.rack;
        if !disk.has_room() {
            disk.waiting.push_back(bio);
        } else if self.in_flight[rack] >= self.racks[rack].commands() {
            self.starved[rack].push_back((number, bio));
        } else {
            self.in_flight[rack] += 1;
            disk.send(&mut self.racks[rack], now, bio);
        }
    }

    fn report(&mut self, now: Nanos, number: usize, report: Report, ended: &mut Vec<Bio>) {
        let disk = &mut self.disks[number];
        match report {
            Report::Durable { start, sectors } => {
                disk.contents.harden(start.0 * 512..(start.0 + sectors) * 512);
            }
            Report::Done { tag, .. } => {
                let mut bio = disk.under_way[tag.0 as usize].take().expect("under way until it is done");
                disk.free.push(tag.0);
                disk.transfer(&mut bio);
                ended.push(bio);
                let rack = disk.rack;
                self.in_flight[rack] -= 1;
                // Disks waiting for the rack go before the one that just completed (kernel:
                // `scsi_run_queue`).
                while self.in_flight[rack] < self.racks[rack].commands()
                    && let Some((number, bio)) = self.starved[rack].pop_front()
                {
                    match self.disks[number].has_room() {
                        true => self.start(now, number, bio),
                        false => self.disks[number].waiting.push_front(bio),
                    }
                }
                if self.disks[number].has_room()
                    && let Some(next) = self.disks[number].waiting.pop_front()
                {
                    self.start(now, number, next);
                }
            }
        }
    }
}

impl Disk {
    fn has_room(&self) -> bool {
        self.under_way.len() - self.free.len() < self.depth
    }

    fn send(&mut self, rack: &mut Rack, now: Nanos, bio: Bio) {
        let tag = self.free.pop().unwrap_or_else(|| {
            self.under_way.push(None);
            self.under_way.len() as u32 - 1
        });
        let command = Command {
            tag: Tag(tag),
            op: bio.op,
            start: bio.start,
            sectors: bio.bytes / 512,
            fua: bio.flags.contains(BioFlags::FUA),
        };
        self.under_way[tag as usize] = Some(bio);
        rack.submit(now, self.slot, command);
    }

    fn transfer(&mut self, bio: &mut Bio) {
        let mut at = bio.start.0 * 512;
        match bio.op {
            Op::Read => {
                for segment in &mut bio.segments {
                    let to = segment.as_mut_slice().expect("admitted");
                    self.contents.read(at, to);
                    at += to.len() as u64;
                }
            }
            Op::Write => self.write(at, bio),
            Op::WriteZeroes => self.contents.zero(at..at + bio.bytes, self.volatile),
            Op::Discard if !self.keeps_discarded => self.contents.zero(at..at + bio.bytes, self.volatile),
            Op::Discard | Op::Flush => {}
        }
    }

    fn write(&mut self, mut at: u64, bio: &Bio) {
        let whole_sectors = bio.segments.iter().all(|segment| segment.len().is_multiple_of(512));
        if whole_sectors {
            for segment in &bio.segments {
                match segment.is_zeroes() {
                    true => self.contents.zero(at..at + segment.len() as u64, self.volatile),
                    false => self.contents.write(at, segment.as_slice(), self.volatile),
                }
                at += segment.len() as u64;
            }
        } else {
            let bytes: Vec<u8> =
                bio.segments.iter().flat_map(|segment| segment.as_slice()).copied().collect();
            self.contents.write(at, &bytes, self.volatile);
        }
    }
}

impl ModelDisk {
    /// Handles PREFLUSH as a request queue would: sends a flush first, then the bio.
    fn flush_before(&self, mut bio: Bio) {
        bio.flags.remove(BioFlags::PREFLUSH);
        let disk = self.clone();
        let mut flush = Bio::range(Op::Flush, Sector(0), 0);
        flush.on_end(Box::new(move |_, result| match result {
            Ok(()) => disk.submit(bio),
            Err(error) => bio.end(Err(error)),
        }));
        self.submit(flush);
    }

    /// Replaces the contents at no cost in time, for a disk that starts with a volume on it.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn load(&self, contents: Contents) {
        let disk = &mut self.shared.state.lock().disks[self.number];
        assert_eq!(disk.contents.capacity_bytes(), contents.capacity_bytes(), "contents of another disk");
        disk.contents = contents;
    }

    /// Takes the contents out at no cost in time, and leaves zeroes; to inspect them, or to
    /// continue in another world.
    pub fn unload(&self) -> Contents {
        let disk = &mut self.shared.state.lock().disks[self.number];
        let empty = Contents::new(disk.contents.capacity_bytes());
        std::mem::replace(&mut disk.contents, empty)
    }
}

impl Device for ModelDisk {
    fn limits(&self) -> &Limits {
        &self.limits[self.number]
    }

    fn submit(&self, bio: Bio) {
        if let Err(kind) = self.limits().admit(&bio) {
            return bio.end_as(&self.limits().name, Err(kind));
        }
        if bio.bytes == 0 && !bio.is_flush() {
            return bio.end(Ok(()));
        }
        if bio.flags.contains(BioFlags::PREFLUSH) && bio.op != Op::Flush {
            return self.flush_before(bio);
        }
        let now = self.shared.clock.now();
        let mut state = self.shared.state.lock();
        // Tasks on different processors submit slightly out of order; most bios go at the end.
        let place = state.arriving.iter().rposition(|first| first.0 <= now).map_or(0, |before| before + 1);
        state.arriving.insert(place, (now, self.number, bio));
        if !state.running {
            self.shared.arm(&mut state);
        }
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        Ok(self.shared.state.lock().disks[self.number].contents.next_data(from_bytes))
    }
}

impl fmt::Debug for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disks({})", self.len())
    }
}

impl fmt::Debug for ModelDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelDisk({})", self.limits().name)
    }
}
