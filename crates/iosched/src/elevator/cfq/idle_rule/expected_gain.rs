//! Our rule: idle if, and as long as, it is expected to pay off.

use super::{Arrival, IdleRule, Lull, Service};
use crate::elevator::ProgramId;
use extant_block::StreamId;
use extant_rt::Nanos;
use rustc_hash::FxHashMap;

/// Upper bounds of the think-time classes, in microseconds. A request that arrives later than the
/// last bound is not worth waiting for.
const BOUNDS_US: [f64; 8] = [125.0, 250.0, 500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0, 16_000.0];

/// Decay of an observation's weight with each newer one.
const DECAY: f64 = 7.0 / 8.0;

/// The limit of the sum of weights over many observations.
const SETTLED: f64 = 1.0 / (1.0 - DECAY);

/// The program's habit counts as this many observations alongside the stream's own.
const PRIOR: f64 = 2.0;

/// A request that begins within this many sectors of the end of the last one continues it (64 KiB).
const NEAR_SECTORS: u64 = 128;

/// Assumed times of a sequential request and of one elsewhere on an unknown disk: a 7200 rpm one.
const NEAR_US: f64 = 500.0;
const FAR_US: f64 = 8_000.0;

/// Maximum number of programs whose habits are kept. With more, all habits are learned again.
const MOST_PROGRAMS: usize = 1 << 16;

/// Number of depth classes: 1, 2–3, 4–7, 8–15, 16–31, 32 and more.
const DEPTHS: usize = 6;

/// How much a request elsewhere gets cheaper when the disk can choose among twice as many: 2^-0.3,
/// roughly the initial gain of shortest-positioning-time-first. Used for depths not observed yet.
const PER_DOUBLING: f64 = 0.81;

/// Share of the disk's time that light streams may use while still being served between the slices
/// of others; applies to each such stream and to all of them together.
const LIGHT_SHARE: f64 = 0.25;

/// How much disk time a light stream, or all of them together, may save up by using less than that
/// share, and how much it may overdraw.
const MOST_CREDIT_US: f64 = 200_000.0;

/// Waits for a stream's next request if and only if that is expected to save the disk more time
/// than it loses.
///
/// *Saved* is the probability that the next request arrives within τ and continues where the last
/// one stopped, times the extra cost of a request elsewhere. That cost is measured at the depth of
/// the waiting requests: the more of them there are, the less the disk loses by moving away, and at
/// some depth waiting never pays. *Lost* is the expected wait, at most τ. The rule takes the best
/// τ.
///
/// A new stream inherits the habits of its program. A new program gets no advance trust: a
/// sequential reader earns its window with its second request, and its later streams start with the
/// window open.
///
/// Even if waiting saves nothing, the disk still waits for a stream that would otherwise lose its
/// share, as long as the total cost to all waiting requests is small compared with the work itself.
/// Otherwise the stream's slice would pass without a request to serve.
///
/// A stream that uses little of the disk, such as a program that is starting or that a person waits
/// for, is served between the slices of others: its request and the seek back cost the other
/// streams less than a wait for a full round of slices would cost this one.
#[derive(Debug)]
pub struct ExpectedGain {
    // Looked up, never iterated, and the hasher has no random seed.
    streams: FxHashMap<StreamId, Stream>,
    programs: FxHashMap<ProgramId, Habit>,
    near_us: f64,
    far_us: [f64; DEPTHS],
    /// The greatest depth at which the device was observed.
    depth: u32,
    /// Credit for all requests served between slices.
    between: Credit,
    /// When such a request was last served.
    came_between: Option<Nanos>,
}

/// Disk time that may be used: [`LIGHT_SHARE`] of the time that has passed, minus the time used.
#[derive(Clone, Copy, Debug)]
struct Credit {
    us: f64,
    at: Nanos,
}

impl Default for Credit {
    fn default() -> Self {
        Self { us: MOST_CREDIT_US, at: Nanos::ZERO }
    }
}

impl Credit {
    /// The credit left at `now`.
    fn at(&mut self, now: Nanos) -> f64 {
        let passed_us = now.saturating_sub(self.at).0 as f64 / 1e3;
        self.us = (self.us + passed_us * LIGHT_SHARE).min(MOST_CREDIT_US);
        self.at = self.at.max(now);
        self.us
    }

    fn use_up(&mut self, us: f64) {
        self.us = (self.us - us).max(-MOST_CREDIT_US);
    }
}

/// A stream's habit, and the outlook at its last request.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    habit: Habit,
    outlook: Outlook,
    credit: Credit,
}

/// Habits of a stream, or of a program's streams; older requests weigh less.
#[derive(Clone, Copy, Debug, Default)]
struct Habit {
    /// Weight of the think times up to each bound.
    within: [f64; BOUNDS_US.len()],
    thoughts: f64,
    near: f64,
    distances: f64,
}

impl Habit {
    fn note(&mut self, arrival: &Arrival) {
        if let Some(thought) = arrival.thought {
            let us = thought.0 as f64 / 1e3;
            for (weight, bound) in self.within.iter_mut().zip(BOUNDS_US) {
                *weight = *weight * DECAY + f64::from(us <= bound);
            }
            self.thoughts = self.thoughts * DECAY + 1.0;
        }
        if let Some(distance) = arrival.distance {
            self.near = self.near * DECAY + f64::from(distance <= NEAR_SECTORS);
            self.distances = self.distances * DECAY + 1.0;
        }
    }

    /// Combines this habit with the program's, as if that had been observed [`PRIOR`] times. The
    /// program's weight shrinks as more is known about the stream itself, down to zero.
    fn with_prior(&self, program: &Habit) -> Outlook {
        // The weight of each observation, for either habit.
        let shares = |own_total: f64, their_total: f64| {
            let prior = if their_total > 0.0 { PRIOR } else { PRIOR / 4.0 };
            let weight = prior * (1.0 - own_total / SETTLED).max(0.0);
            let own = 1.0 / (own_total + weight);
            (own, if their_total > 0.0 { own * weight / their_total } else { 0.0 })
        };
        let (own, theirs) = shares(self.thoughts, program.thoughts);
        let within = std::array::from_fn(|i| self.within[i] * own + program.within[i] * theirs);
        let (own, theirs) = shares(self.distances, program.distances);
        Outlook { within, near: self.near * own + program.near * theirs }
    }
}

/// What to expect of the next request.
#[derive(Clone, Copy, Debug, Default)]
struct Outlook {
    /// Probability that it arrives within each bound.
    within: [f64; BOUNDS_US.len()],
    /// Probability that it is near.
    near: f64,
}

/// A possible wait, with its odds.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// How long after the end of the last request to wait.
    until_us: f64,
    /// Probability that the request arrives by then, given that it has not arrived so far.
    chance: f64,
    /// Expected idle time of the disk for this wait.
    expected_us: f64,
}

impl Outlook {
    /// The possible waits, `waited_us` after the last request completed.
    fn plans(&self, waited_us: f64) -> impl Iterator<Item = Plan> + '_ {
        let passed = BOUNDS_US.iter().position(|bound| waited_us < *bound).unwrap_or(BOUNDS_US.len());
        let so_far = if passed == 0 { 0.0 } else { self.within[passed - 1] };
        let open = (1.0 - so_far).max(1e-6);
        let (mut idle_us, mut from, mut missing) = (0.0, waited_us, 1.0);
        (passed..BOUNDS_US.len()).map(move |i| {
            let chance = ((self.within[i] - so_far) / open).clamp(0.0, 1.0);
            // Arrivals within a step are assumed to come at its middle.
            idle_us += (BOUNDS_US[i] - from) * (missing + 1.0 - chance) / 2.0;
            from = BOUNDS_US[i];
            missing = 1.0 - chance;
            Plan { until_us: BOUNDS_US[i], chance, expected_us: idle_us }
        })
    }
}

/// Index of a depth in [`ExpectedGain::far_us`].
fn step(depth: u32) -> usize {
    (depth.max(1).ilog2() as usize).min(DEPTHS - 1)
}

impl ExpectedGain {
    /// A rule without observations.
    pub fn new() -> Self {
        let mut far_us = [FAR_US; DEPTHS];
        for i in 1..DEPTHS {
            far_us[i] = far_us[i - 1] * PER_DOUBLING;
        }
        Self {
            streams: FxHashMap::default(),
            programs: FxHashMap::default(),
            near_us: NEAR_US,
            far_us,
            depth: 1,
            between: Credit::default(),
            came_between: None,
        }
    }

    /// Time a wait is expected to save the disk while `waiting` other requests are queued, minus
    /// its cost.
    fn gain(&self, outlook: &Outlook, waiting: u32) -> impl Fn(&Plan) -> f64 {
        // A smaller choice cannot be faster, so what was observed at greater depths bounds the
        // rarely observed ones.
        let far_us = self.far_us[step(waiting.min(self.depth))..].iter().fold(0.0_f64, |a, b| a.max(*b));
        let saving_us = outlook.near * (far_us - self.near_us);
        move |plan| plan.chance * saving_us - plan.expected_us
    }

    /// Whether a wait preserves a stream's share: it is likely to succeed, and all waiting requests
    /// together lose at most half a seek.
    fn fair(&self, waiting: u32) -> impl Fn(&Plan) -> bool {
        let most_us = self.far_us[0] / 2.0;
        move |plan| plan.chance >= 0.5 && f64::from(waiting) * plan.expected_us <= most_us
    }

    fn outlook(&self, lull: &Lull) -> Option<&Outlook> {
        if !lull.open && !lull.last_of_tree {
            return None;
        }
        Some(&self.streams.get(&lull.stream?)?.outlook)
    }

    /// The wait with the largest gain, or else the longest fair one.
    fn plan(&self, lull: &Lull) -> Option<Plan> {
        let outlook = self.outlook(lull)?;
        let plans = || outlook.plans(lull.waited.0 as f64 / 1e3);
        let gain = self.gain(outlook, lull.waiting);
        let gains = plans().filter(|plan| lull.open && gain(plan) > 0.0);
        let best = gains.min_by(|a, b| gain(b).total_cmp(&gain(a)));
        best.or_else(|| plans().filter(self.fair(lull.waiting)).last())
    }

    /// Whether there is a [plan](Self::plan). This is asked several times per request, and few
    /// plans are used.
    fn waits(&self, lull: &Lull) -> bool {
        let Some(outlook) = self.outlook(lull) else { return false };
        let (gain, fair) = (self.gain(outlook, lull.waiting), self.fair(lull.waiting));
        outlook.plans(lull.waited.0 as f64 / 1e3).any(|plan| (lull.open && gain(&plan) > 0.0) || fair(&plan))
    }

    /// Whether a stream is worth waiting for when only one other request is queued.
    fn opens(&self, outlook: &Outlook) -> bool {
        let (gain, fair) = (self.gain(outlook, 1), self.fair(1));
        outlook.plans(0.0).any(|plan| gain(&plan) > 0.0 || (outlook.near >= 0.5 && fair(&plan)))
    }
}

impl Default for ExpectedGain {
    fn default() -> Self {
        Self::new()
    }
}

impl IdleRule for ExpectedGain {
    fn name(&self) -> &'static str {
        "extant"
    }

    fn opens_at_birth(&self, program: ProgramId) -> bool {
        let program = self.programs.get(&program).copied().unwrap_or_default();
        self.opens(&Habit::default().with_prior(&program))
    }

    fn window_after(&mut self, arrival: &Arrival) -> bool {
        if self.programs.len() >= MOST_PROGRAMS {
            self.programs.clear();
        }
        let stream = self.streams.entry(arrival.stream).or_default();
        stream.habit.note(arrival);
        stream.outlook = if arrival.program == ProgramId::default() {
            // Without a program it is unknown which streams belong together.
            stream.habit.with_prior(&Habit::default())
        } else {
            let program = self.programs.entry(arrival.program).or_default();
            program.note(arrival);
            stream.habit.with_prior(program)
        };
        let outlook = stream.outlook;
        self.opens(&outlook)
    }

    fn should_idle(&self, lull: &Lull) -> bool {
        self.waits(lull)
    }

    fn wait_ticks(&self, lull: &Lull) -> i64 {
        let left_us = self.plan(lull).map_or(0.0, |plan| plan.until_us - lull.waited.0 as f64 / 1e3);
        // The current tick has partly passed; a request at the bound should still be in time.
        (left_us * 1e3 / lull.tick.0 as f64).ceil() as i64 + 1
    }

    fn keeps_waiting(&self, lull: &Lull) -> bool {
        self.waits(lull)
    }

    fn serves_neighbours(&self) -> bool {
        true
    }

    fn close_sectors(&self) -> u64 {
        NEAR_SECTORS
    }

    fn waits_are_bounded(&self) -> bool {
        true
    }

    fn sweeps(&self) -> bool {
        true
    }

    fn comes_between(&mut self, stream: StreamId, served: Option<StreamId>, now: Nanos) -> bool {
        // Going back to a slice only pays off if its stream continues where it stopped.
        let goes_on = |of: StreamId| self.streams.get(&of).is_some_and(|state| state.outlook.near >= 0.5);
        if !served.is_none_or(goes_on) {
            return false;
        }
        let Some(state) = self.streams.get_mut(&stream) else { return false };
        // A stream without observations may turn out to be sequential.
        let is_elsewhere = state.habit.distances >= 1.0 && state.outlook.near < 0.5;
        let comes = is_elsewhere && state.credit.at(now) > 0.0 && self.between.at(now) > 0.0;
        if comes {
            // The seek there, and the seek back.
            self.between.use_up(2.0 * self.far_us[0]);
            self.came_between = Some(now);
        }
        comes
    }

    fn has_others_between(&self, now: Nanos) -> bool {
        self.came_between.is_some_and(|at| now.saturating_sub(at) < Nanos::from_secs(1))
    }

    fn served(&mut self, service: &Service) {
        self.depth = self.depth.max(service.depth);
        let us = service.interval.0 as f64 / 1e3;
        let near = service.distance <= NEAR_SECTORS;
        if let Some(stream) = self.streams.get_mut(&service.stream) {
            stream.credit.use_up(if near { us } else { 2.0 * us });
        }
        let mean = match (near, service.depth) {
            (true, 1) => &mut self.near_us,
            // Deep in a queue, only the device knows the order in which it served requests.
            (true, _) => return,
            (false, depth) => &mut self.far_us[step(depth)],
        };
        *mean += (us - *mean) / 16.0;
    }

    fn exited(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }
}
