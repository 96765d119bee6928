//! Queues that work on the same part of the disk: finding them, making them one, and taking them apart again.

use super::Cfq;
use super::ids::ContextId;
use super::ids::QueueId;

impl Cfq {
    /// Notes where a queue's next request lies. Of two queues with the same sector only the first is noted.
    pub(super) fn update_position(&mut self, id: QueueId) {
        let queue = self.queues.get(id.0);
        let wanted = match queue.next {
            Some(next) if !queue.idle_class() => Some((queue.level, self.table.get(next).request.start.0)),
            _ => None,
        };
        if queue.position == wanted {
            return;
        }
        self.forget_position(id);
        if let Some((level, sector)) = wanted
            && let std::collections::btree_map::Entry::Vacant(place) =
                self.positions[usize::from(level)].entry(sector)
        {
            place.insert(id);
            self.queues.get_mut(id.0).position = wanted;
        }
    }

    pub(super) fn forget_position(&mut self, id: QueueId) {
        if let Some((level, sector)) = self.queues.get_mut(id.0).position.take() {
            self.positions[usize::from(level)].remove(&sector);
        }
    }

    /// The queue of `level` whose next request is nearest to the head, and how near.
    pub(super) fn nearest(&self, level: u8) -> Option<(QueueId, u64)> {
        let (positions, head) = (&self.positions[usize::from(level)], self.last_position);
        let ahead = positions.range(head..).next().map(|(sector, id)| (*id, sector - head));
        let behind = positions.range(..head).next_back().map(|(sector, id)| (*id, head - sector));
        match (ahead, behind) {
            (Some(a), Some(b)) => Some(if a.1 <= b.1 { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    /// A queue that has a request close to where the active queue `id`, which has none, left the head. Neither may be
    /// seeky, both are synchronous, of one level, and real time or not alike.
    pub(super) fn close_cooperator(&self, id: QueueId) -> Option<QueueId> {
        let queue = self.queues.get(id.0);
        if queue.idle_class() || !queue.sync || queue.seeks.seeky() || self.group.queues == 1 {
            return None;
        }
        let (other_id, distance) = self.nearest(queue.level)?;
        let other = self.queues.get(other_id.0);
        let fits = other_id != id
            && distance <= self.rule.close_sectors()
            && other.sync
            && !other.seeks.seeky()
            && other.real_time() == queue.real_time();
        fits.then_some(other_id)
    }

    /// Arranges that two cooperating queues become one: the streams of the one with fewer move to the other at their
    /// next request.
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

    /// Where a stream's request goes, given the queue that it fed so far; `None` if it needs a new one.
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

    /// A stream of this queue leaves it: it will not move along the planned merges either.
    pub(super) fn drop_cooperators(&mut self, id: QueueId) {
        let mut next = self.queues.get(id.0).merge_into;
        while let Some(id) = next {
            next = self.queues.get(id.0).merge_into;
            self.drop_user(id);
        }
    }
}
