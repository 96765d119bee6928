//! Measures the layout of files, and the time to read them from beginning to end after a remount.

use super::BLOCK_BYTES;
use super::bios_in_flight::BiosInFlight;
use extant_block::{Bio, BioFlags, Buf, Device, IoError, Op, Sector};
use extant_rt::{Nanos, Rt};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The layout of a run's files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesLayout {
    /// Number of files.
    pub files: u64,
    /// Number of their extents on the volume.
    pub extents: u64,
    /// Their size on the volume in bytes.
    pub bytes: u64,
    /// Time to read all of them, one after the other.
    pub reread: Nanos,
}

/// Blocks in a read-ahead window (`VM_MAX_READAHEAD`: 128 KiB in all kernels whose allocators are
/// compared).
const WINDOW_BLOCKS: u64 = 32;
/// Windows in flight: the one the reader waits for, and the one ahead of it.
const WINDOWS: usize = 2;

impl FilesLayout {
    /// Reads one more file.
    pub(super) async fn read(
        &mut self,
        rt: &Rt,
        device: &dyn Device,
        runs: &[Range<u64>],
    ) -> Result<(), IoError> {
        let began = rt.now();
        self.files += 1;
        self.extents += runs.len() as u64;
        let mut under_way: VecDeque<Arc<BiosInFlight>> = VecDeque::new();
        let mut left = 0;
        for run in runs {
            self.bytes += (run.end - run.start) * BLOCK_BYTES;
            let mut at = run.start;
            while at < run.end {
                if left == 0 {
                    while under_way.len() >= WINDOWS
                        && let Some(oldest) = under_way.pop_front()
                    {
                        oldest.at_most(rt, 0).await?;
                    }
                    under_way.push_back(Arc::default());
                    left = WINDOW_BLOCKS;
                }
                let blocks = left.min(run.end - at);
                let buffer = Buf::zeroed((blocks * BLOCK_BYTES) as usize);
                let sector = Sector(at * (BLOCK_BYTES / Sector::BYTES));
                let mut bio = Bio::new(Op::Read, sector, vec![buffer.into()]);
                bio.flags = BioFlags::SYNC;
                under_way.back().expect("one was begun").submit(device, bio);
                (at, left) = (at + blocks, left - blocks);
            }
        }
        for window in under_way {
            window.at_most(rt, 0).await?;
        }
        self.reread = self.reread.saturating_add(rt.now().saturating_sub(began));
        Ok(())
    }
}
