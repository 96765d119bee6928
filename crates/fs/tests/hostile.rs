//! Volumes with randomly changed bytes are opened, walked, read completely and recovered. Each
//! operation must return a value or an error, within a limited amount of work.
//!
//! A failure prints the seed; `EXTANT_SEED=<seed> EXTANT_ROUNDS=1 cargo test -p extant-fs --test
//! hostile` replays it.

mod read_all;

use extant_block::MemDevice;
use extant_fs::{Damage, OpenOptions, recover};
use extant_rt::Rt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// SplitMix64 (Steele, Lea and Flood, 2014); good enough for choosing bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn tool(name: &str, args: &[&str]) -> bool {
    let mut command = Command::new(name);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A small volume with some of everything, and a dirty journal.
fn make(dir: &Path, mke2fs: &[&str]) -> Option<Vec<u8>> {
    let root = dir.join("root");
    std::fs::create_dir_all(root.join("many")).unwrap();
    for n in 0..120 {
        std::fs::write(root.join(format!("many/file-with-a-longer-name-{n}")), vec![n as u8; n * 7]).unwrap();
    }
    std::os::unix::fs::symlink("many/file-with-a-longer-name-3", root.join("short")).unwrap();
    std::os::unix::fs::symlink("x/".repeat(60), root.join("long")).unwrap();
    let mut sparse = vec![0; 700 << 10];
    for at in (0..sparse.len()).step_by(20 << 10) {
        sparse[at..at + 1024].fill(7);
    }
    std::fs::write(root.join("sparse"), sparse).unwrap();
    let image = dir.join("image");
    let mut args = vec!["-q", "-F", "-N", "256", "-d", root.to_str().unwrap()];
    args.extend_from_slice(mke2fs);
    args.extend([image.to_str().unwrap(), "4M"]);
    if !tool("mke2fs", &args) {
        println!("skipped: mke2fs is not installed or does not know {mke2fs:?}");
        return None;
    }
    let data = dir.join("data");
    std::fs::write(&data, vec![b'j'; 2048]).unwrap();
    let script = dir.join("script");
    let commands = format!(
        "ea_set short user.x y\nea_set sparse user.comment {}\njo\njw -b 3000,3001 {}\njw -r 3001\njc\n",
        "c".repeat(200),
        data.display()
    );
    std::fs::write(&script, commands).unwrap();
    tool("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    tool("e2fsck", &["-fyD", "-E", "no_optimize_extents", image.to_str().unwrap()]);
    tool("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    Some(std::fs::read(image).unwrap())
}

#[test]
fn changed_bytes_cost_errors_only() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let rounds = number("EXTANT_ROUNDS").unwrap_or(150);
    let first = number("EXTANT_SEED").unwrap_or(1);
    let sets: [&[&str]; 5] = [
        &["-t", "ext4", "-b", "1024", "-O", "inline_data"],
        &["-t", "ext4", "-b", "1024", "-C", "8192", "-O", "bigalloc,^resize_inode"],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,meta_bg,^resize_inode,large_dir"],
        &["-t", "ext2", "-b", "2048", "-O", "uninit_bg"],
    ];
    let rt = Rt::real(Default::default());
    for (set, mke2fs) in sets.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let Some(clean) = make(dir.path(), mke2fs) else { continue };
        for seed in first..first + rounds {
            let mut random = Random(seed << 8 | set as u64);
            let mut bytes = clean.clone();
            // Most structures are in the first part, so changes there have the most effect.
            for _ in 0..1 + random.below(24) {
                let span = if random.below(4) == 0 { bytes.len() as u64 } else { 600 << 10 };
                let at = random.below(span) as usize;
                bytes[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xff,
                    2 => bytes[at] ^ (1 << random.below(8)),
                    _ => random.next() as u8,
                };
            }
            let damage = if random.below(4) == 0 { Damage::Fail } else { Damage::Report };
            let options =
                OpenOptions { damage, ignore_journal: random.below(3) == 0, ..OpenOptions::default() };
            let done = rt.block_on(async {
                read_all::read_all(bytes.clone(), options).await;
                let _ = recover(&rt, Arc::new(MemDevice::from_bytes(bytes)), options).await;
            });
            assert!(done.is_ok(), "EXTANT_SEED={seed}, mke2fs {mke2fs:?}: {done:?}");
        }
    }
}
