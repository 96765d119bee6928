//! Writing to damaged volumes: a sample of `cargo xtask hostile`, and the damaged volumes that `EXTANT_CORPUS` names.
//!
//! A failure prints the seed; `EXTANT_SEED=<seed> EXTANT_ROUNDS=1 cargo test -p extant-torture --test hostile` replays it.

use extant_torture::Image;
use extant_torture::check::Fsck;
use extant_torture::hostile::{End, PROFILES, Victim, check};
use std::path::Path;
use std::process::{Command, Stdio};

fn fsck() -> Option<Fsck> {
    let found = Fsck::is_installed();
    if !found {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
    }
    found.then(|| Fsck::new().unwrap())
}

#[test]
fn damaged_volumes_cost_errors_only() {
    let Some(fsck) = fsck() else { return };
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_ROUNDS").unwrap_or(12));
    for profile in PROFILES {
        let victim = Victim::new(profile).unwrap();
        let mut written = 0;
        for seed in first..first + rounds {
            match victim.check(seed, Some(&fsck)) {
                Ok(end) => written += u32::from(end == End::Written),
                Err(words) => panic!("EXTANT_SEED={seed}, {}: {words}", profile.name),
            }
        }
        println!("{}: {written} of {rounds} were opened for writing", profile.name);
    }
}

/// The image in a folder of the corpus, if it is of a size that is written to in passing.
fn image(folder: &Path) -> Option<Vec<u8>> {
    let tool = |tool: &str, name: &str| {
        let path = folder.join(name);
        let output = Command::new(tool).arg("-dc").arg(path).stderr(Stdio::null()).output().ok()?;
        output.status.success().then_some(output.stdout)
    };
    let packed = tool("gzip", "image.gz").or_else(|| tool("bzip2", "image.bz2"));
    let mut bytes = packed.or_else(|| std::fs::read(folder.join("image")).ok())?;
    if bytes.len() > 64 << 20 {
        return None;
    }
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    Some(bytes)
}

#[test]
fn the_corpus_is_written_to_without_more_damage() {
    let Some(corpus) = std::env::var_os("EXTANT_CORPUS") else {
        println!("skipped: EXTANT_CORPUS names no folder of damaged volumes");
        return;
    };
    let Some(fsck) = fsck() else { return };
    let mut folders: Vec<_> = std::fs::read_dir(corpus).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    let (mut written, mut wrong) = (0, Vec::new());
    for folder in folders {
        let Some(bytes) = image(&folder) else { continue };
        let image = Image::new(bytes.into());
        for seed in 1..4 {
            match check(&image, seed, Some(&fsck)) {
                Ok(end) => written += u32::from(end == End::Written),
                Err(words) => wrong.push(format!("{}, seed {seed}: {words}", folder.display())),
            }
        }
    }
    println!("{written} runs wrote to a volume of the corpus");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
