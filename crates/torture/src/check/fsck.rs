//! e2fsck as an oracle.

use super::scratch::Scratch;
use crate::Image;
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs e2fsck on images in a file, best one in memory.
#[derive(Debug)]
pub struct Fsck {
    scratch: RefCell<Scratch>,
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
        Ok(Self { scratch: RefCell::new(Scratch::new()?) })
    }

    /// Whether e2fsck can be run at all.
    pub fn is_installed() -> bool {
        let found = command().arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    }

    /// `e2fsck -fn`, which must say nothing but its five passes and the summary: exit code 0 hides a lot.
    pub fn check(&self, image: &Image) -> io::Result<Verdict> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        check(scratch.path())
    }

    /// `e2fsck -fy`, then `-fn`, which must be silent; returns the repaired disk and whether the first run mended anything
    /// that replaying the journal and finishing orphans does not explain.
    pub fn repair(&self, image: &Image) -> io::Result<(Image, Verdict)> {
        self.repair_with(image, is_expected)
    }

    fn repair_with(&self, image: &Image, expected: fn(&str) -> bool) -> io::Result<(Image, Verdict)> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        let output = command().arg("-fy").arg(scratch.path()).stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let unexpected: Vec<&str> = text.lines().filter(|line| !expected(line)).collect();
        let verdict = match unexpected.is_empty() {
            true => match check(scratch.path())? {
                Verdict::Clean => Verdict::Clean,
                Verdict::Complains(words) => {
                    let errors = String::from_utf8_lossy(&output.stderr);
                    let gave_up = |line: &&str| line.contains("Cannot ") || line.contains("while ");
                    let reasons: Vec<&str> = text.lines().chain(errors.lines()).filter(gave_up).collect();
                    Verdict::Complains(format!("{words}\n  after e2fsck -fy: {}", reasons.join("\n  ")))
                }
            },
            false => Verdict::Complains(format!("e2fsck -fy: {}", unexpected.join("\n  "))),
        };
        Ok((scratch.get(image)?, verdict))
    }

    /// As [`Fsck::repair`], of a volume without a journal: complains of any repair that takes something away. A crash may leave
    /// space that nothing uses, wrong counts, and inodes without a name.
    pub fn repair_unlogged(&self, image: &Image) -> io::Result<(Image, Verdict)> {
        self.repair_with(image, is_harmless)
    }

    /// The disk after `e2fsck -fy`, whatever it mends, and after a second look by `-fn`, which must be silent.
    ///
    /// # Errors
    /// What the second look finds, and failures to run it.
    pub fn mend(&self, image: &Image) -> io::Result<Image> {
        match self.repair_with(image, |_| true)? {
            (mended, Verdict::Clean) => Ok(mended),
            (_, Verdict::Complains(words)) => Err(io::Error::other(words)),
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

/// Answers that stand on a line of their own; the question before them says what they are about.
fn is_answer(line: &str) -> bool {
    matches!(line.trim(), "Clear? yes" | "Fix? yes" | "Connect to /lost+found? yes")
}

/// A line of a run that replays the journal, finishes orphans and brings sums up to date.
fn is_expected(line: &str) -> bool {
    const WORDS: [&str; 9] = [
        // Set for as long as a volume with an orphan file is mounted.
        "orphan_present is set but orphan file is clean",
        "recovering journal",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        "FILE SYSTEM WAS MODIFIED",
        "Optimizing",
        "Setting free",
        // The superblock's own sums are not kept while a volume is in use.
        "Free blocks count wrong (",
        "Free inodes count wrong (",
    ];
    is_routine(line) || is_answer(line) || WORDS.iter().any(|word| line.contains(word))
}

/// A line of a run that gives up nothing but what was never synced; that this is so, the model sees.
fn is_harmless(line: &str) -> bool {
    const WORDS: [&str; 20] = [
        // A directory that moved has both names for a moment.
        "is a link to directory",
        "'..' in",
        "i_blocks is",
        // Blocks of the file itself that came before the size that shows them.
        "i_size is",
        "Unattached inode",
        "Unattached zero-length inode",
        "Unconnected directory inode",
        "ref count is",
        "bitmap differences:",
        "count wrong for group",
        "does not match checksum",
        "Padding at end of",
        "has zero dtime",
        "has deleted/unused inode",
        // A directory was split; half of its entries are in both blocks.
        "HTREE directory inode",
        "Duplicate entry",
        "FILE SYSTEM WAS MODIFIED",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "Optimizing",
    ];
    is_routine(line) || is_answer(line) || WORDS.iter().any(|word| line.contains(word))
}
