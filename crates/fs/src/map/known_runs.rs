//! What is known of a file's map on disk: a cache that may be forgotten at any time.

use super::block_state::OnDisk;
use super::run_map::RunMap;
use super::shared_clusters::RestOfClusters;
use extant_format::BlockRange;

/// Maximum number of runs of the on-disk map to keep in memory.
const KNOWN_MAX: usize = 2048;

impl RunMap<OnDisk> {
    /// Keeps runs for a caller that asked for blocks `asked`. All runs that overlap `asked` are
    /// kept, however many, so that a caller that asks again makes progress.
    pub(super) fn learn(&mut self, asked: BlockRange, runs: &[(BlockRange, OnDisk)]) {
        if self.len() + runs.len() > KNOWN_MAX {
            self.remove(BlockRange::new(0, asked.start));
            self.remove(BlockRange::new(asked.end.max(asked.start), u64::MAX));
        }
        for (range, known) in runs {
            if range.overlaps(asked) || self.len() < KNOWN_MAX {
                self.insert(*range, *known);
            }
        }
    }

    /// Marks the holes among blocks of allocated clusters as implied.
    pub(super) fn imply(&mut self, rest: &RestOfClusters) {
        for part in rest.parts() {
            let holes: Vec<_> = self.iter_in(part).filter(|(_, known)| *known == OnDisk::Hole).collect();
            for (blocks, _) in holes {
                self.insert(blocks, OnDisk::Implied(rest.place(blocks.start)));
            }
        }
    }
}
