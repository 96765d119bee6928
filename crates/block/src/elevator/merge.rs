//! Finding the neighbour of a sector range among queued requests.

use super::{Request, RequestId};
use crate::Op;
use std::collections::BTreeSet;

/// Which requests may be parts of one command: same operation, and metadata only with metadata (so that what is traced
/// and accounted as metadata stays so). `queue` separates what a policy keeps apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Kind {
    queue: u32,
    op: u8,
    meta: bool,
}

impl Kind {
    fn of(request: &Request, queue: u32) -> Self {
        let op = match request.op {
            Op::Read => 0,
            Op::Write => 1,
            Op::Flush => 2,
            Op::Discard => 3,
            Op::WriteZeroes => 4,
        };
        Self { queue, op, meta: request.meta }
    }
}

/// Queued requests by first sector and by end. Of several with the same edge the lowest slot is found.
#[derive(Debug, Default)]
pub(super) struct MergeIndex {
    by_start: BTreeSet<(Kind, u64, RequestId)>,
    by_end: BTreeSet<(Kind, u64, RequestId)>,
}

impl MergeIndex {
    pub(super) fn insert(&mut self, request: &Request, queue: u32) {
        let kind = Kind::of(request, queue);
        self.by_start.insert((kind, request.start.0, request.id));
        self.by_end.insert((kind, request.end().0, request.id));
    }

    pub(super) fn remove(&mut self, request: &Request, queue: u32) {
        let kind = Kind::of(request, queue);
        self.by_start.remove(&(kind, request.start.0, request.id));
        self.by_end.remove(&(kind, request.end().0, request.id));
    }

    /// A request that ends where `candidate` starts.
    pub(super) fn back(&self, candidate: &Request, queue: u32) -> Option<RequestId> {
        find(&self.by_end, Kind::of(candidate, queue), candidate.start.0)
    }

    /// A request that starts where `candidate` ends.
    pub(super) fn front(&self, candidate: &Request, queue: u32) -> Option<RequestId> {
        find(&self.by_start, Kind::of(candidate, queue), candidate.end().0)
    }
}

fn find(edges: &BTreeSet<(Kind, u64, RequestId)>, kind: Kind, sector: u64) -> Option<RequestId> {
    let range = (kind, sector, RequestId(0))..=(kind, sector, RequestId(u32::MAX));
    edges.range(range).next().map(|(_, _, id)| *id)
}
