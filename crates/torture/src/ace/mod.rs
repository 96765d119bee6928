//! Workloads modelled on ACE, the Automatic Crash Explorer of CrashMonkey (Mohan et al., "Finding
//! Crash-Consistency Bugs with Bounded Black-Box Testing", OSDI '18): every sequence of one or two
//! operations on a handful of files, with every choice of arguments and every persistence point
//! after each operation, preceded by what the operations need.
//!
//! Operations, arguments, persistence points and dependencies are ACE's (the published tool, with
//! all the write options it names, and with symbolic links). Two things differ because this is a
//! library: each call opens the file, and a write through a mapping is a write followed by a data
//! sync of the file.
//!
//! Every workload has an index. [`Ace::workload`] creates it without creating the earlier ones, so
//! a run can be resumed.

mod depend;
mod params;

use crate::Op;
use depend::Builder;
use params::{Core, all_cores, related_files};
use std::fmt;

/// A persistence point after an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Persist {
    None,
    Sync,
    Fsync(&'static str),
}

/// A workload: operations for a freshly made volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Name of its generator, and its index or seed there.
    pub name: String,
    /// The operations, including dependencies.
    pub ops: Vec<Op>,
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        self.ops.iter().enumerate().try_for_each(|(i, op)| write!(f, "\n  {i}: {op}"))
    }
}

/// All workloads of a given length.
#[derive(Debug)]
pub struct Ace {
    length: usize,
    cores: Vec<Core>,
    /// Index of the first workload of each sequence of core operations; a sequence is encoded by
    /// indices into `cores`.
    starts: Vec<u64>,
    total: u64,
}

impl Ace {
    /// Workloads with `length` core operations, 1 to 3.
    pub fn new(length: usize) -> Self {
        assert!((1..=3).contains(&length), "ACE's bounds are one to three operations");
        let cores = all_cores();
        let sequences = cores.len().pow(length as u32);
        let mut ace = Self { length, cores, starts: Vec::with_capacity(sequences), total: 0 };
        for sequence in 0..sequences {
            ace.starts.push(ace.total);
            ace.total += ace.radices(&ace.sequence(sequence)).iter().product::<u64>();
        }
        ace
    }

    /// Number of workloads.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// Always false.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The workload with this index, which must be less than [`Ace::len`].
    pub fn workload(&self, index: u64) -> Workload {
        assert!(index < self.total, "there are {} workloads", self.total);
        let at = self.starts.partition_point(|&start| start <= index) - 1;
        let sequence = self.sequence(at);
        let mut choice = index - self.starts[at];
        let files = related_files(&sequence);
        let mut builder = Builder::new();
        let radices = self.radices(&sequence);
        for (position, core) in sequence.iter().enumerate() {
            let radix = radices[position];
            let persist = persistence(core, &files, position + 1 == self.length, (choice % radix) as usize);
            choice /= radix;
            builder.core(core);
            builder.persist(persist);
        }
        Workload { name: format!("seq-{} {index}", self.length), ops: builder.finish() }
    }

    fn sequence(&self, mut number: usize) -> Vec<Core> {
        let mut sequence = Vec::with_capacity(self.length);
        for _ in 0..self.length {
            sequence.push(self.cores[number % self.cores.len()].clone());
            number /= self.cores.len();
        }
        sequence.reverse();
        sequence
    }

    /// Number of choices of persistence point after each operation of a sequence.
    fn radices(&self, sequence: &[Core]) -> Vec<u64> {
        let files = related_files(sequence).len() as u64;
        let radix = |(position, core): (usize, &Core)| match core.persists_itself() {
            true => 1,
            false => files + 1 + u64::from(position + 1 < self.length),
        };
        sequence.iter().enumerate().map(radix).collect()
    }
}

/// The choices are: sync one of the related files, sync the whole volume, or (except after the last
/// operation) sync nothing.
fn persistence(core: &Core, files: &[&'static str], last: bool, choice: usize) -> Persist {
    match files.get(choice) {
        _ if core.persists_itself() => Persist::None,
        Some(file) => Persist::Fsync(file),
        None if choice == files.len() => Persist::Sync,
        None => {
            assert!(!last, "the last operation is always followed by a persistence point");
            Persist::None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn there_are_as_many_as_there_should_be() {
        // ACE's tool generates 436 of length one, because it repeats operations that persist by
        // themselves.
        assert_eq!(Ace::new(1).len(), 412);
        assert_eq!(Ace::new(2).len(), 369_928);
    }

    #[test]
    fn every_index_is_another_workload() {
        let ace = Ace::new(1);
        let all: Vec<Workload> = (0..ace.len()).map(|index| ace.workload(index)).collect();
        let distinct: BTreeSet<String> = all.iter().map(|w| format!("{:?}", w.ops)).collect();
        // unlink and remove are the same call here.
        assert!(distinct.len() >= all.len() - 16, "{} of {}", distinct.len(), all.len());
    }

    #[test]
    fn the_published_bugs_are_in_it() {
        let ace = Ace::new(2);
        // generic/341 and similar: rename a directory, then recreate the old name and sync it.
        let wanted = ["rename /A /B", "mkdir /A 777", "fsync /A"];
        let found = (0..ace.len()).any(|index| {
            let ops: Vec<String> = ace.workload(index).ops.iter().map(Op::to_string).collect();
            let mut at = ops.iter();
            wanted.iter().all(|line| at.any(|op| op == line))
        });
        assert!(found);
    }
}
