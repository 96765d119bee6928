//! The elevators, judged by what streams get, and by what they may never do.

mod closed_loop;
mod disk;
mod fairness;
mod five_hundred;
mod idling;
mod random;
mod rules;
mod schedules;

use extant_block::elevator::{Elevator, by_name};

fn make(name: &str) -> Box<dyn Elevator> {
    by_name(name).expect("the name is known")
}

/// CFQ with every idle rule.
const CFQS: [&str; 4] = ["cfq", "cfq-limited", "cfq-earned", "extant"];
