//! Commands waiting for the arm, also indexed by position so that only near ones need checking.

use super::super::Command;
use super::geometry::SectorPosition;
use extant_rt::Nanos;

/// A command that needs the arm.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub(super) command: Command,
    pub(super) place: SectorPosition,
    pub(super) arrived: Nanos,
    /// When it has been decoded.
    pub(super) ready: Nanos,
    /// Transfer time, once its first sector is under the head.
    pub(super) transfer_ns: u64,
}

/// The waiting commands. A command's number may change when another is taken out.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    commands: Vec<Queued>,
    /// Sorted by sector, and so by cylinder.
    places: Vec<Entry>,
    /// Lower bound of all arrival times.
    since: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    sector: u64,
    cylinder: u64,
    number: usize,
}

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.commands.len()
    }

    pub(super) fn get(&self, number: usize) -> &Queued {
        &self.commands[number]
    }

    /// Adds a command; arrivals never go back in time.
    pub(super) fn push(&mut self, queued: Queued) {
        if self.commands.is_empty() {
            self.since = queued.arrived;
        }
        let (sector, cylinder) = (queued.command.start.0, queued.place.cylinder);
        let at = self.places.partition_point(|entry| entry.sector <= sector);
        self.places.insert(at, Entry { sector, cylinder, number: self.commands.len() });
        self.commands.push(queued);
    }

    /// Removes a command; the last command takes over its number.
    pub(super) fn take(&mut self, number: usize) -> Queued {
        let taken = self.commands.swap_remove(number);
        let at = self.entry_of(taken.command.start.0, number);
        self.places.remove(at);
        if let Some(moved) = self.commands.get(number) {
            let at = self.entry_of(moved.command.start.0, self.commands.len());
            self.places[at].number = number;
        }
        taken
    }

    fn entry_of(&self, sector: u64, number: usize) -> usize {
        let first = self.places.partition_point(|entry| entry.sector < sector);
        let found = self.places[first..].iter().position(|entry| entry.number == number);
        first + found.expect("every command has an entry")
    }

    /// The oldest command, if it arrived more than `patience_ns` ago.
    pub(super) fn overdue(&mut self, now: Nanos, patience_ns: u64) -> Option<usize> {
        if self.commands.is_empty() || (now - self.since).0 <= patience_ns {
            return None;
        }
        let (number, oldest) = self.commands.iter().enumerate().min_by_key(|(_, queued)| queued.arrived)?;
        self.since = oldest.arrived;
        ((now - self.since).0 > patience_ns).then_some(number)
    }

    /// Commands that start at one of these sectors.
    pub(super) fn within(&self, sectors: std::ops::RangeInclusive<u64>) -> impl Iterator<Item = usize> + '_ {
        let first = self.places.partition_point(|entry| entry.sector < *sectors.start());
        let inside = self.places[first..].iter().take_while(move |entry| entry.sector <= *sectors.end());
        inside.map(|entry| entry.number)
    }

    /// Distance in cylinders and number of each command, nearest first, from a sector and its
    /// cylinder.
    pub(super) fn outwards(&self, sector: u64, cylinder: u64) -> impl Iterator<Item = (u64, usize)> + '_ {
        let split = self.places.partition_point(|entry| entry.sector < sector);
        let (inner, outer) = self.places.split_at(split);
        let distance = move |entry: &Entry| (entry.cylinder.abs_diff(cylinder), entry.number);
        let (mut inner, mut outer) = (inner.iter().rev().map(distance), outer.iter().map(distance));
        let (mut left, mut right) = (inner.next(), outer.next());
        std::iter::from_fn(move || match (left, right) {
            (Some(l), Some(r)) if l.0 <= r.0 => std::mem::replace(&mut left, inner.next()),
            (_, Some(_)) => std::mem::replace(&mut right, outer.next()),
            (_, None) => std::mem::replace(&mut left, inner.next()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::Geometry;
    use super::super::tests::constellation_es_2010;
    use super::*;
    use crate::disk::Tag;
    use extant_block::{Op, Sector};
    use extant_rt::Rng;

    #[test]
    fn commands_are_found_by_distance_by_sector_and_by_age() {
        let geometry = Geometry::new(&constellation_es_2010()).unwrap();
        let (mut rng, mut waiting, mut model) = (Rng::new(3), Waiting::default(), Vec::new());
        for step in 0..2_000_u32 {
            let now = Nanos(u64::from(step) * 100);
            if model.len() < 31 && (model.is_empty() || rng.below(2) == 0) {
                // Few positions, so that some occur twice.
                let sector = rng.below(40) * 10_000_000;
                let command = Command::new(Tag(step), Op::Read, Sector(sector), 8);
                let place = geometry.place(sector);
                waiting.push(Queued { command, place, arrived: now, ready: now, transfer_ns: 1 });
                model.push((sector, place.cylinder, now));
            } else {
                let number = rng.below(model.len() as u64) as usize;
                let (sector, ..) = model.swap_remove(number);
                assert_eq!(waiting.take(number).command.start.0, sector);
            }
            let from = rng.below(400_000_000);
            let arm = geometry.place(from);
            let near: Vec<_> = waiting.outwards(from, arm.cylinder).collect();
            assert_eq!(near.len(), model.len());
            assert!(near.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            assert!(
                near.iter().all(|(distance, number)| *distance == model[*number].1.abs_diff(arm.cylinder))
            );
            let mut within: Vec<_> = waiting.within(from..=from + 50_000_000).collect();
            within.sort_unstable();
            let inside = |(_, it): &(usize, &(u64, u64, Nanos))| (from..=from + 50_000_000).contains(&it.0);
            assert!(within.into_iter().eq(model.iter().enumerate().filter(inside).map(|(number, _)| number)));
            let oldest =
                model.iter().enumerate().min_by_key(|(_, it)| it.2).map(|(number, it)| (it.2, number));
            let overdue = oldest.filter(|oldest| now - oldest.0 > Nanos(1_500)).map(|oldest| oldest.1);
            assert_eq!(waiting.overdue(now, 1_500), overdue);
        }
    }
}
