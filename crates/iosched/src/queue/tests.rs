use super::*;
use crate::elevator::cfq::idle_rule::{Arrival, IdleRule, Lull};
use crate::elevator::{Cfq, Deadline, Fifo, ProgramId, cfq};
use extant_block::{Buf, Completion, IoErrorKind, MemDevice, Segment};
use extant_rt::RealConfig;

fn world() -> Rt {
    Rt::real(RealConfig::default())
}

/// A disk in memory whose bios end when the test says so.
#[derive(Debug)]
struct Held {
    disk: MemDevice,
    limits: Limits,
    held: Mutex<VecDeque<Bio>>,
    /// Bios received, as (operation, sector, bytes).
    seen: Mutex<Vec<(Op, u64, u64)>>,
    /// Sectors that cannot be read or written.
    bad: Mutex<Range<u64>>,
}

impl Held {
    fn new(edit: impl FnOnce(&mut Limits)) -> Arc<Self> {
        let disk = MemDevice::new(8 << 20);
        let mut limits = disk.limits().clone();
        edit(&mut limits);
        let (held, seen, bad) = (Mutex::default(), Mutex::default(), Mutex::new(0..0));
        Arc::new(Self { disk, limits, held, seen, bad })
    }

    /// Ends the bios held, and the bios that arrive as a result.
    fn end_all(&self) {
        while self.end_one() {}
    }

    fn end_one(&self) -> bool {
        let Some(bio) = self.held.lock().pop_front() else { return false };
        let bad = self.bad.lock().clone();
        let end = bio.start.0 + bio.bytes / 512;
        if bio.start.0 < bad.end && bad.start < end {
            bio.end_as("held", Err(IoErrorKind::Os(5)));
        } else {
            self.disk.submit(bio);
        }
        true
    }

    fn seen(&self) -> Vec<(Op, u64, u64)> {
        std::mem::take(&mut self.seen.lock())
    }
}

impl Device for Held {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, bio: Bio) {
        self.seen.lock().push((bio.op, bio.start.0, bio.bytes));
        self.held.lock().push_back(bio);
    }
}

/// The ends of bios, in order: operation, sector, error.
type Ends = Arc<Mutex<Vec<(Op, u64, Option<IoErrorKind>)>>>;

fn note(ends: &Ends) -> Completion {
    let ends = ends.clone();
    Box::new(move |bio, result| ends.lock().push((bio.op, bio.start.0, result.err().map(|e| e.kind))))
}

fn bio(op: Op, start: u64, sectors: usize, ends: &Ends) -> Bio {
    let mut bio = match op {
        Op::Read | Op::Write => {
            Bio::new(op, Sector(start), vec![Buf::from_slice(&vec![start as u8; sectors * 512]).into()])
        }
        _ => Bio::range(op, Sector(start), sectors as u64 * 512),
    };
    bio.on_end(note(ends));
    bio
}

fn queue(rt: &Rt, below: &Arc<Held>, config: QueueConfig) -> Queue {
    Queue::new(rt, below.clone(), Box::new(Fifo::new()), config)
}

/// Keeps the device busy with one read, so that later requests stay in the elevator.
fn busy(queue: &Queue, below: &Held, ends: &Ends) {
    queue.submit(bio(Op::Read, 16000, 1, ends));
    assert_eq!(below.seen(), [(Op::Read, 16000, 512)]);
}

#[test]
fn neighbours_become_one_request_whatever_their_order() {
    let rt = world();
    for order in [[0, 1, 2], [2, 1, 0], [0, 2, 1], [2, 0, 1]] {
        let below = Held::new(|_| {});
        let queue = queue(&rt, &below, QueueConfig { depth: 1, ..QueueConfig::default() });
        let ends = Ends::default();
        busy(&queue, &below, &ends);
        for i in order {
            queue.submit(bio(Op::Write, 100 + i * 8, 8, &ends));
        }
        below.end_all();
        assert_eq!(below.seen(), [(Op::Write, 100, 3 * 4096)], "{order:?}");
        assert_eq!(ends.lock().len(), 4);
        let bytes = below.disk.to_bytes();
        for i in [100, 108, 116] {
            assert!(bytes[i * 512..(i + 8) * 512].iter().all(|&b| b == i as u8), "{order:?}");
        }
        let stats = queue.stats()[0].1;
        assert_eq!((stats.bios, stats.merged, stats.ended, stats.written_bytes), (4, 2, 4, 3 * 4096));
    }
}

#[test]
fn a_bio_joins_a_queued_request_next_to_it_or_comes_back() {
    let rt = world();
    let below = Held::new(|limits| limits.max_bytes = 3 * 4096);
    let queue = queue(&rt, &below, QueueConfig { depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    busy(&queue, &below, &ends);
    let alone = queue.join(bio(Op::Write, 100, 8, &ends)).expect("there is no request next to it");
    queue.submit(alone);
    assert!(queue.join(bio(Op::Write, 108, 8, &ends)).is_none(), "behind it");
    assert!(queue.join(bio(Op::Write, 92, 8, &ends)).is_none(), "before it");
    let long = queue.join(bio(Op::Write, 116, 8, &ends)).expect("the request is as long as may be");
    drop(long);
    let read = queue.join(bio(Op::Read, 84, 8, &ends)).expect("of the other kind");
    drop(read);
    below.end_all();
    assert_eq!(below.seen(), [(Op::Write, 92, 3 * 4096)]);
    let stats = queue.stats()[0].1;
    assert_eq!(
        (stats.bios, stats.merged, stats.ended),
        (4, 2, 4),
        "with the read that keeps the device busy"
    );
}

#[test]
fn bios_of_different_plugs_meet_in_the_queue() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig { depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    busy(&queue, &below, &ends);
    let (mut odd, mut even) = (crate::Plug::new(&queue), crate::Plug::new(&queue));
    for i in 0..4 {
        odd.submit(bio(Op::Read, 100 + i * 16 + 8, 8, &ends));
        even.submit(bio(Op::Read, 100 + i * 16, 8, &ends));
    }
    assert_eq!(queue.load(), (0, 0, 1), "a plug holds back what it is given");
    drop((odd, even));
    below.end_all();
    assert_eq!(below.seen(), [(Op::Read, 100, 8 * 4096)]);
}

#[test]
fn a_plug_sorts_and_lets_all_arrive_before_the_first_leaves() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    let mut plug = crate::Plug::new(&queue);
    for i in [3, 0, 2, 1] {
        plug.submit(bio(Op::Read, i * 8, 8, &ends));
    }
    drop(plug);
    assert_eq!(below.seen(), [(Op::Read, 0, 4 * 4096)]);
    below.end_all();
}

#[test]
fn no_command_exceeds_the_limits() {
    let rt = world();
    let below = Held::new(|l| (l.max_bytes, l.max_segments) = (16 << 10, 3));
    let queue = queue(&rt, &below, QueueConfig { depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    busy(&queue, &below, &ends);
    queue.submit(bio(Op::Write, 0, 100, &ends));
    for i in 0..8 {
        queue.submit(bio(Op::Read, 1000 + i, 1, &ends));
    }
    queue.submit(bio(Op::Discard, 2000, 64, &ends));
    below.end_all();
    let seen = below.seen();
    assert!(seen.iter().all(|(_, _, bytes)| *bytes <= 16 << 10), "{seen:?}");
    assert_eq!(seen.iter().filter(|s| s.0 == Op::Write).count(), 4, "{seen:?}");
    let reads: Vec<_> = seen.iter().filter(|s| s.0 == Op::Read).map(|s| s.2 / 512).collect();
    assert_eq!(reads, [3, 3, 2], "three segments at most");
    assert_eq!(ends.lock().len(), 11, "each bio ends once");
}

#[test]
fn a_bad_sector_fails_its_own_bio_only() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig { depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    busy(&queue, &below, &ends);
    *below.bad.lock() = 110..111;
    for i in 0..3 {
        queue.submit(bio(Op::Read, 100 + i * 8, 8, &ends));
    }
    below.end_all();
    assert_eq!(below.seen()[0], (Op::Read, 100, 3 * 4096));
    let bad = Some(IoErrorKind::Os(5));
    assert_eq!(ends.lock()[1..], [(Op::Read, 100, None), (Op::Read, 108, bad), (Op::Read, 116, None)]);
    assert_eq!(queue.load(), (0, 0, 0));
    assert_eq!(queue.stats()[0].1.failed, 1);
}

fn volatile(limits: &mut Limits) {
    limits.volatile_cache = true;
}

#[test]
fn flushes_that_are_asked_for_together_are_one() {
    let rt = world();
    let below = Held::new(volatile);
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    for _ in 0..5 {
        queue.submit(bio(Op::Flush, 0, 0, &ends));
    }
    // The first is already in the device; the others share the second.
    below.end_all();
    assert_eq!(below.seen(), [(Op::Flush, 0, 0), (Op::Flush, 0, 0)]);
    assert_eq!(ends.lock().len(), 5);
}

#[test]
fn a_write_with_preflush_waits_for_the_flush_and_is_not_done_if_it_fails() {
    let rt = world();
    let below = Held::new(volatile);
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    let barrier = || {
        let mut bio = bio(Op::Write, 8, 1, &ends);
        bio.flags = BioFlags::PREFLUSH;
        bio
    };
    queue.submit(barrier());
    assert_eq!(below.seen(), [(Op::Flush, 0, 0)]);
    below.end_all();
    assert_eq!(below.seen(), [(Op::Write, 8, 512)]);
    *below.bad.lock() = 0..0;
    queue.submit(barrier());
    let flush = below.held.lock().pop_front().unwrap();
    flush.end_as("held", Err(IoErrorKind::Os(5)));
    assert_eq!(below.seen(), [(Op::Flush, 0, 0)], "the write was not sent");
    assert_eq!(ends.lock()[..], [(Op::Write, 8, None), (Op::Write, 8, Some(IoErrorKind::Os(5)))]);
}

#[test]
fn a_write_with_preflush_that_is_cut_costs_one_flush() {
    let rt = world();
    let below = Held::new(|limits| {
        volatile(limits);
        limits.max_bytes = 4096;
    });
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    let mut long = bio(Op::Write, 8, 20, &ends);
    long.flags = BioFlags::PREFLUSH;
    queue.submit(long);
    below.end_all();
    let writes = [(Op::Write, 8, 4096), (Op::Write, 16, 4096), (Op::Write, 24, 2048)];
    assert_eq!(below.seen(), [&[(Op::Flush, 0, 0)][..], &writes].concat());
    assert_eq!(ends.lock()[..], [(Op::Write, 8, None)]);
}

#[test]
fn an_empty_write_with_preflush_is_a_flush() {
    let rt = world();
    let below = Held::new(volatile);
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    let mut barrier = bio(Op::Write, 8, 0, &ends);
    barrier.flags = BioFlags::PREFLUSH;
    queue.submit(barrier);
    assert_eq!((below.seen(), ends.lock().len()), (vec![(Op::Flush, 0, 0)], 0));
    below.end_all();
    assert_eq!((below.seen(), ends.lock().clone()), (vec![], vec![(Op::Write, 8, None)]));
}

#[test]
fn fua_is_a_flush_after_the_write_where_the_device_has_none() {
    let rt = world();
    let below = Held::new(volatile);
    let queue = queue(&rt, &below, QueueConfig { fua: false, ..QueueConfig::default() });
    let ends = Ends::default();
    let mut durable = bio(Op::Write, 8, 1, &ends);
    durable.flags = BioFlags::FUA;
    queue.submit(durable);
    assert!(below.end_one());
    assert!(ends.lock().is_empty(), "not durable yet");
    below.end_all();
    assert_eq!(below.seen(), [(Op::Write, 8, 512), (Op::Flush, 0, 0)]);
    assert_eq!(ends.lock().len(), 1);
}

#[test]
fn without_a_volatile_cache_flushes_cost_nothing() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    queue.submit(bio(Op::Flush, 0, 0, &ends));
    assert_eq!((ends.lock().len(), below.seen()), (1, vec![]));
}

#[test]
fn a_stream_with_one_bio_does_not_wait_for_one_with_a_thousand() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig { requests: 4, depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    for i in 0..1000 {
        queue.submit(bio(Op::Read, i * 2, 1, &ends));
    }
    let mut other = bio(Op::Read, 9999, 1, &ends);
    other.stream = StreamId(2);
    queue.submit(other);
    assert_eq!(queue.load(), (997, 3, 1));
    below.end_all();
    let place = ends.lock().iter().position(|e| e.1 == 9999).unwrap();
    // The bio comes after the four bios that already had a request, and at most one waiter of the
    // other stream.
    assert!(place <= 5, "served as number {place}");
    assert_eq!(ends.lock().len(), 1001);
}

#[test]
fn writeback_does_not_lock_readers_out() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig { requests: 2, depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    for i in 0..10 {
        queue.submit(bio(Op::Write, i * 2, 1, &ends));
    }
    queue.submit(bio(Op::Read, 5000, 1, &ends));
    let (waiting, queued, in_device) = queue.load();
    assert_eq!((waiting, queued, in_device), (8, 2, 1), "the read has a request");
    below.end_all();
}

#[test]
fn a_completion_may_submit_the_next_bio_a_hundred_thousand_times() {
    let rt = world();
    let disk = Arc::new(MemDevice::new(1 << 20));
    let queue = Arc::new(Queue::new(&rt, disk, Box::new(Fifo::new()), QueueConfig::default()));
    fn again(queue: &Arc<Queue>, left: u64, done: std::sync::mpsc::Sender<()>) {
        let mut bio = Bio::new(Op::Read, Sector(left % 2048), vec![Buf::zeroed(512).into()]);
        let theirs = queue.clone();
        bio.on_end(Box::new(move |_, result| {
            result.unwrap();
            match left {
                0 => done.send(()).unwrap(),
                _ => again(&theirs, left - 1, done),
            }
        }));
        queue.submit(bio);
    }
    let (sender, done) = std::sync::mpsc::channel();
    again(&queue, 100_000, sender);
    done.recv().unwrap();
}

/// Idles for every stream, as long as the setting says.
#[derive(Debug)]
struct AlwaysIdle;

impl IdleRule for AlwaysIdle {
    fn name(&self) -> &'static str {
        "always"
    }

    fn opens_at_birth(&self, _program: ProgramId) -> bool {
        true
    }

    fn window_after(&mut self, _arrival: &Arrival) -> bool {
        true
    }

    fn should_idle(&self, _lull: &Lull) -> bool {
        true
    }

    fn wait_ticks(&self, lull: &Lull) -> i64 {
        lull.slice_idle
    }
}

/// An elevator that idles needs a timer; the reads of one stream are far apart in time.
#[test]
fn a_queue_that_idles_goes_on_by_itself() {
    let rt = world();
    let disk = Arc::new(MemDevice::new(8 << 20));
    let elevators: [Box<dyn Elevator>; 2] = [Box::new(Cfq::new(AlwaysIdle)), Box::new(Deadline::new())];
    for elevator in elevators {
        let name = elevator.name();
        let queue = Arc::new(Queue::new(
            &rt,
            disk.clone(),
            elevator,
            QueueConfig { depth: 1, ..QueueConfig::default() },
        ));
        let tasks: Vec<_> = (0..3_u64)
            .map(|stream| {
                let queue = queue.clone();
                rt.spawn("reader", Class::Normal, async move {
                    for i in 0..5 {
                        let mut bio =
                            Bio::new(Op::Read, Sector(stream * 4000 + i * 8), vec![Buf::zeroed(4096).into()]);
                        bio.stream = StreamId(stream);
                        extant_block::execute(&*queue, bio).await.1.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            rt.block_on(task).unwrap().unwrap();
        }
        assert_eq!(queue.stats().len(), 3, "{name}");
        assert!(queue.stats().iter().all(|(_, s)| s.ended == 5 && s.read_bytes == 5 * 4096), "{name}");
    }
}

/// When all requests are taken, only the read that the disk is kept idle for still gets one.
#[test]
fn the_awaited_bio_does_not_stand_in_line() {
    let rt = world();
    let below = Held::new(|_| {});
    // With these settings it would idle for a quarter of an hour.
    let tunables = cfq::Tunables { slice_idle: 1_000_000, ..cfq::Tunables::linux(1000) };
    let config = QueueConfig { depth: 1, requests: 1, ..QueueConfig::default() };
    let elevator = Box::new(Cfq::with(tunables, AlwaysIdle));
    let queue = Queue::new(&rt, below.clone(), elevator, config);
    let ends = Ends::default();
    let read = |stream: u64, start| {
        let mut bio = bio(Op::Read, start, 8, &ends);
        bio.stream = StreamId(stream);
        queue.submit(bio);
    };
    read(1, 0);
    read(2, 16_000);
    assert_eq!(queue.load(), (1, 0, 1));
    below.end_one();
    assert_eq!(queue.load(), (0, 1, 0), "the disk waits for stream 1");
    read(3, 15_000);
    assert_eq!(queue.load(), (1, 1, 0));
    read(1, 8);
    assert_eq!(queue.load(), (1, 1, 1));
    assert_eq!(below.seen().last(), Some(&(Op::Read, 8, 4096)));
    queue.end_stream(StreamId(1));
    below.end_one();
    queue.end_stream(StreamId(2));
    below.end_all();
    assert_eq!(ends.lock().len(), 4);
    let open: Vec<StreamId> = queue.stats().into_iter().map(|(stream, _)| stream).collect();
    assert_eq!(open, [StreamId(3)], "accounts go with the last bio of a stream that has ended");
}

/// A notification to a rule: a request of this stream and program arrived, or this stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Arrival(u64, u64),
    Exit(u64),
}

#[derive(Debug)]
struct Notes(Arc<Mutex<Vec<Told>>>);

impl IdleRule for Notes {
    fn name(&self) -> &'static str {
        "notes"
    }

    fn opens_at_birth(&self, _program: ProgramId) -> bool {
        false
    }

    fn should_idle(&self, _lull: &Lull) -> bool {
        false
    }

    fn wait_ticks(&self, _lull: &Lull) -> i64 {
        1
    }

    fn window_after(&mut self, arrival: &Arrival) -> bool {
        self.0.lock().push(Told::Arrival(arrival.stream.0, arrival.program.0));
        false
    }

    fn exited(&mut self, stream: StreamId) {
        self.0.lock().push(Told::Exit(stream.0));
    }
}

#[test]
fn the_idle_rule_hears_of_programs_and_of_ends_of_streams() {
    let rt = world();
    let below = Held::new(|_| {});
    let notes = Arc::new(Mutex::new(Vec::new()));
    let config = QueueConfig { depth: 1, requests: 1, ..QueueConfig::default() };
    let queue = Queue::new(&rt, below.clone(), Box::new(Cfq::new(Notes(notes.clone()))), config);
    let ends = Ends::default();
    let read = |stream: u64, start| {
        let mut bio = bio(Op::Read, start, 8, &ends);
        bio.stream = StreamId(stream);
        queue.submit(bio);
    };
    queue.set_stream(StreamId(1), StreamInfo { program: ProgramId(7), ..StreamInfo::default() });
    read(1, 0);
    read(2, 16_000);
    // The second stream still waits for a request: the elevator sees it only after this.
    let told = || std::mem::take(&mut *notes.lock());
    assert_eq!(queue.end_stream(StreamId(2)).map(|stats| (stats.bios, stats.ended)), Some((1, 0)));
    assert_eq!(told(), [Told::Arrival(1, 7), Told::Exit(2)]);
    below.end_all();
    assert_eq!(told(), [Told::Arrival(2, 0), Told::Exit(2)]);
    assert_eq!(queue.stats().len(), 1, "the account of the second is closed");
    assert_eq!(queue.end_stream(StreamId(1)).map(|stats| stats.ended), Some(1));
    assert_eq!((told(), queue.stats().len()), (vec![Told::Exit(1)], 0));
    assert_eq!(queue.end_stream(StreamId(9)), None);
}

#[test]
fn a_completion_that_panics_takes_no_other_bio_with_it() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig { depth: 1, ..QueueConfig::default() });
    let ends = Ends::default();
    busy(&queue, &below, &ends);
    let mut bad = bio(Op::Read, 0, 8, &ends);
    bad.on_end(Box::new(|_, _| panic!("as it was told to")));
    queue.submit(bad);
    // Joins the same request, and ends after the other.
    queue.submit(bio(Op::Read, 8, 8, &ends));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| below.end_all()));
    assert!(caught.is_err());
    assert_eq!(ends.lock().len(), 2, "its neighbour has ended, though nothing else came to the queue");
    queue.submit(bio(Op::Read, 100, 8, &ends));
    below.end_all();
    let sectors: Vec<u64> = ends.lock().iter().map(|end| end.1).collect();
    assert_eq!(sectors, [16000, 8, 100]);
}

#[test]
fn bios_that_make_no_sense_are_refused_at_the_door() {
    let rt = world();
    let below = Held::new(|_| {});
    let queue = queue(&rt, &below, QueueConfig::default());
    let ends = Ends::default();
    queue.submit(bio(Op::Read, 1 << 40, 1, &ends));
    queue.submit(Bio::range(Op::Discard, Sector(0), 100));
    let mut odd = Bio::new(Op::Write, Sector(0), vec![Segment::from(Buf::zeroed(100))]);
    odd.on_end(note(&ends));
    queue.submit(odd);
    let kinds: Vec<_> = ends.lock().iter().map(|e| e.2.clone().unwrap()).collect();
    assert_eq!(kinds, [IoErrorKind::OutOfRange, IoErrorKind::Misaligned]);
    assert!(below.seen().is_empty());
}
