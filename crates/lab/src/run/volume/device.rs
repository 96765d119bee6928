//! The device below a volume.

use super::VolumeSpec;
use extant_block::{Bio, Claim, Device, IoError, Limits, Stripe};
use extant_history::direct::Cost;
use extant_iosched::Queue;
use extant_rt::Rt;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts bios that reach the disks' queues.
pub(super) type PieceCount = Arc<AtomicU64>;

/// How the pages of direct I/O are charged.
#[derive(Clone, Copy)]
pub(super) struct PinnedPages {
    /// Size of a page.
    pub(super) bytes: u64,
    /// Whether the pages are already pinned and charged for.
    pub(super) are_pinned: bool,
}

/// Returns all disks as one striped device, or one of them.
///
/// Each queue comes with a flag for a RAM disk, which copies on the submitting processor (kernel:
/// brd). With `pages`, the pages of each bio are charged for on submission and on completion.
pub(super) fn below(
    rt: &Rt,
    disks: &[(Arc<Queue>, bool)],
    pieces: &PieceCount,
    spec: &VolumeSpec,
    pages: Option<PinnedPages>,
) -> Result<Arc<dyn Device>, String> {
    let counted = |(queue, copies): &(Arc<Queue>, bool)| {
        let (below, rt, pieces) = (queue.clone(), rt.clone(), pieces.clone());
        Arc::new(CountedDevice { below, rt, pieces, pages, copies: *copies }) as Arc<dyn Device>
    };
    if let Some(bytes) = spec.chunk_bytes {
        let devices = disks.iter().map(counted).collect();
        let stripe = Stripe::new("stripe", bytes / 512, devices).map_err(|error| error.to_string())?;
        return Ok(Arc::new(stripe));
    }
    let is_named = |queue: &Queue| spec.disk.as_ref().is_none_or(|name| queue.limits().name == *name);
    let found = disks.iter().find(|(queue, _)| is_named(queue));
    found
        .map(counted)
        .ok_or_else(|| format!("the machine has no disk \"{}\"", spec.disk.as_deref().unwrap_or("")))
}

/// A disk's queue that counts its bios.
struct CountedDevice {
    below: Arc<Queue>,
    rt: Rt,
    pieces: PieceCount,
    pages: Option<PinnedPages>,
    copies: bool,
}

impl fmt::Debug for CountedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CountedDevice({:?})", self.below)
    }
}

impl CountedDevice {
    fn look(&self, bio: &mut Bio) {
        if bio.bytes == 0 {
            return;
        }
        self.pieces.fetch_add(1, Ordering::Relaxed);
        if self.copies {
            self.rt.charge(extant_cache::Cost::PageCopy(bio.bytes.div_ceil(4096)));
        }
        if let Some(PinnedPages { bytes, are_pinned }) = self.pages {
            let (rt, pages) = (self.rt.clone(), bio.bytes.div_ceil(bytes));
            if !are_pinned {
                rt.charge(Cost::PagePin(pages));
            }
            bio.before_end(move |_| rt.charge(Cost::PageUnpin(pages)));
        }
    }
}

impl Device for CountedDevice {
    fn limits(&self) -> &Limits {
        self.below.limits()
    }

    fn submit(&self, mut bio: Bio) {
        self.look(&mut bio);
        self.below.submit(bio);
    }

    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        self.below.submit_all(&mut bios.map(|mut bio| {
            self.look(&mut bio);
            bio
        }));
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.below.claim()
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.below.next_data(from_bytes)
    }
}
