//! Tests elevators: the service that streams get, and what elevators must never do.

mod closed_loop;
mod disk;
mod fairness;
mod five_hundred;
mod idling;
mod random;
mod rules;
mod schedules;

use extant_history::{self as history, ELEVATORS};
use extant_iosched::elevator::Elevator;

fn make(name: &str) -> Box<dyn Elevator> {
    history::elevator(name, &history::BlockHost::default()).expect("the name is known")
}

fn names() -> impl Iterator<Item = &'static str> {
    ELEVATORS.iter().map(|policy| policy.name)
}

/// CFQ with every idle rule.
const CFQS: [&str; 4] = ["cfq", "cfq-limited", "cfq-earned", "extant"];
