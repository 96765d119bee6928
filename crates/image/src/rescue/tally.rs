//! Records what became of each path.

use crate::export::{Loss, Watch};
use extant_block::Spans;
use extant_format::{FileKind, Inode, InodeNumber, Timestamp};
use extant_fs::Error;
use std::fmt;

/// Maximum number of reasons kept for one path.
const REASONS_MAX: usize = 8;

/// How much of a path could be read and kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Everything was read and kept.
    Whole,
    /// Part of the contents, names or attributes is missing.
    Partial,
    /// Nothing is left except the name.
    Lost,
    /// Nothing is damaged, but the destination cannot store the file.
    LeftOut,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Whole => "whole",
            Self::Partial => "partial",
            Self::Lost => "lost",
            Self::LeftOut => "left out",
        })
    }
}

/// A path, and what became of it.
#[derive(Clone, Debug)]
pub struct Rescued {
    /// The path, relative to the destination; empty for the root directory.
    pub path: Vec<u8>,
    /// The file's kind; `None` if its inode could not be read.
    pub kind: Option<FileKind>,
    /// The inode number, if the inode could be read.
    pub inode: Option<InodeNumber>,
    /// When the contents were last changed.
    pub modified: Option<Timestamp>,
    /// When the file was deleted, if it was and this is known.
    pub deleted: Option<Timestamp>,
    /// How much of it was read and kept.
    pub state: State,
    /// Bytes of contents that were read, without holes.
    pub bytes: u64,
    /// Bytes of contents that are missing.
    pub lost_bytes: u64,
    /// Why it is not whole. If there are many reasons, only the first ones.
    pub reasons: Vec<String>,
}

/// Counts of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of paths that were read completely.
    pub whole: u64,
    /// Number of paths with missing parts.
    pub partial: u64,
    /// Number of paths of which only the name is left.
    pub lost: u64,
    /// Number of paths that the destination cannot store.
    pub left_out: u64,
    /// Bytes of contents that were read.
    pub bytes: u64,
    /// Bytes of contents that are missing.
    pub lost_bytes: u64,
    /// Bytes of the image that were needed, but could not be read.
    pub unread: Spans,
    /// Damage of the volume as a whole, and what was done about it.
    pub notes: Vec<String>,
}

impl Summary {
    /// Whether every path is whole, or was left out for reasons unrelated to the volume.
    pub fn is_whole(&self) -> bool {
        self.partial == 0 && self.lost == 0
    }

    /// The counts, as a sentence without a full stop. `lost_word` stands for [`State::Lost`].
    pub fn told(&self, lost_word: &str) -> String {
        let Self { whole, partial, lost, left_out, bytes, lost_bytes, unread, .. } = self;
        let mut told =
            format!("{whole} paths whole, {partial} partial, {lost} {lost_word}; {bytes} bytes of contents");
        if *lost_bytes > 0 {
            told += &format!(", {lost_bytes} bytes missing");
        }
        if *left_out > 0 {
            told += &format!("; {left_out} paths left out");
        }
        if !unread.is_empty() {
            told += &format!("; {} bytes of the image cannot be read", unread.bytes());
        }
        told
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told("lost"))
    }
}

/// Receives what became of each path, and progress.
pub trait Witness {
    /// Called once it is known what became of a path. Directories come after their contents.
    fn rescued(&mut self, rescued: &Rescued);
    /// Called if a file was read, but could not be kept, or only in part.
    fn not_kept(&mut self, path: &[u8], loss: Loss);
    /// Called with the number of bytes of contents read since the last call.
    fn advanced(&mut self, bytes: u64);
}

/// Follows an export, and reports what became of each path.
pub(crate) struct Tally<'a> {
    witness: &'a mut dyn Witness,
    /// Directories whose contents are still being exported, outermost first.
    open: Vec<Rescued>,
    /// The path that is being exported.
    now: Rescued,
    is_refused: bool,
    /// The reason to report for missing contents, in place of the device's error.
    reason: Option<&'static str>,
    summary: Summary,
}

fn about(path: &[u8]) -> Rescued {
    Rescued {
        path: path.to_vec(),
        kind: None,
        inode: None,
        modified: None,
        deleted: None,
        state: State::Whole,
        bytes: 0,
        lost_bytes: 0,
        reasons: Vec::new(),
    }
}

impl Rescued {
    fn add(&mut self, error: &Error, reason: Option<&'static str>) {
        match error {
            Error::Lost(lost) => self.lost_bytes += lost.bytes,
            Error::LostMore { bytes, .. } => self.lost_bytes += bytes,
            _ => {}
        }
        self.state = self.state.max(State::Partial);
        let text = match (reason, error) {
            (Some(reason), Error::Lost(lost)) if matches!(lost.error, Error::Io(_)) => {
                format!("bytes {}..{}: {reason}", lost.offset, lost.end())
            }
            (Some(reason), Error::Io(_)) => reason.to_owned(),
            _ => error.to_string(),
        };
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(text);
        }
    }
}

/// Whether `path` is below `directory`.
fn leads_to(directory: &[u8], path: &[u8]) -> bool {
    directory.is_empty() || path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

impl<'a> Tally<'a> {
    pub(crate) fn new(witness: &'a mut dyn Witness) -> Self {
        Self {
            witness,
            open: Vec::new(),
            now: about(b""),
            is_refused: false,
            reason: None,
            summary: Summary::default(),
        }
    }

    /// Adds a reason to report in place of the device's errors.
    pub(crate) fn with_reason_for_io(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Reports the open directories that do not contain `path`. The directory at `path` itself
    /// stays open.
    fn leave_for(&mut self, path: &[u8]) {
        while let Some(last) = self.open.pop() {
            if last.path == path || leads_to(&last.path, path) {
                self.open.push(last);
                return;
            }
            self.say(&last);
        }
    }

    fn say(&mut self, rescued: &Rescued) {
        match rescued.state {
            State::Whole => self.summary.whole += 1,
            State::Partial => self.summary.partial += 1,
            State::Lost => self.summary.lost += 1,
            State::LeftOut => self.summary.left_out += 1,
        }
        if rescued.kind != Some(FileKind::Directory) {
            self.summary.lost_bytes += rescued.lost_bytes;
        }
        self.summary.bytes += rescued.bytes;
        self.witness.rescued(rescued);
    }

    /// Reports all directories that are still open.
    pub(crate) fn finish(mut self) -> Summary {
        while let Some(last) = self.open.pop() {
            self.say(&last);
        }
        self.summary
    }
}

impl Watch for Tally<'_> {
    fn advanced(&mut self, bytes: u64) {
        self.now.bytes += bytes;
        self.witness.advanced(bytes);
    }

    fn unreadable(&mut self, path: &[u8], error: Error) {
        let path = if path == b"." { b"" } else { path };
        self.leave_for(path);
        match self.open.iter_mut().find(|open| open.path == path) {
            Some(directory) => directory.add(&error, self.reason),
            None => self.now.add(&error, self.reason),
        }
    }

    fn missing(&mut self, path: &[u8], error: Error) {
        self.leave_for(path);
        if let Some(directory) = self.open.iter_mut().find(|open| open.path == path) {
            return directory.add(&error, self.reason);
        }
        let mut rescued = about(path);
        rescued.add(&error, self.reason);
        rescued.state = State::Lost;
        self.say(&rescued);
    }

    fn not_kept(&mut self, path: &[u8], loss: Loss) {
        if matches!(loss, Loss::File(_) | Loss::Device | Loss::Socket | Loss::Name) {
            self.is_refused = true;
            self.now.reasons.push(loss.to_string());
        }
        self.witness.not_kept(path, loss);
    }

    fn settled(&mut self, path: &[u8], inode: &Inode, is_kept: bool) {
        let path = if path == b"." { b"" } else { path };
        self.leave_for(path);
        let mut rescued = std::mem::replace(&mut self.now, about(b""));
        rescued.path = path.to_vec();
        rescued.kind = inode.kind();
        rescued.inode = Some(inode.number);
        rescued.modified = Some(inode.modified());
        rescued.deleted = inode.deleted();
        let is_refused = std::mem::take(&mut self.is_refused);
        rescued.state = match (is_kept, is_refused) {
            (false, true) => State::LeftOut,
            (false, false) => State::Lost,
            // None of the contents could be read; the copy contains only zeros.
            (true, _) if rescued.bytes == 0 && rescued.lost_bytes > 0 => State::Lost,
            (true, _) => rescued.state,
        };
        if is_kept && rescued.kind == Some(FileKind::Directory) {
            self.open.push(rescued);
        } else {
            self.say(&rescued);
        }
    }
}
