use super::*;
use extant_block::Op;

const MILLI: u64 = 1_000_000;

fn at(millis: u64) -> Nanos {
    Nanos(millis * MILLI)
}

fn read(id: u32, task: u64, start: u64) -> Request {
    Request { stream: StreamId(task), ..Request::new(RequestId(id), Op::Read, Sector(start), 16) }
}

fn write(id: u32, start: u64) -> Request {
    Request::new(RequestId(id), Op::Write, Sector(start), 16)
}

fn sent(decision: Decision) -> u32 {
    match decision {
        Decision::Dispatch(RequestId(id)) => id,
        other => panic!("{other:?} instead of a request"),
    }
}

/// A task that has made eight sequential reads, each 1 ms after the last one completed. Returns the
/// millisecond of the last completion.
fn with_a_sequential_task(elevator: &mut Anticipatory, task: u64) -> u64 {
    for n in 0..8 {
        elevator.add(read(n, task, u64::from(n) * 16), at(u64::from(n) * 2 + 1));
        assert_eq!(sent(elevator.next(at(u64::from(n) * 2 + 1))), n);
        elevator.completed(RequestId(n), at(u64::from(n) * 2 + 2));
    }
    16
}

#[test]
fn the_disk_is_kept_for_the_next_read_of_a_task_that_reads_on() {
    let mut elevator = Anticipatory::new(1000, Tasks::default());
    let now = with_a_sequential_task(&mut elevator, 1);
    elevator.add(read(100, 2, 10_000_000), at(now));
    let Decision::IdleUntil(until) = elevator.next(at(now)) else { panic!("the disk is not kept idle") };
    assert_eq!(until, at(now + 6), "HZ / 150 ticks after the end of its last read");
    elevator.add(read(101, 1, 128), at(now + 2));
    assert_eq!(sent(elevator.next(at(now + 2))), 101, "the read that was waited for comes first");
}

#[test]
fn the_other_read_goes_after_six_milliseconds() {
    let mut elevator = Anticipatory::new(1000, Tasks::default());
    let now = with_a_sequential_task(&mut elevator, 1);
    elevator.add(read(100, 2, 10_000_000), at(now));
    assert!(matches!(elevator.next(at(now)), Decision::IdleUntil(_)));
    assert_eq!(sent(elevator.next(at(now + 6))), 100);
}

#[test]
fn a_near_read_of_another_task_is_not_made_to_wait() {
    let mut elevator = Anticipatory::new(1000, Tasks::default());
    let now = with_a_sequential_task(&mut elevator, 1);
    elevator.add(read(100, 2, 128), at(now));
    assert_eq!(sent(elevator.next(at(now))), 100);
}

#[test]
fn a_task_that_thinks_longer_than_the_wait_is_not_waited_for() {
    let mut elevator = Anticipatory::new(1000, Tasks::default());
    let mut now = 0;
    for n in 0..8 {
        elevator.add(read(n, 1, u64::from(n) * 16), at(now));
        assert_eq!(sent(elevator.next(at(now))), n);
        elevator.completed(RequestId(n), at(now + 1));
        now += 16;
    }
    elevator.add(read(100, 2, 10_000_000), at(now));
    assert_eq!(sent(elevator.next(at(now))), 100);
}

#[test]
fn a_task_with_a_request_on_another_disk_is_not_waited_for() {
    let tasks = Tasks::default();
    let mut elevator = Anticipatory::new(1000, tasks.clone());
    let mut other = Anticipatory::new(1000, tasks);
    let now = with_a_sequential_task(&mut elevator, 1);
    other.add(read(0, 1, 5_000), at(now));
    elevator.add(read(100, 2, 10_000_000), at(now));
    assert_eq!(sent(elevator.next(at(now))), 100);
}

#[test]
fn writes_have_their_turn_after_half_a_second_of_reads() {
    let mut elevator = Anticipatory::new(1000, Tasks::default());
    elevator.add(write(0, 50_000_000), at(0));
    // Each read is from a new task, next to the last one, so the elevator never waits.
    let mut first_write = None;
    for n in 1..200 {
        let now = u64::from(n) * 10;
        elevator.add(read(n, u64::from(n), u64::from(n) * 16), at(now));
        if let Decision::Dispatch(id) = elevator.next(at(now)) {
            if id == RequestId(0) {
                first_write = Some(now);
                break;
            }
            elevator.completed(id, at(now + 5));
        }
    }
    let first_write = first_write.expect("the write was sent");
    assert!((400..=800).contains(&first_write), "after {first_write} ms");
}
