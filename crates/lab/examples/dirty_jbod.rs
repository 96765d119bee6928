//! The ten disks of the write-back thread under every dirty controller, beside what was measured in 2011.

#[path = "../tests/dirty_jbod/disks.rs"]
mod disks;
#[path = "../tests/dirty_jbod/jbod.rs"]
mod jbod;
#[path = "../tests/dirty_jbod/world.rs"]
mod world;

use jbod::{Policy, ROWS, load};

fn main() {
    let seed = 1;
    println!(
        "MiB/s, seed {seed}; measured: Linux 3.1, and IO-less with the background threshold per device (xfs)."
    );
    println!(
        "pause and still: the longest pause, and the longest time in which some writer dirtied nothing, ms."
    );
    for row in ROWS {
        let (before, after) = row.measured;
        for policy in [Policy::Linux31, Policy::Ioless, Policy::IolessBackground, Policy::Extant] {
            let outcome = world::run(load(row, policy, 15, 45, seed), policy.control());
            let rate = outcome.mib_per_s();
            let measured = match policy {
                Policy::Linux31 => Some(before),
                Policy::IolessBackground => Some(after),
                Policy::Ioless | Policy::Extant => None,
            };
            let compared = measured.map_or(String::new(), |measured| {
                format!("measured {measured:4.0}, error {:+.1} %", (rate / measured - 1.0) * 100.0)
            });
            println!(
                "{:4} {:3} writers {:16} {rate:4.0}  {} pauses, longest {:.0} still {:.0} wall {:.0} dirty {} disk {} \
                 spread {:.2}  {compared}",
                row.name,
                row.writers,
                format!("{policy:?}"),
                outcome.pauses,
                outcome.longest_pause as f64 / 1e6,
                outcome.longest_standstill as f64 / 1e6,
                outcome.longest_wall as f64 / 1e6,
                outcome.most_dirty,
                outcome.most_on_disk.iter().max().unwrap_or(&0),
                *outcome.dirtied.iter().max().unwrap_or(&0) as f64
                    / *outcome.dirtied.iter().min().unwrap_or(&1) as f64,
            );
        }
    }
}
