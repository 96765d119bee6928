//! Shares of streams, in the style of Seastar's fair_queue tests: a sentence, then ratios.

use crate::closed_loop::{ClosedLoop, Outcome, Run, Stream};
use crate::disk::Geometry;
use crate::{CFQS, make};
use extant_history as history;
use extant_iosched::elevator::IoClass::{BestEffort, Idle, RealTime};
use extant_iosched::elevator::{Cfq, Deadline, DeadlineTunables, Elevator};
use extant_rt::Nanos;

/// Far apart, so that streams do not cooperate.
fn sequential(i: u64) -> Stream {
    Stream::sequential(256, (i + 1) * 200_000_000)
}

fn random(i: u64) -> Stream {
    Stream::random(8, (i + 1) * 200_000_000, 1 << 21)
}

fn on_disk(elevator: &mut dyn Elevator, streams: &[Stream]) -> Outcome {
    ClosedLoop::run(elevator, Geometry::sata_2013(), streams, Run::seconds(20))
}

/// A device that takes one command at a time, 1 ms each.
fn on_constant(elevator: &mut dyn Elevator, streams: &[Stream]) -> Outcome {
    ClosedLoop::run(elevator, Geometry::constant(Nanos::from_millis(1), 1), streams, Run::seconds(20))
}

/// Asserts that streams completed requests in these proportions, within `tolerance` (relative).
fn verify(what: &str, outcome: &Outcome, expected: &[f64], tolerance: f64) {
    let got: Vec<u64> = outcome.streams.iter().map(|s| s.requests).collect();
    let unit = got.iter().sum::<u64>() as f64 / expected.iter().sum::<f64>();
    for (got_one, expected_one) in got.iter().zip(expected) {
        let off = (*got_one as f64 - unit * expected_one).abs();
        assert!(off <= tolerance * unit * expected_one, "{what}: got {got:?}, expected {expected:?}");
    }
}

/// Sequential readers of the same level get equal shares.
#[test]
fn equal_streams() {
    for name in CFQS {
        let streams = [sequential(0), sequential(1), sequential(2)];
        verify(name, &on_disk(&mut *make(name), &streams), &[1.0, 1.0, 1.0], 0.1);
        verify(name, &on_constant(&mut *make(name), &streams), &[1.0, 1.0, 1.0], 0.1);
    }
}

/// Time slices of two sequential readers are 180 : 100 for levels 0 and 4, and 100 : 40 for levels
/// 4 and 7.
#[test]
fn levels_have_their_slices() {
    for name in CFQS {
        let pair =
            |a, b| [sequential(0).with_priority(BestEffort, a), sequential(1).with_priority(BestEffort, b)];
        verify(name, &on_constant(&mut *make(name), &pair(0, 4)), &[180.0, 100.0], 0.1);
        verify(name, &on_constant(&mut *make(name), &pair(4, 7)), &[100.0, 40.0], 0.1);
    }
}

/// A real-time reader leaves the others what it does not use; an idle-class reader takes what the
/// others do not use.
#[test]
fn classes_are_in_order() {
    for name in CFQS {
        let streams =
            [sequential(0).with_priority(RealTime, 4), sequential(1), sequential(2).with_priority(Idle, 0)];
        let got: Vec<u64> =
            on_constant(&mut *make(name), &streams).streams.iter().map(|s| s.requests).collect();
        assert!(got[0] > 50 * got[1].max(1) && got[0] > 50 * got[2].max(1), "{name}: {got:?}");

        let pausing = sequential(0).with_priority(RealTime, 4).thinking(Nanos::from_millis(50));
        let got: Vec<u64> = on_constant(&mut *make(name), &[pausing, sequential(1)])
            .streams
            .iter()
            .map(|s| s.requests)
            .collect();
        assert!(got[0] > 350 && got[1] > 10 * got[0], "{name}: {got:?}");

        let pausing = sequential(0).thinking(Nanos::from_millis(50));
        let idle = sequential(1).with_priority(Idle, 0);
        let got: Vec<u64> =
            on_constant(&mut *make(name), &[pausing, idle]).streams.iter().map(|s| s.requests).collect();
        assert!(got[0] > 350 && got[1] > 10 * got[0], "{name}: {got:?}");
    }
}

/// Next to a sequential reader, a random reader gets at least a third of the throughput it gets
/// alone.
#[test]
fn a_random_reader_keeps_its_share() {
    for name in CFQS {
        let alone = on_disk(&mut *make(name), &[random(0)]).requests(0..1);
        let beside = on_disk(&mut *make(name), &[random(0), sequential(1)]).requests(0..1);
        assert!(3 * beside >= alone, "{name}: {beside} of {alone}");
    }
}

/// Readers go before buffered writers, which still get something.
#[test]
fn asynchronous_writes_wait_for_readers_but_not_forever() {
    for name in CFQS {
        let streams = [sequential(0), sequential(1), sequential(2).asynchronous_write(64)];
        let outcome = on_disk(&mut *make(name), &streams);
        let (reads, writes) = (outcome.requests(0..2), outcome.requests(2..3));
        assert!(reads > 10 * writes && writes > 20, "{name}: {reads} reads, {writes} writes");
    }
}

/// In a crowd of 64 random readers, our rule lets no reader wait longer than a second.
#[test]
fn no_stream_starves_in_a_crowd() {
    let mut streams: Vec<Stream> = (0..64).map(|_| random(0)).collect();
    streams.push(sequential(1));
    let outcome = on_disk(&mut *make("extant"), &streams);
    let (_, max) = outcome.latency_ms(0..65);
    assert!(max < 1_000.0, "{max} ms");
}

/// Streams that come and go in waves do not wait longer for having arrived in a crowd.
#[test]
fn streams_that_came_in_a_crowd_do_not_wait_when_it_has_gone() {
    let waves: Vec<Stream> =
        (0..200).map(|i| random(i % 5).thinking(Nanos::from_millis(500 + 7 * i))).collect();
    let (_, max) = on_disk(&mut *make("extant"), &waves).latency_ms(0..200);
    assert!(max < 1_000.0, "{max} ms");
}

/// Deadline: writes wait for at most two batches of 16 reads.
#[test]
fn deadline_writes_wait_for_two_batches_of_reads() {
    let reads = Stream { depth: 64, ..random(0) };
    let writes = Stream { depth: 64, ..random(1).asynchronous_write(64) };
    let tunables = DeadlineTunables {
        read_expire: Nanos::from_secs(1000),
        write_expire: Nanos::from_secs(1000),
        ..DeadlineTunables::default()
    };
    let outcome = on_constant(&mut Deadline::with(tunables), &[reads, writes]);
    verify("deadline", &outcome, &[2.0, 1.0], 0.05);
}

/// Deadline: only the higher of two classes is served, until a request of the lower one is ten
/// seconds old.
#[test]
fn deadline_classes_are_strict_and_age() {
    let high = Stream { depth: 4, ..random(0) };
    let low = Stream { depth: 1, ..random(1).with_priority(Idle, 0) };
    let outcome = on_constant(&mut Deadline::new(), &[high, low]);
    let waits: Vec<u64> = outcome.streams[1].latencies.iter().map(|l| l.0 / 1_000_000).collect();
    assert_eq!(waits.len(), 2, "{waits:?}");
    assert!((10_000..10_020).contains(&waits[0]), "{waits:?}");
}

/// Deadline: with requests on both sides of the disk, none waits longer than its expiry plus a
/// batch or two.
#[test]
fn deadline_bounds_waits() {
    let streams: Vec<Stream> = (0..100).map(|i| random(i % 8)).collect();
    let (_, max) = on_constant(&mut Deadline::new(), &streams).latency_ms(0..100);
    assert!(max < 500.0 + 2.0 * 16.0 + 100.0, "{max} ms");
}

/// CFQ: an expired request is served at the start of its queue's next slice, however near others
/// are.
#[test]
fn cfq_serves_expired_requests() {
    // One process reads forward at depth 32, another far behind it.
    let forward = Stream { depth: 32, ..sequential(3) };
    for name in CFQS {
        let outcome = on_constant(&mut *make(name), &[forward.clone(), sequential(0)]);
        let (_, max) = outcome.latency_ms(0..1);
        assert!(max < 1_000.0, "{name}: {max} ms");
    }
}

/// Two processes that alternately read one file become one queue: together they get about as much
/// as one reader.
#[test]
fn cooperators_share_a_queue() {
    // Each reads 64 KiB and skips the 64 KiB that the other reads.
    let interleaved = |i: u64| Stream { stride: 256, ..Stream::sequential(128, 400_000_000 + 128 * i) };
    let one = on_disk(&mut Cfq::new(history::cfq::Linux310), &[Stream::sequential(128, 400_000_000)]);
    let two = on_disk(&mut Cfq::new(history::cfq::Linux310), &[interleaved(0), interleaved(1)]);
    let (one, two) = (one.mb_per_s(0..1), two.mb_per_s(0..2));
    assert!(two > 0.8 * one, "{two:.1} of {one:.1} MB/s");
}

/// With two random and two sequential readers under our rule, the random ones keep at least two
/// fifths of what they get alone, and none waits longer than a round: the target latency of 300 ms
/// and a few requests.
#[test]
fn turns_of_random_and_sequential_readers_alternate() {
    let alone = on_disk(&mut *make("extant"), &[random(0), random(1)]).requests(0..2);
    let outcome = on_disk(&mut *make("extant"), &[random(0), random(1), sequential(2), sequential(3)]);
    let (beside, (_, max)) = (outcome.requests(0..2), outcome.latency_ms(0..4));
    assert!(5 * beside >= 2 * alone && max < 400.0, "{beside} of {alone}, {max} ms");
}
