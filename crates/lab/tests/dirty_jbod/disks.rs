//! Disks behind a shared link, in virtual time.

use std::collections::BTreeMap;

/// Nanoseconds.
pub(crate) type Ns = u64;
pub(crate) const SECOND: Ns = 1_000_000_000;
pub(crate) const MS: Ns = 1_000_000;
/// A request carries at most this: 512 KiB.
pub(crate) const REQUEST_PAGES: u64 = 128;

/// The machine: what is calibrated, and what is known of such disks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    pub(crate) disks: usize,
    /// What all disks together may receive, in pages per second.
    pub(crate) link_rate: u64,
    /// What one disk writes without seeks, in pages per second.
    pub(crate) disk_rate: u64,
    /// Track to track, in ns.
    pub(crate) settle: Ns,
    /// What a seek between two files costs on top of that where only one is queued, in ns.
    pub(crate) stroke: Ns,
    /// One turn of the disk, in ns.
    pub(crate) revolution: Ns,
}

/// Random numbers of a run (SplitMix64), so that disks that are alike do not march in step.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n.max(1)
    }
}

impl Machine {
    /// Getting to another file: the elevator serves the queued files in the order of their places, so that the way to the
    /// next and the turn to wait for shrink with their number; the disk itself sees 31.
    fn switch(&self, queued_files: usize, random: &mut Random) -> Ns {
        let q = queued_files.clamp(1, 31) as u64;
        let seek = (self.stroke as f64 / (q as f64).sqrt()) as Ns;
        self.settle + seek + random.below(2 * self.revolution / (q + 1))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) file: usize,
    /// What it was submitted with.
    pub(crate) run: u64,
    pub(crate) pages: u64,
    pub(crate) submitted: Ns,
}

#[derive(Debug)]
enum Arm {
    Idle,
    Seeking(Ns, Request),
    /// What is left, in pages.
    Writing(f64, Request),
}

/// One disk and its elevator.
#[derive(Debug)]
pub(crate) struct Disk {
    queue: BTreeMap<(usize, u64), Request>,
    /// Queued requests of each file.
    files: BTreeMap<usize, u32>,
    head: (usize, u64),
    arm: Arm,
    pub(crate) dead: bool,
}

impl Disk {
    fn new() -> Self {
        Self {
            queue: BTreeMap::new(),
            files: BTreeMap::new(),
            head: (usize::MAX, 0),
            arm: Arm::Idle,
            dead: false,
        }
    }

    pub(crate) fn queued(&self) -> usize {
        self.queue.len()
    }

    fn start(&mut self, now: Ns, machine: &Machine, random: &mut Random) {
        if !matches!(self.arm, Arm::Idle) || self.dead {
            return;
        }
        let Some(&key) =
            self.queue.range(self.head..).chain(self.queue.range(..self.head)).next().map(|x| x.0)
        else {
            return;
        };
        let switch = if key == self.head { 0 } else { machine.switch(self.files.len(), random) };
        let request = self.queue.remove(&key).expect("found above");
        let left = self.files.get_mut(&key.0).expect("counted");
        *left -= 1;
        if *left == 0 {
            self.files.remove(&key.0);
        }
        self.head = (key.0, key.1 + request.pages);
        self.arm = if switch == 0 {
            Arm::Writing(request.pages as f64, request)
        } else {
            Arm::Seeking(now + switch, request)
        };
    }
}

/// All disks, and the link that those that transfer share evenly.
#[derive(Debug)]
pub(crate) struct Disks {
    machine: Machine,
    pub(crate) disks: Vec<Disk>,
    now: Ns,
    pub(crate) random: Random,
}

impl Disks {
    pub(crate) fn new(machine: Machine, seed: u64) -> Self {
        let disks = (0..machine.disks).map(|_| Disk::new()).collect();
        Self { machine, disks, now: 0, random: Random(seed) }
    }

    pub(crate) fn submit(&mut self, disk: usize, page: u64, request: Request) {
        let at = &mut self.disks[disk];
        at.queue.insert((request.file, page), request);
        *at.files.entry(request.file).or_default() += 1;
        at.start(self.now, &self.machine, &mut self.random);
    }

    /// Pages per ns of each disk that transfers.
    fn rate(&self) -> f64 {
        let writing = self.disks.iter().filter(|disk| matches!(disk.arm, Arm::Writing(..))).count() as u64;
        let rate = self.machine.disk_rate.min(self.machine.link_rate / writing.max(1));
        rate as f64 / SECOND as f64
    }

    /// When the next of the disks has something to report.
    pub(crate) fn next(&self) -> Ns {
        let rate = self.rate();
        let at = self.disks.iter().map(|disk| match disk.arm {
            Arm::Idle => Ns::MAX,
            Arm::Seeking(until, _) => until,
            Arm::Writing(left, _) => self.now + (left / rate).ceil() as Ns,
        });
        at.min().unwrap_or(Ns::MAX)
    }

    /// Goes on to `now`, which is not after `next()`; tells which requests ended.
    pub(crate) fn advance(&mut self, now: Ns, ended: &mut Vec<(usize, Request)>) {
        let moved = self.rate() * (now - self.now) as f64;
        self.now = now;
        for (index, disk) in self.disks.iter_mut().enumerate() {
            match &mut disk.arm {
                Arm::Idle => {}
                Arm::Seeking(until, request) => {
                    if *until <= now {
                        disk.arm = Arm::Writing(request.pages as f64, *request);
                    }
                }
                Arm::Writing(left, request) => {
                    *left -= moved;
                    if *left <= 1e-6 {
                        ended.push((index, *request));
                        disk.arm = Arm::Idle;
                        disk.start(now, &self.machine, &mut self.random);
                    }
                }
            }
        }
    }
}
