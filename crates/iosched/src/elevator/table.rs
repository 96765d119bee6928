//! Containers in which policies keep requests: a table by slot, lists in order of arrival threaded
//! through it, and lists sorted by sector.

use super::{Request, RequestId};
use extant_block::Sector;

/// Whether two adjacent requests may become one command: same operation, and metadata only with
/// metadata, so that metadata accounting stays correct.
pub(super) fn mergeable(a: &Request, b: &Request) -> bool {
    a.op == b.op && a.meta == b.meta
}

/// Requests by slot number, each with the policy's notes and its links within one [`Arrivals`].
#[derive(Debug)]
pub(super) struct Table<T> {
    slots: Vec<Option<Entry<T>>>,
}

#[derive(Debug)]
pub(super) struct Entry<T> {
    pub(super) request: Request,
    pub(super) note: T,
    older: Option<RequestId>,
    newer: Option<RequestId>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> Table<T> {
    pub(super) fn insert(&mut self, request: Request, note: T) {
        let at = request.id.0 as usize;
        if at >= self.slots.len() {
            self.slots.resize_with(at + 1, || None);
        }
        assert!(self.slots[at].is_none(), "request slot {at} is in use");
        self.slots[at] = Some(Entry { request, note, older: None, newer: None });
    }

    pub(super) fn remove(&mut self, id: RequestId) -> Entry<T> {
        self.slots.get_mut(id.0 as usize).and_then(Option::take).expect("the request is known")
    }

    pub(super) fn get(&self, id: RequestId) -> &Entry<T> {
        self.slots.get(id.0 as usize).and_then(Option::as_ref).expect("the request is known")
    }

    pub(super) fn get_mut(&mut self, id: RequestId) -> &mut Entry<T> {
        self.slots.get_mut(id.0 as usize).and_then(Option::as_mut).expect("the request is known")
    }
}

/// Requests in order of arrival. The links are in the [`Table`]; a request is on one such list at a
/// time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    oldest: Option<RequestId>,
    newest: Option<RequestId>,
}

impl Arrivals {
    pub(super) fn oldest(&self) -> Option<RequestId> {
        self.oldest
    }

    pub(super) fn push<T>(&mut self, table: &mut Table<T>, id: RequestId) {
        let before = self.newest.replace(id);
        let entry = table.get_mut(id);
        entry.older = before;
        entry.newer = None;
        match before {
            Some(before) => table.get_mut(before).newer = Some(id),
            None => self.oldest = Some(id),
        }
    }

    pub(super) fn remove<T>(&mut self, table: &mut Table<T>, id: RequestId) {
        let entry = table.get_mut(id);
        let (older, newer) = (entry.older.take(), entry.newer.take());
        match older {
            Some(older) => table.get_mut(older).newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => table.get_mut(newer).older = older,
            None => self.newest = older,
        }
    }

    /// Moves `id` to the place just before `other`; both are on this list.
    pub(super) fn move_before<T>(&mut self, table: &mut Table<T>, id: RequestId, other: RequestId) {
        self.remove(table, id);
        let older = table.get_mut(other).older.replace(id);
        let entry = table.get_mut(id);
        entry.older = older;
        entry.newer = Some(other);
        match older {
            Some(older) => table.get_mut(older).newer = Some(id),
            None => self.oldest = Some(id),
        }
    }
}

/// Requests ordered by first sector, and then by arrival.
///
/// A sorted array: a queue holds at most as many requests as the driver has slots, and at that size
/// moving a few cache lines beats a tree.
#[derive(Debug, Default)]
pub(super) struct Sorted {
    by_start: Vec<(Sector, RequestId)>,
}

impl Sorted {
    pub(super) fn insert(&mut self, start: Sector, id: RequestId) {
        let at = self.by_start.partition_point(|(s, _)| *s <= start);
        self.by_start.insert(at, (start, id));
    }

    pub(super) fn remove(&mut self, start: Sector, id: RequestId) {
        let at = self.position(start, id);
        self.by_start.remove(at);
    }

    fn position(&self, start: Sector, id: RequestId) -> usize {
        let mut at = self.by_start.partition_point(|(s, _)| *s < start);
        while self.by_start[at].1 != id {
            at += 1;
        }
        at
    }

    pub(super) fn first(&self) -> Option<RequestId> {
        self.by_start.first().map(|(_, id)| *id)
    }

    /// The first request that starts at or after `sector`.
    pub(super) fn from(&self, sector: Sector) -> Option<RequestId> {
        let at = self.by_start.partition_point(|(s, _)| *s < sector);
        self.by_start.get(at).map(|(_, id)| *id)
    }

    /// The neighbours of a request in this list.
    pub(super) fn around(&self, start: Sector, id: RequestId) -> (Option<RequestId>, Option<RequestId>) {
        let at = self.position(start, id);
        let before = at.checked_sub(1).map(|at| self.by_start[at].1);
        (before, self.by_start.get(at + 1).map(|(_, id)| *id))
    }

    /// A request that starts at `sector` and passes `fits`.
    pub(super) fn starting_at(&self, sector: Sector, fits: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        let at = self.by_start.partition_point(|(s, _)| *s < sector);
        self.by_start[at..].iter().take_while(|(s, _)| *s == sector).map(|(_, id)| *id).find(|id| fits(*id))
    }

    /// The last request that starts before `sector`, if it passes `fits`.
    pub(super) fn just_before(&self, sector: Sector, fits: impl Fn(RequestId) -> bool) -> Option<RequestId> {
        let at = self.by_start.partition_point(|(s, _)| *s < sector);
        at.checked_sub(1).map(|at| self.by_start[at].1).filter(|id| fits(*id))
    }
}
