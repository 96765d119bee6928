//! Random schedules: every request is dispatched and completed exactly once, nothing stalls, and
//! merges are reported correctly.

use crate::random::Random;
use crate::{make, names};
use extant_block::{Op, Sector, StreamId};
use extant_iosched::elevator::{Decision, Elevator, IoClass, Priority, ProgramId, Request, RequestId};
use extant_rt::Nanos;

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Free,
    Queued(Request),
    InDevice,
}

struct Schedule<'a> {
    elevator: &'a mut dyn Elevator,
    random: Random,
    now: Nanos,
    slots: Vec<State>,
    device: Vec<u32>,
    depth: usize,
    dispatched: u32,
}

impl Schedule<'_> {
    fn request(&mut self, id: u32) -> Request {
        let r = &mut self.random;
        let op = [Op::Read, Op::Read, Op::Read, Op::Write, Op::Write, Op::Discard][r.below(6) as usize];
        let class =
            [IoClass::BestEffort, IoClass::BestEffort, IoClass::RealTime, IoClass::Idle][r.below(4) as usize];
        let stream = r.below(6);
        Request {
            sync: op == Op::Read || r.below(3) == 0,
            meta: r.below(8) == 0,
            prio: r.below(16) == 0,
            noidle: r.below(16) == 0,
            stream: StreamId(stream),
            program: ProgramId(stream / 2),
            priority: Priority::new(class, r.below(8) as u8),
            // A small disk, so that requests are often adjacent.
            ..Request::new(RequestId(id), op, Sector(r.below(64) * 8), 8 * (1 + r.below(3)))
        }
    }

    fn queued(&self, id: RequestId) -> Request {
        match self.slots[id.0 as usize] {
            State::Queued(request) => request,
            other => panic!("{id:?} is offered for a merge, but is {other:?}"),
        }
    }

    /// Merges the candidate as a bio would be, or adds it.
    fn submit(&mut self, candidate: Request) {
        let grown = if let Some(id) = self.elevator.back_merge(&candidate) {
            let partner = self.queued(id);
            assert_eq!(partner.end(), candidate.start);
            Some((partner, partner.start))
        } else if let Some(id) = self.elevator.front_merge(&candidate) {
            let partner = self.queued(id);
            assert_eq!(candidate.end(), partner.start);
            Some((partner, candidate.start))
        } else {
            None
        };
        let Some((partner, start)) = grown.filter(|_| self.random.below(2) == 0) else {
            self.slots[candidate.id.0 as usize] = State::Queued(candidate);
            self.elevator.add(candidate, self.now);
            return;
        };
        assert_eq!((partner.op, partner.meta), (candidate.op, candidate.meta));
        let kept = Request { start, sectors: partner.sectors + candidate.sectors, ..partner };
        self.slots[kept.id.0 as usize] = State::Queued(kept);
        self.elevator.merged(kept.id, kept.start, kept.sectors, self.now);
        // The grown request may now be adjacent to another.
        if let Some(id) = self.elevator.front_merge(&kept)
            && id != kept.id
        {
            let gone = self.queued(id);
            assert_eq!(kept.end(), gone.start);
            self.slots[id.0 as usize] = State::Free;
            self.slots[kept.id.0 as usize] =
                State::Queued(Request { sectors: kept.sectors + gone.sectors, ..kept });
            self.elevator.absorbed(kept.id, id, self.now);
            self.dispatched += 1;
        }
        self.dispatched += 1;
    }

    fn pull(&mut self) {
        while self.device.len() < self.depth {
            match self.elevator.next(self.now) {
                Decision::Dispatch(id) => {
                    let was = std::mem::replace(&mut self.slots[id.0 as usize], State::InDevice);
                    assert!(matches!(was, State::Queued(_)), "{id:?} is dispatched, but was {was:?}");
                    self.device.push(id.0);
                    self.dispatched += 1;
                }
                Decision::IdleUntil(at) => {
                    assert!(at > self.now, "idles into the past");
                    assert!(self.elevator.queued() > 0, "idles for nobody");
                    if self.device.is_empty() && self.random.below(2) == 0 {
                        self.now = at;
                        continue;
                    }
                    return;
                }
                Decision::Empty => {
                    let queued = self.elevator.queued();
                    assert!(queued == 0 || !self.device.is_empty(), "stalls with {queued} queued");
                    return;
                }
            }
        }
    }

    fn complete_one(&mut self) {
        let at = self.random.below(self.device.len() as u64) as usize;
        let id = self.device.swap_remove(at);
        self.slots[id as usize] = State::Free;
        self.elevator.completed(RequestId(id), self.now);
    }

    fn run(&mut self, steps: u32) {
        let mut made = 0;
        for _ in 0..steps {
            self.now += Nanos(self.random.below(1 << (10 + self.random.clone().below(16))));
            match self.random.below(8) {
                0..=3 => {
                    if let Some(id) = self.slots.iter().position(|s| *s == State::Free) {
                        let request = self.request(id as u32);
                        made += 1;
                        self.submit(request);
                    }
                }
                4..=6 if !self.device.is_empty() => self.complete_one(),
                7 if self.random.below(8) == 0 => {
                    self.elevator.exited(StreamId(self.random.below(6)), self.now)
                }
                _ => {}
            }
            if self.random.below(3) > 0 {
                self.pull();
            }
            let queued = self.slots.iter().filter(|s| matches!(s, State::Queued(_))).count();
            assert_eq!(self.elevator.queued(), queued);
        }
        // The rest must drain.
        for _ in 0..100_000 {
            if self.elevator.queued() == 0 && self.device.is_empty() {
                assert_eq!(self.dispatched, made);
                return;
            }
            self.now += Nanos::from_millis(1);
            self.pull();
            if !self.device.is_empty() {
                self.complete_one();
            }
        }
        panic!("does not drain");
    }
}

/// Prints the seed on failure, for a replay.
struct Seed<'a>(&'a str, u64);

impl Drop for Seed<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("{}: seed {}", self.0, self.1);
        }
    }
}

/// Every request is dispatched exactly once, and requests are never left queued with no event to
/// come.
#[test]
fn random_schedules() {
    for name in names() {
        for seed in 0..2_000 {
            let _seed = Seed(name, seed);
            let mut random = Random::new(seed);
            let depth = [1, 2, 4, 31][random.below(4) as usize];
            let mut schedule = Schedule {
                elevator: &mut *make(name),
                random,
                now: Nanos(0),
                slots: vec![State::Free; 24],
                device: Vec::new(),
                depth,
                dispatched: 0,
            };
            schedule.run(200);
        }
    }
}
