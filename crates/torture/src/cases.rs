//! Cases that neither short nor random workloads reach, each with its own volume, disk and tasks.
//!
//! Each case is deterministic and takes a few seconds. The tests run them one by one; the search
//! for planted bugs runs all.

use crate::campaign::Profile;
use crate::check::{Fsck, Verdict};
use crate::states::Options;
use crate::tasks::Crew;
use crate::{Fallocate, Filesystem, Image, ImageDevice, Op, OurVolume, Ours, Subject};
use extant_sim::{Machine, Preemption, Sim};
use std::sync::Arc;

/// A case; returns the number of disks checked.
pub type Case = fn() -> Result<u64, String>;

/// All cases, with their names.
pub const ALL: [(&str, Case); 3] = [
    ("a log in a file", a_log_in_a_file),
    ("commits beside data", commits_beside_data),
    ("commits beside checkpoints", commits_beside_checkpoints),
];

/// Few states per cut, because many cuts are checked.
const OPTIONS: Options = Options { exhaustive: 3, sampled: 4, torn: 0, seed: 1 };

fn fsck() -> Result<Fsck, String> {
    Fsck::new().map_err(|error| format!("e2fsck: {error}"))
}

fn create(path: &str) -> Op {
    Op::Create { path: path.into(), mode: 0o644, exclusive: true }
}

fn fsync(path: &str) -> Op {
    Op::Fsync { path: path.into() }
}

fn direct(path: &str, offset: u64, len: u64, tag: u32) -> Op {
    match Op::write(path, offset, len, tag) {
        Op::Write { path, offset, len, tag, durability, .. } => {
            Op::Write { path, offset, len, tag, direct: true, durability }
        }
        op => op,
    }
}

/// New files, each synced after its creation. Each sync is a commit, and some of these come in the
/// middle of other tasks' operations.
fn syncs(count: u32) -> Vec<Op> {
    (0..count).flat_map(|n| [create(&format!("s{n}")), fsync(&format!("s{n}"))]).collect()
}

fn check(name: &str, crew: &Crew, profile: &str) -> Result<u64, String> {
    let base = Profile::named(profile).expect("a known profile").make().map_err(|error| error.to_string())?;
    let checked = crew.check(&base, 2, OPTIONS, Some(&fsck()?));
    checked.map_err(|words| format!("{name} on {profile}: {words}"))
}

/// File data on a device that does not start out zeroed, while another task commits the map. The
/// data is buffered or direct, in several runs that complete in any order, in preallocated blocks,
/// and in parts of blocks.
///
/// # Errors
/// The first broken promise.
pub fn commits_beside_data() -> Result<u64, String> {
    let mut buffered = Vec::new();
    for n in 0..4_u32 {
        let path = format!("f{n}");
        buffered.extend([create(&path), Op::write(&path, 100, 3_000, n), Op::write(&path, 9_000, 700, n)]);
        buffered.extend([Op::write(&path, 100_000, 5_000, n), fsync(&path)]);
    }
    let mut unbuffered = Vec::new();
    for n in 0..3_u32 {
        let path = format!("f{n}");
        let (mode, offset, len) = (Fallocate::Allocate, 40 << 10, 10 << 10);
        unbuffered.extend([create(&path), direct(&path, 0, 8 << 10, n), direct(&path, 20 << 10, 8 << 10, n)]);
        unbuffered.push(Op::Fallocate { path: path.clone(), mode, offset, len });
        unbuffered.extend([direct(&path, 42 << 10, 2 << 10, n), fsync(&path)]);
    }
    let crew = Crew::of(Vec::new(), vec![buffered, unbuffered, syncs(10)], 1).lingering();
    check("data", &crew, "ext4-groups")
}

/// Checkpoints on a disk that delays some of their writes for long, while another task commits
/// small transactions.
///
/// # Errors
/// The first broken promise.
pub fn commits_beside_checkpoints() -> Result<u64, String> {
    // A file's data stops going through the log once all of it is in place.
    let mut checkpoints = vec![create("f")];
    for n in 0..6 {
        let flag = |flags| Op::SetFlags { path: "f".into(), flags };
        checkpoints.extend([flag(0x4000), Op::write("f", 0, 3_000, n), flag(0)]);
    }
    let mut modes = vec![create("a")];
    modes.extend((0..30).flat_map(|n| [Op::Chmod { path: "a".into(), mode: 0o600 + n }, fsync("a")]));
    let crew = Crew::of(Vec::new(), vec![checkpoints, modes], 1).lingering();
    check("checkpoints", &crew, "ext4-groups")
}

/// Runs `work` on a volume; returns its result, and the disk as it is before the volume is closed.
fn on<T>(image: &Image, work: impl FnOnce(&mut OurVolume) -> T) -> Result<(T, Image), String> {
    let sim = Sim::new(Machine::free(1, Preemption::None), 1);
    let disk = Arc::new(ImageDevice::new(image.clone()));
    let mut volume = OurVolume::open(sim.rt(), disk.clone()).map_err(|error| error.to_string())?;
    let done = work(&mut volume);
    let image = disk.image();
    volume.close().map_err(|error| error.to_string())?;
    Ok((done, image))
}

/// Block size of the volume of [`a_log_in_a_file`].
const BLOCK: usize = 1024;
/// Magic number of the journal's own blocks.
const MAGIC: u32 = 0xc03b_3998;
const COMMIT: u32 = 2;
const REVOKE: u32 = 5;

fn words(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
    bytes.resize(BLOCK, 0);
    bytes
}

/// A file whose blocks look like transactions with this number, each of which revokes the first
/// blocks of the volume. The first `shift` blocks of the pattern are left out.
fn forged(sequence: u32, shift: usize) -> Vec<u8> {
    const RECORDS: u32 = 250;
    let revoke = words([MAGIC, REVOKE, sequence, 16 + 4 * RECORDS].into_iter().chain(1..=RECORDS));
    let commit = words([MAGIC, COMMIT, sequence]);
    [revoke, commit].into_iter().cycle().skip(shift).take(48).flatten().collect()
}

/// File data in the log that looks like a log, after the end of a later, shorter log: it must not
/// be taken for transactions.
///
/// Here an empty log starts at its first block, as with Linux before 6.1.
///
/// # Errors
/// Synced data is lost.
pub fn a_log_in_a_file() -> Result<u64, String> {
    let ext3 = Profile::named("ext3").expect("a known profile");
    let base = ext3.tuned(&["-o", "journal_data"]).make().map_err(|error| error.to_string())?;
    let (ours, fsck) = (Ours::new(1), fsck()?);
    let journal: Vec<u64> = base.journal.iter().cloned().flatten().collect();
    let block = |image: &Image, n: usize| {
        let mut bytes = vec![0; BLOCK];
        image.read(journal[n] as usize * BLOCK, &mut bytes);
        bytes
    };
    let word =
        |bytes: &[u8], n: usize| u32::from_be_bytes(bytes[4 * n..4 * n + 4].try_into().expect("four bytes"));
    let crashed = |data: &[u8]| -> Result<Image, String> {
        let write = |volume: &mut OurVolume| {
            volume.create("b", 0o644, true)?;
            volume.create("a", 0o644, true)?;
            volume.write("a", 0, data, false, crate::Durability::All)
        };
        let (written, image) = on(&base.image, write)?;
        written.map_err(|errno| errno.to_string())?;
        let mut image = ours.recover(&image)?.image;
        // Set `s_head` to the first block.
        let mut superblock = block(&image, 0);
        superblock[0x58..0x5c].fill(0);
        image.write(journal[0] as usize * BLOCK, BLOCK, Some(&superblock));
        // Log more blocks than the metadata that precedes the file's data in the log.
        let change = |volume: &mut OurVolume| {
            (0..16).try_for_each(|n| volume.mkdir(&format!("d{n}"), 0o755))?;
            volume.chmod("b", 0o600).and_then(|()| volume.sync())
        };
        let (changed, image) = on(&image, change)?;
        changed.map_err(|errno| errno.to_string())?;
        Ok(image)
    };
    // The position of the log's last block, and the number of its transaction.
    let end = |image: &Image| {
        let is_commit =
            |n: &usize| word(&block(image, *n), 0) == MAGIC && word(&block(image, *n), 1) == COMMIT;
        let last = (1..journal.len()).find(is_commit).ok_or("the log has no commit block")?;
        Ok::<_, String>((last, word(&block(image, last), 2)))
    };
    let (_, last) = end(&crashed(&forged(0, 0))?)?;
    let mut is_met = false;
    for shift in 0..2 {
        let data = forged(last + 1, shift);
        let image = crashed(&data)?;
        let (at, sequence) = end(&image)?;
        let behind = block(&image, at + 1);
        is_met |= sequence == last && word(&behind, 1) == REVOKE && word(&behind, 2) == last + 1;
        let (repaired, verdict) = fsck.repair(&image).map_err(|error| error.to_string())?;
        if let Verdict::Complains(words) = verdict {
            return Err(words);
        }
        for (by, image) in [("our recovery", &image), ("e2fsck", &repaired)] {
            let tree = ours.recover(image)?.tree;
            let found = |path: &str| tree.nodes.get(path).ok_or(format!("{by}: /{path} is missing"));
            if found("b")?.stat.mode != 0o600 || *found("a")?.data != *data {
                return Err(format!("{by}: what was synced is not there"));
            }
        }
    }
    match is_met {
        true => Ok(2),
        false => Err("no log ended before a block that revokes".into()),
    }
}
