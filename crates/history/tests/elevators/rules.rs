//! Individual rules of CFQ, one request at a time.

use crate::{CFQS, make};
use extant_block::{Op, Sector, StreamId};
use extant_iosched::elevator::{Decision, Elevator, IoClass, Priority, Request, RequestId};
use extant_rt::Nanos;

const FAR: u64 = 500_000_000;

fn read(id: u32, stream: u64, start: u64) -> Request {
    Request { stream: StreamId(stream), ..Request::new(RequestId(id), Op::Read, Sector(start), 8) }
}

fn write(id: u32, stream: u64, start: u64) -> Request {
    Request { op: Op::Write, sync: false, ..read(id, stream, start) }
}

fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

/// The requests that the elevator dispatches one after another now, while none completes.
fn burst(elevator: &mut dyn Elevator, now: Nanos) -> Vec<u32> {
    std::iter::from_fn(|| match elevator.next(now) {
        Decision::Dispatch(id) => Some(id.0),
        Decision::IdleUntil(_) | Decision::Empty => None,
    })
    .collect()
}

/// Within a queue, requests go forward from the head; a short seek back counts double, and one
/// beyond 16 MiB is a wrap-around.
#[test]
fn requests_go_forward_and_little_back() {
    for name in CFQS {
        let mut elevator = make(name);
        // Moves the head to 1,000,008.
        elevator.add(read(0, 1, 1_000_000), ms(0));
        assert_eq!(burst(&mut *elevator, ms(0)), [0], "{name}");
        elevator.add(read(1, 1, 1_000_908), ms(0)); // 900 ahead
        elevator.add(read(2, 1, 999_608), ms(0)); // 400 behind, counts 800
        elevator.add(read(3, 1, 900_000), ms(0)); // too far behind
        assert_eq!(burst(&mut *elevator, ms(0)), [2, 1, 3], "{name}");
    }
}

/// While others wait, a queue has at most four requests in the device before its slice begins;
/// alone, any number.
#[test]
fn depth_is_limited_only_beside_others() {
    for name in CFQS {
        let mut elevator = make(name);
        for id in 0..20 {
            elevator.add(read(id, 1, 1_000 * u64::from(id)), ms(0));
        }
        assert_eq!(burst(&mut *elevator, ms(0)).len(), 20, "{name}");

        let mut elevator = make(name);
        for id in 0..20 {
            elevator.add(read(id, 1, 1_000 * u64::from(id)), ms(0));
        }
        elevator.add(read(20, 2, FAR), ms(0));
        assert_eq!(burst(&mut *elevator, ms(0)), [0, 1, 2, 3], "{name}");
    }
}

/// The idle class has one request in the device at a time.
#[test]
fn the_idle_class_has_one_request_in_the_device() {
    for name in CFQS {
        let mut elevator = make(name);
        for id in 0..4 {
            let request = read(id, 1, 1_000 * u64::from(id));
            elevator.add(Request { priority: Priority::new(IoClass::Idle, 7), ..request }, ms(0));
        }
        assert_eq!(burst(&mut *elevator, ms(0)), [0], "{name}");
        elevator.completed(RequestId(0), ms(1));
        assert_eq!(burst(&mut *elevator, ms(1)), [1], "{name}");
    }
}

/// A real-time request, and one with `prio`, is served before the rest of the active queue's slice,
/// which then continues.
#[test]
fn urgent_requests_preempt() {
    for name in CFQS {
        for urgent in [
            Request { priority: Priority::new(IoClass::RealTime, 4), ..read(10, 2, FAR) },
            Request { prio: true, meta: true, ..read(10, 2, FAR) },
        ] {
            let mut elevator = make(name);
            for id in 0..10 {
                elevator.add(read(id, 1, 1_000 * u64::from(id)), ms(0));
            }
            assert_eq!(elevator.next(ms(0)), Decision::Dispatch(RequestId(0)), "{name}");
            elevator.add(read(11, 3, FAR / 2), ms(0));
            elevator.add(urgent, ms(0));
            assert_eq!(elevator.next(ms(0)), Decision::Dispatch(RequestId(10)), "{name}");
            elevator.completed(RequestId(0), ms(1));
            elevator.completed(RequestId(10), ms(2));
        }
    }
}

/// A synchronous request preempts asynchronous ones, which then wait until no synchronous one is in
/// the device.
#[test]
fn synchronous_requests_come_first() {
    for name in CFQS {
        let mut elevator = make(name);
        for id in 0..4 {
            elevator.add(write(id, 1, 1_000 * u64::from(id)), Nanos::from_secs(5));
        }
        assert_eq!(elevator.next(Nanos::from_secs(5)), Decision::Dispatch(RequestId(0)), "{name}");
        elevator.add(read(10, 2, FAR), Nanos::from_secs(5));
        elevator.completed(RequestId(0), Nanos::from_secs(5) + ms(1));
        assert_eq!(burst(&mut *elevator, Nanos::from_secs(5) + ms(1)), [10], "{name}");
    }
}

/// After a synchronous request that waited longer than its expiry of 125 ms, only one asynchronous
/// request at a time is in the device; a second is allowed 200 ms later.
#[test]
fn asynchronous_depth_grows_after_a_slow_read() {
    for name in CFQS {
        let mut elevator = make(name);
        let began = Nanos::from_secs(10);
        elevator.add(read(0, 1, FAR), began);
        assert_eq!(burst(&mut *elevator, began), [0], "{name}");
        let ended = began + ms(200);
        elevator.completed(RequestId(0), ended);
        elevator.exited(StreamId(1), ended);
        for id in 1..10 {
            elevator.add(write(id, 2, 1_000 * u64::from(id)), ended);
        }
        assert_eq!(burst(&mut *elevator, ended), [1], "{name}");
        assert_eq!(burst(&mut *elevator, ended + ms(150)), [] as [u32; 0], "{name}");
        assert_eq!(burst(&mut *elevator, ended + ms(210)), [2], "{name}");
        assert_eq!(burst(&mut *elevator, ended + ms(510)), [3, 4, 5], "{name}");
    }
}

/// An expired request is served first in a slice, rather than the nearest.
#[test]
fn expired_requests_are_served_first() {
    for name in CFQS {
        let mut elevator = make(name);
        // Stream 2's queue is served second; its oldest request is the farthest.
        elevator.add(read(0, 1, 1_000), ms(0));
        elevator.add(read(1, 2, FAR), ms(0));
        elevator.add(read(2, 2, 2_000), ms(0));
        assert_eq!(elevator.next(ms(0)), Decision::Dispatch(RequestId(0)), "{name}");
        elevator.exited(StreamId(1), ms(0));
        elevator.completed(RequestId(0), ms(200));
        assert_eq!(elevator.next(ms(200)), Decision::Dispatch(RequestId(1)), "{name}");
    }
}

/// CFQ offers only requests of the same stream for merging; the others offer those of any stream.
#[test]
fn cfq_and_ours_merge_within_a_stream_only() {
    for name in ["none", "mq-deadline", "cfq", "extant"] {
        let mut elevator = make(name);
        elevator.add(read(0, 1, 1_000), ms(0));
        elevator.add(read(1, 2, 5_000), ms(0));
        let offered = |stream, start| {
            let candidate = read(9, stream, start);
            elevator.back_merge(&candidate).or(elevator.front_merge(&candidate)).map(|id| id.0)
        };
        assert_eq!(
            (offered(1, 1_008), offered(1, 992), offered(1, 1_016)),
            (Some(0), Some(0), None),
            "{name}"
        );
        let expected = if name == "none" || name == "mq-deadline" { Some(0) } else { None };
        assert_eq!(offered(2, 1_008), expected, "{name}");
        let candidate = write(9, 1, 1_008);
        assert_eq!(elevator.back_merge(&candidate), None, "{name}: a write into a read");
    }
}
