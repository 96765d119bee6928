//! The table of rates of ten disks behind one link, under every dirty controller, beside what was measured in 2011.
//!
//! `cargo run --release -p extant-lab --example jbod [LIMIT WRITERS CONTROL]`

use extant_lab::experiment::jbod::{ROWS, run};
use extant_lab::history::DIRTY_CONTROLS;
use extant_rt::Nanos;
use extant_sim::Machine;

fn main() {
    let machine = concat!(env!("CARGO_MANIFEST_DIR"), "/../../machines/jbod10-2011.toml");
    let machine = Machine::load(machine.as_ref()).expect("the model is in the repository");
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let is_wanted = |at: usize, name: &str| wanted.get(at).is_none_or(|word| word == name || word == "-");
    for row in ROWS {
        for control in &DIRTY_CONTROLS {
            let writers = row.writers_per_disk.to_string();
            if !is_wanted(0, row.name) || !is_wanted(1, &writers) || !is_wanted(2, control.name) {
                continue;
            }
            let out = run(&row.case(&machine, control.name), None).expect("the case can be run");
            let measured = match control.name {
                "linux-3.1" => Some(row.measured.0),
                "ioless+background" => Some(row.measured.1),
                _ => None,
            };
            let rate = out.mib_per_s();
            let compared = measured
                .map_or(String::new(), |m| format!("measured {m:.0}, {:+.0} %", (rate / m - 1.0) * 100.0));
            let (least, most) = (out.written_bytes.iter().min(), out.written_bytes.iter().max());
            let (few, many) = (out.dirtied_bytes.iter().min(), out.dirtied_bytes.iter().max());
            println!(
                "{:4} {:3} {:18} {rate:4.0} MiB/s {compared:22} pause {} write {} dirty {} disks {:.2} writers {:.2}",
                row.name,
                row.writers_per_disk,
                control.name,
                ms(out.longest_pause()),
                ms(out.longest_write),
                out.most_dirty_pages,
                *most.unwrap() as f64 / *least.unwrap() as f64,
                *many.unwrap() as f64 / *few.unwrap() as f64,
            );
            for (rule, pauses) in &out.pauses {
                println!(
                    "        {rule}: {} of {} in all, longest {}",
                    pauses.count,
                    ms(pauses.total),
                    ms(pauses.longest)
                );
            }
        }
    }
}

fn ms(span: Nanos) -> String {
    format!("{} ms", span.0 / 1_000_000)
}
