//! Tests the harness with a toy file system that has known bugs. It writes whole snapshots
//! alternately to two slots of the disk.

use super::*;
use crate::{Ace, Host, ImageDevice, apply};
use extant_block::{Buf, Device, Record, Sector};
use extant_rt::Rt;
use std::cell::RefCell;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// A sync does not wait for the disk.
    NoFlush,
    /// A sync saves the state before the last operation.
    SavesTooEarly,
    /// Every snapshot goes to the same slot.
    OneSlot,
    /// Snapshots lose link counts.
    ForgetsLinks,
    /// A file's last byte is another file's.
    StaleByte,
}

struct Toy {
    rt: Rt,
    bug: Bug,
    /// Snapshots, which the disk refers to by number.
    snapshots: RefCell<Vec<Tree>>,
}

const SLOT_SECTORS: u64 = 2;

impl Toy {
    fn new(bug: Bug) -> Self {
        rustix::process::umask(rustix::fs::Mode::empty());
        Self { rt: Rt::real(Default::default()), bug, snapshots: RefCell::default() }
    }

    fn save(&self, device: &dyn Device, tree: Tree) {
        let mut snapshots = self.snapshots.borrow_mut();
        snapshots.push(tree);
        let number = snapshots.len() as u64;
        let slot = if self.bug == Bug::OneSlot { 0 } else { number % 2 };
        let mut bytes = vec![0; (SLOT_SECTORS * 512) as usize];
        // The number is in the first sector, and again in the second.
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[512..520].copy_from_slice(&number.to_le_bytes());
        let done = self.rt.block_on(async {
            extant_block::write(device, Sector(slot * SLOT_SECTORS), Buf::from_slice(&bytes)).await?;
            if self.bug != Bug::NoFlush { extant_block::flush(device).await } else { Ok(()) }
        });
        done.unwrap().unwrap();
    }
}

fn damage(tree: &mut Tree, bug: Bug) {
    for found in tree.nodes.values_mut() {
        if bug == Bug::ForgetsLinks && found.stat.kind == crate::Kind::File {
            found.stat.nlink = 1;
        }
        if bug == Bug::StaleByte && !found.data.is_empty() {
            let mut data = found.data.to_vec();
            let last = data.last_mut().unwrap();
            *last = if *last == 77 { 78 } else { 77 };
            found.data = data.into();
        }
    }
}

impl Filesystem for Toy {
    fn run(&self, image: &Image, ops: &[Op]) -> Result<Run, String> {
        let root = tempfile::tempdir().unwrap();
        let mut host = Host::new(root.path()).unwrap();
        let before = Tree::of(&mut host).unwrap();
        let record = Record::new(Arc::new(ImageDevice::new(image.clone())));
        self.snapshots.replace(vec![before.clone()]);
        let mut marks = Vec::new();
        let mut earlier = before.clone();
        let mut tree = before.clone();
        for op in ops {
            let began = record.position();
            let result = apply(&mut host, op);
            let before_op = std::mem::replace(&mut tree, Tree::of(&mut host).unwrap());
            let syncs = matches!(op, Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. });
            if syncs && result.is_ok() {
                let saved = if self.bug == Bug::SavesTooEarly { &earlier } else { &tree };
                self.save(&record, saved.clone());
            } else {
                earlier = before_op;
            }
            marks.push((began, record.position(), result));
        }
        let after = Some(Tree::of(&mut host).unwrap());
        Ok(Run { before, log: record.log(), marks, after })
    }

    fn recover(&self, image: &Image) -> Result<Recovered, String> {
        let number = |sector: u64| {
            let mut bytes = [0; 8];
            image.read((sector * 512) as usize, &mut bytes);
            u64::from_le_bytes(bytes) as usize
        };
        let whole = |&slot: &u64| number(slot * 2) == number(slot * 2 + 1);
        let newest = (0..2).filter(whole).map(|slot| number(slot * 2)).max().unwrap_or(0);
        let mut tree = self.snapshots.borrow()[newest.saturating_sub(1)].clone();
        damage(&mut tree, self.bug);
        Ok(Recovered { tree, image: image.clone(), log: Log::default() })
    }
}

fn torture(bug: Bug) -> Result<Tally, Box<Failure>> {
    let toy = Toy::new(bug);
    let base = Image::new(vec![0; 4096].into());
    let options = Options { torn: 16, ..Options::default() };
    let mut checker = Checker {
        filesystem: &toy,
        base,
        options,
        pruner: None,
        oracles: Vec::new(),
        promise: Promise::Prefix,
        commits_within_millis: None,
        block_bytes: None,
        recuts: None,
    };
    let (seq1, seq2) = (Ace::new(1), Ace::new(2));
    let mut total = Tally::default();
    for index in 0..seq1.len() {
        total += checker.check(&seq1.workload(index))?;
    }
    for index in (0..seq2.len()).step_by(1501) {
        total += checker.check(&seq2.workload(index))?;
    }
    Ok(total)
}

#[test]
fn a_correct_toy_passes() {
    let tally = torture(Bug::None).unwrap_or_else(|failure| panic!("{failure}"));
    assert!(tally.distinct > 1000, "{tally}");
}

#[test]
fn every_bug_of_the_toy_is_found() {
    for bug in [Bug::NoFlush, Bug::SavesTooEarly, Bug::OneSlot, Bug::ForgetsLinks, Bug::StaleByte] {
        let failure = torture(bug).expect_err(&format!("{bug:?} was not found"));
        assert!(!failure.to_string().is_empty());
    }
}
