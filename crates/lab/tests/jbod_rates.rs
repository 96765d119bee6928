//! The ten disks of the write-back thread through the page cache, in short.

use extant_lab::experiment::jbod::{Case, Outcome, ROWS, Row, run};
use extant_rt::Nanos;
use extant_sim::Machine;

fn outcome(row: &Row, control: &str, seconds: u64) -> Outcome {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/jbod10-2011.toml");
    let machine = Machine::load(machine.as_ref()).unwrap();
    let case = row.case(&machine, control);
    let outcome =
        run(&Case { warm_up: Nanos::from_secs(4), measured: Nanos::from_secs(seconds), ..case }, None);
    let outcome = outcome.unwrap();
    println!("{} {:3} {control}: {:.0} MiB/s", row.name, row.writers_per_disk, outcome.mib_per_s());
    outcome
}

#[test]
fn ours_loses_nothing_where_memory_is_short_and_pauses_nobody_for_long() {
    for row in &ROWS[1..3] {
        let large = ROWS.iter().find(|r| r.name == "16G" && r.writers_per_disk == row.writers_per_disk);
        let (short, large) = (outcome(row, "extant", 6), outcome(large.unwrap(), "extant", 6));
        let (rate, target) = (short.mib_per_s(), 0.95 * large.mib_per_s());
        assert!(rate >= target, "{rate} MiB/s, 95 % of the row with memory enough are {target}");
        for outcome in [short, large] {
            // And a moment until whoever is woken has a processor.
            assert!(outcome.longest_pause() <= Nanos::from_millis(201), "{:?}", outcome.pauses);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || format!("{:?}", outcome(&ROWS[0], "ioless+background", 1));
    assert_eq!(once(), once());
}
