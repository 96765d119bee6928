//! The elevators, judged by what streams get, and by what they may never do.

mod closed_loop;
mod disk;
mod fairness;
mod five_hundred;
mod idling;
mod random;
mod schedules;

use extant_block::elevator::cfq::idle_rule::{Earned, Limited, Linux};
use extant_block::elevator::{Cfq, Deadline, Elevator, Fifo};

type Make = fn() -> Box<dyn Elevator>;

/// Every elevator, and CFQ with every idle rule.
const ALL: [(&str, Make); 6] = [
    ("none", || Box::new(Fifo::new())),
    ("mq-deadline", || Box::new(Deadline::new())),
    ("cfq linux-3.10", || Box::new(Cfq::new(Linux))),
    ("cfq limited", || Box::new(Cfq::new(Limited))),
    ("cfq earned", || Box::new(Cfq::new(Earned))),
    ("cfq extant", || Box::new(Cfq::extant())),
];

fn make(name: &str) -> Box<dyn Elevator> {
    ALL.iter().find(|(n, _)| *n == name).map(|(_, make)| make()).expect("the name is in the table")
}

/// CFQ with every idle rule.
fn cfqs() -> impl Iterator<Item = (&'static str, Make)> {
    ALL.into_iter().filter(|(name, _)| name.starts_with("cfq"))
}
