//! Random machines and jobs must obey physics.

use extant_lab::{Direction, Policy, fio, on_machine};
use extant_rt::Rng;
use extant_sim::disk::DiskKind;
use extant_sim::{Machine, Setting};
use std::path::Path;

/// Highest rate of the disks' links or media, in bytes per second.
fn most_bytes_s(machine: &Machine) -> f64 {
    let of_one = |kind: &DiskKind| match kind {
        DiskKind::Rotating(spec) => spec.interface_bytes_s,
        DiskKind::Ssd(spec) => spec.interface_bytes_s,
        DiskKind::Ram(spec) => spec.bytes_s,
    };
    machine.disks.iter().map(|model| f64::from(model.count) * of_one(&model.kind) as f64).sum()
}

#[track_caller]
fn holds(side: &Direction, block: u64, elapsed_ns: f64, about: &str) {
    assert_eq!(side.bytes, side.ios * block, "bytes are those of whole I/Os: {about}");
    let latency = &side.completion;
    assert_eq!(latency.count, side.ios, "{about}");
    if side.ios > 0 {
        assert!(latency.min_ns as f64 <= latency.mean_ns + 1.0, "{about}");
        assert!(latency.mean_ns <= latency.max_ns as f64 + 1.0, "{about}");
        assert!(latency.max_ns as f64 <= elapsed_ns, "no wait is longer than the run: {about}");
        assert!(side.total.max_ns >= latency.max_ns, "{about}");
    }
}

#[test]
fn physics_holds_on_random_machines_under_random_jobs() {
    let seed = std::env::var("EXTANT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_122);
    let machines = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
    let mut rng = Rng::new(seed);
    let mut pick = |list: &[&'static str]| list[rng.below(list.len() as u64) as usize];
    for case in 0..16 {
        let file =
            pick(&["sata-7200-2013.toml", "sata-7200-2010.toml", "nvme-2017.toml", "jbod10-2011.toml"]);
        let mut words = vec![
            pick(&["hz=100", "hz=250", "hz=1000"]),
            pick(&["queue_depth=1", "queue_depth=4", "queue_depth=31"]),
        ];
        words.push(pick(&["nr_requests=4", "nr_requests=32", "nr_requests=128"]));
        if file.starts_with("jbod") {
            words.push(pick(&["disk.count=1", "disk.count=2", "disk.count=5"]));
            words.push(pick(&["write_cache_bytes=0", "write_cache_bytes=16777216"]));
        }
        let settings: Vec<Setting> = words.iter().map(|word| word.parse().unwrap()).collect();
        let machine = Machine::load_with(&machines.join(file), &settings).unwrap();
        let (pattern, size) =
            (pick(&["read", "write", "randread", "randwrite", "randrw"]), pick(&["4k", "64k", "1m"]));
        let (jobs, depth) = (pick(&["1", "3", "8"]), pick(&["1", "4", "32"]));
        let (engine, direct) = (pick(&["psync", "libaio"]), pick(&["1", "1", "0"]));
        let elevator = pick(&["none", "mq-deadline", "cfq", "extant"]);
        let text = format!(
            "[j]\nrw={pattern}\nbs={size}\nsize=512m\nruntime=1\nnumjobs={jobs}\niodepth={depth}\nioengine={engine}\ndirect={direct}\n\
             group_reporting\n"
        );
        let about = format!("seed {seed}, case {case}: {file} {words:?} {elevator}\n{text}");
        let block = match size {
            "4k" => 4096,
            "64k" => 65_536,
            _ => 1 << 20,
        };
        let policy = Policy { elevator: elevator.parse().unwrap(), ..Policy::default() };
        let most = most_bytes_s(&machine);
        let jobs = fio::job_file("random.fio", &text).unwrap();
        let outcome = on_machine(&jobs, machine, &policy, case, None)
            .unwrap_or_else(|error| panic!("{error}: {about}"));
        let measured = &outcome.results[0].measured;
        assert!(measured.error.is_none() && measured.runtime.0 > 0, "{about}");
        let elapsed_ns = measured.runtime.0 as f64 + 1.0;
        for side in [&measured.read, &measured.write] {
            holds(side, block, elapsed_ns, &about);
            if direct == "1" {
                // I/O in flight at the end was counted when it completed.
                let rate = side.bytes as f64 / measured.runtime.as_secs_f64();
                assert!(rate <= most * 1.001, "{rate} bytes a second of {most}: {about}");
            }
        }
    }
}
