//! The order in which a device's dirty files are written back.

use extant_rt::Nanos;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Maximum number of files to examine when looking for a long enough run.
const LOOKED_AT: usize = 256;

/// A file's place: when it became dirty, and a number that no other place has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirtySince {
    pub(crate) at: Nanos,
    number: u64,
}

impl DirtySince {
    const FIRST: Self = Self { at: Nanos::ZERO, number: 0 };

    /// The lowest place that a later file can have.
    fn next(self) -> Self {
        Self { number: self.number + 1, ..self }
    }
}

/// Files with dirty pages, in the order in which they became dirty. The order keeps them alive.
#[derive(Debug)]
pub(crate) struct TurnOrder<F> {
    files: Mutex<Files<F>>,
    /// The place of the file that had the last turn.
    turn: Mutex<Option<DirtySince>>,
}

#[derive(Debug)]
struct Files<F> {
    next: u64,
    by_age: BTreeMap<DirtySince, F>,
    /// Files that get no turn until a sync or their owner asks for it.
    skipped: BTreeMap<DirtySince, F>,
    /// Set once the flusher has ended: dirty pages are then lost with the last handle of their
    /// file.
    is_closed: bool,
}

impl<F> Default for TurnOrder<F> {
    fn default() -> Self {
        let (by_age, skipped) = Default::default();
        Self {
            files: Mutex::new(Files { next: 0, by_age, skipped, is_closed: false }),
            turn: Mutex::default(),
        }
    }
}

impl<F: Clone> TurnOrder<F> {
    /// Enters a file that is dirty since `now`. The caller holds the file's lock.
    pub(crate) fn enter(&self, now: Nanos, file: F, is_skipped: bool) -> DirtySince {
        let mut files = self.files.lock();
        let place = DirtySince { at: now, number: files.next };
        files.next += 1;
        if !files.is_closed {
            let list = if is_skipped { &mut files.skipped } else { &mut files.by_age };
            list.insert(place, file);
        }
        place
    }

    /// Stops giving a file turns, or starts again. The caller holds the file's lock.
    pub(crate) fn set_skipped(&self, place: DirtySince, is_skipped: bool) {
        let Files { by_age, skipped, .. } = &mut *self.files.lock();
        let (from, to) = if is_skipped { (by_age, skipped) } else { (skipped, by_age) };
        if let Some(file) = from.remove(&place) {
            to.insert(place, file);
        }
    }

    /// Removes a file, under its lock. The caller drops the result after releasing that lock.
    pub(crate) fn remove(&self, place: DirtySince) -> Option<F> {
        let mut files = self.files.lock();
        files.by_age.remove(&place).or_else(|| files.skipped.remove(&place))
    }

    /// The files that get no turn.
    pub(crate) fn skipped(&self) -> Vec<F> {
        self.files.lock().skipped.values().cloned().collect()
    }

    /// All files: first those that get turns, then the others, each oldest first. `None` once the
    /// order is closed.
    pub(crate) fn all(&self) -> Option<Vec<F>> {
        let files = self.files.lock();
        (!files.is_closed).then(|| files.by_age.values().chain(files.skipped.values()).cloned().collect())
    }

    /// Number of files that get turns.
    pub(crate) fn len(&self) -> usize {
        self.files.lock().by_age.len()
    }

    /// The oldest file behind `after`, or of all if `None`.
    pub(crate) fn next(&self, after: Option<DirtySince>) -> Option<(DirtySince, F)> {
        let files = self.files.lock();
        let from = after.map_or(DirtySince::FIRST, DirtySince::next);
        files.by_age.range(from..).next().map(|(place, file)| (*place, file.clone()))
    }

    /// The next file in rotation: the first that `suits` or, if none of the files examined does,
    /// simply the next one. The order is locked while a file's lock is held elsewhere, so `suits`
    /// may only try to lock a file.
    pub(crate) fn next_in_turn(&self, suits: impl Fn(&F) -> bool) -> Option<F> {
        let mut turn = self.turn.lock();
        let files = self.files.lock();
        let from = turn.map_or(DirtySince::FIRST, DirtySince::next);
        let mut round = files.by_age.range(from..).chain(files.by_age.range(..from)).take(LOOKED_AT);
        let first = round.next()?;
        let (place, file) = match suits(first.1) {
            true => first,
            false => round.find(|(_, file)| suits(file)).unwrap_or(first),
        };
        *turn = Some(*place);
        Some(file.clone())
    }

    /// Closes the order if it is empty; returns whether it was.
    pub(crate) fn close_if_empty(&self) -> bool {
        let mut files = self.files.lock();
        files.is_closed = files.by_age.is_empty() && files.skipped.is_empty();
        files.is_closed
    }

    /// Closes the order and drops all files in it.
    pub(crate) fn close(&self) {
        let files = {
            let mut files = self.files.lock();
            files.is_closed = true;
            (std::mem::take(&mut files.by_age), std::mem::take(&mut files.skipped))
        };
        // Files take the lock when they are dropped.
        drop(files);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(ages: &[u64]) -> (TurnOrder<u64>, Vec<DirtySince>) {
        let order = TurnOrder::default();
        let places = ages.iter().map(|&at| order.enter(Nanos(at), at, false)).collect();
        (order, places)
    }

    #[test]
    fn files_have_turns_by_age_and_again_from_the_front() {
        let (order, places) = order(&[30, 10, 20, 20]);
        let turns = |n| (0..n).map(|_| order.next_in_turn(|_| true).unwrap()).collect::<Vec<_>>();
        assert_eq!(turns(5), [10, 20, 20, 30, 10]);
        order.set_skipped(places[1], true);
        assert_eq!(turns(4), [20, 20, 30, 20]);
        assert_eq!((order.len(), order.skipped()), (3, vec![10]));
        assert_eq!(order.remove(places[1]), Some(10));
        assert_eq!(order.all(), Some(vec![20, 20, 30]));
    }

    #[test]
    fn a_file_that_suits_is_preferred_and_any_is_better_than_none() {
        let (order, _) = order(&[10, 20, 30]);
        assert_eq!(order.next_in_turn(|&file| file == 30), Some(30));
        assert_eq!(order.next_in_turn(|&file| file == 50), Some(10));
    }

    #[test]
    fn a_closed_order_keeps_no_file() {
        let (order, places) = order(&[10]);
        assert!(!order.close_if_empty());
        assert_eq!(order.remove(places[0]), Some(10));
        assert!(order.close_if_empty());
        order.enter(Nanos(20), 20, false);
        assert_eq!((order.all(), order.next(None)), (None, None));
    }
}
