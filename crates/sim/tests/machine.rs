//! Machine models: what is read, and how errors are reported.

use extant_rt::{Cpu, Nanos, RtError};
use extant_sim::{KernelSpec, Machine, Preemption, RunQueues, Setting, Sim, Wakeup};
use std::path::{Path, PathBuf};

extant_rt::costs! {
    /// Kernel work known only to these tests.
    enum Cost of "tests" {
        /// Redirtying pages that a writeback pass cannot write yet.
        PageRedirty = "page_redirty_ns",
        /// Milling, for which no model has a price.
        Milling = "milling_ns",
    }
}

fn machines() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines")
}

fn turion() -> String {
    std::fs::read_to_string(machines().join("turion-2010.toml")).unwrap()
}

/// The error for the model with `from` replaced by `to`.
#[track_caller]
fn refused(from: &str, to: &str) -> String {
    let good = turion();
    assert_eq!(good.matches(from).count(), 1, "{from:?}");
    Machine::parse("bad.toml", &good.replace(from, to)).unwrap_err().to_string()
}

fn line_of(text: &str) -> usize {
    1 + turion().lines().position(|line| line.starts_with(text)).unwrap()
}

#[test]
fn every_model_in_the_project_loads() {
    let mut loaded = 0;
    for entry in std::fs::read_dir(machines()).unwrap() {
        let path = entry.unwrap().path();
        Machine::load(&path).unwrap_or_else(|error| panic!("{error}"));
        loaded += 1;
    }
    assert!(loaded >= 2);
}

#[test]
fn prices_are_per_unit_and_in_nanoseconds() {
    let text = turion().replace("wait_scan_ns = 20", "wait_scan_ns = 0.25");
    let machine = Machine::parse("turion.toml", &text).unwrap();
    assert_eq!(machine.processors.count, 1);
    assert_eq!(machine.processors.preemption, Preemption::Voluntary);
    assert_eq!(machine.price(Cost::PageRedirty(30_720)), Some(Nanos(30_720 * 2_300)));
    assert_eq!(machine.price(extant_rt::Cost::WaitScan(10)), Some(Nanos(3)), "2.5 ns, rounded");
    assert_eq!(machine.price(Cpu(Nanos(5))), Some(Nanos(5)));
    assert_eq!(machine.price(Cost::PageRedirty(u64::MAX)), None);
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    let error = refused("timeslice_ns = ", "timeslize_ns = 3\ntimeslice_ns = ");
    let line = line_of("timeslice_ns");
    assert!(
        error.starts_with(&format!("bad.toml:{line}: processors.timeslize_ns: unknown key; known are ")),
        "{error}"
    );
    let error = refused("[costs]", "[prices]\na = 1\n[costs]");
    assert!(error.starts_with(&format!("bad.toml:{}: prices: unknown key", line_of("[costs]"))), "{error}");
}

/// A model may price work that only other layers charge, but must price everything that is charged.
#[test]
fn work_without_a_price_is_named_before_a_run_and_stops_one() {
    let machine = Machine::parse("turion.toml", &turion()).unwrap();
    machine.check_costs(&[extant_rt::Cost::table()]).unwrap();
    let error = machine.check_costs(&[extant_rt::Cost::table(), Cost::table()]).unwrap_err().to_string();
    assert_eq!(error, format!("turion.toml:{}: costs.milling_ns: missing", line_of("[costs]")));
    let sim = Sim::new(machine, 1);
    let rt = sim.rt().clone();
    let milled = sim.rt().block_on(async move {
        rt.charge(Cost::PageRedirty(1));
        rt.charge(Cost::Milling(1));
    });
    assert_eq!(milled, Err(RtError::Unpriced { layer: "tests", key: "milling_ns" }));
    Machine::free(1, Preemption::None).check_costs(&[Cost::table()]).unwrap();
}

#[test]
fn a_negative_cost_is_refused_by_name_and_line() {
    let line = line_of("page_copy_ns");
    let error = refused("page_copy_ns = 1_500", "page_copy_ns = -1_500");
    assert_eq!(error, format!("bad.toml:{line}: costs.page_copy_ns: -1500 is negative"));
    let error = refused("page_copy_ns = 1_500", "page_copy_ns = -0.5");
    assert_eq!(error, format!("bad.toml:{line}: costs.page_copy_ns: -0.5 is negative"));
    let line = line_of("context_switch_ns");
    let error = refused("context_switch_ns = 3_000", "context_switch_ns = -3");
    assert_eq!(error, format!("bad.toml:{line}: processors.context_switch_ns: -3 is negative"));
}

#[test]
fn a_missing_key_is_refused_by_name_and_the_tables_line() {
    let error = refused("timeslice_ns = 100_000_000\n", "");
    assert_eq!(error, format!("bad.toml:{}: processors.timeslice_ns: missing", line_of("[processors]")));
    let error = Machine::parse("bad.toml", turion().split("[costs]").next().unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "bad.toml:1: costs: missing");
}

#[test]
fn values_of_the_wrong_kind_are_refused() {
    let line = line_of("count");
    assert_eq!(
        refused("count = 1\npreemption", "count = 0\npreemption"),
        format!("bad.toml:{line}: processors.count: 0 is not between 1 and 1024")
    );
    assert_eq!(
        refused("count = 1\npreemption", "count = \"one\"\npreemption"),
        format!("bad.toml:{line}: processors.count: expected a whole number, found string")
    );
    let line = line_of("preemption");
    assert_eq!(
        refused("\"voluntary\"", "\"sometimes\""),
        format!(
            "bad.toml:{line}: processors.preemption: \"sometimes\" is not one of \"none\", \"voluntary\", \"full\""
        )
    );
    let error = refused("page_copy_ns = 1_500", "page_copy_ns = nan");
    assert!(error.ends_with("costs.page_copy_ns: NaN ns is not between 0 and an hour"), "{error}");
    let error = refused("page_copy_ns = 1_500", "page_copy_ns = ");
    assert!(error.starts_with(&format!("bad.toml:{}: (syntax): ", line_of("page_copy_ns"))), "{error}");
    let error = Machine::load(Path::new("/nonexistent/m.toml")).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/m.toml: No such file"), "{error}");
}

#[test]
fn a_file_without_an_end_is_refused() {
    let error = Machine::load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert_eq!(error, "/dev/zero: a machine's file has at most 1048576 bytes");
}

#[test]
fn memory_is_read_in_bytes_and_its_limits_fit_it() {
    let with = |keys: &str| {
        let text = turion().replace("[costs]", &format!("[memory]\n{keys}\n[costs]"));
        Machine::parse("m.toml", &text)
    };
    let good = "cache_bytes = 8_388_608\ndirty_limit_bytes = 4_194_304\ndirty_background_bytes = 0";
    let memory = with(good).unwrap().memory.unwrap();
    assert_eq!(
        (memory.cache_bytes, memory.dirty_limit_bytes, memory.dirty_background_bytes),
        (8 << 20, 4 << 20, 0)
    );
    let line = line_of("[costs]");
    let refused = |from: &str, to: &str| with(&good.replace(from, to)).unwrap_err().to_string();
    let cases = [
        ("8_388_608", "4096", line + 1, "cache_bytes: 4096 is too small for a cache; give 1048576 or more"),
        ("8_388_608", "-1", line + 1, "cache_bytes: -1 is negative"),
        ("8_388_608", "nan", line + 1, "cache_bytes: expected a whole number, found float"),
        (
            "4_194_304",
            "8388608",
            line + 2,
            "dirty_limit_bytes: 8388608 does not fit a cache of 8388608 bytes; give 4096 to 6291456, three quarters of it",
        ),
        (
            "= 0",
            "= 4194304",
            line + 3,
            "dirty_background_bytes: 4194304 is not below the limit of 4194304; write-back has to begin before writers are \
             stopped",
        ),
        ("dirty_limit_bytes", "dirty_limit_mb", line, "dirty_limit_bytes: missing"),
    ];
    for (from, to, line, expected) in cases {
        assert_eq!(refused(from, to), format!("m.toml:{line}: memory.{expected}"));
    }
}

fn with_settings(settings: &[&str]) -> Result<Machine, String> {
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    let file = machines().join("sata-7200-2013.toml");
    Machine::load_with(&file, &settings).map_err(|error| error.to_string())
}

#[test]
fn devices_interrupt_a_processor_that_is_there() {
    let machine = with_settings(&["interrupt_processor=3", "page_bytes=16384"]).unwrap();
    assert_eq!((machine.processors.interrupt_processor, machine.kernel.page_bytes), (3, 16_384));
    let error = with_settings(&["interrupt_processor=64"]).unwrap_err();
    assert!(error.contains("interrupt_processor: there is no processor 64; the last is"), "{error}");
    let error = with_settings(&["page_bytes=5000"]).unwrap_err();
    assert!(error.contains("page_bytes: 5000 is not a power of two"), "{error}");
}

#[test]
fn the_kernel_s_choices_are_the_usual_ones_unless_the_file_or_a_setting_says_otherwise() {
    let machine = Machine::parse("m.toml", &turion()).unwrap();
    assert_eq!(machine.kernel, KernelSpec::default());
    let text = format!(
        "{}\n[kernel]\nhz = 250\nslice_idle_ms = 0\nnr_requests = 192\nrequest_batching = false\n",
        turion()
    );
    let machine = Machine::parse("m.toml", &text).unwrap();
    assert_eq!(
        machine.kernel,
        KernelSpec {
            hz: 250,
            slice_idle_ms: Some(0),
            nr_requests: Some(192),
            request_batching: false,
            ..KernelSpec::default()
        }
    );
    let machine = with_settings(&["hz=100", "kernel.request_batching=false"]).unwrap();
    assert_eq!(machine.kernel, KernelSpec { hz: 100, request_batching: false, ..KernelSpec::default() });
    let error = with_settings(&["hz=5"]).unwrap_err();
    assert!(error.ends_with("kernel.hz: 5 is not between 10 and 10000"), "{error}");
}

#[test]
fn a_setting_replaces_one_value_wherever_the_key_stands() {
    let usual = with_settings(&[]).unwrap();
    let machine =
        with_settings(&["queue_depth = 1", "preemption=full", "disk.count=3", "page_copy_ns=1.5"]).unwrap();
    let depths: Vec<usize> = machine.disks.iter().map(|disk| disk.queue_depth()).collect();
    assert_eq!(
        (depths, machine.processors.preemption, machine.disks[0].count),
        (vec![1], Preemption::Full, 3)
    );
    assert_eq!(machine.processors.count, usual.processors.count);
    let slow = with_settings(&["positioning_permille=2000"]).unwrap();
    assert_ne!(slow.disks, usual.disks, "a key that the file leaves out");
    let error = with_settings(&["count=3"]).unwrap_err();
    assert!(
        error.contains(
            "several tables have the key: disk, processors; write one before it, such as disk.count"
        ),
        "{error}"
    );
    let error = with_settings(&["rpn=3"]).unwrap_err();
    assert!(error.contains("--set rpn=3: no table of this machine has the key"), "{error}");
    for slip in ["hz", "=3", "a b=3", "disk.[0]=1"] {
        let error = slip.parse::<Setting>().unwrap_err();
        assert_eq!(error, format!("\"{slip}\" is not KEY=VALUE, such as hz=250"));
    }
}

#[test]
fn a_file_may_say_how_tasks_find_a_processor_and_most_do_not() {
    let plain = with_settings(&[]).unwrap().processors;
    assert_eq!((plain.run_queues, plain.wakeup), (RunQueues::Shared, Wakeup::None));
    assert_eq!(plain.migration, Nanos::ZERO);
    let settings = ["run_queues=per processor", "wakeup=o1", "migration_ns=1500.2", "wake_affine=false"];
    let set = with_settings(&settings).unwrap().processors;
    assert_eq!((set.run_queues, set.wakeup, set.wake_affine), (RunQueues::PerProcessor, Wakeup::O1, false));
    assert_eq!(set.migration, Nanos(1_501));
    let error = with_settings(&["run_queues=per core"]).unwrap_err();
    let expected = "run_queues: \"per core\" is not one of \"shared\", \"per processor\"";
    assert!(error.ends_with(expected), "{error}");
    let error = with_settings(&["wakeup=o1"]).unwrap_err();
    assert!(error.contains("wakeup: \"o1\" needs run_queues = \"per processor\""), "{error}");
}
