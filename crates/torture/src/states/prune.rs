//! Decides which writes need not be reordered against each other.
//!
//! Based on Silhouette (FAST '25): reordering writes that a mechanism protects makes no difference
//! to recovery. Log blocks only count once a commit block covers all of them; blocks of a committed
//! transaction are checkpointed again from the log, whatever happened to them. So the writes of
//! each of these two kinds arrive or are lost together. Everything else (data, the two superblocks)
//! is reordered in every way. The mechanism only protects while its ordering rules are kept, so
//! every log is checked against them ([`Pruner::rules`]).

use extant_block::{BioFlags, Log, LogEvent, Op};
use std::collections::BTreeSet;
use std::ops::Range;

const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

/// Knows the location of the log.
#[derive(Clone, Debug)]
pub struct Pruner {
    block_bytes: u64,
    /// Runs of the journal's blocks, in order.
    journal: Vec<Range<u64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Log,
    Commit,
    Home,
    Other,
}

impl Pruner {
    /// For a volume whose journal occupies these runs of blocks, in order.
    pub fn new(block_bytes: u64, journal: Vec<Range<u64>>) -> Self {
        Self { block_bytes, journal }
    }

    /// Position of a volume block within the journal.
    fn in_journal(&self, block: u64) -> Option<u64> {
        let mut before = 0;
        for run in &self.journal {
            if run.contains(&block) {
                return Some(before + block - run.start);
            }
            before += run.end - run.start;
        }
        None
    }

    fn blocks<'a>(&'a self, log: &'a Log, index: usize) -> impl Iterator<Item = (u64, &'a [u8])> {
        let change = &log.changes[index];
        let first = change.start.0 * 512 / self.block_bytes;
        change.data.chunks(self.block_bytes as usize).zip(first..).map(|(data, block)| (block, data))
    }

    /// Blocks covered by transactions that were logged by writes before `index`, according to their
    /// descriptors.
    fn logged_before(&self, log: &Log, index: usize) -> BTreeSet<u64> {
        let mut covered = BTreeSet::new();
        for earlier in 0..index {
            for (block, data) in self.blocks(log, earlier) {
                if self.in_journal(block).is_some_and(|at| at > 0) && kind(data) == Some(1) {
                    covered.extend(tags(data));
                }
            }
        }
        covered
    }

    fn class(&self, log: &Log, index: usize, covered: &BTreeSet<u64>) -> Class {
        let mut class = None;
        for (block, data) in self.blocks(log, index) {
            let this = match self.in_journal(block) {
                Some(0) => Class::Other,
                Some(_) if kind(data) == Some(2) => Class::Commit,
                Some(_) => Class::Log,
                None if covered.contains(&block) => Class::Home,
                None => Class::Other,
            };
            match class {
                None => class = Some(this),
                Some(Class::Log) if this == Class::Commit => class = Some(Class::Commit),
                Some(before) if before == this => {}
                Some(_) => return Class::Other,
            }
        }
        class.unwrap_or(Class::Other)
    }

    /// Groups volatile writes (indices into the log's changes) that arrive or are lost together, as
    /// positions.
    pub(super) fn units(&self, log: &Log, volatile: &[usize]) -> Vec<Vec<usize>> {
        let Some(&last) = volatile.last() else { return Vec::new() };
        let covered = self.logged_before(log, last);
        let (mut logs, mut homes, mut units) = (Vec::new(), Vec::new(), Vec::new());
        for (position, &index) in volatile.iter().enumerate() {
            match self.class(log, index, &covered) {
                Class::Log => logs.push(position),
                Class::Home => homes.push(position),
                Class::Commit | Class::Other => units.push(vec![position]),
            }
        }
        units.extend([logs, homes].into_iter().filter(|unit| !unit.is_empty()));
        units
    }

    /// Checks the ordering that pruning relies on; returns a sentence per violation.
    ///
    /// A commit block is submitted only after every log block submitted before it has completed,
    /// with `PREFLUSH` and `FUA` (or a flush on either side). A block covered by a transaction is
    /// checkpointed only after a commit block that was submitted after its descriptor is durable.
    pub fn rules(&self, log: &Log) -> Vec<String> {
        let mut broken = Vec::new();
        let mut in_flight: BTreeSet<usize> = BTreeSet::new();
        // Logged blocks not yet followed by a durable commit.
        let mut pending: BTreeSet<u64> = BTreeSet::new();
        let mut committing: Vec<(usize, BTreeSet<u64>)> = Vec::new();
        for (at, event) in log.events.iter().enumerate() {
            match *event {
                LogEvent::Submitted(index) => {
                    let change = &log.changes[index];
                    if change.op == Op::Flush {
                        continue;
                    }
                    match self.class(log, index, &pending) {
                        Class::Commit => {
                            if let Some(other) =
                                in_flight.iter().find(|&&i| self.class(log, i, &pending) == Class::Log)
                            {
                                broken.push(format!(
                                    "event {at}: commit block {index} sent while log write {other} was in flight"
                                ));
                            }
                            let volatile = log.crash(at).volatile;
                            let unflushed =
                                volatile.iter().any(|&i| self.class(log, i, &pending) == Class::Log);
                            if unflushed && !change.flags.contains(BioFlags::PREFLUSH) {
                                broken.push(format!(
                                    "event {at}: commit block {index} sent without a flush of the log"
                                ));
                            }
                            self.blocks(log, index)
                                .filter(|(_, data)| kind(data) == Some(1))
                                .for_each(|(_, data)| pending.extend(tags(data)));
                            committing.push((index, std::mem::take(&mut pending)));
                        }
                        Class::Log => {
                            for (_, data) in self.blocks(log, index) {
                                if kind(data) == Some(1) {
                                    pending.extend(tags(data));
                                }
                            }
                        }
                        Class::Home | Class::Other => {
                            for (block, _) in self.blocks(log, index) {
                                let covered = |(_, blocks): &&(usize, BTreeSet<u64>)| blocks.contains(&block);
                                let Some((commit, _)) = committing.iter().rev().find(covered) else {
                                    continue;
                                };
                                if self.in_journal(block).is_none() && !log.crash(at).durable.contains(commit)
                                {
                                    broken.push(format!(
                                        "event {at}: block {block} written home before its commit {commit} was \
                                         durable"
                                    ));
                                }
                            }
                        }
                    }
                    in_flight.insert(index);
                }
                LogEvent::Ended { change, .. } => {
                    in_flight.remove(&change);
                }
            }
        }
        broken
    }
}

fn kind(block: &[u8]) -> Option<u32> {
    (block.get(..4)? == MAGIC).then(|| u32::from_be_bytes(block[4..8].try_into().expect("four bytes")))
}

/// Volume blocks listed by a version 3 descriptor: 16 bytes each, plus 16 more after the first.
pub(crate) fn tags(block: &[u8]) -> Vec<u64> {
    const SAME_UUID: u32 = 2;
    const LAST: u32 = 8;
    let word =
        |at: usize| block.get(at..at + 4).map(|b| u32::from_be_bytes(b.try_into().expect("four bytes")));
    let (mut at, mut blocks) = (12, Vec::new());
    while let (Some(low), Some(flags), Some(high)) = (word(at), word(at + 4), word(at + 8)) {
        blocks.push(u64::from(high) << 32 | u64::from(low));
        at += if flags & SAME_UUID == 0 { 32 } else { 16 };
        if flags & LAST != 0 {
            break;
        }
    }
    blocks
}
