//! The elevators, judged by what streams get.

mod closed_loop;
mod disk;
mod random;

use closed_loop::{ClosedLoop, Stream};
use disk::Geometry;
use extant_block::elevator::cfq::Tunables;
use extant_block::elevator::cfq::idle_rule::{Earned, Extant, Limited, Linux};
use extant_block::elevator::{Cfq, Deadline, Elevator, Fifo};
use extant_rt::Nanos;

#[test]
fn table() {
    let readers: Vec<Stream> = (0..500)
        .map(|i| Stream {
            starts: Nanos::from_micros(20 * i),
            ..Stream::random(8, 100_000_000, 5 << 21).thinking(Nanos::from_secs(1)).of_program(1)
        })
        .collect();
    let two: Vec<Stream> = [200_000_000, 500_000_000]
        .map(|b| Stream::sequential(256, b).thinking(Nanos::from_micros(150)))
        .to_vec();
    let both: Vec<Stream> = readers.iter().cloned().chain(two.iter().cloned()).collect();
    let make: Vec<(&str, fn() -> Box<dyn Elevator>)> = vec![
        ("none", || Box::new(Fifo::new())),
        ("deadline", || Box::new(Deadline::new())),
        ("linux", || Box::new(Cfq::new(Linux))),
        ("limited", || Box::new(Cfq::new(Limited))),
        ("extant", || Box::new(Cfq::with(Tunables::linux(10_000), Extant::new()))),
        ("earned", || Box::new(Cfq::new(Earned))),
    ];
    for (name, make) in &make {
        if let Ok(only) = std::env::var("ONLY")
            && only != *name
        {
            continue;
        }
        let mut e = make();
        let a = ClosedLoop::run(&mut *e, Geometry::sata_2010(), &readers, 15, 1);
        let (mean, max) = a.latency_ms(0..500);
        let mut e = make();
        let b = ClosedLoop::run(&mut *e, Geometry::sata_2010(), &two, 5, 1);
        let mut e = make();
        let c = ClosedLoop::run(&mut *e, Geometry::sata_2010(), &both, 15, 1);
        let (cmean, cmax) = c.latency_ms(0..500);
        println!(
            "{name:10} {:6.1} iops {mean:7.1} ms max {max:7.1} busy {:.2} {} sd {:.0} | two {:6.1} MB/s | both {:6.1} iops {cmean:6.1} ms max {cmax:6.1}, {:6.1} MB/s",
            a.iops(0..500),
            a.busy_ns as f64 / 1e9 / a.runtime.as_secs_f64(),
            (0..5)
                .map(|k| {
                    let v: Vec<f64> = a
                        .streams
                        .iter()
                        .filter_map(|s| s.latencies.get(k))
                        .map(|l| l.0 as f64 / 1e6)
                        .collect();
                    format!(
                        "{}:{:.0}/{:.0} ",
                        v.len(),
                        v.iter().sum::<f64>() / v.len() as f64,
                        v.iter().cloned().fold(0.0, f64::max)
                    )
                })
                .collect::<String>(),
            {
                let v: Vec<f64> =
                    a.streams.iter().flat_map(|s| &s.latencies).map(|l| l.0 as f64 / 1e6).collect();
                let m = v.iter().sum::<f64>() / v.len() as f64;
                (v.iter().map(|x| (x - m) * (x - m)).sum::<f64>() / v.len() as f64).sqrt()
            },
            b.mb_per_s(0..2),
            c.iops(0..500),
            c.mb_per_s(500..502)
        );
    }
}

#[test]
fn scenarios() {
    let make: Vec<(&str, fn() -> Box<dyn Elevator>)> = vec![
        ("none", || Box::new(Fifo::new())),
        ("deadline", || Box::new(Deadline::new())),
        ("linux", || Box::new(Cfq::new(Linux))),
        ("extant", || Box::new(Cfq::with(Tunables::linux(10_000), Extant::new()))),
        ("earned", || Box::new(Cfq::new(Earned))),
    ];
    let seq =
        |b: u64| Stream::sequential(256, b * 100_000_000).thinking(Nanos::from_micros(150)).of_program(b);
    let rnd = |b: u64| {
        Stream::random(8, b * 100_000_000, 5 << 21).thinking(Nanos::from_micros(50)).of_program(100 + b)
    };
    let scen: Vec<(&str, Vec<Stream>, usize)> = vec![
        ("qd1", vec![rnd(1)], 0),
        ("1 seq 1 rnd", vec![seq(2), rnd(1)], 1),
        ("2 seq 8 rnd", [seq(2), seq(5)].into_iter().chain((0..8).map(|_| rnd(1))).collect(), 2),
        ("1 seq 64 rnd", [seq(2)].into_iter().chain((0..64).map(|_| rnd(1))).collect(), 1),
        ("2 seq writer", vec![seq(2), seq(5), seq(8).asynchronous_write(64)], 2),
        ("4 seq think 2ms", (2..6).map(|b| seq(b).thinking(Nanos::from_millis(2))).collect(), 4),
        ("4 seq think 6ms", (2..6).map(|b| seq(b).thinking(Nanos::from_millis(6))).collect(), 4),
        ("2 seq near", vec![seq(2), Stream { base: 200_002_000, ..seq(2) }], 2),
    ];
    for (title, streams, split) in &scen {
        println!("{title}");
        for (name, make) in &make {
            let mut e = make();
            let r = ClosedLoop::run(&mut *e, Geometry::sata_2010(), streams, 10, 1);
            let n = streams.len();
            println!(
                "   {name:10} first {:6.1} MB/s {:?}   rest {:6.1} MB/s {:6.0} iops {:?}",
                r.mb_per_s(0..*split),
                r.latency_ms(0..*split),
                r.mb_per_s(*split..n),
                r.iops(*split..n),
                r.latency_ms(*split..n)
            );
        }
    }
}
