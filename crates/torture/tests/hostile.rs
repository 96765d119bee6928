//! Writing to damaged volumes: a sample of `cargo xtask hostile`, and the damaged volumes in
//! `EXTANT_CORPUS`.
//!
//! A failure prints the seed; `EXTANT_SEED=<seed> EXTANT_ROUNDS=1 cargo test -p extant-torture
//! --test hostile` replays it.

use extant_torture::Image;
use extant_torture::campaign::Profile;
use extant_torture::check::Fsck;
use extant_torture::hostile::{End, PROFILES, Victim, check, keeps};
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

/// A volume of this kind with small and large directories, files, links, and a directory with a
/// hash tree.
fn filled(profile: &Profile) -> Option<Image> {
    let folder = tempfile::tempdir().unwrap();
    let (root, image) = (folder.path().join("root"), folder.path().join("image"));
    for dir in ["many", "a/b/c", "x/y", "empty"] {
        std::fs::create_dir_all(root.join(dir)).unwrap();
    }
    for n in 0..60 {
        std::fs::write(root.join(format!("many/name-{n}-of-some-length")), vec![n as u8 + 1; n * 40])
            .unwrap();
    }
    for (n, path) in ["a/f", "a/b/f", "a/b/c/f", "a/b/c/g", "x/f", "x/y/f", "x/y/g", "f"].iter().enumerate() {
        std::fs::write(root.join(path), vec![n as u8 + 100; 900 * (n + 1)]).unwrap();
    }
    std::fs::hard_link(root.join("a/f"), root.join("x/linked")).unwrap();
    std::os::unix::fs::symlink("../f", root.join("a/short")).unwrap();
    std::os::unix::fs::symlink("y/".repeat(50), root.join("a/long")).unwrap();
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-d", root.to_str().unwrap()]).args(profile.mke2fs);
    command.arg(&image).arg(format!("{}k", profile.kib)).stdin(Stdio::null());
    let made = command.output().ok()?;
    assert!(made.status.success(), "{}: {}", profile.name, String::from_utf8_lossy(&made.stderr));
    Command::new("e2fsck").args(["-fyD"]).arg(&image).stdin(Stdio::null()).output().ok()?;
    let mut bytes = std::fs::read(&image).unwrap();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    Some(Image::new(bytes.into()))
}

#[test]
fn what_no_operation_names_is_kept_on_damaged_volumes() {
    if fsck().is_none() {
        return;
    }
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_ROUNDS").unwrap_or(60));
    let mut wrong = Vec::new();
    for profile in PROFILES {
        let image = filled(&profile).unwrap();
        let mut opened = 0;
        for seed in first..first + rounds {
            match keeps(&image, seed) {
                Ok(is_opened) => opened += u32::from(is_opened),
                Err(words) => wrong.push(format!("EXTANT_SEED={seed}, {}: {words}", profile.name)),
            }
        }
        println!("{}: {opened} of {rounds} were opened for writing", profile.name);
    }
    assert!(wrong.is_empty(), "{} seeds:\n{}", wrong.len(), wrong[..wrong.len().min(10)].join("\n"));
}

/// The image in a folder of the corpus, unless it is too large for a quick test.
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
