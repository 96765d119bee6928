//! The waiters of one bucket: queues of nodes in a slab. Knows nothing about threads.

use super::Discipline;
use super::key::WaitKey;
use crate::Nanos;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::task::Waker;

/// No node.
const NIL: u32 = u32::MAX;

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// A notification, which all waiters for it get.
    News,
    /// An exclusive lock.
    Lock,
    /// A lock shared with other readers. Exclusive and shared waiters are in one queue.
    Share,
}

impl Want {
    /// Identifies the queue that such a waiter is in.
    fn queue(self) -> Self {
        if self == Self::Share { Self::Lock } else { self }
    }
}

/// The state of a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is queued.
    Waiting,
    /// Its event has happened, or it owns the lock.
    Served,
    /// Woken to check for itself (older disciplines); or it was given a lock, did not pick it up,
    /// and others got it.
    Poked,
}

/// A lock that was given to a waiter.
pub(super) struct Given {
    pub(super) slot: u32,
    pub(super) key: WaitKey,
    /// When the waiter's patience starts: at the hand-over, or later if it has lost the lock
    /// before.
    pub(super) at: Nanos,
    /// The other waiters were woken, because this one did not pick the lock up.
    pub(super) is_told: bool,
}

#[derive(Debug)]
struct Node {
    key: WaitKey,
    want: Want,
    fate: Fate,
    /// Position in the order of queueing.
    order: u64,
    /// How often a lock that it was given was taken back.
    losses: u32,
    previous: u32,
    /// The next in the queue, or the next free node.
    next: u32,
    waker: Option<Waker>,
}

/// A doubly linked queue within the slab.
#[derive(Clone, Copy, Debug)]
struct Queue {
    first: u32,
    last: u32,
}

const EMPTY: Queue = Queue { first: NIL, last: NIL };

/// The key and goal that identify a queue in the keyed discipline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Whole(WaitKey, Want);

impl Hash for Whole {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.object);
        state.write_u8(self.0.event << 1 | u8::from(self.1 == Want::Lock));
    }
}

/// Mixes a key's bits. Keys are numbers chosen by the program, not by an adversary.
#[derive(Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are hashed as numbers");
    }

    fn write_u8(&mut self, n: u8) {
        self.0 ^= u64::from(n) << 56;
    }

    fn write_u64(&mut self, n: u64) {
        self.0 ^= n;
    }

    fn finish(&self) -> u64 {
        // The high bits of the product chose the bucket, so all keys in it share them. Mix in the
        // low ones.
        let product = u128::from(self.0) * 0x9e37_79b9_7f4a_7c15_u128;
        (product >> 64) as u64 ^ product as u64
    }
}

#[derive(Debug)]
enum Queues {
    /// A queue for each key that is waited for, and another for each lock.
    ByKey(KeyQueues),
    /// One queue for the whole bucket.
    One(Queue),
}

/// Queues by key. Usually there is at most one; it is kept next to the bucket's lock, without
/// hashing.
#[derive(Debug, Default)]
struct KeyQueues {
    one: Option<(Whole, Queue)>,
    others: HashMap<Whole, Queue, BuildHasherDefault<KeyHasher>>,
}

impl KeyQueues {
    fn get(&mut self, whole: Whole) -> Option<&mut Queue> {
        match &mut self.one {
            Some((key, queue)) if *key == whole => Some(queue),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&whole),
        }
    }

    /// Adds a queue for a key that has none.
    fn insert(&mut self, whole: Whole, queue: Queue) {
        if self.one.is_none() {
            self.one = Some((whole, queue));
        } else {
            self.others.insert(whole, queue);
        }
    }

    fn remove(&mut self, whole: Whole) -> Option<Queue> {
        match self.one {
            Some((key, queue)) if key == whole => {
                self.one = None;
                Some(queue)
            }
            _ if self.others.is_empty() => None,
            _ => self.others.remove(&whole),
        }
    }
}

/// The progress of a wake-up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Only waiters queued up to this point are concerned.
    until: u64,
    /// Waiters up to this point have been examined.
    seen: u64,
    /// Waiters examined so far.
    pub(super) examined: u32,
    /// Waiters woken so far.
    pub(super) woken: u32,
}

#[derive(Debug)]
pub(super) struct Waiters {
    nodes: Vec<Node>,
    free: u32,
    order: u64,
    queues: Queues,
    discipline: Discipline,
}

impl Waiters {
    pub(super) fn new(discipline: Discipline) -> Self {
        let queues = match discipline {
            Discipline::Keyed => Queues::ByKey(KeyQueues::default()),
            Discipline::Filtered | Discipline::WholeBucket => Queues::One(EMPTY),
        };
        Self { nodes: Vec::new(), free: NIL, order: 0, queues, discipline }
    }

    fn node(&mut self, slot: u32) -> &mut Node {
        &mut self.nodes[slot as usize]
    }

    /// Appends a waiter to its queue.
    pub(super) fn add(&mut self, key: WaitKey, want: Want, waker: Waker) -> u32 {
        let node = Node {
            key,
            want,
            fate: Fate::Waiting,
            order: 0,
            losses: 0,
            previous: NIL,
            next: NIL,
            waker: Some(waker),
        };
        let slot = if self.free == NIL {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("a bucket has fewer than 2^32 waiters")
        } else {
            let slot = self.free;
            self.free = self.node(slot).next;
            *self.node(slot) = node;
            slot
        };
        self.link(slot);
        slot
    }

    /// Re-queues a waiter, at the end.
    pub(super) fn add_again(&mut self, slot: u32, waker: Waker) {
        let node = self.node(slot);
        node.fate = Fate::Waiting;
        node.waker = Some(waker);
        self.link(slot);
    }

    /// Re-queues a waiter whose lock was taken back, at its old place. If it were queued at the
    /// end, it could lose to quick waiters every time. Keyed discipline only.
    pub(super) fn add_in_order(&mut self, slot: u32, waker: Waker) {
        let (key, order) = (self.node(slot).key, self.node(slot).order);
        let mut next = self.first_locked(key).map_or(NIL, |(first, _)| first);
        while next != NIL && self.node(next).order < order {
            next = self.node(next).next;
        }
        if next == NIL {
            return self.add_again(slot, waker);
        }
        let previous = std::mem::replace(&mut self.node(next).previous, slot);
        let node = self.node(slot);
        (node.fate, node.waker) = (Fate::Waiting, Some(waker));
        (node.previous, node.next) = (previous, next);
        let whole = Whole(key, node.want.queue());
        if previous != NIL {
            self.node(previous).next = slot;
        } else if let Queues::ByKey(queues) = &mut self.queues {
            queues.get(whole).expect("it had a first waiter").first = slot;
        }
    }

    pub(super) fn fate(&self, slot: u32) -> Fate {
        self.nodes[slot as usize].fate
    }

    /// Stores the waiter's newest waker. Returns the old one, to be dropped outside the lock.
    pub(super) fn set_waker(&mut self, slot: u32, waker: &Waker) -> Option<Waker> {
        match &mut self.node(slot).waker {
            Some(old) if old.will_wake(waker) => None,
            other => other.replace(waker.clone()),
        }
    }

    /// Removes a waiter, whatever its state.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Waker> {
        if self.fate(slot) == Fate::Waiting {
            self.unlink(slot);
        }
        let free = self.free;
        self.free = slot;
        let node = self.node(slot);
        node.next = free;
        node.waker.take()
    }

    /// Whether anyone is queued for this lock. Keyed discipline only.
    pub(super) fn is_locked_for(&mut self, key: WaitKey) -> bool {
        match &mut self.queues {
            Queues::ByKey(queues) => queues.get(Whole(key, Want::Lock)).is_some(),
            Queues::One(_) => false,
        }
    }

    /// The first waiter for this lock, and how it wants it. Keyed discipline only.
    pub(super) fn first_locked(&mut self, key: WaitKey) -> Option<(u32, Want)> {
        let Queues::ByKey(queues) = &mut self.queues else { return None };
        let slot = queues.get(Whole(key, Want::Lock))?.first;
        Some((slot, self.node(slot).want))
    }

    /// What a waiter waits for.
    pub(super) fn want(&self, slot: u32) -> Want {
        self.nodes[slot as usize].want
    }

    /// Marks a served waiter as waiting again, from its next poll on.
    pub(super) fn unserve(&mut self, slot: u32) {
        let node = self.node(slot);
        assert_eq!(node.fate, Fate::Served, "only what was given is taken back");
        node.fate = Fate::Poked;
        node.losses += 1;
    }

    /// How often a lock that the waiter was given was taken back.
    pub(super) fn losses(&self, slot: u32) -> u32 {
        self.nodes[slot as usize].losses
    }

    /// The wakers of all waiters for this lock. The waiters keep their places.
    pub(super) fn wakers_of(&mut self, key: WaitKey) -> Vec<Waker> {
        let mut wakers = Vec::new();
        let mut next = self.first_locked(key).map_or(NIL, |(slot, _)| slot);
        while next != NIL {
            let node = self.node(next);
            wakers.extend(node.waker.clone());
            next = node.next;
        }
        wakers
    }

    /// Gives the lock to its first waiter, if any; returns that waiter's waker. Keyed discipline
    /// only.
    pub(super) fn hand_over(&mut self, key: WaitKey, progress: &mut Progress) -> Option<Waker> {
        let Queues::ByKey(queues) = &mut self.queues else { return None };
        let slot = queues.get(Whole(key, Want::Lock))?.first;
        progress.examined += 1;
        progress.woken += 1;
        self.serve(slot, Fate::Served)
    }

    /// Begins a wake-up of all waiters queued now.
    pub(super) fn begin(&self) -> Progress {
        Progress { until: self.order, seen: 0, examined: 0, woken: 0 }
    }

    /// Wakes waiters until all that the wake-up concerns are awake (returns true), or until there
    /// is no room for more wakers (returns false). Each waker goes to `to`, which returns whether
    /// there is room for another.
    pub(super) fn wake(
        &mut self,
        key: WaitKey,
        progress: &mut Progress,
        mut to: impl FnMut(Waker) -> bool,
    ) -> bool {
        let mut slot = match &self.queues {
            Queues::ByKey(_) => return self.serve_all(key, progress, to),
            Queues::One(queue) => queue.first,
        };
        while slot != NIL {
            let (until, whole_bucket) = (progress.until, self.discipline == Discipline::WholeBucket);
            let node = self.node(slot);
            let (next, order, matches) = (node.next, node.order, node.key == key);
            if order > until {
                break;
            }
            // A resumed wake-up skips waiters it has already examined.
            if order > progress.seen {
                progress.seen = order;
                progress.examined += 1;
                if matches || whole_bucket {
                    progress.woken += 1;
                    if let Some(waker) = self.serve(slot, Fate::Poked)
                        && !to(waker)
                    {
                        return false;
                    }
                }
            }
            slot = next;
        }
        true
    }

    /// Takes out the key's whole queue, serves it, and puts back the waiters that remain. Keyed
    /// discipline only.
    fn serve_all(
        &mut self,
        key: WaitKey,
        progress: &mut Progress,
        mut to: impl FnMut(Waker) -> bool,
    ) -> bool {
        let whole = Whole(key, Want::News);
        let Queues::ByKey(queues) = &mut self.queues else { return true };
        let Some(mut queue) = queues.remove(whole) else { return true };
        let mut room = true;
        while room && queue.first != NIL {
            let node = &mut self.nodes[queue.first as usize];
            if node.order > progress.until {
                break;
            }
            queue.first = node.next;
            node.fate = Fate::Served;
            progress.examined += 1;
            progress.woken += 1;
            if let Some(waker) = node.waker.take() {
                room = to(waker);
            }
        }
        if queue.first == NIL {
            return true;
        }
        self.nodes[queue.first as usize].previous = NIL;
        queues.insert(whole, queue);
        room
    }

    pub(super) fn serve(&mut self, slot: u32, fate: Fate) -> Option<Waker> {
        self.unlink(slot);
        let node = self.node(slot);
        node.fate = fate;
        node.waker.take()
    }

    fn link(&mut self, slot: u32) {
        self.order += 1;
        let order = self.order;
        let node = self.node(slot);
        let whole = Whole(node.key, node.want.queue());
        let last = match &mut self.queues {
            Queues::ByKey(queues) => match queues.get(whole) {
                Some(queue) => std::mem::replace(&mut queue.last, slot),
                None => {
                    queues.insert(whole, Queue { first: slot, last: slot });
                    NIL
                }
            },
            Queues::One(queue) => {
                if queue.first == NIL {
                    queue.first = slot;
                }
                std::mem::replace(&mut queue.last, slot)
            }
        };
        if last != NIL {
            self.node(last).next = slot;
        }
        let node = self.node(slot);
        (node.order, node.previous, node.next) = (order, last, NIL);
    }

    fn unlink(&mut self, slot: u32) {
        let node = self.node(slot);
        let (whole, previous, next) = (Whole(node.key, node.want.queue()), node.previous, node.next);
        if previous != NIL {
            self.node(previous).next = next;
        }
        if next != NIL {
            self.node(next).previous = previous;
        }
        let shorten = |queue: &mut Queue| {
            if previous == NIL {
                queue.first = next;
            }
            if next == NIL {
                queue.last = previous;
            }
        };
        match &mut self.queues {
            Queues::One(queue) => shorten(queue),
            Queues::ByKey(_) if previous != NIL && next != NIL => {}
            Queues::ByKey(queues) if previous == NIL && next == NIL => {
                queues.remove(whole);
            }
            Queues::ByKey(queues) => {
                if let Some(queue) = queues.get(whole) {
                    shorten(queue);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    /// All waiters of a bucket in order, by walking the links and checking them.
    fn walk(waiters: &Waiters) -> Vec<u32> {
        let queues: Vec<Queue> = match &waiters.queues {
            Queues::One(queue) => vec![*queue],
            Queues::ByKey(queues) => {
                let one = queues.one.map(|(_, queue)| queue);
                queues.others.values().copied().chain(one).collect()
            }
        };
        let mut slots = Vec::new();
        for queue in queues {
            let (mut slot, mut previous) = (queue.first, NIL);
            while slot != NIL {
                let node = &waiters.nodes[slot as usize];
                assert_eq!(node.previous, previous);
                assert_eq!(node.fate, Fate::Waiting);
                slots.push((node.order, slot));
                (previous, slot) = (slot, node.next);
            }
            assert_eq!(queue.last, previous);
        }
        slots.sort_unstable();
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    #[test]
    fn one_that_queues_again_is_before_those_that_came_after_it() {
        let key = WaitKey { object: 1, event: 0 };
        let mut waiters = Waiters::new(Discipline::Keyed);
        let slots: Vec<u32> = (0..5).map(|_| waiters.add(key, Want::Lock, Waker::noop().clone())).collect();
        for left in [1, 3, 2, 0] {
            waiters.serve(slots[left], Fate::Served);
            waiters.unserve(slots[left]);
        }
        for (again, queued) in
            [(2, vec![2, 4]), (0, vec![0, 2, 4]), (3, vec![0, 2, 3, 4]), (1, vec![0, 1, 2, 3, 4])]
        {
            waiters.add_in_order(slots[again], Waker::noop().clone());
            let queue: Vec<u32> = queued.into_iter().map(|n: usize| slots[n]).collect();
            let Queues::ByKey(queues) = &waiters.queues else { panic!("keyed") };
            let (mut next, mut found) = (queues.one.expect("one queue").1.first, Vec::new());
            while next != NIL {
                found.push(next);
                next = waiters.nodes[next as usize].next;
            }
            assert_eq!(found, queue);
            walk(&waiters);
        }
        waiters.serve(slots[0], Fate::Served);
        waiters.unserve(slots[0]);
        assert_eq!((waiters.losses(slots[0]), waiters.losses(slots[4])), (2, 0));
        slots[1..].iter().for_each(|slot| drop(waiters.serve(*slot, Fate::Served)));
        waiters.add_in_order(slots[0], Waker::noop().clone());
        assert_eq!(waiters.first_locked(key), Some((slots[0], Want::Lock)));
    }

    #[test]
    fn queues_agree_with_a_plain_list_under_random_use() {
        for discipline in [Discipline::Keyed, Discipline::Filtered, Discipline::WholeBucket] {
            for seed in 0..50 {
                let mut rng = Rng::new(seed);
                let mut waiters = Waiters::new(discipline);
                let mut model: Vec<(u32, WaitKey)> = Vec::new();
                let mut woken: Vec<u32> = Vec::new();
                for _ in 0..300 {
                    let key = WaitKey::new(rng.below(5));
                    match rng.below(4) {
                        0 | 1 => {
                            let slot = waiters.add(key, Want::News, Waker::noop().clone());
                            model.push((slot, key));
                        }
                        2 if !model.is_empty() => {
                            let (slot, _) = model.remove(rng.below(model.len() as u64) as usize);
                            assert!(waiters.remove(slot).is_some());
                        }
                        _ => {
                            let mut progress = waiters.begin();
                            let mut room = 0;
                            // Room for few wakers, so that wake-ups have to be resumed.
                            while !waiters.wake(key, &mut progress, |_| {
                                room += 1;
                                room % 3 != 0
                            }) {}
                            let matches = |k: WaitKey| k == key || discipline == Discipline::WholeBucket;
                            let expected = model.iter().filter(|(_, k)| matches(*k)).count();
                            assert_eq!(progress.woken as usize, expected, "{discipline:?}, seed {seed}");
                            let examined = match discipline {
                                Discipline::Keyed => expected,
                                _ => model.len(),
                            };
                            assert_eq!(progress.examined as usize, examined, "{discipline:?}, seed {seed}");
                            woken.extend(model.extract_if(.., |(_, k)| matches(*k)).map(|(slot, _)| slot));
                        }
                    }
                    woken.drain(..).for_each(|slot| assert!(waiters.remove(slot).is_none()));
                    assert_eq!(walk(&waiters), model.iter().map(|(slot, _)| *slot).collect::<Vec<_>>());
                }
                assert!(waiters.nodes.len() <= 300);
            }
        }
    }
}
