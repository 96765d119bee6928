//! Requests per second through `add`, `next` and `completed` of each elevator, on one core.
//!
//! Run with `cargo bench -p extant-history --bench elevator`; all elevators in one run, the median
//! of five.

use extant_block::{Op, Sector, StreamId};
use extant_history::{BlockHost, ELEVATORS, elevator};
use extant_iosched::elevator::{Decision, Elevator, Request, RequestId};
use extant_rt::{Nanos, Rt};

/// Requests queued or in the device at any time.
const SLOTS: u32 = 128;
const DEPTH: usize = 31;
const REQUESTS: u32 = 400_000;

fn main() {
    let rt = Rt::real(Default::default());
    println!("requests per second, {SLOTS} slots, depth {DEPTH}: random in 5 GB, then sequential");
    for streams in [1, 64, 500] {
        for name in ELEVATORS.iter().map(|policy| policy.name) {
            let rate = |random: bool| {
                let mut rates: Vec<f64> = (0..5)
                    .map(|_| {
                        run(
                            &rt,
                            &mut *elevator(name, &BlockHost::default()).expect("in the table"),
                            streams,
                            random,
                        )
                    })
                    .collect();
                rates.sort_by(f64::total_cmp);
                rates[2] / 1e6
            };
            println!("{streams:4} streams  {name:12} {:6.2} M/s  {:6.2} M/s", rate(true), rate(false));
        }
    }
}

fn run(rt: &Rt, elevator: &mut dyn Elevator, streams: u64, random: bool) -> f64 {
    let began = rt.now();
    let (mut now, mut seed) = (Nanos(1), 0x2545_f491_4f6c_dd1d_u64);
    let mut free: Vec<u32> = (0..SLOTS).collect();
    let mut device = std::collections::VecDeque::with_capacity(DEPTH);
    let mut ends = vec![0; streams as usize];
    let (mut added, mut done) = (0, 0);
    while done < REQUESTS {
        while added < REQUESTS
            && let Some(id) = free.pop()
        {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let stream = seed % streams;
            let start = if random {
                (seed >> 20) % 1_310_720 * 8
            } else {
                ends[stream as usize] += 8;
                stream * 1_000_000 + ends[stream as usize]
            };
            let mut request = Request::new(RequestId(id), Op::Read, Sector(start), 8);
            request.stream = StreamId(stream + 1);
            elevator.add(request, now);
            added += 1;
        }
        while device.len() < DEPTH {
            match elevator.next(now) {
                Decision::Dispatch(id) => device.push_back(id),
                Decision::IdleUntil(at) if device.is_empty() => now = at,
                Decision::IdleUntil(_) | Decision::Empty => break,
            }
        }
        let id = device.pop_front().expect("something is in the device while requests remain");
        now += Nanos(20_000);
        elevator.completed(id, now);
        free.push(id.0);
        done += 1;
    }
    f64::from(REQUESTS) / (rt.now() - began).as_secs_f64()
}
