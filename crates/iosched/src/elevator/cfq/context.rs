//! Streams: which queue each of them feeds, and how long it thinks.

use super::ids::{ContextId, QueueId};
use super::queue::Queue;
use super::think::ThinkTime;
use super::{Cfq, slab::Slab};
use crate::elevator::{IoClass, Priority, ProgramId, Request};
use extant_block::{Sector, StreamId};
use extant_rt::Nanos;
use rustc_hash::FxHashMap;

/// What CFQ knows about a stream (the kernel's `cfq_io_cq`).
#[derive(Debug)]
pub(super) struct Context {
    pub(super) stream: StreamId,
    pub(super) program: ProgramId,
    priority: Priority,
    pub(super) sync_queue: Option<QueueId>,
    async_queue: Option<QueueId>,
    pub(super) think: ThinkTime,
    /// Whether the stream has not exited yet.
    pub(super) alive: bool,
    /// Requests queued or in the device.
    requests: u32,
    /// When the last synchronous request completed.
    pub(super) last_end: Option<Nanos>,
    /// End position of the last synchronous request.
    last_position: Option<Sector>,
}

impl Context {
    /// A synchronous request has completed.
    pub(super) fn ended(&mut self, tick: i64, now: Nanos) {
        self.think.last_end = tick;
        self.last_end = Some(now);
    }

    /// Distance of an arriving synchronous request from the end of the last one.
    pub(super) fn distance(&mut self, request: &Request) -> Option<u64> {
        self.last_position.replace(request.end()).map(|last| last.0.abs_diff(request.start.0))
    }

    /// How long the stream thought before the request that was just admitted; `None` for its first
    /// request, and while others are queued or in the device.
    pub(super) fn thought(&self, now: Nanos) -> Option<Nanos> {
        self.last_end.filter(|_| self.requests == 1).map(|end| now.saturating_sub(end))
    }
}

#[derive(Debug, Default)]
pub(super) struct Contexts {
    // Looked up, never iterated, and the hasher has no random seed.
    by_stream: FxHashMap<StreamId, ContextId>,
    slab: Slab<Context>,
}

impl Contexts {
    pub(super) fn get(&self, id: ContextId) -> &Context {
        self.slab.get(id.0)
    }

    pub(super) fn get_mut(&mut self, id: ContextId) -> &mut Context {
        self.slab.get_mut(id.0)
    }

    fn of_stream(&self, stream: StreamId) -> Option<ContextId> {
        self.by_stream.get(&stream).copied()
    }

    fn create(&mut self, request: &Request, tick: i64) -> ContextId {
        let id = ContextId(self.slab.insert(Context {
            stream: request.stream,
            program: request.program,
            priority: request.priority,
            sync_queue: None,
            async_queue: None,
            think: ThinkTime::new(tick),
            alive: true,
            requests: 0,
            last_end: None,
            last_position: None,
        }));
        self.by_stream.insert(request.stream, id);
        id
    }
}

/// Number of asynchronous queues: one per level of the two classes with levels, and one for the
/// idle class.
pub(super) const ASYNC_QUEUES: usize = 2 * Priority::LEVELS as usize + 1;

fn async_slot(priority: Priority) -> usize {
    match priority.class {
        IoClass::RealTime => usize::from(priority.level),
        IoClass::BestEffort => usize::from(Priority::LEVELS + priority.level),
        IoClass::Idle => ASYNC_QUEUES - 1,
    }
}

impl Cfq {
    /// The queue that `request` would join now; `None` if it would need a new one.
    pub(super) fn find_queue(&self, request: &Request) -> Option<QueueId> {
        let context = self.contexts.get(self.contexts.of_stream(request.stream)?);
        if request.sync { context.sync_queue } else { context.async_queue }
    }

    /// Whether the stream's synchronous requests join this queue.
    pub(super) fn feeds(&self, stream: StreamId, queue: QueueId) -> bool {
        self.contexts.of_stream(stream).is_some_and(|id| self.contexts.get(id).sync_queue == Some(queue))
    }

    /// The context and queue of an arriving request. Here a stream follows a pending merge of its
    /// queue or gets its own queue after a split, and a changed priority takes effect.
    pub(super) fn admit(&mut self, request: &Request) -> (ContextId, QueueId) {
        let tick = self.tick;
        let id = match self.contexts.of_stream(request.stream) {
            Some(id) => id,
            None => self.contexts.create(request, tick),
        };
        let context = self.contexts.get_mut(id);
        context.requests += 1;
        context.program = request.program;
        if context.priority != request.priority {
            context.priority = request.priority;
            if let Some(old) = context.async_queue.take() {
                self.drop_user(old);
            }
            if let Some(queue) = self.contexts.get(id).sync_queue
                && self.queues.get_mut(queue.0).set_priority(request.priority)
            {
                self.idle_window_changed(queue);
            }
        }
        let queue = if request.sync { self.admit_sync(id, request) } else { self.admit_async(id, request) };
        (id, queue)
    }

    fn admit_async(&mut self, id: ContextId, request: &Request) -> QueueId {
        if let Some(queue) = self.contexts.get(id).async_queue {
            return queue;
        }
        let slot = async_slot(request.priority);
        let queue = match self.async_queues[slot] {
            Some(queue) => queue,
            None => {
                let queue = QueueId(self.queues.insert(Queue::new(false, false, request.priority)));
                // Never freed, since all streams share it.
                self.queues.get_mut(queue.0).users = 1;
                self.async_queues[slot] = Some(queue);
                queue
            }
        };
        self.queues.get_mut(queue.0).users += 1;
        self.contexts.get_mut(id).async_queue = Some(queue);
        queue
    }

    fn admit_sync(&mut self, id: ContextId, request: &Request) -> QueueId {
        if let Some(queue) = self.contexts.get(id).sync_queue
            && let Some(queue) = self.follow_cooperation(id, queue)
        {
            return queue;
        }
        let window = self.rule.opens_at_birth(request.program);
        let queue = QueueId(self.queues.insert(Queue::new(true, window, request.priority)));
        self.queues.get_mut(queue.0).users = 1;
        self.contexts.get_mut(id).sync_queue = Some(queue);
        queue
    }

    /// A request of this context has completed or was absorbed.
    pub(super) fn release_context(&mut self, id: ContextId) {
        let context = self.contexts.get_mut(id);
        context.requests -= 1;
        if context.requests == 0 && !context.alive {
            self.contexts.slab.remove(id.0);
        }
    }

    /// A stream no longer feeds this queue.
    pub(super) fn drop_user(&mut self, id: QueueId) {
        self.queues.get_mut(id.0).users -= 1;
        self.free_if_unused(id);
    }

    /// Frees a queue that no stream feeds and that has no requests queued or in the device.
    pub(super) fn free_if_unused(&mut self, id: QueueId) {
        let queue = self.queues.get(id.0);
        if queue.users > 0 || queue.queued > 0 || queue.dispatched > 0 {
            return;
        }
        if self.active == Some(id) {
            self.expire_slice(false);
        }
        debug_assert!(!self.queues.get(id.0).in_service() && self.queues.get(id.0).position.is_none());
        self.queues.remove(id.0);
    }

    pub(super) fn stream_exited(&mut self, stream: StreamId) {
        let Some(id) = self.contexts.by_stream.remove(&stream) else { return };
        debug_assert_eq!(self.contexts.get(id).stream, stream);
        if self.active_context == Some(id) {
            self.active_context = None;
        }
        let context = self.contexts.get_mut(id);
        context.alive = false;
        let (sync, asynchronous) = (context.sync_queue.take(), context.async_queue.take());
        if context.requests == 0 {
            self.contexts.slab.remove(id.0);
        }
        for queue in [asynchronous, sync].into_iter().flatten() {
            if self.active == Some(queue) {
                self.expire_slice(false);
            }
            self.drop_cooperators(queue);
            self.drop_user(queue);
        }
    }
}
