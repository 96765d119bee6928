//! What a check reports.

use crate::{Code, Severity};
use extant_format::{Corrupt, Problem};
use std::collections::BTreeMap;

/// Where a finding is. Ordered by group, inode and block.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The block group.
    pub group: Option<u32>,
    /// The inode; for a directory entry, that of the directory.
    pub inode: Option<u32>,
    /// The block of the volume.
    pub block: Option<u64>,
    /// The block of the file or directory.
    pub file_block: Option<u64>,
    /// Byte offset within the block.
    pub offset: Option<u32>,
}

impl Spot {
    /// A group.
    pub(crate) fn group(group: u32) -> Self {
        Self { group: Some(group), ..Self::default() }
    }

    /// An inode.
    pub(crate) fn inode(inode: u32) -> Self {
        Self { inode: Some(inode), ..Self::default() }
    }

    /// A block of the volume.
    pub(crate) fn block(block: u64) -> Self {
        Self { block: Some(block), ..Self::default() }
    }

    pub(crate) fn at_block(mut self, block: u64) -> Self {
        self.block = Some(block);
        self
    }

    pub(crate) fn at_file_block(mut self, block: u64) -> Self {
        self.file_block = Some(block);
        self
    }

    pub(crate) fn at_offset(mut self, offset: usize) -> Self {
        self.offset = Some(offset as u32);
        self
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of thing.
    pub code: Code,
    /// Where.
    pub spot: Spot,
    /// The name in a directory entry, if it is about one.
    pub name: Option<Vec<u8>>,
    /// Path of the inode, where it is known.
    pub path: Option<Vec<u8>>,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
    /// The volume was in use, and may have changed between two reads.
    pub suspected: bool,
}

impl Finding {
    /// How much it matters.
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }
}

/// Findings of one task. Which findings are kept does not depend on their order: of each code, the
/// first by place.
#[derive(Debug)]
pub(crate) struct Report {
    kept: BTreeMap<Code, BTreeMap<(Spot, String), Finding>>,
    counts: BTreeMap<Code, u64>,
    most: usize,
}

impl Report {
    /// Keeps at most `most` findings of each code.
    pub(crate) fn new(most: usize) -> Self {
        Self { kept: BTreeMap::new(), counts: BTreeMap::new(), most: most.max(1) }
    }

    pub(crate) fn add(
        &mut self,
        code: Code,
        spot: Spot,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
        self.push(Finding {
            code,
            spot,
            name: None,
            path: None,
            found: found.into(),
            expected: expected.into(),
            suspected: false,
        });
    }

    /// Adds what `format` refused.
    pub(crate) fn corrupt(&mut self, code: Code, spot: Spot, corrupt: &Corrupt) {
        let (found, expected) = words(&corrupt.problem);
        self.add(code, spot, found, expected);
    }

    pub(crate) fn push(&mut self, finding: Finding) {
        *self.counts.entry(finding.code).or_default() += 1;
        self.keep(finding);
    }

    fn keep(&mut self, finding: Finding) {
        let of_code = self.kept.entry(finding.code).or_default();
        let name = finding.name.as_deref().map(|name| name.escape_ascii().to_string()).unwrap_or_default();
        of_code.insert((finding.spot.clone(), name + &finding.found), finding);
        if of_code.len() > self.most {
            of_code.pop_last();
        }
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (code, count) in other.counts {
            *self.counts.entry(code).or_default() += count;
        }
        for finding in other.kept.into_values().flat_map(BTreeMap::into_values) {
            self.keep(finding);
        }
    }

    pub(crate) fn counts(&self) -> &BTreeMap<Code, u64> {
        &self.counts
    }

    /// All findings by code and place.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Finding> {
        self.kept.values_mut().flat_map(BTreeMap::values_mut)
    }

    pub(crate) fn into_findings(self) -> Vec<Finding> {
        self.kept.into_values().flat_map(BTreeMap::into_values).collect()
    }
}

/// A problem as what was found, and what was expected.
pub(crate) fn words(problem: &Problem) -> (String, String) {
    match *problem {
        Problem::Magic { found, expected } => (format!("magic {found:#x}"), format!("{expected:#x}")),
        Problem::Checksum { stored, computed } => {
            (format!("checksum {stored:#010x}"), format!("{computed:#010x}"))
        }
        Problem::Truncated { needed, have } => (format!("{have} bytes"), format!("{needed} bytes")),
        Problem::Field { field, value, rule } => (format!("{field} is {value}"), rule.to_owned()),
        ref other => (other.to_string(), String::new()),
    }
}
