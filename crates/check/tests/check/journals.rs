//! Repairs of volumes whose journal is dirty: a safe repair never discards what the journal
//! contains.

use crate::repairs::{NOW, applied, planned, rt, steps};
use crate::testbed::{debugfs, list, volume};
use extant_block::MemDevice;
use extant_check::repair::{Policy, plan};
use extant_check::{CheckError, Options};
use extant_format::{Compat, Superblock};
use std::fs;
use std::sync::Arc;

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024"];

/// Offset of the `nth` block that begins like a block of the log of this kind.
fn log_block(bytes: &[u8], kind: u32, nth: usize) -> usize {
    let head = [0xc03b_3998_u32.to_be_bytes(), kind.to_be_bytes()].concat();
    let blocks = bytes.chunks(1024).enumerate().filter(|(_, block)| block.starts_with(&head));
    blocks.map(|(n, _)| n * 1024).nth(nth).unwrap()
}

#[test]
fn a_damaged_journal_is_given_up_only_if_everything_is_repaired() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = volume(folder.path(), "dirty", 8 << 10, EXT4);
    let block = folder.path().join("block");
    fs::write(&block, [7; 1024]).unwrap();
    let write = |at: u32| format!("jw -b {at} {}", block.display());
    let commands = ["jo -c".into(), write(7000), "jc".into(), "jo".into(), write(7001), "jc".into()];
    debugfs(&image, &commands.each_ref().map(String::as_str));
    let sound = fs::read(&image).unwrap();
    let replayed = planned(&sound, Policy::Safe).unwrap();
    assert!(replayed.is_complete(), "{:?} {}", replayed.obstacle, list(&replayed.after));
    let (after, _) = applied(&sound, &replayed);
    assert_eq!(after[7001 * 1024..][..1024], [7; 1024]);

    // A descriptor (kind 1) or commit (kind 2) of the second transaction.
    for kind in [1, 2] {
        let mut bytes = sound.clone();
        bytes[log_block(&sound, kind, 1) + 500] ^= 1;
        let safe = planned(&bytes, Policy::Safe).unwrap();
        assert!(!safe.is_complete() && safe.obstacle.is_some(), "{}", steps(&safe));
        let all = planned(&bytes, Policy::All).unwrap();
        assert!(all.is_complete(), "{:?} {}", all.obstacle, list(&all.after));
        assert!(
            all.steps
                .iter()
                .any(|step| step.lost.contains("journal") || step.lost.contains("could not be read")),
            "{}",
            steps(&all)
        );
        let (after, _) = applied(&bytes, &all);
        assert_eq!(after[7000 * 1024..][..1024], [7; 1024], "the first transaction is sound");
    }
}

#[test]
fn a_journal_elsewhere_keeps_what_it_holds() {
    if !extant_testbed::have(&["mke2fs", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image =
        volume(folder.path(), "elsewhere", 4 << 10, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]);
    let uuid = "ssv journal_uuid 01234567-89ab-cdef-0123-456789abcdef";
    debugfs(&image, &["feature has_journal", uuid, "sif /file links_count 5"]);
    let clean = fs::read(&image).unwrap();
    let (after, _) = applied(&clean, &planned(&clean, Policy::All).unwrap());
    let sb = Superblock::parse(&after[1024..]).unwrap();
    assert!(sb.compat().contains(Compat::HAS_JOURNAL));
    assert_eq!(sb.raw().s_journal_uuid[..2], [0x01, 0x23]);

    debugfs(&image, &["feature needs_recovery"]);
    let device = Arc::new(MemDevice::from_bytes(fs::read(&image).unwrap()));
    let options = Options { now: Some(NOW), ..Options::default() };
    let refused = rt().block_on(plan(rt(), device, options, Policy::All)).unwrap().unwrap_err();
    assert!(matches!(refused, CheckError::Unsupported(_)), "{refused}");
}
