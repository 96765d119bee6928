//! Which writes need not be reordered against each other.
//!
//! After Silhouette (FAST '25): writes that a mechanism protects make no difference to what recovery finds. Blocks of the log
//! count only once a commit block vouches for all of them; blocks of a committed transaction are written home from the log
//! again, whatever became of them. Each of the two kinds lives and dies together. Everything else (data, the two
//! superblocks) is reordered in every way. A mechanism protects only while its rules are kept, so every log is checked
//! against them ([`Pruner::rules`]).

use extant_block::{BioFlags, Log, LogEvent, Op};
use std::collections::BTreeSet;
use std::ops::Range;

const MAGIC: [u8; 4] = [0xc0, 0x3b, 0x39, 0x98];

/// Knows where the log lies.
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
    /// For a volume whose journal lies in these runs of blocks, in order.
    pub fn new(block_bytes: u64, journal: Vec<Range<u64>>) -> Self {
        Self { block_bytes, journal }
    }

    /// Place of a volume block in the journal.
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

    /// The blocks that transactions logged by writes before `index` cover, as far as their descriptors tell.
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

    /// Groups volatile writes (indices into the log's changes) into those that live and die together, as positions.
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

    /// Checks the order that pruning relies on; one sentence for each place where it is broken.
    ///
    /// A commit block is sent only when every block of the log sent before it has arrived, with `PREFLUSH` and `FUA` (or a
    /// flush on either side). A block that a transaction covers is written home only after a commit block that was sent
    /// after its descriptor is durable.
    pub fn rules(&self, log: &Log) -> Vec<String> {
        let mut broken = Vec::new();
        let mut in_flight: BTreeSet<usize> = BTreeSet::new();
        // Blocks logged, each with whether a durable commit followed.
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

/// The volume blocks that a descriptor of checksum version 3 names: 16 bytes each, 16 more after the first.
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
