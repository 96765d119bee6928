//! Cases that neither short nor random workloads reach, one test each; see
//! [`extant_torture::cases`].

use extant_torture::cases;
use extant_torture::check::Fsck;

fn run(case: cases::Case) -> u64 {
    if !Fsck::is_installed() {
        println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
        return u64::MAX;
    }
    let disks = case().unwrap_or_else(|words| panic!("{words}"));
    println!("{disks} disks");
    disks
}

#[test]
fn a_file_that_looks_like_a_log_is_not_replayed() {
    run(cases::a_log_in_a_file);
}

#[test]
fn no_commit_beside_data_shows_what_was_there_before_them() {
    assert!(run(cases::commits_beside_data) > 100);
}

#[test]
fn no_commit_is_lost_beside_a_checkpoint() {
    assert!(run(cases::commits_beside_checkpoints) > 100);
}
