//! Whole volumes with some bytes changed: opened, walked, read and recovered.
//!
//! The input is a list of changes to one of the volumes in `base/` (created by `./prepare`): a byte
//! that selects the volume and the options, then five bytes per change, a little-endian offset and
//! a value.
#![no_main]

use extant_block::MemDevice;
use extant_fs::{Damage, OpenOptions, recover};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

#[path = "../../crates/fs/tests/read_all/mod.rs"]
mod read_all;

static BASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/base");
    let mut paths: Vec<_> =
        std::fs::read_dir(dir).expect("run fuzz/prepare first").map(|e| e.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "run fuzz/prepare first");
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
});

fuzz_target!(|input: &[u8]| {
    let Some((&choice, changes)) = input.split_first() else { return };
    let mut bytes = BASES[usize::from(choice >> 2) % BASES.len()].clone();
    for change in changes.chunks_exact(5) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize % bytes.len();
        bytes[at] = change[4];
    }
    let damage = if choice & 1 == 0 { Damage::Report } else { Damage::Fail };
    let options = OpenOptions { damage, ignore_journal: choice & 2 != 0, ..OpenOptions::default() };
    let rt = extant_rt::Rt::real(Default::default());
    let done = rt.block_on(async {
        read_all::read_all(bytes.clone(), options).await;
        let _ = recover(&rt, Arc::new(MemDevice::from_bytes(bytes)), options).await;
    });
    done.expect("reading ends in values and errors");
});
