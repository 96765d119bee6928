//! Eviction policies on generated traces: ours, LRU, and Linux's two lists. `--nocapture` prints
//! the table of docs/measurements.md.

use extant_cache::FrameNo;
use extant_cache::evict::{Eviction, S3Fifo, Uses};
use extant_rt::Rng;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A cache that gets accesses and reports whether each is a hit.
trait Cache {
    fn access(&mut self, page: u64) -> bool;
}

/// The page cache's policy, driven the way the page cache drives it.
struct Ours {
    policy: S3Fifo,
    frame_of: BTreeMap<u64, FrameNo>,
    page_of: Vec<u64>,
    uses: Counts,
    fresh: u32,
}

#[derive(Default)]
struct Counts(RefCell<Vec<u8>>);

impl Uses for Counts {
    fn uses(&self, frame: FrameNo) -> u8 {
        self.0.borrow()[frame.get() as usize]
    }
    fn set(&self, frame: FrameNo, uses: u8) {
        self.0.borrow_mut()[frame.get() as usize] = uses;
    }
}

impl Ours {
    fn new(frames: u32) -> Self {
        Self {
            policy: S3Fifo::new(frames).unwrap(),
            frame_of: BTreeMap::new(),
            page_of: vec![0; frames as usize + 1],
            uses: Counts(RefCell::new(vec![0; frames as usize + 1])),
            fresh: 0,
        }
    }
}

impl Cache for Ours {
    fn access(&mut self, page: u64) -> bool {
        if let Some(&frame) = self.frame_of.get(&page) {
            let uses = self.uses.uses(frame);
            self.uses.set(frame, (uses + 1).min(3));
            return true;
        }
        let frame = if (self.fresh as usize) < self.page_of.len() - 1 {
            self.fresh += 1;
            FrameNo::new(self.fresh).unwrap()
        } else {
            let page_of = &self.page_of;
            let frame = self.policy.victim(&self.uses, &|frame| page_of[frame.get() as usize]).unwrap();
            self.frame_of.remove(&self.page_of[frame.get() as usize]);
            frame
        };
        self.page_of[frame.get() as usize] = page;
        self.frame_of.insert(page, frame);
        self.uses.set(frame, 1);
        self.policy.insert(frame, page);
        false
    }
}

/// Least recently used.
struct Lru {
    size: usize,
    clock: u64,
    when: BTreeMap<u64, u64>,
    order: BTreeSet<(u64, u64)>,
}

impl Cache for Lru {
    fn access(&mut self, page: u64) -> bool {
        self.clock += 1;
        let before = self.when.insert(page, self.clock);
        if let Some(at) = before {
            self.order.remove(&(at, page));
        }
        self.order.insert((self.clock, page));
        if self.when.len() > self.size {
            let (_, oldest) = self.order.pop_first().unwrap();
            self.when.remove(&oldest);
        }
        before.is_some()
    }
}

/// Linux's lists (mm/swap.c, mm/vmscan.c, mm/workingset.c). New pages are inactive; a second use
/// makes them active. A page that returns after fewer evictions than there are active pages becomes
/// active at once. The active list gives pages back while it is larger than the inactive one.
#[derive(Default)]
struct TwoLists {
    size: usize,
    evictions: u64,
    shadows: BTreeMap<u64, u64>,
    /// Whether the page is active, and whether it was referenced since it was moved.
    state: BTreeMap<u64, (bool, bool)>,
    inactive: VecDeque<u64>,
    active: VecDeque<u64>,
}

impl Cache for TwoLists {
    fn access(&mut self, page: u64) -> bool {
        if let Some(state) = self.state.get_mut(&page) {
            match *state {
                (false, true) => {
                    *state = (true, false);
                    self.inactive.retain(|&p| p != page);
                    self.active.push_back(page);
                }
                _ => state.1 = true,
            }
            return true;
        }
        while self.state.len() >= self.size {
            while self.active.len() > self.inactive.len() {
                let page = self.active.pop_front().unwrap();
                self.state.insert(page, (false, false));
                self.inactive.push_back(page);
            }
            let page = self.inactive.pop_front().unwrap();
            self.state.remove(&page);
            self.evictions += 1;
            self.shadows.insert(page, self.evictions);
        }
        let distance = self.shadows.remove(&page).map(|at| self.evictions - at);
        let active = distance.is_some_and(|distance| distance <= self.active.len() as u64);
        self.state.insert(page, (active, false));
        if active {
            self.active.push_back(page)
        } else {
            self.inactive.push_back(page)
        }
        false
    }
}

const FRAMES: usize = 1_000;
const PAGES: u64 = 10_000;
const ACCESSES: usize = 100_000;

/// Draws pages with a probability that falls with their rank (Zipf, exponent 1); ranks are
/// scattered over the file.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new() -> Self {
        let mut sum = 0.0;
        let sums = (1..=PAGES).map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        });
        Self(sums.collect())
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let at = rng.unit() * self.0.last().unwrap();
        let rank = self.0.partition_point(|&sum| sum < at) as u64;
        rank * 7_919 % PAGES
    }
}

fn traces() -> Vec<(&'static str, Vec<u64>)> {
    let zipf = Zipf::new();
    let mut rng = Rng::new(11);
    let plain: Vec<u64> = (0..ACCESSES).map(|_| zipf.draw(&mut rng)).collect();
    let mut scanned = Vec::new();
    let mut scan = 1_000_000;
    while scanned.len() < ACCESSES {
        scanned.extend((0..2_000).map(|_| zipf.draw(&mut rng)));
        // A file twice the size of the cache is read once, as in a backup.
        scanned.extend(scan..scan + 2 * FRAMES as u64);
        scan += 2 * FRAMES as u64;
    }
    let looped = (0..ACCESSES as u64).map(|n| n % (FRAMES as u64 * 6 / 5)).collect();
    let mut shifting = Vec::new();
    for phase in 0..10_u64 {
        shifting.extend((0..ACCESSES / 10).map(|_| (zipf.draw(&mut rng) + phase * 1_000) % PAGES));
    }
    vec![
        ("zipf 1.0", plain),
        ("zipf and scans of twice the cache", scanned),
        ("loop over 1.2 times the cache", looped),
        ("zipf, the hot set moves ten times", shifting),
    ]
}

#[test]
fn it_resists_scans_and_gives_away_nothing_elsewhere() {
    println!(
        "| hits of {ACCESSES} accesses, {FRAMES} frames | S3-FIFO | LRU | Linux's two lists |\n|---|---|---|---|"
    );
    for (name, trace) in traces() {
        let hits = |cache: &mut dyn Cache| {
            trace.iter().filter(|&&page| cache.access(page)).count() as f64 / trace.len() as f64 * 100.0
        };
        let ours = hits(&mut Ours::new(FRAMES as u32));
        let lru = hits(&mut Lru { size: FRAMES, clock: 0, when: BTreeMap::new(), order: BTreeSet::new() });
        let lists = hits(&mut TwoLists { size: FRAMES, ..TwoLists::default() });
        println!("| {name} | {ours:.1} % | {lru:.1} % | {lists:.1} % |");
        assert!(ours >= lru, "{name}: LRU is better");
        assert!(ours >= lists - 1.0, "{name}: two lists are better");
        if name.contains("scans") {
            assert!(ours >= lru * 1.1, "{name}: scans must cost LRU more");
        }
    }
}
