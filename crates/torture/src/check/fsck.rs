//! e2fsck as an oracle.

use crate::Image;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs e2fsck on images in a folder, best one in memory.
#[derive(Debug)]
pub struct Fsck {
    folder: tempfile::TempDir,
}

/// The judgement of e2fsck on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to say.
    Clean,
    /// Its words.
    Complains(String),
}

impl Fsck {
    /// Images go to `/dev/shm` where there is one, else to the usual place for temporary files.
    pub fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        Ok(Self { folder })
    }

    /// Whether e2fsck can be run at all.
    pub fn is_installed() -> bool {
        let found = command().arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    }

    fn path(&self, image: &Image) -> io::Result<PathBuf> {
        let path = self.folder.path().join(format!("{:032x}.img", image.hash()));
        std::fs::write(&path, image.to_vec())?;
        Ok(path)
    }

    /// `e2fsck -fn`, which must say nothing but its five passes and the summary: exit code 0 hides a lot.
    pub fn check(&self, image: &Image) -> io::Result<Verdict> {
        let path = self.path(image)?;
        let verdict = check(&path);
        std::fs::remove_file(&path)?;
        verdict
    }

    /// `e2fsck -fy` on a copy, then `-fn`, which must be silent; returns the repaired disk and whether the first pass
    /// mended anything that replaying the journal and finishing orphans does not explain.
    pub fn repair(&self, image: &Image) -> io::Result<(Vec<u8>, Verdict)> {
        let path = self.path(image)?;
        let output = command().arg("-fy").arg(&path).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let unexpected: Vec<&str> = text.lines().filter(|line| !is_expected(line)).collect();
        let verdict = match unexpected.is_empty() {
            true => check(&path)?,
            false => Verdict::Complains(format!("e2fsck -fy: {}", unexpected.join("\n  "))),
        };
        let bytes = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        Ok((bytes, verdict))
    }

    /// The disk after `e2fsck -fy`, whatever it mends, and after a second look by `-fn`, which must be silent.
    ///
    /// # Errors
    /// e2fsck cannot be run, or leaves errors.
    pub fn mend(&self, image: &Image) -> io::Result<Image> {
        let path = self.path(image)?;
        let output = command().arg("-fy").arg(&path).stdin(Stdio::null()).output()?;
        let verdict = check(&path)?;
        let bytes = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        match (output.status.code(), verdict) {
            (Some(0 | 1), Verdict::Clean) => Ok(Image::new(bytes.into())),
            (_, verdict) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                Err(io::Error::other(format!("{}: {said}\n{verdict:?}", output.status)))
            }
        }
    }
}

fn command() -> Command {
    let mut command = Command::new("e2fsck");
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    command
}

fn check(path: &Path) -> io::Result<Verdict> {
    let output = command().arg("-fn").arg(path).stdin(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said: Vec<&str> = text.lines().filter(|line| !is_routine(line)).collect();
    Ok(match said.is_empty() && output.status.success() {
        true => Verdict::Clean,
        false => Verdict::Complains(format!("e2fsck -fn ({}): {}", output.status, said.join("\n  "))),
    })
}

/// A line that says nothing is wrong.
fn is_routine(line: &str) -> bool {
    line.is_empty()
        || line.starts_with("Pass ")
        || (line.contains(" files (") && line.contains("non-contiguous"))
        // An extent tree that could be flatter is no damage; the kernel leaves them too.
        || line.contains("could be shorter")
        || line.contains("could be narrower")
}

/// A line of a run that replays the journal, finishes orphans and brings sums up to date.
fn is_expected(line: &str) -> bool {
    const WORDS: [&str; 11] = [
        // Set for as long as a volume with an orphan file is mounted.
        "orphan_present is set but orphan file is clean",
        "Clear? yes",
        "recovering journal",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        "FILE SYSTEM WAS MODIFIED",
        "Optimizing",
        "Setting free",
        // The superblock's own sums are not kept while a volume is in use.
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "Fix? yes",
    ];
    is_routine(line) || WORDS.iter().any(|word| line.contains(word))
}
