//! EIO at reads, writes and flushes, and volumes without room: a sample of `cargo xtask faults`.

use extant_block::Op;
use extant_rt::Rng;
use extant_torture::campaign::{BIGALLOC_DATA_JOURNAL, DATA_JOURNAL, EA_INODE, PROFILES, UNLOGGED};
use extant_torture::check::Fsck;
use extant_torture::faults::{FailOne, Full, Scarce, Sweep, WORKLOADS};

fn have_tools() -> bool {
    let found = Fsck::is_installed();
    if !found {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
    }
    found
}

#[test]
fn a_device_that_fails_once_loses_nothing_that_was_acknowledged() {
    if !have_tools() {
        return;
    }
    let mut rng = Rng::labelled(1, "faults");
    let profiles = [
        PROFILES[0],
        PROFILES[4],
        UNLOGGED[0],
        PROFILES[5],
        UNLOGGED[2],
        PROFILES[9],
        EA_INODE,
        DATA_JOURNAL,
        BIGALLOC_DATA_JOURNAL,
    ];
    for (n, profile) in profiles.into_iter().enumerate() {
        let workloads = match profile.name == EA_INODE.name {
            true => &WORKLOADS[4..],
            false => &WORKLOADS[n % 3..][..2],
        };
        for workload in workloads {
            let sweep = Sweep::new(profile, workload, 1).unwrap();
            for op in [Op::Read, Op::Write, Op::Flush] {
                let bios = sweep.bios(op).unwrap();
                for _ in 0..bios.min(6) {
                    let fail = FailOne { op, nth: rng.below(bios), and_later: rng.below(4) == 0 };
                    let checked = sweep.check(fail);
                    assert!(
                        checked.is_ok(),
                        "{}, {}, {fail:?}: {}",
                        profile.name,
                        workload.name,
                        checked.unwrap_err()
                    );
                }
            }
        }
    }
}

#[test]
fn an_operation_without_room_changes_nothing() {
    if !have_tools() {
        return;
    }
    for profile in Full::PROFILES {
        let full = Full::new(profile).unwrap();
        let mut refused = 0;
        for left in 0..4 {
            for scarce in [Scarce::Blocks(left * 3), Scarce::Inodes(left)] {
                let checked = full.check(scarce, left);
                refused += checked
                    .unwrap_or_else(|words| panic!("{}, {scarce:?}, seed {left}: {words}", profile.name));
            }
        }
        assert!(refused > 20, "{}: {refused} operations found no room", profile.name);
    }
}
