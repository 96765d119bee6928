//! A device that counts flushes and records which bytes are read and written.

use extant_block::{Bio, BioFlags, Claim, Device, IoError, Limits, Op};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// The requests a device received.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// Flushes, on their own or before a write.
    pub(super) flushes: u64,
    /// Writes with FUA.
    pub(super) durable_writes: u64,
    /// Byte ranges, in order of submission.
    pub(super) reads: Vec<Range<u64>>,
    pub(super) writes: Vec<Range<u64>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Watched {
    device: Arc<dyn Device>,
    seen: Mutex<Seen>,
}

impl Watched {
    pub(super) fn new(device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { device, seen: Mutex::default() })
    }

    /// The requests since the last call.
    pub(super) fn take(&self) -> Seen {
        std::mem::take(&mut self.seen.lock())
    }

    fn note(&self, bio: &Bio) {
        let mut seen = self.seen.lock();
        let start = bio.start.byte_offset().unwrap_or(u64::MAX);
        let range = start..start.saturating_add(bio.bytes);
        seen.flushes += u64::from(bio.op == Op::Flush || bio.flags.contains(BioFlags::PREFLUSH));
        match bio.op {
            Op::Read => seen.reads.push(range),
            Op::Write => {
                seen.durable_writes += u64::from(bio.flags.contains(BioFlags::FUA));
                seen.writes.push(range);
            }
            _ => {}
        }
    }
}

impl Device for Watched {
    fn limits(&self) -> &Limits {
        self.device.limits()
    }
    fn submit(&self, bio: Bio) {
        self.note(&bio);
        self.device.submit(bio);
    }
    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        self.device.submit_all(&mut bios.inspect(|bio| self.note(bio)));
    }
    fn claim(&self) -> Result<Claim, IoError> {
        self.device.claim()
    }
}
