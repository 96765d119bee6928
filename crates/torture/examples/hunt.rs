//! Searches for a bug in the file system it is built with, and prints the workload and the promise
//! that reveal it; `cargo xtask torture --mutants` runs it for each mutant. Exit status 0 means
//! found, 1 that every workload passed, 2 that the search cannot run.
//!
//! Arguments: `journal` or `no-journal`, for the kind of volumes; `pruned`, to reorder only what
//! the journal does not protect, or `whole`. Or only `cases`, to run those of
//! [`extant_torture::cases`].

use extant_torture::campaign::{Campaign, Effort, Profile, Source};
use extant_torture::cases;
use extant_torture::check::Tally;
use extant_torture::states::Options;
use extant_torture::{Ace, Workload};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    std::panic::set_hook(Box::new(|_| {}));
    let effort = Effort { pruned: given("pruned"), fsck_every: 4, recut_every: 16, ..Effort::default() };
    let sparse = Effort { fsck_every: 40, recut_every: 400, ..effort };
    if given("cases") {
        return look_in_cases();
    }
    let plan: Vec<(&str, Effort, Vec<Workload>)> = match given("no-journal") {
        true => {
            let whole = Options { torn: 0, ..Options::default() };
            // Here e2fsck is the recovery, so it sees every state.
            let effort = Effort { options: whole, fsck_every: 1, ..effort };
            let kinds = ["ext2", "ext4-unlogged", "ext4-unlogged-groups"];
            kinds.map(|kind| (kind, effort, short_ones())).into()
        }
        false => vec![
            ("ext4", effort, short_ones()),
            ("ext4", sparse, long_ones()),
            // Attributes in separate blocks, and no checksum to reveal the bug.
            ("ext4-plain", effort, short_ones()),
            ("ext4-plain", sparse, long_ones()),
            ("ext3", sparse, short_ones()),
            ("ext4-groups", sparse, short_ones()),
            ("ext4-orphan-file", sparse, short_ones()),
            ("ext4-data-journal", sparse, short_ones()),
            ("ext4-bigalloc-data-journal", sparse, short_ones()),
            ("ext4-online", sparse, short_ones()),
            ("ext4", sparse, seq_1()),
        ],
    };
    let mut total = Tally::default();
    for (profile, effort, workloads) in plan {
        let profile = Profile::named(profile).expect("a known profile");
        let campaign = match Campaign::new(profile, 1, effort) {
            Ok(campaign) => campaign,
            Err(error) => {
                println!("cannot look: {error}");
                return ExitCode::from(2);
            }
        };
        for workload in workloads {
            let complaint = match catch_unwind(AssertUnwindSafe(|| campaign.check(&workload))) {
                Ok(Ok(tally)) => {
                    total += tally;
                    continue;
                }
                Ok(Err(failure)) => failure.complaint.clone(),
                Err(panic) => format!("an assertion: {}", message(&*panic)),
            };
            let words: Vec<&str> = complaint.split_whitespace().collect();
            let (name, kind) = (&workload.name, profile.name);
            println!("{name} on {kind}, after {} states: {:.160}", total.states, words.join(" "));
            return ExitCode::SUCCESS;
        }
    }
    println!("nothing in {total}");
    ExitCode::FAILURE
}

/// Runs the cases designed for timing.
fn look_in_cases() -> ExitCode {
    for (name, case) in cases::ALL {
        let complaint = match catch_unwind(case) {
            Ok(Ok(_)) => continue,
            Ok(Err(words)) => words,
            Err(panic) => format!("an assertion: {}", message(&*panic)),
        };
        let words: Vec<&str> = complaint.split_whitespace().collect();
        println!("{name}: {:.160}", words.join(" "));
        return ExitCode::SUCCESS;
    }
    println!("nothing in {} cases", cases::ALL.len());
    ExitCode::FAILURE
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}

fn directed() -> impl Iterator<Item = Workload> {
    (0..Source::Directed.len()).map(|index| Source::Directed.workload(index))
}

/// Every directed workload except the long one.
fn short_ones() -> Vec<Workload> {
    directed().filter(|workload| workload.ops.len() < 100).collect()
}

fn long_ones() -> Vec<Workload> {
    directed().filter(|workload| workload.ops.len() >= 100).collect()
}

/// Some of ACE's workloads.
fn seq_1() -> Vec<Workload> {
    let ace = Ace::new(1);
    (0..ace.len()).step_by(3).map(|index| ace.workload(index)).collect()
}
