//! Kills servers at random moments under load, and recovers their volumes.

use crate::bed::{Bed, can_mount, text};
use crate::testbed::{fsck, mounted, noise, run};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Result, Write};
use std::path::Path;
use std::sync::{Condvar, Mutex};

/// Changes that must survive, because a later sync has returned.
#[derive(Debug, Default)]
struct Durable {
    files: BTreeMap<String, Vec<u8>>,
    removed: BTreeSet<String>,
    /// Length of the log.
    logged: usize,
    syncs: u64,
}

struct Load<'a> {
    at: &'a Path,
    seed: u64,
    durable: Mutex<Durable>,
    more: Condvar,
}

/// All that is ever written to the log.
fn log_bytes(seed: u64) -> Vec<u8> {
    noise(seed, 1 << 20)
}

impl Load<'_> {
    fn note(&self, change: impl FnOnce(&mut Durable)) {
        let mut durable = self.durable.lock().unwrap();
        change(&mut durable);
        durable.syncs += 1;
        self.more.notify_all();
    }

    /// Files that appear whole under their names, some of which are removed again.
    fn replace_files(&self, writer: u64) -> Result<()> {
        let dir = File::open(self.at)?;
        for n in 0_u64.. {
            let name = |n: u64| format!("w{writer}-{n}");
            let bytes = noise(self.seed ^ (writer << 32 | n), 1 + (n as usize * 7919) % 60_000);
            let new = self.at.join(format!("new{writer}"));
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&new, self.at.join(name(n)))?;
            dir.sync_all()?;
            self.note(|durable| drop(durable.files.insert(name(n), bytes)));
            if n % 3 == 2 {
                // From here on the file may be missing.
                self.durable.lock().unwrap().files.remove(&name(n - 1));
                fs::remove_file(self.at.join(name(n - 1)))?;
                dir.sync_all()?;
                self.note(|durable| {
                    durable.removed.insert(name(n - 1));
                });
            }
        }
        Ok(())
    }

    fn append(&self) -> Result<()> {
        let mut file = File::create(self.at.join("log"))?;
        let mut end = 0;
        for part in log_bytes(self.seed).chunks(1000) {
            file.write_all(part)?;
            file.sync_data()?;
            end += part.len();
            self.note(|durable| durable.logged = end);
        }
        Ok(())
    }

    /// Changes that are never synced.
    fn disturb(&self) -> Result<()> {
        let bytes = noise(self.seed + 9, 300_000);
        for n in 0_u64.. {
            let dir = self.at.join(format!("dir{}", n % 4));
            fs::create_dir(&dir)?;
            fs::write(dir.join("big"), &bytes[..(n as usize * 4801) % 300_000])?;
            fs::hard_link(dir.join("big"), dir.join("link"))?;
            std::os::unix::fs::symlink("big", dir.join("soft"))?;
            let open = File::options().write(true).open(dir.join("big"))?;
            open.set_len((n * 331) % 100_000)?;
            fs::rename(dir.join("link"), dir.join("other"))?;
            if n % 4 == 3 {
                for old in 0..4 {
                    fs::remove_dir_all(self.at.join(format!("dir{old}")))?;
                }
            }
            drop(open);
        }
        Ok(())
    }

    /// Works until the server is killed, at the latest after so many syncs.
    fn run(&self, bed: &Bed, syncs: u64) {
        std::thread::scope(|scope| {
            for writer in 0..2 {
                scope.spawn(move || {
                    self.replace_files(writer).unwrap_err();
                    self.note(|durable| durable.syncs = u64::MAX / 2);
                });
            }
            // The log may become full.
            scope.spawn(|| self.append());
            scope.spawn(|| self.disturb().unwrap_err());
            let durable = self.durable.lock().unwrap();
            drop(self.more.wait_while(durable, |durable| durable.syncs < syncs).unwrap());
            bed.kill();
        });
    }

    fn check(&self, root: &Path) {
        let Durable { files, removed, logged, .. } = &*self.durable.lock().unwrap();
        for (name, bytes) in files {
            assert!(fs::read(root.join(name)).unwrap() == *bytes, "{name} of {}", self.seed);
        }
        for name in removed {
            assert!(!root.join(name).exists(), "{name} of {}", self.seed);
        }
        let log = fs::read(root.join("log")).unwrap_or_default();
        assert!(log.len() >= *logged && log[..*logged] == log_bytes(self.seed)[..*logged], "{}", self.seed);
    }
}

#[test]
fn a_server_killed_at_any_moment_loses_nothing_that_was_synced() {
    if !can_mount() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_KILLS").unwrap_or(3));
    for seed in first..first + rounds {
        // What is synced is safe wherever the rest is kept.
        let options = if seed % 2 == 0 { "writeback" } else { "" };
        let mut bed = Bed::new("24M", &[], options);
        let at = bed.at.clone();
        let load = Load { at: &at, seed, durable: Mutex::default(), more: Condvar::new() };
        let random = noise(seed, 2);
        load.run(&bed, 1 + u64::from(random[0]) % 40);
        let kernel = if seed % 3 == 2 { mounted(&bed.image, "") } else { None };
        if let Some(kernel) = kernel {
            load.check(kernel.path());
            drop(kernel);
            fsck(&bed.image);
        } else if seed % 3 == 1 {
            // It fails if there is more to do than to replay the journal and to finish deletions.
            let preened = std::process::Command::new("e2fsck").arg("-fp").arg(&bed.image).output().unwrap();
            assert!(matches!(preened.status.code(), Some(0 | 1)), "seed {seed}: {preened:?}");
            run("e2fsck", &["-fn", text(&bed.image)]);
        }
        bed.mount("");
        load.check(&bed.at);
        bed.umount();
    }
}
