//! The read-ahead of Linux 2.6.6 (mm/readahead.c: `page_cache_readahead`, `check_ra_success`,
//! `handle_ra_miss`), written from memory without the source: window sizes and the rules for
//! growing and shrinking are as recalled.
//!
//! There is a current window and one ahead of it, in pages. A hit lengthens the next window by two
//! pages, up to the maximum; a miss shortens it by two, until read-ahead is off. A window that
//! reads nothing, because its pages were cached or the device was congested, shortens the next one
//! by a page. Read-ahead turns on again after as many consecutive misses as the longest window has
//! pages, each at the page after the previous one.

use std::ops::Range;

/// Read-ahead state of an open file (kernel: `struct file_ra_state`). All numbers are in pages.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    most: u64,
    start: u64,
    size: u64,
    next: Next,
    previous: Option<u64>,
    ahead: Range<u64>,
    /// Consecutive misses at consecutive pages, while read-ahead is off.
    misses: u64,
    last_miss: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// No access yet.
    Unknown,
    Pages(u64),
    Off,
}

impl ReadAhead {
    /// State for a newly opened file; windows have at most `most` pages (kernel: `ra_pages`), 2 or
    /// more.
    pub fn new(most: u64) -> Self {
        Self {
            most,
            start: 0,
            size: 0,
            next: Next::Unknown,
            previous: None,
            ahead: 0..0,
            misses: 0,
            last_miss: None,
        }
    }

    /// Starts a read of `page`. `read` starts reading a window and returns how many of its pages
    /// were not cached.
    pub fn access(&mut self, page: u64, read: &mut dyn FnMut(Range<u64>) -> u64) {
        let next = match self.next {
            // Reads shorter than a page return to the same page.
            Next::Pages(_) if self.previous == Some(page) => return,
            Next::Off => {
                self.previous = Some(page);
                return;
            }
            Next::Unknown => {
                self.next = Next::Pages(self.most / 2);
                self.previous = Some(page);
                (self.start, self.size, self.ahead) = (page, self.most / 2, 0..0);
                read(page..page + self.size);
                return;
            }
            Next::Pages(pages) => pages,
        };
        self.previous = Some(page);
        let hit = (self.start..=self.start + self.size).contains(&page);
        let grown = if hit { (next + 2).min(self.most) } else { next.saturating_sub(2) };
        if grown == 0 {
            self.off();
            return;
        }
        self.next = Next::Pages(grown);
        if !(self.start..self.start + self.size).contains(&page) {
            if self.ahead.contains(&page) {
                (self.start, self.size) = (self.ahead.start, self.ahead.end - self.ahead.start);
                self.ahead = 0..0;
            } else {
                (self.start, self.size, self.ahead) = (page, grown, 0..0);
                let fresh = read(page..page + grown);
                self.look_at(fresh, next);
                return;
            }
        }
        if self.ahead.is_empty() && self.next != Next::Off {
            let from = self.start + self.size;
            self.ahead = from..from + grown;
            let fresh = read(self.ahead.clone());
            self.look_at(fresh, next);
        }
    }

    /// The page of the last access was not cached, and is read on its own.
    pub fn missed(&mut self, page: u64) {
        let before = self.last_miss.replace(page);
        if self.next != Next::Off {
            return;
        }
        let follows = before.is_some_and(|before| before + 1 == page);
        self.misses = if follows { self.misses + 1 } else { 0 };
        if self.misses >= self.most {
            (self.next, self.misses) = (Next::Pages(self.most), 0);
            (self.start, self.size) = (page.saturating_sub(self.most - 1), self.most);
            self.ahead = 0..0;
        }
    }

    fn look_at(&mut self, fresh: u64, before: u64) {
        if fresh == 0 {
            match before {
                0 | 1 => self.off(),
                pages => self.next = Next::Pages(pages - 1),
            }
        }
    }

    fn off(&mut self) {
        (self.next, self.size, self.misses) = (Next::Off, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads pages in order, with or without congestion. Returns the windows in the order in which
    /// they were read.
    fn windows(pages: impl Iterator<Item = u64>, congested: bool) -> Vec<Range<u64>> {
        let (mut state, mut all) = (ReadAhead::new(16), Vec::new());
        for page in pages {
            state.access(page, &mut |window| {
                let fresh = if congested { 0 } else { window.end - window.start };
                all.push(window);
                fresh
            });
            if congested {
                state.missed(page);
            }
        }
        all
    }

    #[test]
    fn a_stream_is_read_once_and_in_windows_that_grow() {
        let all = windows(0..200, false);
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start), "{all:?}");
        assert_eq!(all[0], 0..8);
        assert_eq!(all.last().map(|window| window.end - window.start), Some(16));
    }

    #[test]
    fn random_reads_turn_it_off() {
        let all = windows((0..100).map(|n| n * 1_000), false);
        assert_eq!(all.iter().map(|window| window.end - window.start).collect::<Vec<_>>(), [8, 6, 4, 2]);
    }

    #[test]
    fn a_congested_device_turns_it_off_and_misses_in_a_row_on_again() {
        let all = windows(0..400, true);
        let on_again = all.windows(2).filter(|pair| pair[1].start > pair[0].start + 10).count();
        assert!(all.len() < 200 && on_again > 1, "{all:?}");
    }
}
