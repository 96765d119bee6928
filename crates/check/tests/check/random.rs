//! Random damage: no crash, no hang, and e2fsck agrees whether something is wrong.

use crate::testbed::{Random, complains, e2fsck, examine, examine_with, is_known_to_e2fsck, list, volume};
use extant_check::Options;
use std::fs;

/// Mutations of each volume; `EXTANT_CHECK_MUTATIONS` asks for more.
const COUNT: u64 = 20;

const VOLUMES: [(&str, u32, &[&str]); 4] = [
    ("ext4", 1 << 10, &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^resize_inode", "-N", "192"]),
    (
        "plain",
        1 << 10,
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal,^resize_inode", "-N", "192"],
    ),
    ("ext2", 1 << 10, &["-t", "ext2", "-b", "1024", "-N", "192"]),
    (
        "inline",
        1 << 10,
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data,^has_journal", "-N", "192"],
    ),
];

/// Changes a few bytes or bits of blocks in use.
fn mutate(bytes: &mut [u8], blocks: &[usize], random: &mut Random) {
    for _ in 0..1 + random.below(2) {
        let block = blocks[random.below(blocks.len() as u64) as usize];
        let at = block * 1024 + random.below(1024) as usize;
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let at = at / 4 * 4;
                bytes[at..at + 4].copy_from_slice(&(random.below(2000) as u32).to_le_bytes());
            }
            _ => bytes[at] = if random.below(2) == 0 { 0 } else { 0xff },
        }
    }
}

#[test]
fn e2fsck_agrees_about_random_damage() {
    if !extant_testbed::have(&["mke2fs", "e2fsck"]) {
        return;
    }
    let count = std::env::var("EXTANT_CHECK_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(COUNT);
    let first = std::env::var("EXTANT_CHECK_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (name, kib, options) in VOLUMES {
        let image = volume(folder.path(), name, kib, options);
        let _ = extant_testbed::command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
        let base = fs::read(&image).unwrap();
        // Zeros and contents of files are of no interest.
        let is_metadata =
            |block: &&[u8]| block.iter().any(|&b| b != 0) && !block.iter().all(|&b| b == block[0]);
        let blocks: Vec<usize> =
            base.chunks(1024).enumerate().filter(|(_, block)| is_metadata(block)).map(|(n, _)| n).collect();
        for seed in first..first + count {
            let mut bytes = base.clone();
            mutate(&mut bytes, &blocks, &mut Random::new(seed));
            if bytes == base {
                continue;
            }
            fs::write(&image, &bytes).unwrap();
            let ours = examine(bytes.clone());
            // The same list with any number of tasks and of reads in flight.
            let (tasks, depth) = (1 + seed as usize % 7, 1 + seed as usize % 5);
            let again = examine_with(bytes, Options { tasks, depth, ..Options::default() });
            let lists = [&ours, &again].map(|ours| ours.as_ref().map(list).map_err(ToString::to_string));
            assert_eq!(lists[0], lists[1], "{name}, seed {seed}: {tasks} tasks, {depth} reads");
            let theirs = e2fsck(&image);
            let (known, shown) = match &ours {
                Ok(checked) => (checked.counts.keys().any(|&code| is_known_to_e2fsck(code)), list(checked)),
                Err(error) => (true, error.to_string()),
            };
            // An attribute without a value may have any offset, but not for e2fsck.
            if theirs.1.contains("INLINE_DATA_FL flag but extended attribute not found") {
                continue;
            }
            if known != complains(&theirs) {
                let (exit, said) = theirs;
                wrong.push(format!("{name}, seed {seed}: e2fsck ends with {exit}: {said}\nours:\n{shown}\n"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} disagreements\n{}", wrong.len(), wrong.join("\n"));
}
