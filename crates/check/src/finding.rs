//! The findings that a check reports.

use crate::limits::Limits;
use crate::{Code, Options, Severity};
use extant_format::{Corrupt, Problem, UintExt};
use parking_lot::Mutex;
use rustc_hash::{FxHashSet, FxHasher};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Where a finding is. Ordered by group, inode and block.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
        self.offset = Some(offset.fit_u32());
        self
    }
}

/// A single error or contradiction on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The kind of finding.
    pub code: Code,
    /// Where it was found.
    pub spot: Spot,
    /// The name in a directory entry, if it is about one.
    pub name: Option<Vec<u8>>,
    /// Path of the inode, where it is known.
    pub path: Option<Vec<u8>>,
    /// What was found.
    pub found: String,
    /// What was expected.
    pub expected: String,
    /// The right value, if the error is a single wrong number and the check knows the right one.
    pub value: Option<u64>,
    /// Set if the volume was in use, and may have changed between two reads.
    pub suspected: bool,
}

impl Finding {
    /// How much it matters.
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }
}

/// Findings of a check, shared by its tasks. Which findings are kept does not depend on the order
/// in which they are made: for each code the first by place, and in total the first by code.
#[derive(Clone)]
pub(crate) struct Report {
    kept: Arc<Mutex<Kept>>,
    limits: Arc<Limits>,
    listener: Option<Arc<Listener>>,
    /// Which findings are only suspected: none, contradictions between structures, or all.
    unsure: Arc<AtomicU8>,
}

struct Kept {
    by_code: BTreeMap<Code, BTreeSet<Placed>>,
    count: usize,
    counts: BTreeMap<Code, u64>,
    most_per_code: usize,
    most: usize,
}

/// A finding, ordered by place.
struct Placed(Finding);

impl Placed {
    fn key(&self) -> (&Spot, &Option<Vec<u8>>, &str, &str) {
        (&self.0.spot, &self.0.name, &self.0.found, &self.0.expected)
    }
}

impl PartialEq for Placed {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Placed {}

impl PartialOrd for Placed {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Placed {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The caller's callback, which gets each finding as it is made.
pub(crate) struct Listener {
    tell: crate::OnFinding,
    /// Hashes of the findings that it got already. A check that starts anew finds them again.
    told: Mutex<FxHashSet<u64>>,
}

impl Listener {
    /// Maximum number of findings that the callback gets.
    const MOST: usize = 100_000;

    pub(crate) fn new(tell: crate::OnFinding) -> Self {
        Self { tell, told: Mutex::default() }
    }

    fn hear(&self, finding: &Finding) {
        let mut hasher = FxHasher::default();
        (finding.code, &finding.spot, &finding.name, &finding.found, &finding.expected).hash(&mut hasher);
        {
            let mut told = self.told.lock();
            if told.len() >= Self::MOST || !told.insert(hasher.finish()) {
                return;
            }
        }
        (self.tell)(finding);
    }
}

/// Maximum length of a finding's text in characters; names in it may be long.
const TEXT_MAX: usize = 400;

fn shortened(text: String) -> String {
    match text.char_indices().nth(TEXT_MAX) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

/// Values of `Report::unsure`: which findings are only suspected.
const SURE: u8 = 0;
const UNSURE_CROSS: u8 = 1;
const UNSURE_ALL: u8 = 2;

impl Report {
    pub(crate) fn new(options: &Options, limits: Arc<Limits>, listener: Option<Arc<Listener>>) -> Self {
        let kept = Kept {
            by_code: BTreeMap::new(),
            count: 0,
            counts: BTreeMap::new(),
            most_per_code: options.most_per_code.max(1),
            most: options.most_findings.max(1),
        };
        let unsure = Arc::new(AtomicU8::new(if options.in_use { UNSURE_CROSS } else { SURE }));
        Self { kept: Arc::new(Mutex::new(kept)), limits, listener, unsure }
    }

    /// Returns a report that keeps nothing, for reading again what was already reported.
    pub(crate) fn muted(&self) -> Self {
        let options = Options { most_per_code: 1, most_findings: 1, ..Options::default() };
        Self::new(&options, self.limits.clone(), None)
    }

    /// From now on contradictions between structures are only suspected.
    pub(crate) fn be_unsure(&self) {
        self.unsure.fetch_max(UNSURE_CROSS, Ordering::Relaxed);
    }

    /// From now on everything is only suspected.
    pub(crate) fn be_unsure_of_all(&self) {
        self.unsure.store(UNSURE_ALL, Ordering::Relaxed);
    }

    pub(crate) fn add(&self, code: Code, spot: Spot, found: impl Into<String>, expected: impl Into<String>) {
        self.add_with(code, spot, found, expected, None);
    }

    /// Adds a finding about a number, whose right value is known.
    pub(crate) fn add_value(&self, code: Code, spot: Spot, found: impl Into<String>, value: u64) {
        self.add_with(code, spot, found, value.to_string(), Some(value));
    }

    /// Like [`Self::add_value`], but with a text for what was expected.
    pub(crate) fn add_with(
        &self,
        code: Code,
        spot: Spot,
        found: impl Into<String>,
        expected: impl Into<String>,
        value: Option<u64>,
    ) {
        // On a badly damaged volume, most findings are only counted.
        if self.limits.stopped() || !self.kept.lock().wants(code, &spot) {
            return;
        }
        self.keep(Finding {
            code,
            spot,
            name: None,
            path: None,
            found: found.into(),
            expected: expected.into(),
            value,
            suspected: false,
        });
    }

    /// Adds an error that `format` returned.
    pub(crate) fn corrupt(&self, code: Code, spot: Spot, corrupt: &Corrupt) {
        let (found, expected) = words(&corrupt.problem);
        self.add(code, spot, found, expected);
    }

    pub(crate) fn push(&self, finding: Finding) {
        if !self.limits.stopped() && self.kept.lock().wants(finding.code, &finding.spot) {
            self.keep(finding);
        }
    }

    fn keep(&self, mut finding: Finding) {
        finding.found = shortened(finding.found);
        finding.expected = shortened(finding.expected);
        finding.suspected = match self.unsure.load(Ordering::Relaxed) {
            SURE => false,
            UNSURE_CROSS => finding.code.is_cross(),
            _ => true,
        };
        if let Some(listener) = &self.listener {
            listener.hear(&finding);
        }
        self.kept.lock().keep(finding);
    }

    pub(crate) fn count(&self, code: Code) -> u64 {
        self.kept.lock().counts.get(&code).copied().unwrap_or(0)
    }

    /// All counts, and the findings that were kept, by code and place.
    pub(crate) fn take(&self) -> (BTreeMap<Code, u64>, Vec<Finding>) {
        let mut kept = self.kept.lock();
        let findings = std::mem::take(&mut kept.by_code).into_values().flatten();
        (std::mem::take(&mut kept.counts), findings.map(|placed| placed.0).collect())
    }
}

impl Kept {
    /// Counts a finding; returns whether it may be among those that are kept.
    fn wants(&mut self, code: Code, spot: &Spot) -> bool {
        *self.counts.entry(code).or_default() += 1;
        let of_code = self.by_code.get(&code);
        let is_late = |of_code: &BTreeSet<Placed>| {
            of_code.len() >= self.most_per_code && of_code.last().is_some_and(|last| last.0.spot < *spot)
        };
        let is_last =
            self.count >= self.most && self.by_code.last_key_value().is_some_and(|last| *last.0 < code);
        !is_last && !of_code.is_some_and(is_late)
    }

    fn keep(&mut self, finding: Finding) {
        let of_code = self.by_code.entry(finding.code).or_default();
        let before = of_code.len();
        of_code.insert(Placed(finding));
        if of_code.len() > self.most_per_code {
            of_code.pop_last();
        }
        self.count = self.count + of_code.len() - before;
        while self.count > self.most
            && let Some(mut last) = self.by_code.last_entry()
        {
            last.get_mut().pop_last();
            self.count -= 1;
            if last.get().is_empty() {
                last.remove();
            }
        }
    }
}

/// Describes a problem: what was found, and what was expected.
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
