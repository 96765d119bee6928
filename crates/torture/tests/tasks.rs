//! Volumes with the library's defaults, which commit by age and checkpoint in the background, and
//! concurrent tasks.

use extant_torture::campaign::{Campaign, Effort, Profile};
use extant_torture::check::Fsck;
use extant_torture::states::{self, Options};
use extant_torture::tasks::Crew;
use extant_torture::{Filesystem, Op, Ours, Workload};

fn fsck() -> Option<Fsck> {
    let found = Fsck::is_installed();
    if !found {
        println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
    }
    found.then(|| Fsck::new().unwrap())
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), mode: 0o644, exclusive: true }
}

#[test]
fn after_six_seconds_without_a_sync_a_name_survives_a_power_cut() {
    if fsck().is_none() {
        return;
    }
    let base = Profile::named("ext4-online").unwrap().make().unwrap().image;
    let ops = [create("old"), Op::Sleep { millis: 6_000 }, create("young")];
    let run = Ours::new(1).online(true).run(&base, &ops).unwrap();
    let (mut cuts, mut kept) = (0, 0);
    let aged = run.marks[1].1;
    states::each(&run.log, &base, &[aged], Options::default(), None, &mut |state| {
        if state.cut >= aged {
            cuts += 1;
            let tree = Ours::new(1).recover(&state.image).unwrap().tree;
            kept += u32::from(tree.nodes.contains_key("old"));
            assert!(!tree.nodes.contains_key("young"), "{state}: a name of no age");
        }
        true
    });
    assert!(cuts > 0 && kept == cuts, "{kept} of {cuts}");
}

/// The log wraps under background commits and checkpoints, and changes are of every age.
#[test]
fn every_crash_of_a_volume_that_commits_by_age_leaves_what_was_promised() {
    if fsck().is_none() {
        return;
    }
    let effort = Effort { fsck_every: 20, recut_every: 200, pruned: true, ..Effort::default() };
    let campaign = Campaign::new(Profile::named("ext4-online").unwrap(), 1, effort).unwrap();
    let mut ops = Vec::new();
    for round in 0..4_u32 {
        let dir = format!("d{round}");
        ops.extend([Op::Mkdir { path: dir.clone(), mode: 0o755 }, Op::Sleep { millis: 2_000 }]);
        ops.extend((0..4).map(|n| create(&format!("{dir}/{n}"))));
        ops.extend([Op::write(&format!("{dir}/1"), 0, 5_000, round), Op::Sleep { millis: 6_000 }]);
        ops.push(Op::Unlink { path: format!("{dir}/2") });
        ops.push(Op::Sleep { millis: 40_000 });
    }
    let tally =
        campaign.check(&Workload { name: "ages".into(), ops }).unwrap_or_else(|failure| panic!("{failure}"));
    println!("{tally}");
    assert!(tally.distinct > 50, "{tally}");
}

/// A seed that reveals a map logged before its data is written.
const MAP_BEFORE_DATA: u64 = 8;

#[test]
fn tasks_at_once_leave_prefixes_that_belong_together() {
    let Some(fsck) = fsck() else { return };
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_ROUNDS").unwrap_or(3));
    let base = Profile::named("ext4-groups").unwrap().make().unwrap();
    let options = Options { exhaustive: 4, sampled: 6, torn: 1, seed: 1 };
    let mut disks = 0;
    let known = if number("EXTANT_SEED").is_none() { vec![MAP_BEFORE_DATA] } else { Vec::new() };
    for seed in (first..first + rounds).chain(known) {
        let tasks = 2 + (seed % 3) as usize;
        match Crew::random(tasks, 10, seed).check(&base, 1 + tasks / 2, options, Some(&fsck)) {
            Ok(looked) => disks += looked,
            Err(words) => panic!("EXTANT_SEED={seed}: {words}"),
        }
    }
    println!("{disks} disks");
    assert!(disks > 30 * rounds, "{disks} disks");
}
