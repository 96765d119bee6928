//! Queues that work on the same part of the disk: finding them, merging them, and splitting them
//! again.

use super::Cfq;
use super::ids::ContextId;
use super::ids::QueueId;

/// A queue next to the head.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    queue: QueueId,
    /// Order in which its position was entered.
    entered: u64,
    /// Distance from the head, in sectors.
    distance: u64,
}

impl Cfq {
    /// Records the position of a queue's next request. Of two queues with the same sector, only the
    /// first is recorded.
    pub(super) fn update_position(&mut self, id: QueueId) {
        let queue = self.queues.get(id.0);
        let wanted = match queue.next {
            Some(next) if !queue.idle_class() => Some((queue.level, self.table.get(next).request.start.0)),
            _ => None,
        };
        self.places_given += 1;
        let entered = self.places_given;
        if queue.position == wanted {
            // The kernel removes the queue from its tree and reinserts it.
            if let Some((level, sector)) = wanted
                && let Some(entry) = self.positions[usize::from(level)].get_mut(&sector)
            {
                entry.1 = entered;
            }
            return;
        }
        self.forget_position(id);
        if let Some((level, sector)) = wanted
            && let std::collections::btree_map::Entry::Vacant(place) =
                self.positions[usize::from(level)].entry(sector)
        {
            place.insert((id, entered));
            self.queues.get_mut(id.0).position = wanted;
        }
    }

    pub(super) fn forget_position(&mut self, id: QueueId) {
        if let Some((level, sector)) = self.queues.get_mut(id.0).position.take() {
            self.positions[usize::from(level)].remove(&sector);
        }
    }

    /// The neighbours of the head among the queues of `level`: the one at or ahead of the head, and
    /// the one behind it.
    fn beside_head(&self, level: u8) -> [Option<Neighbour>; 2] {
        let (positions, head) = (&self.positions[usize::from(level)], self.last_position);
        let of = |(&sector, &(queue, entered)): (&u64, &(QueueId, u64))| Neighbour {
            queue,
            entered,
            distance: sector.abs_diff(head),
        };
        [positions.range(head..).next().map(of), positions.range(..head).next_back().map(of)]
    }

    /// The queue of `level` whose next request is nearest to the head, and its distance.
    pub(super) fn nearest(&self, level: u8) -> Option<(QueueId, u64)> {
        let nearest = self.beside_head(level).into_iter().flatten().min_by_key(|found| found.distance);
        nearest.map(|found| (found.queue, found.distance))
    }

    /// The queue of `level` that a search in the kernel's red-black tree finds close to the head
    /// (`cfqq_close()`). This is the queue at the head, or the last node on the way down, or, if
    /// that node is not close, its neighbour on the other side. The last node is the deeper one of
    /// the head's two neighbours: the one inserted later, unless a rotation has swapped them.
    /// Rotations are not modelled.
    fn found_close(&self, level: u8) -> Option<QueueId> {
        let [ahead, behind] = self.beside_head(level);
        let close = |found: &Neighbour| found.distance <= self.rule.close_sectors();
        let (first, second) = match (ahead, behind) {
            (Some(at_head), _) if at_head.distance == 0 => (Some(at_head), None),
            (Some(a), Some(b)) if b.entered > a.entered => (Some(b), Some(a)),
            (a, b) => (a, b),
        };
        first.filter(close).or(second.filter(close)).map(|found| found.queue)
    }

    /// A queue to serve while the active queue `id` has no request: one with a request close to the
    /// head. Neither queue may be seeky. Both must be synchronous and of the same level, and both
    /// or neither real time.
    pub(super) fn close_cooperator(&self, id: QueueId) -> Option<QueueId> {
        let queue = self.queues.get(id.0);
        if queue.idle_class() || !queue.sync || queue.seeks.seeky() || self.group.queues == 1 {
            return None;
        }
        let other_id = self.found_close(queue.level)?;
        let other = self.queues.get(other_id.0);
        let fits =
            other_id != id && other.sync && !other.seeks.seeky() && other.real_time() == queue.real_time();
        fits.then_some(other_id)
    }

    /// Plans to merge two cooperating queues: the streams of the one with fewer streams move to the
    /// other at their next request.
    pub(super) fn plan_merge(&mut self, id: QueueId, mut other: QueueId) {
        if self.queues.get(id.0).merge_into.is_some() || self.queues.get(other.0).users == 0 {
            return;
        }
        while let Some(further) = self.queues.get(other.0).merge_into {
            if further == id {
                return;
            }
            other = further;
        }
        let (ours, theirs) = (self.queues.get(id.0).users, self.queues.get(other.0).users);
        if ours == 0 || theirs == 0 || id == other {
            return;
        }
        let (from, to, moving) = if theirs >= ours { (id, other, ours) } else { (other, id, theirs) };
        self.queues.get_mut(from.0).merge_into = Some(to);
        self.queues.get_mut(to.0).users += moving;
    }

    /// Where a stream's request goes, given the queue it has fed so far; `None` if it needs a new
    /// one.
    pub(super) fn follow_cooperation(&mut self, context: ContextId, id: QueueId) -> Option<QueueId> {
        let queue = self.queues.get_mut(id.0);
        if queue.shared && queue.split {
            if queue.users > 1 {
                self.contexts.get_mut(context).sync_queue = None;
                self.drop_cooperators(id);
                self.drop_user(id);
                return None;
            }
            queue.shared = false;
            queue.split = false;
        }
        let Some(to) = queue.merge_into else { return Some(id) };
        self.contexts.get_mut(context).sync_queue = Some(to);
        self.queues.get_mut(to.0).shared = true;
        self.drop_user(id);
        Some(to)
    }

    /// A stream leaves this queue, so it will not follow the planned merges either.
    pub(super) fn drop_cooperators(&mut self, id: QueueId) {
        let mut next = self.queues.get(id.0).merge_into;
        while let Some(id) = next {
            next = self.queues.get(id.0).merge_into;
            self.drop_user(id);
        }
    }
}
