//! No policy: requests leave in the order of arrival.

use super::table::{Arrivals, Sorted, Table, mergeable};
use super::{Decision, Elevator, Request, RequestId};
use extant_block::{Op, Sector, StreamId};
use extant_rt::Nanos;

/// First in, first out. Adjacent requests are still merged while they wait for room in the device.
#[derive(Debug)]
pub struct Fifo {
    name: &'static str,
    table: Table<u64>,
    arrivals: Arrivals,
    /// Reads, and everything else; used only for merging.
    sorted: [Sorted; 2],
    added: u64,
    queued: usize,
}

impl Fifo {
    /// An empty queue.
    pub fn new() -> Self {
        Self::named("none")
    }

    /// An empty queue with another name.
    pub fn named(name: &'static str) -> Self {
        let (table, arrivals, sorted) = (Table::default(), Arrivals::default(), Default::default());
        Self { name, table, arrivals, sorted, added: 0, queued: 0 }
    }

    fn unlist(&mut self, id: RequestId) -> Request {
        let request = self.table.get(id).request;
        self.arrivals.remove(&mut self.table, id);
        self.table.remove(id);
        self.sorted[side(&request)].remove(request.start, id);
        self.queued -= 1;
        request
    }
}

impl Default for Fifo {
    fn default() -> Self {
        Self::new()
    }
}

fn side(request: &Request) -> usize {
    usize::from(request.op != Op::Read)
}

impl Elevator for Fifo {
    fn name(&self) -> &'static str {
        self.name
    }

    fn add(&mut self, request: Request, _now: Nanos) {
        self.table.insert(request, self.added);
        self.arrivals.push(&mut self.table, request.id);
        self.sorted[side(&request)].insert(request.start, request.id);
        self.added += 1;
        self.queued += 1;
    }

    fn next(&mut self, _now: Nanos) -> Decision {
        let Some(id) = self.arrivals.oldest() else { return Decision::Empty };
        self.unlist(id);
        Decision::Dispatch(id)
    }

    fn completed(&mut self, _id: RequestId, _now: Nanos) {}

    fn queued(&self) -> usize {
        self.queued
    }

    fn back_merge(&self, candidate: &Request) -> Option<RequestId> {
        self.sorted[side(candidate)].just_before(candidate.start, |id| {
            let other = &self.table.get(id).request;
            other.end() == candidate.start && mergeable(other, candidate)
        })
    }

    fn front_merge(&self, candidate: &Request) -> Option<RequestId> {
        self.sorted[side(candidate)]
            .starting_at(candidate.end(), |id| mergeable(&self.table.get(id).request, candidate))
    }

    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, _now: Nanos) {
        let request = &mut self.table.get_mut(id).request;
        let before = std::mem::replace(&mut request.start, start);
        request.sectors = sectors;
        let sorted = &mut self.sorted[side(request)];
        sorted.remove(before, id);
        sorted.insert(start, id);
    }

    fn absorbed(&mut self, kept: RequestId, gone: RequestId, now: Nanos) {
        let (a, b) = (self.table.get(kept), self.table.get(gone));
        let (start, sectors) = (a.request.start.min(b.request.start), a.request.sectors + b.request.sectors);
        let arrived = b.note;
        if arrived < a.note {
            self.arrivals.move_before(&mut self.table, kept, gone);
            self.table.get_mut(kept).note = arrived;
        }
        self.unlist(gone);
        self.merged(kept, start, sectors, now);
    }

    fn exited(&mut self, _stream: StreamId, _now: Nanos) {}
}
