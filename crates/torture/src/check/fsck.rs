//! e2fsck as an oracle.

use super::scratch::Scratch;
use crate::Image;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs e2fsck on images in a file, preferably in memory.
#[derive(Debug)]
pub struct Fsck {
    scratch: RefCell<Scratch>,
    program: PathBuf,
}

/// e2fsck's verdict on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing to report.
    Clean,
    /// What it reported.
    Complains(String),
}

impl Fsck {
    /// Images go to `/dev/shm` if it exists, otherwise to the usual temporary directory.
    ///
    /// # Errors
    /// e2fsck is not installed, or the directory cannot be created.
    pub fn new() -> io::Result<Self> {
        let program = program().ok_or_else(|| io::Error::other("e2fsck is not installed"))?;
        Ok(Self { scratch: RefCell::new(Scratch::new()?), program })
    }

    /// Whether e2fsck is available.
    pub fn is_installed() -> bool {
        program().is_some()
    }

    /// Runs `e2fsck -fn`, which must print nothing except its five passes and the summary: exit
    /// code 0 hides a lot.
    ///
    /// # Errors
    /// The image cannot be written, or e2fsck not be run.
    pub fn check(&self, image: &Image) -> io::Result<Verdict> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        self.check_file(scratch.path())
    }

    /// Runs `e2fsck -fy`. Returns the repaired disk, and a complaint if e2fsck gave up or repaired
    /// anything beyond replaying the journal and finishing orphans.
    ///
    /// # Errors
    /// As [`Fsck::check`], or the repaired image cannot be read.
    pub fn repair(&self, image: &Image) -> io::Result<(Image, Verdict)> {
        self.repair_with(image, is_expected, false)
    }

    /// `again` checks the result with a second run, which also happens if the first gave up.
    fn repair_with(
        &self,
        image: &Image,
        expected: fn(&str) -> bool,
        again: bool,
    ) -> io::Result<(Image, Verdict)> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        let output = self.command("-fy", scratch.path()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let is_own = |line: &str| is_of_dropped_attributes(line, &text);
        let unexpected: Vec<&str> = text.lines().filter(|line| !expected(line) && !is_own(line)).collect();
        // 1 means that errors were corrected.
        let is_done = matches!(output.status.code(), Some(0 | 1));
        let verdict = if !unexpected.is_empty() {
            Verdict::Complains(format!("e2fsck -fy: {}", unexpected.join("\n  ")))
        } else if is_done && !again {
            Verdict::Clean
        } else {
            match self.check_file(scratch.path())? {
                Verdict::Clean => Verdict::Clean,
                Verdict::Complains(words) => {
                    let errors = String::from_utf8_lossy(&output.stderr);
                    let gave_up = |line: &&str| line.contains("Cannot ") || line.contains("while ");
                    let reasons: Vec<&str> = text.lines().chain(errors.lines()).filter(gave_up).collect();
                    Verdict::Complains(format!("{words}\n  after e2fsck -fy: {}", reasons.join("\n  ")))
                }
            }
        };
        Ok((scratch.get(image)?, verdict))
    }

    /// Like [`Fsck::repair`], for a volume without a journal: complains about any repair that
    /// removes something, and checks the result with `-fn`.
    ///
    /// A crash may leave unused space, wrong counts, and inodes without a name.
    ///
    /// # Errors
    /// As [`Fsck::repair`].
    pub fn repair_unlogged(&self, image: &Image) -> io::Result<(Image, Verdict)> {
        self.repair_with(image, is_harmless, true)
    }

    /// Repairs the disk with `e2fsck -fy`, accepting any repair; a final `-fn` must be silent. Some
    /// damage needs a second repair, because the first one frees blocks after it has checked the
    /// bitmaps.
    ///
    /// # Errors
    /// Errors found by the final check, or a failure to run e2fsck.
    pub fn mend(&self, image: &Image) -> io::Result<Image> {
        let (once, verdict) = self.repair_with(image, |_| true, true)?;
        if verdict == Verdict::Clean {
            return Ok(once);
        }
        match self.repair_with(&once, |_| true, true)? {
            (mended, Verdict::Clean) => Ok(mended),
            (_, Verdict::Complains(words)) => Err(io::Error::other(words)),
        }
    }

    /// Whether the output results from a repair that e2fsck 1.47.0 gets wrong, even on volumes
    /// written by the kernel.
    ///
    /// When truncating an orphan on a volume with `bigalloc`, it frees the clusters but leaves the
    /// blocks mapped, and then takes them for the file's. When deleting an orphan, it keeps
    /// attribute values in separate inodes, and then finds these without a name.
    pub(crate) fn is_wrong_repair(words: &str, image: &Image) -> bool {
        const INCOMPAT_AT: usize = 1024 + 0x60;
        const RO_COMPAT_AT: usize = 1024 + 0x64;
        const EA_INODE: u32 = 0x400;
        const BIGALLOC: u32 = 0x200;
        const OF_CLUSTERS: [&str; 4] =
            ["i_size is", "i_blocks is", "Block bitmap differences:", "Free blocks count wrong for group"];
        const OF_VALUES: [&str; 2] = ["Unattached inode ", " ref count is 2, should be 1."];
        let has = |at: usize, feature: u32| {
            let mut features = [0; 4];
            image.read(at, &mut features);
            u32::from_le_bytes(features) & feature != 0
        };
        let all = |known: &[&str]| words.lines().all(|line| known.iter().any(|word| line.contains(word)));
        (has(RO_COMPAT_AT, BIGALLOC) && words.contains("i_blocks is") && all(&OF_CLUSTERS))
            || (has(INCOMPAT_AT, EA_INODE) && words.contains(OF_VALUES[0]) && all(&OF_VALUES))
    }

    fn command(&self, options: &str, file: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(options).arg(file).env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    fn check_file(&self, file: &Path) -> io::Result<Verdict> {
        let output = self.command("-fn", file).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let said: Vec<&str> = text.lines().filter(|line| !is_routine(line)).collect();
        Ok(match said.is_empty() && output.status.success() {
            true => Verdict::Clean,
            false => Verdict::Complains(format!("e2fsck -fn ({}): {}", output.status, said.join("\n  "))),
        })
    }
}

/// Path of e2fsck, looked up once: a program given by its path is started without copying this
/// process's memory.
fn program() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders.map(|folder| Path::new(folder).join("e2fsck")).find(|program| program.is_file())
}

/// A line that reports nothing wrong.
fn is_routine(line: &str) -> bool {
    line.is_empty()
        || line.starts_with("Pass ")
        || (line.contains(" files (") && line.contains("non-contiguous"))
        // An extent tree that could be flatter is not damage; the kernel leaves them too.
        || line.contains("could be shorter")
        || line.contains("could be narrower")
}

/// Answers on a line of their own; the preceding question says what they refer to.
fn is_answer(line: &str) -> bool {
    matches!(line.trim(), "Clear? yes" | "Fix? yes" | "FIXED." | "Connect to /lost+found? yes")
        || (line.starts_with("Rename to ") && line.ends_with("? yes"))
}

/// A line of a run that replays the journal, finishes orphans and updates totals.
fn is_expected(line: &str) -> bool {
    const WORDS: [&str; 11] = [
        // Half of a commit block is present, followed by half of an older log block: the
        // transaction was not acknowledged.
        "was corrupt, replay was aborted",
        // Set while a volume with an orphan file is mounted.
        "orphan_present is set but orphan file is clean",
        // Printed after e2fsck 1.47 has processed the orphans in this block, even on a volume left
        // by the kernel.
        "block 0 is not clean.",
        "recovering journal",
        "Clearing orphaned inode",
        "Truncating orphaned inode",
        "FILE SYSTEM WAS MODIFIED",
        "Optimizing",
        "Setting free",
        // The superblock's own totals are not maintained while a volume is in use.
        "Free blocks count wrong (",
        "Free inodes count wrong (",
    ];
    is_routine(line) || is_answer(line) || WORDS.iter().any(|word| line.contains(word))
}

/// The line that e2fsck 1.47.0 prints for an inode whose attribute block it has just dropped
/// itself.
///
/// It also does so for inodes on the orphan list that only need truncation, and still counts the
/// block. Our recovery keeps both, and `-fn` checks that.
fn is_of_dropped_attributes(line: &str, text: &str) -> bool {
    let counts = || {
        let (inode, counts) = line.strip_prefix("Inode ")?.split_once(", i_blocks is ")?;
        let (is, should) = counts.strip_suffix(".  Fix? yes")?.split_once(", should be ")?;
        Some((inode, is.parse::<u64>().ok()?, should.parse::<u64>().ok()?))
    };
    counts().is_some_and(|(inode, is, should)| {
        matches!(is.checked_sub(should), Some(2 | 4 | 8))
            && text.contains(&format!("Truncating orphaned inode {inode} ("))
    })
}

/// A line of a run in which e2fsck discards only unsynced data. The model checks that nothing
/// synced is missing.
fn is_harmless(line: &str) -> bool {
    const WORDS: [&str; 22] = [
        // A moved directory briefly has both names.
        "is a link to directory",
        "'..' in",
        "i_blocks is",
        // Blocks of the file itself that were written before the size that covers them.
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
        "to be rebuilt.",
        // Two files that swap names have the same name for a moment; e2fsck renames the second.
        "has a non-unique filename.",
        "FILE SYSTEM WAS MODIFIED",
        "Free blocks count wrong (",
        "Free inodes count wrong (",
        "Optimizing",
    ];
    is_routine(line) || is_answer(line) || WORDS.iter().any(|word| line.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_inode_that_was_truncated_may_have_lost_its_attribute_block_to_e2fsck() {
        let text = "Truncating orphaned inode 12 (uid=0, gid=0, mode=0100644, size=3000)\n";
        for (line, so) in [
            ("Inode 12, i_blocks is 8, should be 6.  Fix? yes", true),
            ("Inode 12, i_blocks is 16, should be 6.  Fix? yes", false),
            ("Inode 12, i_blocks is 6, should be 8.  Fix? yes", false),
            ("Inode 1, i_blocks is 8, should be 6.  Fix? yes", false),
        ] {
            assert_eq!(is_of_dropped_attributes(line, text), so, "{line}");
        }
    }
}
