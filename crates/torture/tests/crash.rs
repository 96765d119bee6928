//! Crash tests run on every change: all of ACE's seq-1, every state recovered by us, every other
//! one by e2fsck, and device mutants that must be caught. `cargo xtask torture` goes further.

use extant_torture::campaign::{Campaign, Effort, Profile, Source};
use extant_torture::check::{Fsck, Tally};
use extant_torture::states::Options;
use extant_torture::{Ace, Meddling, Op, Ours, Workload};

fn campaign(profile: &str, effort: Effort) -> Option<Campaign> {
    if !Fsck::is_installed() {
        println!("skipped: e2fsck is not installed (apt-get install e2fsprogs)");
        return None;
    }
    Some(Campaign::new(Profile::named(profile).unwrap(), 1, effort).unwrap())
}

/// Every second workload of ACE: two tests, for two processors.
fn check_half_of_seq_1(first: u64) {
    let effort = Effort { pruned: true, fsck_every: 2, recut_every: 100, ..Effort::default() };
    let Some(campaign) = campaign("ext4", effort) else { return };
    let workloads = Source::Ace(Ace::new(1));
    let mut total = Tally::default();
    for index in (first..workloads.len()).step_by(2) {
        total += campaign.check(&workloads.workload(index)).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{total}");
    assert!(total.distinct > 2000 && total.fsck > 1000 && total.recuts > 10, "{total}");
}

#[test]
fn every_crash_of_the_even_workloads_of_seq_1_leaves_what_was_promised() {
    check_half_of_seq_1(0);
}

#[test]
fn every_crash_of_the_odd_workloads_of_seq_1_leaves_what_was_promised() {
    check_half_of_seq_1(1);
}

/// A sample of each of these: bitmaps and inode tables that were never written, several descriptors
/// per transaction, inline data, quotas, data in the log, block pointers, commits by age, and
/// random sequences with the newer operations.
#[test]
fn every_crash_of_a_volume_of_another_shape_leaves_what_was_promised() {
    let shapes = [
        "ext4-groups",
        "ext4-meta-bg",
        "ext4-no-flex-bg",
        "ext4-uninit-bg",
        "ext4-inline",
        "ext4-quota",
        "ext4-data-journal",
        "ext4-bigalloc",
        "ext4-bigalloc-data-journal",
        "ext3",
        "ext4-online",
        "ext4-orphan-file",
    ];
    for (shift, name) in shapes.into_iter().enumerate() {
        let effort = Effort { pruned: true, fsck_every: 10, recut_every: 300, ..Effort::default() };
        let Some(campaign) = campaign(name, effort) else { return };
        let mut total = Tally::default();
        let (seq1, random) = (Source::Ace(Ace::new(1)), Source::Random(30));
        let workloads = (shift as u64..seq1.len()).step_by(25).map(|index| seq1.workload(index));
        let first = 10 * shift as u64;
        for workload in workloads.chain((first..first + 3).map(|seed| random.workload(seed))) {
            total += campaign.check(&workload).unwrap_or_else(|failure| panic!("{name}: {failure}"));
        }
        println!("{name}: {total}");
        assert!(total.distinct > 100, "{name}: {total}");
    }
}

/// A volume with the mount option `sync` keeps all that has returned, without a sync.
#[test]
fn every_crash_of_a_synchronous_volume_leaves_what_has_returned() {
    let (seq1, random) = (Source::Ace(Ace::new(1)), Source::Random(12));
    // Without a journal, blocks are assumed to arrive whole.
    for (name, torn) in [("ext4", 1), ("ext4-unlogged", 0)] {
        let options = Options { exhaustive: 2, sampled: 1, torn, seed: 1 };
        let effort = Effort { options, pruned: true, fsck_every: 40, ends_every: 0, ..Effort::default() };
        let Some(campaign) = campaign(name, effort) else { return };
        let synchronous = Ours::new(1).synchronous(true);
        let mut total = Tally::default();
        let workloads = (3..seq1.len()).step_by(90).map(|index| seq1.workload(index));
        for Workload { name, ops } in workloads.chain((0..1).map(|seed| random.workload(seed))) {
            let ops = ops.into_iter().flat_map(|op| [op, Op::Sync]).collect();
            let workload = Workload { name, ops };
            total +=
                campaign.check_with(&synchronous, &workload).unwrap_or_else(|failure| panic!("{failure}"));
        }
        println!("{name}: {total}");
        assert!(total.distinct > 50, "{name}: {total}");
    }
}

/// On a volume with `ea_inode`, an attribute is there with its value or not at all, and no value is
/// left without an attribute.
#[test]
fn every_crash_of_values_in_inodes_of_their_own_leaves_what_was_promised() {
    let effort = Effort { fsck_every: 10, recut_every: 100, ..Effort::default() };
    let Some(campaign) = campaign("ext4-ea-inode", effort) else { return };
    let mut total = Tally::default();
    for workload in short_directed().filter(|workload| workload.name.contains("values")) {
        total += campaign.check(&workload).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{total}");
    assert!(total.distinct > 50, "{total}");
}

/// Frees, writes and logs the blocks of one cluster one at a time.
#[test]
fn every_crash_of_journalled_data_in_clusters_leaves_what_was_promised() {
    let effort = Effort { pruned: true, fsck_every: 10, recut_every: 50, ..Effort::default() };
    let Some(campaign) = campaign("ext4-bigalloc-data-journal", effort) else { return };
    let directed = (0..Source::Directed.len()).map(|index| Source::Directed.workload(index));
    let names = ["clusters", "journalled", "space", "ranges"];
    let mut total = Tally::default();
    for workload in directed.filter(|workload| names.iter().any(|name| workload.name.ends_with(name))) {
        total += campaign.check(&workload).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{total}");
    assert!(total.workloads == 4 && total.distinct > 200, "{total}");
}

/// Changes that ACE's workloads do not reach, including interrupted recovery; long workloads are
/// left to `cargo xtask torture`.
#[test]
fn every_crash_of_the_directed_workloads_leaves_what_was_promised() {
    let effort = Effort { fsck_every: 20, recut_every: 150, ..Effort::default() };
    let Some(campaign) = campaign("ext4-plain", effort) else { return };
    let mut total = Tally::default();
    for workload in short_directed() {
        total += campaign.check(&workload).unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("{total}");
    assert!(total.distinct > 300 && total.recuts > 100, "{total}");
}

fn short_directed() -> impl Iterator<Item = Workload> {
    let all = (0..Source::Directed.len()).map(|index| Source::Directed.workload(index));
    all.filter(|workload| workload.ops.len() < 100)
}

/// Indirect blocks and extent leaves that become data, more of them than fit in one revoke block.
#[test]
fn every_crash_of_revoked_blocks_that_become_data_leaves_what_was_promised() {
    let options = Options { exhaustive: 3, sampled: 4, torn: 1, seed: 0 };
    let effort = Effort { options, pruned: true, fsck_every: 20, ..Effort::default() };
    for (profile, name) in [("ext3", "map nodes"), ("ext4", "map nodes"), ("ext4", "many revokes")] {
        let Some(campaign) = campaign(profile, effort) else { return };
        let all = (0..Source::Directed.len()).map(|index| Source::Directed.workload(index));
        for workload in all.filter(|workload| workload.name.ends_with(name)) {
            let tally = campaign.check(&workload).unwrap_or_else(|failure| panic!("{failure}"));
            println!("{profile}, {name}: {tally}");
            assert!(tally.distinct > 30, "{profile}, {name}: {tally}");
        }
    }
}

/// Uses small inodes, whose attributes take a block that is freed again.
#[test]
fn broken_devices_are_caught() {
    let Some(campaign) = campaign("ext4-plain", Effort { fsck_every: 0, ..Effort::default() }) else {
        return;
    };
    let (workloads, base) = (Source::Ace(Ace::new(1)), campaign.base().clone());
    for meddling in [
        Meddling::NoFlush,
        Meddling::NoPreflush,
        Meddling::NoFua,
        Meddling::LateLog,
        Meddling::NoCommit,
        Meddling::ShortLog,
        Meddling::NoRevoke,
    ] {
        let mutant = Ours::new(1).meddled(meddling, base.block_bytes, base.journal.clone());
        let caught = (0..workloads.len())
            .any(|index| campaign.check_with(&mutant, &workloads.workload(index)).is_err());
        assert!(caught, "{meddling:?} was not caught");
    }
}
