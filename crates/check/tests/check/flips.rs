//! Single flipped bits in structures with 32-bit checksums: the repair restores the original bytes.

use crate::repairs::{applied, planned, steps};
use crate::testbed::{Random, debugfs, list, volume};
use extant_check::repair::Policy;
use std::fs;

/// Number of flips; `EXTANT_CHECK_FLIPS` asks for more.
const COUNT: u64 = 200;

/// Bytes of the volume that belong to structures of each kind.
fn structures(bytes: &[u8]) -> Vec<std::ops::Range<usize>> {
    const BLOCK: usize = 1024;
    const INODE: usize = 256;
    let is_empty = |range: &std::ops::Range<usize>| bytes[range.clone()].iter().all(|&byte| byte == 0);
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let descriptor = 2 * BLOCK;
    let table = usize::try_from(word(descriptor + 8)).unwrap() * BLOCK;
    // Files, and the root directory.
    let inodes = (1..40).map(|n| table + n * INODE..table + (n + 1) * INODE);
    // Inodes without extra fields, such as some reserved ones, have checksums of only 16 bits.
    let has_extra = |range: &std::ops::Range<usize>| bytes[range.start + 128] >= 4;
    let mut all: Vec<_> = inodes.filter(|range| !is_empty(range) && has_extra(range)).collect();
    for at in (0..bytes.len()).step_by(BLOCK) {
        let block = &bytes[at..at + BLOCK];
        let is_node = block[..2] == [0x0a, 0xf3] && block[4..6] == [84, 0];
        let tail = &block[BLOCK - 12..];
        let is_leaf = tail[..4] == [0; 4] && tail[4..8] == [12, 0, 0, 0xde];
        let is_root = block[4..7] == [12, 0, 1] && block[8] == b'.' && block[16..19] == [244, 3, 2];
        if is_node || is_leaf || is_root {
            all.push(at..at + BLOCK);
        }
    }
    all
}

#[test]
fn single_flips_come_back() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let count = std::env::var("EXTANT_CHECK_FLIPS").ok().and_then(|n| n.parse().ok()).unwrap_or(COUNT);
    let seed = std::env::var("EXTANT_CHECK_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let folder = tempfile::tempdir().unwrap();
    let options = ["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "192"];
    let image = volume(folder.path(), "flips", 4 << 10, &options);
    // Files of many extents, so that there are nodes.
    let holes: Vec<String> = (0..60).map(|n| format!("punch /large {} {}", 4 * n, 4 * n)).collect();
    debugfs(&image, &holes.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = extant_testbed::command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    let sound = fs::read(&image).unwrap();
    let structures = structures(&sound);
    let mut random = Random::new(seed);
    let mut wrong = Vec::new();
    for n in 0..count {
        let range = &structures[usize::try_from(random.below(structures.len() as u64)).unwrap()];
        let at = range.start + usize::try_from(random.below(range.len() as u64)).unwrap();
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << random.below(8);
        let plan = planned(&bytes, Policy::Safe).unwrap();
        if plan.blocks() == 0 && plan.before.is_clean() {
            // Bytes behind the entries of an index are not covered by its checksum.
            continue;
        }
        let (after, _) = match plan.is_complete() {
            true => applied(&bytes, &plan),
            false => (bytes.clone(), extant_block::MemDevice::new(0)),
        };
        if after != sound {
            let text = format!("flip {n} of byte {at:#x} of seed {seed}:");
            wrong.push(format!("{text}\n{}\n{}", steps(&plan), list(&plan.before)));
        }
    }
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}
