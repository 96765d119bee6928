//! Contents of a modelled disk: sparse, with data that a crash would lose kept apart.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

const PAGE: usize = 4096;
const SECTOR: usize = 512;
/// Pages in a chunk: 1 MiB.
const CHUNK: usize = 256;
/// Chunks found through one entry of the table: 1 GiB.
const REGION: usize = 1024;

type Page = Box<[u8; PAGE]>;
type Chunk = Box<[Option<Page>; CHUNK]>;
type Region = Box<[Option<Chunk>; REGION]>;

/// The bytes of a disk, sparse: zero pages take no memory, and scanning empty regions is cheap.
pub struct Contents {
    capacity_bytes: u64,
    /// Grows up to the last region written.
    regions: Vec<Option<Region>>,
    pages: usize,
    /// Pages with sectors that are only in the write cache, each with the bit set of those sectors.
    volatile: BTreeMap<u64, (u8, Page)>,
}

impl Contents {
    /// All zeroes.
    pub fn new(capacity_bytes: u64) -> Self {
        Self { capacity_bytes, regions: Vec::new(), pages: 0, volatile: BTreeMap::new() }
    }

    /// Size of the disk in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Memory used by nonzero pages, in bytes.
    pub fn stored_bytes(&self) -> u64 {
        ((self.pages + self.volatile.len()) * PAGE) as u64
    }

    fn chunk(&self, page: u64) -> Option<&Chunk> {
        let chunk = page as usize / CHUNK;
        self.regions.get(chunk / REGION)?.as_ref()?[chunk % REGION].as_ref()
    }

    fn stable(&self, page: u64) -> Option<&Page> {
        self.chunk(page)?[page as usize % CHUNK].as_ref()
    }

    /// Reads bytes from `start_byte` on, write cache included.
    pub fn read(&self, start_byte: u64, to: &mut [u8]) {
        for (page, within, piece) in pieces(start_byte, to.len()) {
            let to = &mut to[piece];
            match self.stable(page) {
                Some(bytes) => to.copy_from_slice(&bytes[within.clone()]),
                None => to.fill(0),
            }
            if let Some((sectors, bytes)) = self.volatile.get(&page) {
                for at in within.clone().step_by(SECTOR) {
                    if sectors >> (at / SECTOR) & 1 == 1 {
                        let to = &mut to[at - within.start..][..SECTOR];
                        to.copy_from_slice(&bytes[at..at + SECTOR]);
                    }
                }
            }
        }
    }

    /// Writes whole sectors. [`Contents::crash`] drops `volatile` ones unless they were
    /// [hardened](Contents::harden).
    pub fn write(&mut self, start_byte: u64, from: &[u8], volatile: bool) {
        for (page, within, piece) in pieces(start_byte, from.len()) {
            let mask = mask(&within);
            if volatile {
                let entry = self.volatile.entry(page).or_insert_with(|| (0, Box::new([0; PAGE])));
                entry.0 |= mask;
                entry.1[within].copy_from_slice(&from[piece]);
            } else {
                if let Some(entry) = self.volatile.get_mut(&page) {
                    entry.0 &= !mask;
                    if entry.0 == 0 {
                        self.volatile.remove(&page);
                    }
                }
                self.store(page, within, &from[piece]);
            }
        }
    }

    fn store(&mut self, page: u64, within: Range<usize>, from: &[u8]) {
        // A single memory comparison, cheap even in unoptimised builds.
        let zero = *from == [0; PAGE][..from.len()];
        if zero && self.chunk(page).is_none() {
            return;
        }
        let chunk = page as usize / CHUNK;
        if chunk / REGION >= self.regions.len() {
            self.regions.resize_with(chunk / REGION + 1, || None);
        }
        let region = self.regions[chunk / REGION].get_or_insert_with(|| Box::new([const { None }; REGION]));
        let chunk = region[chunk % REGION].get_or_insert_with(|| Box::new([const { None }; CHUNK]));
        let place = &mut chunk[page as usize % CHUNK];
        match place {
            Some(_) if zero && from.len() == PAGE => {
                *place = None;
                self.pages -= 1;
            }
            None if zero => {}
            Some(bytes) => bytes[within].copy_from_slice(from),
            None => {
                let mut bytes = Box::new([0; PAGE]);
                bytes[within].copy_from_slice(from);
                *place = Some(bytes);
                self.pages += 1;
            }
        }
    }

    /// Makes a range zero.
    pub fn zero(&mut self, range: Range<u64>, volatile: bool) {
        const ZEROES: [u8; PAGE] = [0; PAGE];
        let mut at = range.start;
        // Sectors that already read as zeroes, now and after a crash, need no memory.
        while let Some(run) = self.next_data(at).filter(|run| run.start < range.end) {
            at = run.start;
            let end = run.end.min(range.end);
            while at < end {
                let len = (PAGE as u64 - at % PAGE as u64).min(end - at);
                self.write(at, &ZEROES[..len as usize], volatile);
                at += len;
            }
        }
    }

    /// Marks the sectors of this range as durable.
    pub fn harden(&mut self, range: Range<u64>) {
        let pages = range.start / PAGE as u64..range.end.div_ceil(PAGE as u64);
        while let Some((&page, _)) = self.volatile.range(pages.clone()).next() {
            let base = page * PAGE as u64;
            let within =
                range.start.saturating_sub(base) as usize..(range.end - base).min(PAGE as u64) as usize;
            let (mut sectors, bytes) = self.volatile.remove(&page).expect("it was just found");
            for at in within.step_by(SECTOR) {
                if sectors >> (at / SECTOR) & 1 == 1 {
                    self.store(page, at..at + SECTOR, &bytes[at..at + SECTOR]);
                    sectors &= !(1 << (at / SECTOR));
                }
            }
            if sectors != 0 {
                // Only the first and last page of the range can have sectors outside of it.
                self.volatile.insert(page, (sectors, bytes));
                if base + PAGE as u64 >= range.end {
                    break;
                }
                self.harden(base + PAGE as u64..range.end);
                break;
            }
        }
    }

    /// Simulates a power failure: volatile sectors revert to what is on the medium.
    pub fn crash(&mut self) {
        self.volatile.clear();
    }

    /// The first run of bytes at or after `from_byte` that may be nonzero.
    pub fn next_data(&self, from_byte: u64) -> Option<Range<u64>> {
        let page = PAGE as u64;
        let holds = |at: u64| self.stable(at).is_some() || self.volatile.contains_key(&at);
        let last = self.capacity_bytes.div_ceil(page);
        let mut at = from_byte / page;
        while at < last && !holds(at) {
            let region = (CHUNK * REGION) as u64;
            let skip = match self.regions.get((at / region) as usize) {
                // Nothing is stored from here on.
                None => last,
                Some(None) => region,
                Some(_) if self.chunk(at).is_none() => CHUNK as u64,
                Some(_) => 1,
            };
            let end = (at / skip + 1) * skip;
            // Do not skip over a volatile page.
            at = self.volatile.range(at..end).next().map_or(end, |(page, _)| *page);
        }
        let start = at;
        while at < last && holds(at) {
            at += 1;
        }
        (start < last)
            .then(|| (start * page).max(from_byte)..(at * page).min(self.capacity_bytes))
            .filter(|run| run.start < run.end)
    }
}

impl fmt::Debug for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volatile = self.volatile.len();
        write!(f, "Contents({} bytes, {} pages, {volatile} volatile)", self.capacity_bytes, self.pages)
    }
}

/// Splits `len` bytes from `start_byte` on by page: page number, range within the page, range
/// within the bytes.
fn pieces(start_byte: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = start_byte + done as u64;
        let within = at as usize % PAGE;
        let take = (PAGE - within).min(len - done);
        done += take;
        Some((at / PAGE as u64, within..within + take, done - take..done))
    })
}

/// One bit per sector of a range within a page.
fn mask(within: &Range<usize>) -> u8 {
    debug_assert!(within.start.is_multiple_of(SECTOR) && within.end.is_multiple_of(SECTOR), "whole sectors");
    let below = |sectors: usize| ((1_u16 << sectors) - 1) as u8;
    below(within.end / SECTOR) & !below(within.start / SECTOR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_rt::Rng;

    #[test]
    fn a_crash_takes_what_was_not_hardened_and_nothing_else() {
        const SECTORS: u64 = 300;
        let mut rng = Rng::new(23);
        let mut disk = Contents::new(SECTORS * 512);
        // Per sector: what a reader sees, and what is on the medium.
        let mut seen = vec![0_u8; SECTORS as usize];
        let mut durable = seen.clone();
        for step in 0..1_000 {
            let start = rng.below(SECTORS);
            let count = 1 + rng.below(40.min(SECTORS - start));
            let bytes = start * 512..(start + count) * 512;
            let sectors = start as usize..(start + count) as usize;
            match rng.below(8) {
                0..3 => {
                    let fill = rng.below(4) as u8;
                    disk.write(bytes.start, &vec![fill; (count * 512) as usize], true);
                    seen[sectors].fill(fill);
                }
                3 => {
                    let fill = rng.below(4) as u8;
                    disk.write(bytes.start, &vec![fill; (count * 512) as usize], false);
                    seen[sectors.clone()].fill(fill);
                    durable[sectors].fill(fill);
                }
                4 => {
                    disk.zero(bytes, true);
                    seen[sectors].fill(0);
                }
                5 | 6 => {
                    disk.harden(bytes);
                    durable[sectors.clone()].copy_from_slice(&seen[sectors]);
                }
                _ if step % 10 == 0 => {
                    disk.crash();
                    seen.copy_from_slice(&durable);
                }
                _ => {}
            }
            let mut all = vec![9; (SECTORS * 512) as usize];
            disk.read(0, &mut all);
            assert!((0..SECTORS as usize).all(|s| all[s * 512..][..512].iter().all(|byte| *byte == seen[s])));
            let mut at = 0;
            while let Some(run) = disk.next_data(at) {
                assert!(all[at as usize..run.start as usize].iter().all(|byte| *byte == 0));
                at = run.end;
            }
            assert!(all[at as usize..].iter().all(|byte| *byte == 0), "data after the last run");
        }
    }

    #[test]
    fn a_large_empty_disk_is_small() {
        let mut disk = Contents::new(171_000_000_000);
        disk.write(170_999_999_488, &[1; 512], true);
        disk.zero(0..1 << 30, false);
        assert_eq!(disk.stored_bytes(), 4096);
        assert!(disk.regions.len() * size_of::<usize>() < 2_000);
        assert_eq!(disk.next_data(0), Some(170_999_996_416..171_000_000_000));
    }
}
