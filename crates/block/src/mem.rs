//! A device in memory.

use crate::device::OneClaim;
use crate::{Bio, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector};
use parking_lot::RwLock;
use std::fmt;
use std::io::IoSliceMut;

/// A disk whose contents are in memory; every bio ends before `submit` returns.
pub struct MemDevice {
    limits: Limits,
    bytes: RwLock<Vec<u8>>,
    claim: OneClaim,
}

impl MemDevice {
    /// A zeroed disk.
    pub fn new(capacity_bytes: usize) -> Self {
        Self::from_bytes(vec![0; capacity_bytes])
    }

    /// A disk with the given contents.
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let limits = Limits { max_segments: u32::MAX, ..Limits::new("memory", bytes.len() as u64) };
        Self { limits, bytes: RwLock::new(bytes), claim: OneClaim::default() }
    }

    /// A copy of the contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    fn run(&self, bio: &mut Bio) -> Result<(), IoErrorKind> {
        let (start, end) = self.limits.admit(bio)?;
        let mut at = start as usize;
        match bio.op {
            Op::Read => {
                let bytes = self.bytes.read();
                for segment in &mut bio.segments {
                    let to = segment.as_mut_slice().expect("admitted");
                    to.copy_from_slice(&bytes[at..at + to.len()]);
                    at += to.len();
                }
            }
            Op::Write => {
                let mut bytes = self.bytes.write();
                for segment in &bio.segments {
                    let from = segment.as_slice();
                    bytes[at..at + from.len()].copy_from_slice(from);
                    at += from.len();
                }
            }
            Op::Discard | Op::WriteZeroes => self.bytes.write()[at..end as usize].fill(0),
            Op::Flush => {}
        }
        Ok(())
    }
}

impl Device for MemDevice {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, mut bio: Bio) {
        let result = self.run(&mut bio);
        bio.end_as(&self.limits.name, result);
    }

    fn reads_here(&self) -> bool {
        true
    }

    fn is_cached_by_host(&self) -> bool {
        true
    }

    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        let bytes = self.bytes.read();
        let from = start.byte_offset().and_then(|at| usize::try_from(at).ok());
        let Some(mut from) = from.and_then(|at| bytes.get(at..)) else { return false };
        for to in to {
            let Some((some, rest)) = from.split_at_checked(to.len()) else { return false };
            to.copy_from_slice(some);
            from = rest;
        }
        true
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.claim.take_for(&self.limits)
    }
}

impl fmt::Debug for MemDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemDevice({} bytes)", self.limits.capacity_bytes)
    }
}
