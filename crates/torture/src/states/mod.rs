//! Every disk that a power cut may leave, derived from a log of writes and flushes.
//!
//! The log is cut at every write. Each write not yet covered by a flush may have reached the
//! medium, or not, or only in some of its sectors: all combinations if there are few such writes, a
//! sample otherwise. No state is generated twice: a cut yields only the states that include its
//! newest write, except where the promise changes.

mod prune;

use crate::Image;
use extant_block::{BioFlags, Change, Log, LogEvent, Op};
use extant_rt::Rng;
use std::fmt;

pub use prune::Pruner;
pub(crate) use prune::tags;

/// How many states to generate.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// With up to this many volatile writes, all combinations are generated.
    pub exhaustive: usize,
    /// With more writes, this many random combinations are generated; in addition each write alone,
    /// each write missing, and every prefix.
    pub sampled: usize,
    /// Number of states with torn writes per cut.
    pub torn: usize,
    /// Seed for sampling.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { exhaustive: 10, sampled: 64, torn: 4, seed: 0 }
    }
}

/// A disk after a power cut.
#[derive(Clone, Debug)]
pub struct State {
    /// Its contents.
    pub image: Image,
    /// Number of log events that had happened.
    pub cut: usize,
    /// Indices of submitted writes that are lost.
    pub lost: Vec<usize>,
    /// The torn write: its index, and which of its sectors arrived.
    pub torn: Option<(usize, Vec<bool>)>,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "power cut after event {}", self.cut)?;
        if !self.lost.is_empty() {
            write!(f, ", writes {:?} lost", self.lost)?;
        }
        if let Some((index, sectors)) = &self.torn {
            let arrived: String = sectors.iter().map(|&there| if there { '+' } else { '-' }).collect();
            write!(f, ", write {index} torn ({arrived})")?;
        }
        Ok(())
    }
}

/// What happens to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    Torn(Vec<bool>),
}

/// Calls `visit` for every state of `log` over `base`, until it returns false.
///
/// At the events in `promises` more is promised than before. So all states are visited there, even
/// those visited before.
pub fn each(
    log: &Log,
    base: &Image,
    promises: &[usize],
    options: Options,
    pruner: Option<&Pruner>,
    visit: &mut dyn FnMut(State) -> bool,
) {
    let mut rng = Rng::labelled(options.seed, "crash states");
    let mut settled = base.clone();
    let mut settled_to = 0;
    for cut in 0..=log.events.len() {
        let newest = match cut.checked_sub(1).map(|last| log.events[last]) {
            Some(LogEvent::Submitted(index)) if changes_something(&log.changes[index]) => Some(index),
            _ => None,
        };
        let promised = cut == 0 || cut == log.events.len() || promises.contains(&cut);
        if newest.is_none() && !promised {
            continue;
        }
        let crash = log.crash(cut);
        let mut fates: Vec<(usize, bool)> = crash.durable.iter().map(|&index| (index, true)).collect();
        fates.extend(crash.volatile.iter().map(|&index| (index, false)));
        fates.sort_unstable();
        // Writes that are durable before any volatile one are part of every later state.
        let early = fates.iter().take_while(|&&(_, durable)| durable);
        for &(index, _) in early.filter(|&&(index, _)| index >= settled_to) {
            settled.apply(&log.changes[index], 0..log.changes[index].sectors());
        }
        settled_to = fates.iter().find(|(_, durable)| !durable).map_or_else(
            || fates.last().map_or(settled_to, |&(index, _)| index + 1),
            |&(index, _)| settled_to.max(index),
        );
        let rest: Vec<(usize, bool)> = fates.into_iter().filter(|&(index, _)| index >= settled_to).collect();
        let volatile: Vec<usize> =
            rest.iter().filter(|(_, durable)| !durable).map(|&(index, _)| index).collect();
        let must = if promised { None } else { newest };
        let covered = covered_by_preflush(log, cut, &volatile);
        let make = |fate: &dyn Fn(usize) -> Fate| State::new(log, &settled, cut, &rest, fate);
        for mut state in choices(log, &volatile, must, options, pruner, &mut rng) {
            for (write, before) in &covered {
                if state[*write] != Fate::Lost {
                    before.iter().for_each(|&position| state[position] = Fate::Arrives);
                }
            }
            let fate = |index: usize| match volatile.binary_search(&index) {
                Ok(position) => state[position].clone(),
                Err(_) => Fate::Arrives,
            };
            if !visit(make(&fate)) {
                return;
            }
        }
    }
}

/// A random one of the disks that a power cut after `cut` events of `log` over `base` may leave.
pub fn random(log: &Log, base: &Image, cut: usize, rng: &mut Rng) -> State {
    let crash = log.crash(cut);
    let mut volatile = crash.volatile;
    volatile.sort_unstable();
    let mut fates: Vec<(usize, bool)> = crash.durable.iter().map(|&index| (index, true)).collect();
    fates.extend(volatile.iter().map(|&index| (index, false)));
    fates.sort_unstable();
    let mut arrives: Vec<bool> = volatile.iter().map(|_| rng.below(2) == 1).collect();
    for (write, before) in covered_by_preflush(log, cut, &volatile) {
        if arrives[write] {
            before.iter().for_each(|&position| arrives[position] = true);
        }
    }
    State::new(log, base, cut, &fates, &|index| match volatile.binary_search(&index) {
        Ok(position) if !arrives[position] => Fate::Lost,
        _ => Fate::Arrives,
    })
}

/// For each volatile write with `PREFLUSH`, from the last to the first, the positions of the
/// volatile writes that had completed when it was submitted. It can only reach the medium, whole or
/// in part, after those writes.
fn covered_by_preflush(log: &Log, cut: usize, volatile: &[usize]) -> Vec<(usize, Vec<usize>)> {
    let mut ended = Vec::new();
    let mut covered = Vec::new();
    for event in &log.events[..cut] {
        match *event {
            LogEvent::Ended { change, ok: true } => ended.extend(volatile.binary_search(&change)),
            LogEvent::Submitted(index) if log.changes[index].flags.contains(BioFlags::PREFLUSH) => {
                if let Ok(position) = volatile.binary_search(&index) {
                    covered.push((position, ended.clone()));
                }
            }
            _ => {}
        }
    }
    covered.reverse();
    covered
}

fn changes_something(change: &Change) -> bool {
    change.op != Op::Flush && change.bytes > 0
}

/// Whether a change touches the primary superblock, whose two sectors are assumed to arrive
/// together: its checksum covers both, and neither Linux nor Extant opens a volume with a wrong
/// one, because they read it before they know of a journal.
fn is_superblock(change: &Change) -> bool {
    change.start.0 < 4 && change.start.0 + change.sectors() > 2
}

impl State {
    fn new(
        log: &Log,
        settled: &Image,
        cut: usize,
        rest: &[(usize, bool)],
        fate: &dyn Fn(usize) -> Fate,
    ) -> Self {
        let mut state = Self { image: settled.clone(), cut, lost: Vec::new(), torn: None };
        for &(index, _) in rest {
            let change = &log.changes[index];
            match fate(index) {
                Fate::Arrives => state.image.apply(change, 0..change.sectors()),
                Fate::Lost => state.lost.push(index),
                Fate::Torn(sectors) => {
                    for (at, _) in sectors.iter().enumerate().filter(|&(_, &arrived)| arrived) {
                        state.image.apply(change, at as u64..at as u64 + 1);
                    }
                    state.torn = Some((index, sectors));
                }
            }
        }
        state
    }
}

/// Possible fates of the volatile writes; `must` arrives.
fn choices(
    log: &Log,
    volatile: &[usize],
    must: Option<usize>,
    options: Options,
    pruner: Option<&Pruner>,
    rng: &mut Rng,
) -> Vec<Vec<Fate>> {
    // Writes that arrive or are lost together, as positions in `volatile`.
    let units: Vec<Vec<usize>> = match pruner {
        Some(pruner) => pruner.units(log, volatile),
        None => (0..volatile.len()).map(|position| vec![position]).collect(),
    };
    let fixed = must.and_then(|must| {
        let position = volatile.binary_search(&must).ok()?;
        units.iter().position(|unit| unit.contains(&position))
    });
    let spread = |arrives: &dyn Fn(usize) -> bool| {
        let mut fates = vec![Fate::Lost; volatile.len()];
        for (number, unit) in units.iter().enumerate() {
            if fixed == Some(number) || arrives(number) {
                unit.iter().for_each(|&position| fates[position] = Fate::Arrives);
            }
        }
        fates
    };
    let n = units.len();
    let mut all = Vec::new();
    if n <= options.exhaustive {
        for mask in 0..1_u64 << n {
            // The bit of a write that always arrives stays clear, so that no state is generated
            // twice.
            if fixed.is_none_or(|fixed| mask >> fixed & 1 == 0) {
                all.push(spread(&|number| mask >> number & 1 == 1));
            }
        }
    } else {
        for one in 0..n {
            all.push(spread(&|number| number == one));
            all.push(spread(&|number| number != one));
            all.push(spread(&|number| number < one));
        }
        all.push(spread(&|_| true));
        for _ in 0..options.sampled {
            let seed = rng.next_u64();
            all.push(spread(&|number| Rng::new(seed ^ number as u64).next_u64() & 1 == 1));
        }
    }
    let is_divisible = |change: &Change| change.sectors() > 1 && !is_superblock(change);
    let divisible: Vec<usize> =
        (0..volatile.len()).filter(|&at| is_divisible(&log.changes[volatile[at]])).collect();
    if !divisible.is_empty() {
        for _ in 0..options.torn {
            let seed = rng.next_u64();
            let mut fates = spread(&|number| Rng::new(seed ^ number as u64).next_u64() & 1 == 1);
            let at = divisible[rng.below(divisible.len() as u64) as usize];
            let sectors = log.changes[volatile[at]].sectors();
            fates[at] = Fate::Torn((0..sectors).map(|_| rng.next_u64() & 1 == 1).collect());
            all.push(fates);
        }
    }
    all
}

#[cfg(test)]
mod tests;
