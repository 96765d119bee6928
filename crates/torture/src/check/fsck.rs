//! e2fsck as an oracle.

use super::scratch::Scratch;
use crate::Image;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Runs e2fsck on images in a file, best one in memory.
#[derive(Debug)]
pub struct Fsck {
    scratch: RefCell<Scratch>,
    program: PathBuf,
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
    ///
    /// # Errors
    /// e2fsck is not installed, or the place cannot be made.
    pub fn new() -> io::Result<Self> {
        let program = program().ok_or_else(|| io::Error::other("e2fsck is not installed"))?;
        Ok(Self { scratch: RefCell::new(Scratch::new()?), program })
    }

    /// Whether e2fsck can be run at all.
    pub fn is_installed() -> bool {
        program().is_some()
    }

    /// `e2fsck -fn`, which must say nothing but its five passes and the summary: exit code 0 hides a lot.
    pub fn check(&self, image: &Image) -> io::Result<Verdict> {
        let mut scratch = self.scratch.borrow_mut();
        scratch.put(image)?;
        self.check_file(scratch.path())
    }

    /// The disk after `e2fsck -fy`, and whether that mended anything that replaying the journal and finishing orphans does
    /// not explain, or had to give up.
    pub fn repair(&self, image: &Image) -> io::Result<(Image, Verdict)> {
        self.repair_with(image, is_expected, false)
    }

    /// `again` has a second run look at what the first one left, which happens anyway where it gave up.
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
        // 1 says that errors were corrected.
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

    /// As [`Fsck::repair`], of a volume without a journal: complains of any repair that takes something away, and has `-fn`
    /// look again. A crash may leave space that nothing uses, wrong counts, and inodes without a name.
    pub fn repair_unlogged(&self, image: &Image) -> io::Result<(Image, Verdict)> {
        self.repair_with(image, is_harmless, true)
    }

    /// The disk after `e2fsck -fy`, whatever it mends, and after a second look by `-fn`, which must be silent. Some damage takes
    /// e2fsck a second repair: blocks that the first frees when it has looked at the bitmaps already.
    ///
    /// # Errors
    /// Errors that the last look finds, and failures to run e2fsck.
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

    /// Whether the words of a repair follow from one that e2fsck 1.47.0 does wrong, with the kernel's volumes, too. Of an orphan that
    /// is to be truncated on a volume with `bigalloc` it frees the clusters, leaves the blocks mapped, and takes them for the file's
    /// then. Of one that is to be deleted it keeps attributes' values that lie in inodes of their own, and finds these without a name.
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

/// Where e2fsck is. Looked up once: a program that is named by its path is started without a copy of this process's memory.
fn program() -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = path.split(':').chain(["/usr/sbin", "/sbin"]);
    folders.map(|folder| Path::new(folder).join("e2fsck")).find(|program| program.is_file())
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
    matches!(line.trim(), "Clear? yes" | "Fix? yes" | "FIXED." | "Connect to /lost+found? yes")
        || (line.starts_with("Rename to ") && line.ends_with("? yes"))
}

/// A line of a run that replays the journal, finishes orphans and brings sums up to date.
fn is_expected(line: &str) -> bool {
    const WORDS: [&str; 11] = [
        // Half of a commit block is there, before half of an older block of the log: the transaction was not acknowledged.
        "was corrupt, replay was aborted",
        // Set for as long as a volume with an orphan file is mounted.
        "orphan_present is set but orphan file is clean",
        // After e2fsck 1.47 has finished the orphans that were in it: of a volume that the kernel left, too.
        "block 0 is not clean.",
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

/// The line that e2fsck 1.47.0 prints of an inode whose attribute block it has just dropped itself: it does so with inodes on the orphan list
/// that are only to be truncated, too, and counts the block on. Our recovery keeps both, and `-fn` looks at that.
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

/// A line of a run that gives up nothing but what was never synced; that this is so, the model sees.
fn is_harmless(line: &str) -> bool {
    const WORDS: [&str; 22] = [
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
        "to be rebuilt.",
        // Two files that trade names have one name for a moment; the second is given another.
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
