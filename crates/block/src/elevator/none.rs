//! No policy: requests leave in the order of arrival.

use super::merge::MergeIndex;
use super::{Decision, Elevator, Request, RequestId};
use crate::{Sector, StreamId};
use extant_rt::Nanos;
use std::collections::VecDeque;

/// First in, first out; adjacent requests are still merged while they wait for room in the device.
#[derive(Debug, Default)]
pub struct Fifo {
    fifo: VecDeque<Request>,
    edges: MergeIndex,
}

impl Fifo {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    fn position(&self, id: RequestId) -> usize {
        self.fifo.iter().position(|r| r.id == id).expect("the request is queued")
    }
}

impl Elevator for Fifo {
    fn name(&self) -> &'static str {
        "none"
    }

    fn add(&mut self, request: Request, _now: Nanos) {
        self.edges.insert(&request, 0);
        self.fifo.push_back(request);
    }

    fn next(&mut self, _now: Nanos) -> Decision {
        let Some(request) = self.fifo.pop_front() else { return Decision::Empty };
        self.edges.remove(&request, 0);
        Decision::Dispatch(request.id)
    }

    fn completed(&mut self, _id: RequestId, _now: Nanos) {}

    fn queued(&self) -> usize {
        self.fifo.len()
    }

    fn back_merge(&self, candidate: &Request) -> Option<RequestId> {
        self.edges.back(candidate, 0)
    }

    fn front_merge(&self, candidate: &Request) -> Option<RequestId> {
        self.edges.front(candidate, 0)
    }

    fn merged(&mut self, id: RequestId, start: Sector, sectors: u64, _now: Nanos) {
        let at = self.position(id);
        self.edges.remove(&self.fifo[at], 0);
        self.fifo[at].start = start;
        self.fifo[at].sectors = sectors;
        self.edges.insert(&self.fifo[at], 0);
    }

    fn absorbed(&mut self, kept: RequestId, gone: RequestId, _now: Nanos) {
        let at = self.position(gone);
        let gone = self.fifo.remove(at).expect("position is in range");
        self.edges.remove(&gone, 0);
        let mut to = self.position(kept);
        self.edges.remove(&self.fifo[to], 0);
        let mut kept = self.fifo[to];
        kept.start = kept.start.min(gone.start);
        kept.sectors += gone.sectors;
        self.edges.insert(&kept, 0);
        if at < to {
            // `gone` was the older one: its place passes to `kept`.
            self.fifo.remove(to);
            self.fifo.insert(at, kept);
            to = at;
        }
        self.fifo[to] = kept;
    }

    fn exited(&mut self, _stream: StreamId, _now: Nanos) {}
}
