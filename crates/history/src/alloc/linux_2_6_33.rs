//! ext4's allocator, Linux 2.6.33 (fs/ext4/mballoc.c, read in a 2.6.34 tree; "Ext4 block and inode
//! allocator improvements", Linux Symposium 2008, section 3).

use super::buddy::Buddies;
use super::seam::{AllocatesAt, BlockAllocator, FileId, FreeSpace, Geometry, Request, Work};
use crate::direct::FullVolume;
use std::collections::BTreeMap;
use std::ops::Range;

/// Longer files get their own preallocations, others share (`s_mb_stream_request`,
/// `MB_DEFAULT_STREAM_THRESHOLD`).
const STREAM_BLOCKS: u64 = 16;
/// Length of a preallocation shared by short files (`s_mb_group_prealloc`), without a stripe.
const SHARED_BLOCKS: u64 = 512;
/// Number of extents that a search measures: the maximum (`s_mb_max_to_scan`), and the minimum
/// before it accepts one that is long enough (`s_mb_min_to_scan`).
const SCANS: (u64, u64) = (200, 10);
/// Requests of a power of two from 2 blocks on are looked up among the buddy chunks
/// (`s_mb_order2_reqs`).
const CHUNK_BITS: u32 = 2;
/// If flexible groups have at least this many groups, the first group of each is kept free of file
/// data (`EXT4_FLEX_SIZE_DIR_ALLOC_SCHEME`).
const FLEX_GROUPS: u64 = 4;
/// Shared preallocations of one order: the maximum, and how many are left after trimming
/// (`ext4_mb_add_n_trim`).
const SHARED_LISTS: (usize, usize) = (8, 5);
/// Number of these orders (`PREALLOC_TB_SIZE`).
const SHARED_ORDERS: u32 = 10;

/// A preallocation that belongs to one file (`MB_INODE_PA`).
#[derive(Debug)]
struct Own {
    /// The first block, in the file and on the volume.
    block: u64,
    start: u64,
    blocks: u64,
    /// Blocks not used yet.
    left: Vec<Range<u64>>,
}

#[derive(Debug, Default)]
struct File {
    /// The file's runs: first file block to position on the volume and length.
    runs: BTreeMap<u64, (u64, u64)>,
    own: Vec<Own>,
    /// Set once no process has the file open for writing.
    is_closed: bool,
}

/// How to serve a request (`ext4_mb_group_or_file`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The tail of a closed file: preallocate nothing (`EXT4_MB_HINT_NOPREALLOC`).
    Exact,
    /// A short file (`EXT4_MB_HINT_GROUP_ALLOC`).
    Shared,
    /// Any other file (`EXT4_MB_STREAM_ALLOC`).
    Stream,
}

/// A request after normalisation, as the search sees it.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    kind: Kind,
    /// First file block and length (`ac_g_ex`).
    block: u64,
    blocks: u64,
    /// Group, and block within it.
    goal: (u64, u64),
    /// Whether the goal is adjacent to the file's blocks; if so, it is tried first
    /// (`EXT4_MB_HINT_TRY_GOAL`).
    joins: bool,
}

/// Outcome of checking a group or an extent.
#[derive(Debug)]
enum Status {
    Continue,
    /// Enough extents were measured.
    Break,
    Found(u64, Range<u64>),
}

/// The extents measured so far by a search.
#[derive(Debug, Default)]
struct Seen {
    count: u64,
    best: Option<(u64, Range<u64>)>,
}

/// ext4's allocator for one volume.
///
/// It searches when dirty pages are written back. It extends the request to the predicted size of
/// the file, and preallocates the rest for the file until it is closed (`ext4_release_file`). Files
/// of up to 64 KiB allocate from a preallocation of 512 blocks shared by all such files of a
/// processor; here a single processor writes back. There is no stripe.
#[derive(Debug)]
pub struct Linux2633 {
    geometry: Geometry,
    groups: Vec<Buddies>,
    files: BTreeMap<FileId, File>,
    /// The rests of shared preallocations, sorted by order and length.
    shared: Vec<Range<u64>>,
    /// Group of the last long file's blocks, where the next such search starts (`s_mb_last_group`).
    last_group: u64,
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

/// The file blocks to allocate for a request at `block`, given the file's size in bytes (the table
/// in `ext4_mb_normalize_request`, for 4 KiB blocks).
fn guess(file_bytes: u64, block: u64) -> Range<u64> {
    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;
    let aligned = |bytes: u64| {
        let blocks = bytes / 4096;
        block / blocks * blocks..(block / blocks + 1) * blocks
    };
    if file_bytes <= MIB {
        0..file_bytes.max(16 * KIB).next_power_of_two() / 4096
    } else if file_bytes <= 4 * MIB {
        aligned(2 * MIB)
    } else if file_bytes <= 8 * MIB {
        aligned(4 * MIB)
    } else {
        aligned(8 * MIB)
    }
}

impl Linux2633 {
    /// An allocator for a volume with this free space.
    pub fn new(space: &FreeSpace) -> Self {
        let geometry = space.geometry;
        let mut groups = vec![Buddies::default(); geometry.groups as usize];
        for (group, run) in geometry.cut(space.free.iter().cloned()) {
            groups[group as usize].give(&run);
        }
        Self { geometry, groups, files: BTreeMap::new(), shared: Vec::new(), last_group: 0 }
    }

    fn give(&mut self, blocks: &Range<u64>) {
        let (group, at) = self.geometry.place(blocks.start);
        self.groups[group as usize].give(&(at..at + len(blocks)));
    }

    /// The goal of a block: the continuation of the run before it, else the group of its inode
    /// (`ext4_ext_find_goal`).
    fn goal(&self, request: &Request) -> u64 {
        let runs = &self.files[&request.file].runs;
        if let Some((block, (at, _))) = runs.range(..=request.block).next_back() {
            return at + (request.block - block);
        }
        let (group, _) = self.geometry.place(request.goal);
        let flex = self.geometry.flex_groups;
        let group = if flex >= FLEX_GROUPS { group / flex * flex + 1 } else { group };
        self.geometry.block(group.min(self.geometry.groups - 1), 0)
    }

    fn kind(&self, request: &Request, blocks: u64) -> Kind {
        let end = request.block + blocks;
        if end == request.file_blocks && self.files[&request.file].is_closed {
            Kind::Exact
        } else if end.max(request.file_blocks) > STREAM_BLOCKS {
            Kind::Stream
        } else {
            Kind::Shared
        }
    }

    /// Takes blocks preallocated for the file, or shared ones for a short file
    /// (`ext4_mb_use_preallocated`).
    fn preallocated(&mut self, request: &Request, kind: Kind, blocks: u64, goal: u64) -> Option<Range<u64>> {
        let file = self.files.get_mut(&request.file)?;
        for own in &mut file.own {
            if let Some(found) = own.take(request.block, blocks) {
                file.own.retain(|own| !own.left.is_empty());
                return Some(found);
            }
        }
        if kind != Kind::Shared {
            return None;
        }
        // Of the preallocations that are long enough, take the one nearest to the goal; among
        // equals, the last.
        let enough = self.shared.iter().enumerate().filter(|(_, rest)| len(rest) >= blocks);
        let (n, _) = enough.rev().min_by_key(|(_, rest)| rest.start.abs_diff(goal))?;
        let rest = self.shared.remove(n);
        self.share(rest.start + blocks..rest.end);
        Some(rest.start..rest.start + blocks)
    }

    /// Keeps the rest of a shared preallocation, and trims those of the same order if there are too
    /// many.
    fn share(&mut self, rest: Range<u64>) {
        if rest.is_empty() {
            return;
        }
        let order = |range: &Range<u64>| (63 - len(range).leading_zeros()).min(SHARED_ORDERS - 1);
        let new = rest.start;
        let at =
            self.shared.partition_point(|other| (order(other), len(other)) <= (order(&rest), len(&rest)));
        let same = order(&rest);
        self.shared.insert(at, rest);
        let alike = self.shared.iter().filter(|range| order(range) == same).count();
        if alike > SHARED_LISTS.0 {
            let mut surplus = alike - SHARED_LISTS.1;
            let mut given_up = Vec::new();
            self.shared.retain(|range| {
                let goes = surplus > 0 && order(range) == same && range.start != new;
                surplus -= usize::from(goes);
                given_up.extend(goes.then(|| range.clone()));
                !goes
            });
            given_up.iter().for_each(|range| self.give(range));
        }
    }

    /// Extends a request (`ext4_mb_normalize_request`).
    fn normalise(&self, request: &Request, kind: Kind, blocks: u64, goal: u64) -> Wanted {
        let goal = self.geometry.place(goal);
        let exact = Wanted { kind, block: request.block, blocks, goal, joins: false };
        match kind {
            Kind::Exact => return exact,
            Kind::Shared => return Wanted { blocks: SHARED_BLOCKS.min(self.geometry.group_blocks), ..exact },
            Kind::Stream => {}
        }
        let file = &self.files[&request.file];
        let Range { mut start, mut end } =
            guess((request.block + blocks).max(request.file_blocks) * 4096, request.block);
        let left = file.runs.range(..request.block).next_back().map(|(block, (_, len))| block + len);
        let right = file.runs.range(request.block..).next().map(|(block, _)| *block);
        if let Some(left) = left {
            start = start.max(left);
        }
        if let Some(right) = right {
            end = end.min(right);
        }
        for own in &file.own {
            let own_end = own.block + own.blocks;
            if own.block >= end || own_end <= start {
                continue;
            }
            if own_end <= request.block {
                start = own_end;
            } else {
                end = own.block;
            }
        }
        let joins = left == Some(start) || right == Some(end);
        Wanted { block: start, blocks: (end - start).min(self.geometry.group_blocks), joins, ..exact }
    }

    /// The search (`ext4_mb_regular_allocator`): the goal, then up to four passes over the groups,
    /// each less demanding.
    fn search(&self, wanted: &Wanted, work: &mut Work) -> Option<(u64, Range<u64>)> {
        let (group, at) = wanted.goal;
        if wanted.joins {
            work.searched += 1;
            let found = self.groups[group as usize].extent_at(at, wanted.blocks);
            if let Some(found) = found.filter(|found| len(found) >= wanted.blocks) {
                return Some((group, found.start..found.start + wanted.blocks));
            }
        }
        let bits = 64 - wanted.blocks.leading_zeros();
        let order = (bits >= CHUNK_BITS && wanted.blocks.is_power_of_two()).then(|| bits - 1);
        let first = if wanted.kind == Kind::Stream { self.last_group } else { group };
        let mut seen = Seen::default();
        for pass in u32::from(order.is_none())..4 {
            for n in 0..self.geometry.groups {
                let number = (first + n) % self.geometry.groups;
                let group = &self.groups[number as usize];
                if group.free() == 0 {
                    continue;
                }
                work.considered += 1;
                let flex = self.geometry.flex_groups;
                let status = match (pass, order) {
                    (0, _) if flex >= FLEX_GROUPS && number.is_multiple_of(flex) => Status::Continue,
                    (0, Some(order)) => match group.chunk(order) {
                        Some(chunk) => {
                            (work.searched, work.runs) = (work.searched + 1, work.runs + 1);
                            Status::Found(number, chunk.start..chunk.start + wanted.blocks)
                        }
                        None => Status::Continue,
                    },
                    (1, _) if group.average() < wanted.blocks => Status::Continue,
                    (2, _) if group.free() < wanted.blocks => Status::Continue,
                    _ => {
                        work.searched += 1;
                        let before = seen.count;
                        let status = seen.look_into(number, group, wanted.blocks);
                        work.runs += seen.count - before;
                        status
                    }
                };
                match status {
                    Status::Continue => {}
                    Status::Found(group, found) => return Some((group, found)),
                    Status::Break => {
                        return seen.best.map(|(group, best)| (group, first_of(&best, wanted.blocks)));
                    }
                }
            }
        }
        seen.best.map(|(group, best)| (group, first_of(&best, wanted.blocks)))
    }

    /// Discards preallocations group by group until `needed` blocks are free. Returns whether there
    /// were any.
    fn discard(&mut self, needed: u64) -> bool {
        let mut freed = 0;
        for group in 0..self.geometry.groups {
            let geometry = self.geometry;
            let is_here = |range: &Range<u64>| geometry.place(range.start).0 == group;
            let mut given_up: Vec<Range<u64>> = Vec::new();
            given_up.extend(self.shared.extract_if(.., |range| is_here(range)));
            for file in self.files.values_mut() {
                let owns = file.own.extract_if(.., |own| geometry.place(own.start).0 == group);
                given_up.extend(owns.flat_map(|own| own.left));
            }
            for range in given_up {
                freed += len(&range);
                self.give(&range);
            }
            if freed >= needed {
                break;
            }
        }
        freed > 0
    }
}

fn first_of(range: &Range<u64>, blocks: u64) -> Range<u64> {
    range.start..range.end.min(range.start + blocks)
}

impl Own {
    /// Takes blocks for `blocks` file blocks from `block` on, as far as the preallocation covers
    /// them.
    fn take(&mut self, block: u64, blocks: u64) -> Option<Range<u64>> {
        if !(self.block..self.block + self.blocks).contains(&block) {
            return None;
        }
        let start = self.start + (block - self.block);
        let n = self.left.iter().position(|left| left.contains(&start))?;
        let left = self.left.remove(n);
        let taken = start..left.end.min(start + blocks);
        let rests = [left.start..taken.start, taken.end..left.end];
        self.left.extend(rests.into_iter().filter(|rest| !rest.is_empty()));
        Some(taken)
    }
}

impl Seen {
    /// Measures a group's extents (`ext4_mb_complex_scan_group`).
    fn look_into(&mut self, number: u64, group: &Buddies, blocks: u64) -> Status {
        for extent in group.extents(blocks) {
            self.count += 1;
            if len(&extent) == blocks {
                return Status::Found(number, extent);
            }
            let Some((_, best)) = &self.best else {
                self.best = Some((number, extent));
                continue;
            };
            // If the best is too short, a longer one is better; if too long, a shorter one.
            let (old, new) = (len(best), len(&extent));
            let is_better = if old < blocks { new > old } else { new > blocks && new < old };
            if is_better {
                self.best = Some((number, extent));
            }
            match self.limits(number, blocks, false) {
                Status::Continue => {}
                status => return status,
            }
        }
        self.limits(number, blocks, true)
    }

    /// Whether to continue the search (`ext4_mb_check_limits`).
    fn limits(&self, number: u64, blocks: u64, is_end: bool) -> Status {
        let (most, least) = SCANS;
        match &self.best {
            _ if self.count > most => Status::Break,
            Some((group, best))
                if len(best) >= blocks && *group == number && (is_end || self.count > least) =>
            {
                Status::Found(number, first_of(best, blocks))
            }
            _ => Status::Continue,
        }
    }
}

impl BlockAllocator for Linux2633 {
    fn allocates_at(&self) -> AllocatesAt {
        AllocatesAt::WriteBack
    }

    fn allocate(&mut self, request: Request) -> Result<(Range<u64>, Work), FullVolume> {
        let mut work = Work::default();
        self.files.entry(request.file).or_default();
        let blocks = request.blocks.min(self.geometry.group_blocks - 10);
        let (kind, goal) = (self.kind(&request, blocks), self.goal(&request));
        let found = match self.preallocated(&request, kind, blocks, goal) {
            Some(found) => found,
            None => {
                let wanted = self.normalise(&request, kind, blocks, goal);
                let (group, found) = loop {
                    match self.search(&wanted, &mut work) {
                        Some(found) => break found,
                        None if self.discard(blocks) => {}
                        None => return Err(FullVolume),
                    }
                };
                self.groups[group as usize].take(&found);
                if kind == Kind::Stream {
                    self.last_group = group;
                }
                let start = self.geometry.block(group, found.start);
                self.preallocate(&request, &wanted, blocks, start..start + len(&found))
            }
        };
        let file = self.files.entry(request.file).or_default();
        let before = file.runs.range_mut(..request.block).next_back();
        match before.filter(|(block, run)| *block + run.1 == request.block && run.0 + run.1 == found.start) {
            Some((_, run)) => run.1 += len(&found),
            None => {
                file.runs.insert(request.block, (found.start, len(&found)));
            }
        }
        Ok((found, work))
    }

    fn close(&mut self, file: FileId) {
        let file = self.files.entry(file).or_default();
        file.is_closed = true;
        let left: Vec<Range<u64>> = file.own.drain(..).flat_map(|own| own.left).collect();
        left.iter().for_each(|range| self.give(range));
    }
}

impl Linux2633 {
    /// Splits the blocks found: returns those requested, and preallocates the others
    /// (`ext4_mb_new_preallocation`).
    fn preallocate(
        &mut self,
        request: &Request,
        wanted: &Wanted,
        blocks: u64,
        found: Range<u64>,
    ) -> Range<u64> {
        let many = len(&found);
        if many <= blocks {
            return found;
        }
        if wanted.kind == Kind::Shared {
            self.share(found.start + blocks..found.end);
            return found.start..found.start + blocks;
        }
        let mut block = wanted.block;
        if many < wanted.blocks {
            // The run is shorter than wanted: let it start at a multiple of its length, if one is
            // near enough.
            let back = (request.block - wanted.block).min(many - blocks);
            let beyond = request.block % many;
            block = request.block - if beyond > 0 { back.min(beyond) } else { back };
        }
        let mut own = Own { block, start: found.start, blocks: many, left: vec![found] };
        let taken = own.take(request.block, blocks).expect("it covers the request");
        if !own.left.is_empty() {
            self.files.entry(request.file).or_default().own.push(own);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{empty, space};
    use super::*;

    fn request(file: u64, block: u64, blocks: u64) -> Request {
        Request { blocks, file_blocks: block + blocks, ..Request::append(FileId(file), block, 0) }
    }

    fn write(allocator: &mut Linux2633, file: u64, block: u64, blocks: u64) -> Range<u64> {
        allocator.allocate(request(file, block, blocks)).unwrap().0
    }

    #[test]
    fn the_table_of_sizes_is_that_of_normalize_request() {
        let kib = |bytes: u64, block: u64| {
            let blocks = guess(bytes * 1024, block);
            (blocks.start * 4, len(&blocks) * 4)
        };
        assert_eq!(kib(4, 0), (0, 16));
        assert_eq!(
            [kib(17, 0), kib(65, 3), kib(128, 16), kib(513, 100)],
            [(0, 32), (0, 128), (0, 128), (0, 1024)]
        );
        assert_eq!(kib(1024, 255), (0, 1024));
        assert_eq!(kib(1028, 256), (0, 2048));
        assert_eq!(kib(4096, 1023), (2048, 2048));
        assert_eq!(kib(4100, 1024), (4096, 4096));
        assert_eq!(kib(8196, 2048), (8192, 8192));
        assert_eq!(kib(1 << 20, 100_000), (393_216, 8192));
    }

    #[test]
    fn a_long_run_is_written_back_in_pieces_of_2048_blocks_that_join() {
        let mut allocator = Linux2633::new(&empty());
        let mut at = 0;
        let mut places = Vec::new();
        while at < 6000 {
            let (found, _) =
                allocator.allocate(Request { file_blocks: 6000, ..request(1, at, 6000 - at) }).unwrap();
            at += len(&found);
            places.push(found);
        }
        // The first is an aligned chunk at the first multiple of its length.
        assert_eq!(places, [2048..4096, 4096..6144, 6144..8048]);
    }

    #[test]
    fn files_of_up_to_16_blocks_share_512_and_the_17th_is_elsewhere() {
        let mut allocator = Linux2633::new(&empty());
        assert_eq!(write(&mut allocator, 1, 0, 16), 512..528);
        assert_eq!(write(&mut allocator, 2, 0, 3), 528..531);
        assert_eq!((allocator.shared.len(), allocator.shared[0].clone()), (1, 531..1024));
        // 17 blocks are predicted to become 32; the first 16 are already allocated.
        assert_eq!(write(&mut allocator, 1, 16, 1), 112..113);
        let own = &allocator.files[&FileId(1)].own[0];
        assert_eq!((own.block, own.blocks, own.left[0].clone()), (16, 16, 113..128));
        assert_eq!(write(&mut allocator, 1, 17, 1), 113..114);
    }

    #[test]
    fn a_close_gives_back_what_a_file_has_preallocated_and_its_end_takes_no_more() {
        let mut allocator = Linux2633::new(&empty());
        let before = allocator.groups[0].free();
        write(&mut allocator, 1, 0, 20);
        assert_eq!(allocator.groups[0].free(), before - 32);
        allocator.close(FileId(1));
        assert_eq!(allocator.groups[0].free(), before - 20);
        write(&mut allocator, 1, 20, 20);
        assert_eq!(allocator.groups[0].free(), before - 40);
    }

    #[test]
    fn of_extents_that_are_too_long_the_shortest_of_eleven_is_taken() {
        // 24 is not a power of two. The extents have 79, 78, ... blocks: 15, 14, ... before a
        // multiple of 1024, and 64 from there on.
        let runs = (0..15).map(|n| 1024 * (n + 1) - (15 - n)..1024 * (n + 1) + 64);
        let mut allocator = Linux2633::new(&space(runs));
        allocator.close(FileId(1));
        assert_eq!(write(&mut allocator, 1, 0, 24), 1024 * 11 - 5..1024 * 11 + 19);
    }

    #[test]
    fn preallocations_of_others_are_given_up_before_the_volume_is_full() {
        let mut allocator = Linux2633::new(&space(std::iter::once(1024..1024 + 512)));
        write(&mut allocator, 1, 0, 1);
        assert_eq!(allocator.groups[0].free(), 0);
        let mut places = 0;
        for block in 0..511 {
            let request = Request { file_blocks: 600, ..request(2, block, 1) };
            places += len(&allocator.allocate(request).unwrap().0);
        }
        assert_eq!(places, 511);
        assert_eq!(allocator.allocate(request(2, 511, 1)), Err(FullVolume));
    }

    #[test]
    fn volumes_with_flexible_groups_have_data_behind_the_first_of_each() {
        let mut flexible = empty();
        flexible.geometry.flex_groups = 16;
        let mut allocator = Linux2633::new(&flexible);
        let found = write(&mut allocator, 1, 0, 64);
        assert_eq!(allocator.geometry.place(found.start).0, 1);
    }
}
