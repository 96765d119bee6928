//! ext4's writeback pass with delayed allocation, Linux 2.6.33 (`ext4_da_writepages`,
//! fs/ext4/inode.c).

use extant_cache::pass::{DirtyAhead, Step, Visit, WriteBackPass, Yields};

/// Maximum contiguous dirty pages that one visit collects (`s_max_writeback_mb_bump`, 128 MiB).
const BUMP_PAGES: u64 = 32_768;
/// Longest extent allocated per round: mballoc normalises a request to 8 MiB.
const EXTENT_PAGES: u64 = 2048;
/// Pages in a page vector (`PAGEVEC_SIZE`).
const PAGEVEC_PAGES: u64 = 14;

/// Collects up to 128 MiB of contiguous dirty pages, allocates one extent, and submits the pages in
/// it with one bio each. It redirties all the others and collects them again for the next extent,
/// so the work is quadratic in the run's length.
///
/// The function has no reschedule point. Submitting pages might sleep; redirtying pages is one
/// uninterrupted stretch. The patch of March 2010 ("ext4: reduce scheduling latency with delayed
/// allocation") reschedules after each page vector.
#[derive(Clone, Copy, Debug)]
pub struct Linux2633 {
    reschedules: bool,
}

impl Linux2633 {
    /// As released.
    #[must_use]
    pub fn released() -> Self {
        Self { reschedules: false }
    }

    /// With the patch.
    #[must_use]
    pub fn rescheduling() -> Self {
        Self { reschedules: true }
    }
}

impl WriteBackPass for Linux2633 {
    fn visit(&self) -> Box<dyn Visit> {
        Box::new(Rounds { reschedules: self.reschedules, collected_pages: 0 })
    }
}

/// The rounds of one visit.
#[derive(Debug)]
struct Rounds {
    reschedules: bool,
    /// Collected pages that no round has submitted yet.
    collected_pages: u64,
}

impl Visit for Rounds {
    fn look_pages(&self, _left_pages: u64, _most_pages: u64) -> u64 {
        BUMP_PAGES
    }

    fn step(&mut self, ahead: DirtyAhead) -> Step {
        if self.collected_pages == 0 {
            self.collected_pages = ahead.run_pages.min(BUMP_PAGES);
        }
        // Pages may have been cleaned since.
        let collected_pages = self.collected_pages.min(ahead.run_pages).max(1);
        let take_pages = collected_pages.min(EXTENT_PAGES);
        self.collected_pages = collected_pages - take_pages;
        Step {
            redirty_pages: self.collected_pages,
            take_pages,
            bio_pages: Some(1),
            yields: if self.reschedules { Yields::EveryPages(PAGEVEC_PAGES) } else { Yields::AtSteps },
        }
    }

    fn left_pages(&self, left_pages: u64) -> u64 {
        left_pages.max(self.collected_pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_128_mib_takes_sixteen_rounds_and_dirties_the_rest_again_in_each() {
        let mut visit = Linux2633::released().visit();
        let (mut ahead, mut redirtied, mut rounds) = (100_000, Vec::new(), 0);
        // The flusher of 2.6.33 requests 1,024 pages of a file.
        let mut left_pages = 1024_u64;
        while left_pages > 0 {
            let run_pages = ahead.min(visit.look_pages(left_pages, 256));
            let step = visit.step(DirtyAhead { run_pages, left_pages, most_pages: 256 });
            assert_eq!((step.take_pages, step.bio_pages, step.yields), (2048, Some(1), Yields::AtSteps));
            ahead -= step.take_pages;
            redirtied.push(step.redirty_pages);
            left_pages = visit.left_pages(left_pages.saturating_sub(step.take_pages));
            rounds += 1;
        }
        assert_eq!(rounds, 16);
        assert_eq!(redirtied, (0..16).rev().map(|round| round * 2048).collect::<Vec<_>>());
    }

    #[test]
    fn the_patch_changes_nothing_but_the_places_where_the_task_yields() {
        let ahead = DirtyAhead { run_pages: 5000, left_pages: 1024, most_pages: 256 };
        let released = Linux2633::released().visit().step(ahead);
        let patched = Linux2633::rescheduling().visit().step(ahead);
        assert_eq!(patched, Step { yields: Yields::EveryPages(14), ..released });
        assert_eq!((released.take_pages, released.redirty_pages), (2048, 2952));
    }
}
