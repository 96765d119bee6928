//! What a check keeps per block and per inode. Pages are allocated where they are needed, so that a
//! large, mostly empty volume takes little memory.

use crate::limits::{Limits, PAGE_BYTES, PAGE_SLOTS};
use extant_format::{InodeNumber, Superblock, UintExt, VolumeBlock};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Clusters claimed so far, and those claimed more than once: one bit each.
pub(crate) struct Claims {
    pages: Vec<OnceLock<Option<Page>>>,
    per_group: u64,
    clusters: u64,
    first_block: u64,
    cluster_shift: u32,
    limits: Arc<Limits>,
}

/// The clusters of a group.
struct Page {
    claimed: Box<[AtomicU64]>,
    again: OnceLock<Option<Again>>,
}

/// Clusters of a group that were claimed more than once.
struct Again {
    bits: Box<[AtomicU64]>,
    /// A bit for each full word of `bits`. A claim skips these: otherwise a hostile map that claims
    /// the same long run over and over would cost time in proportion to the run's length each time,
    /// not to the map's size.
    full: Box<[AtomicU64]>,
}

fn words(count: u64) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

impl Page {
    fn claim(&self, from: u64, count: u64, limits: &Limits) -> bool {
        let (mut at, end) = (from, from + count);
        let mut twice = false;
        while at < end {
            let (word, bit) = (at / 64, at % 64);
            if bit == 0
                && let Some(Some(again)) = self.again.get()
                && let skipped @ 1.. = again.full_from(word)
            {
                twice = true;
                at += skipped * 64;
                continue;
            }
            let len = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - len)) << bit;
            let both = self.claimed[word.to_usize()].fetch_or(mask, Ordering::Relaxed) & mask;
            if both != 0 {
                twice = true;
                let count = self.claimed.len().to_u64();
                let make = || {
                    limits
                        .take(9 * count + 64)
                        .then(|| Again { bits: words(count), full: words(count.div_ceil(64)) })
                };
                let Some(again) = self.again.get_or_init(make) else { return twice };
                again.add(word.to_usize(), both);
            }
            at += len;
        }
        twice
    }
}

impl Again {
    fn add(&self, word: usize, bits: u64) {
        if self.bits[word].fetch_or(bits, Ordering::Relaxed) | bits == u64::MAX {
            self.full[word / 64].fetch_or(1 << (word % 64), Ordering::Relaxed);
        }
    }

    /// Number of consecutive full words from this one on, within one word of `full`.
    fn full_from(&self, word: u64) -> u64 {
        let full = self.full[(word / 64).to_usize()].load(Ordering::Relaxed);
        (full >> (word % 64)).trailing_ones().into()
    }

    /// Whether a bit is set, and how many bits from there on have the same value, up to `most`.
    fn alike(&self, from: u64, most: u64) -> (bool, u64) {
        let is_set = self.bits[(from / 64).to_usize()].load(Ordering::Relaxed) >> (from % 64) & 1 != 0;
        let (mut at, end) = (from, from + most);
        while at < end {
            let (word, bit) = (at / 64, at % 64);
            if is_set
                && bit == 0
                && let skipped @ 1.. = self.full_from(word)
            {
                at += skipped * 64;
                continue;
            }
            let bits = self.bits[word.to_usize()].load(Ordering::Relaxed);
            let others = if is_set { !bits } else { bits };
            let run = (others >> bit).trailing_zeros().min((64 - bit).fit_u32());
            at += u64::from(run);
            if u64::from(run) < 64 - bit {
                break;
            }
        }
        (is_set, at.min(end) - from)
    }
}

impl Claims {
    pub(crate) fn new(sb: &Superblock, groups: u32, limits: Arc<Limits>) -> Self {
        let shift = sb.blocks_per_cluster().trailing_zeros();
        let first_block = sb.first_data_block().0;
        let blocks = sb.blocks_count() - first_block;
        Self {
            pages: (0..groups).map(|_| OnceLock::new()).collect(),
            per_group: sb.clusters_per_group().into(),
            clusters: blocks.div_ceil(1 << shift),
            first_block,
            cluster_shift: shift,
            limits,
        }
    }

    /// The cluster of a block of the volume.
    pub(crate) fn cluster(&self, block: VolumeBlock) -> u64 {
        block.0.saturating_sub(self.first_block) >> self.cluster_shift
    }

    /// The first block of a cluster.
    pub(crate) fn block(&self, cluster: u64) -> u64 {
        (cluster << self.cluster_shift) + self.first_block
    }

    fn page(&self, group: usize) -> Option<&Page> {
        let count = self.per_group.div_ceil(64);
        let make = || {
            let page = || Page { claimed: words(count), again: OnceLock::new() };
            self.limits.take(8 * count + 64).then(page)
        };
        self.pages.get(group)?.get_or_init(make).as_ref()
    }

    /// Claims clusters; returns whether any of them was claimed before.
    pub(crate) fn claim(&self, start: u64, count: u64) -> bool {
        let end = start.saturating_add(count).min(self.clusters);
        let (mut at, mut twice) = (start, false);
        while at < end {
            let (group, bit) = ((at / self.per_group).to_usize(), at % self.per_group);
            let Some(page) = self.page(group) else { break };
            let count = (end - at).min(self.per_group - bit);
            twice |= page.claim(bit, count, &self.limits);
            at += count;
        }
        twice
    }

    /// The first cluster at or after this one that nothing claims.
    pub(crate) fn first_free(&self, from: u64) -> Option<u64> {
        let mut at = from;
        while at < self.clusters {
            let (group, bit) = (at / self.per_group, at % self.per_group);
            let page = usize::try_from(group).ok().and_then(|group| self.pages.get(group)?.get()?.as_ref());
            let Some(page) = page else { return Some(at) };
            let word =
                page.claimed.get(usize::try_from(bit / 64).ok()?)?.load(Ordering::Relaxed) >> (bit % 64);
            let run = u64::from(word.trailing_ones()).min(64 - bit % 64);
            if run < 64 - bit % 64 && bit + run < self.per_group {
                return Some(at + run).filter(|&free| free < self.clusters);
            }
            at = (at + run.max(1)).min((group + 1) * self.per_group);
        }
        None
    }

    /// The claimed bits of a group, in words; `None` if there are none.
    pub(crate) fn words(&self, group: u32) -> Option<impl Iterator<Item = u64> + '_> {
        let page = self.pages.get(group.to_usize())?.get()?.as_ref()?;
        Some(page.claimed.iter().map(|word| word.load(Ordering::Relaxed)))
    }

    fn again(&self, group: usize) -> Option<&Again> {
        self.pages.get(group)?.get()?.as_ref()?.again.get()?.as_ref()
    }

    /// Whether a block was claimed more than once, and for how many blocks from there on the answer
    /// is the same, up to `most`.
    pub(crate) fn is_shared(&self, block: u64, most: u64) -> (bool, u64) {
        let at = self.cluster(VolumeBlock(block));
        let (group, bit) = ((at / self.per_group).to_usize(), at % self.per_group);
        let room = (self.per_group - bit).min((most >> self.cluster_shift) + 2);
        let (is_shared, clusters) = self.again(group).map_or((false, room), |again| again.alike(bit, room));
        (is_shared, (self.block(at + clusters) - block).min(most).max(1))
    }

    /// Runs of clusters that were claimed more than once, in order.
    pub(crate) fn shared(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let groups = (0..self.pages.len()).filter_map(|group| Some((group, self.again(group)?)));
        let mut runs = groups.flat_map(move |(group, again)| {
            let first = group.to_u64() * self.per_group;
            let mut at = 0;
            std::iter::from_fn(move || {
                while at < self.per_group {
                    let (is_set, len) = again.alike(at, self.per_group - at);
                    at += len.max(1);
                    if is_set {
                        return Some((first + at - len, first + at));
                    }
                }
                None
            })
        });
        let mut open: Option<(u64, u64)> = None;
        // Join runs of neighbouring groups.
        std::iter::from_fn(move || {
            loop {
                match (runs.next(), &mut open) {
                    (Some((start, end)), Some(last)) if last.1 == start => last.1 = end,
                    (next, _) => {
                        let is_end = next.is_none();
                        let last = std::mem::replace(&mut open, next);
                        if last.is_some() || is_end {
                            return last;
                        }
                    }
                }
            }
        })
    }
}

/// Clusters that a task is about to claim. Neighbouring files mostly lie next to each other, so
/// that their clusters can be claimed together.
#[derive(Debug, Default)]
pub(crate) struct Claiming {
    start: u64,
    count: u64,
}

impl Claiming {
    /// Adds clusters. They are claimed by the time of [`Self::finish`].
    pub(crate) fn add(&mut self, claims: &Claims, start: u64, count: u64) {
        if self.start + self.count == start {
            self.count += count;
        } else {
            self.finish(claims);
            (self.start, self.count) = (start, count);
        }
    }

    /// Claims what is left.
    pub(crate) fn finish(&mut self, claims: &Claims) {
        claims.claim(self.start, std::mem::take(&mut self.count));
    }
}

/// What an inode is, as far as entries that name it are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unused,
    /// A file of this kind, as in directory entries: 1 to 7.
    File(u8),
    /// In use, but with an invalid mode.
    Invalid,
    /// Reserved, or the volume's own: it has no name.
    Own,
    /// Holds an attribute's value: it has no name.
    Value,
}

impl Kind {
    fn code(self) -> u8 {
        match self {
            Self::Unused => 0,
            Self::File(code) => code,
            Self::Invalid => 8,
            Self::Own => 9,
            Self::Value => 10,
        }
    }

    fn from_code(code: u8) -> Self {
        match code {
            code @ 1..=7 => Self::File(code),
            8 => Self::Invalid,
            9 => Self::Own,
            10 => Self::Value,
            _ => Self::Unused,
        }
    }

    pub(crate) fn is_directory(self) -> bool {
        self == Self::File(2)
    }
}

/// Neighbouring inodes. Kinds are stored apart from balances, because kinds are looked up in random
/// order, one for each entry, and this way more of them fit into a cache.
#[derive(Debug)]
struct Slots {
    /// [`Kind`] in the low four bits, [`ENCRYPTED`] and [`USED`].
    kinds: Box<[AtomicU8]>,
    /// Links minus names, modulo 2^16.
    balances: Box<[AtomicU16]>,
}

impl Slots {
    fn new() -> Self {
        Self {
            kinds: (0..PAGE_SLOTS).map(|_| AtomicU8::new(0)).collect(),
            balances: (0..PAGE_SLOTS).map(|_| AtomicU16::new(0)).collect(),
        }
    }
}

const ENCRYPTED: u8 = 0x10;
/// The inode bitmap should mark it.
const USED: u8 = 0x20;

/// What is known of an inode beyond its kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    pub(crate) encrypted: bool,
    /// The inode bitmap should mark it.
    pub(crate) used: bool,
}

/// What is known of inodes, in pages, because inodes in use may be far apart.
pub(crate) struct Inodes {
    groups: Vec<OnceLock<Box<[InodePage]>>>,
    per_group: u32,
    limits: Arc<Limits>,
}

type InodePage = OnceLock<Option<Slots>>;

/// Number of names that a task collects before it counts them.
const NAMES: usize = 32 << 10;
/// Number of groups in which they are counted.
const NAME_GROUPS: usize = 1024;

/// Inodes named by entries, one for each name. Those of one page of inodes are counted together, so
/// that a large directory does not cause a cache miss for each name.
#[derive(Debug, Default)]
pub(crate) struct Names {
    names: Vec<InodeNumber>,
    grouped: Vec<InodeNumber>,
}

impl Names {
    pub(crate) fn add(&mut self, number: InodeNumber, inodes: &Inodes) {
        self.names.push(number);
        if self.names.len() >= NAMES {
            self.count(inodes);
        }
    }

    pub(crate) fn count(&mut self, inodes: &Inodes) {
        let group = |number: &InodeNumber| (number.0 / PAGE_SLOTS).to_usize() % NAME_GROUPS;
        // A counting sort: where the next name of each group goes.
        let mut next = vec![0; NAME_GROUPS];
        for number in &self.names {
            next[group(number)] += 1;
        }
        let mut start = 0;
        for next in &mut next {
            start += std::mem::replace(next, start);
        }
        self.grouped.resize(self.names.len(), InodeNumber(0));
        for number in self.names.drain(..) {
            let at = &mut next[group(&number)];
            self.grouped[*at] = number;
            *at += 1;
        }
        let mut near = inodes.near();
        for &number in &self.grouped {
            near.named(number);
        }
    }
}

impl Inodes {
    pub(crate) fn new(sb: &Superblock, groups: u32, limits: Arc<Limits>) -> Self {
        let groups = (0..groups).map(|_| OnceLock::new()).collect();
        Self { groups, per_group: sb.inodes_per_group(), limits }
    }

    fn place(&self, number: InodeNumber) -> Option<(usize, u32)> {
        let n = number.0.checked_sub(1)?;
        Some(((n / self.per_group).to_usize(), n % self.per_group))
    }

    /// Records an inode that is in use, or the volume's own. Nothing else may record it, or count
    /// its names, at the same time.
    pub(crate) fn set(&self, number: InodeNumber, kind: Kind, links: u16, marks: Marks) {
        let Some((group, n)) = self.place(number) else { return };
        let Some(group) = self.groups.get(group) else { return };
        let pages =
            group.get_or_init(|| (0..self.per_group.div_ceil(PAGE_SLOTS)).map(|_| OnceLock::new()).collect());
        let page = pages[(n / PAGE_SLOTS).to_usize()]
            .get_or_init(|| self.limits.take(PAGE_BYTES).then(Slots::new))
            .as_ref();
        let (Some(page), at) = (page, (n % PAGE_SLOTS).to_usize()) else { return };
        // Cheaper than one atomic addition.
        let before = page.balances[at].load(Ordering::Relaxed);
        page.balances[at].store(before.wrapping_add(links), Ordering::Relaxed);
        let marks = if marks.encrypted { ENCRYPTED } else { 0 } | if marks.used { USED } else { 0 };
        page.kinds[at].store(kind.code() | marks, Ordering::Relaxed);
    }

    /// Tells for each inode of the page that starts at inode `first` of a group whether it is in
    /// use.
    pub(crate) fn used(&self, group: u32, first: u32) -> Option<impl Iterator<Item = bool> + '_> {
        let pages = self.groups.get(group.to_usize())?.get()?;
        let page = pages.get((first / PAGE_SLOTS).to_usize())?.get()?.as_ref()?;
        Some(page.kinds.iter().map(|kind| kind.load(Ordering::Relaxed) & USED != 0))
    }

    /// The page of inode `n` of a group, if it has inodes in use.
    fn page(&self, group: usize, n: u32) -> Option<&Slots> {
        self.groups.get(group)?.get()?[(n / PAGE_SLOTS).to_usize()].get()?.as_ref()
    }

    /// A look-up for inodes whose numbers are mostly close to each other.
    pub(crate) fn near(&self) -> Near<'_> {
        Near { inodes: self, first: 0, count: 0, page: None }
    }

    /// The kind of an inode, and whether it is encrypted.
    pub(crate) fn get(&self, number: InodeNumber) -> (Kind, bool) {
        self.near().get(number)
    }

    pub(crate) fn kind(&self, number: InodeNumber) -> Kind {
        self.get(number).0
    }

    /// Counts names.
    pub(crate) fn named(&self, number: InodeNumber, names: usize) {
        if let Some((page, at)) = self.near().slot(number) {
            page.balances[at].fetch_sub(names.to_u64().low_u16(), Ordering::Relaxed);
        }
    }

    /// Inodes whose link count differs from their number of names, with the difference, in order.
    pub(crate) fn unbalanced(&self) -> impl Iterator<Item = (InodeNumber, u16)> + '_ {
        let groups = self.groups.iter().enumerate().filter_map(|(group, pages)| Some((group, pages.get()?)));
        let pages = groups.flat_map(|(group, pages)| {
            let first = group.fit_u32() * self.per_group + 1;
            let pages = pages.iter().enumerate();
            pages.filter_map(move |(n, page)| Some((first + n.fit_u32() * PAGE_SLOTS, page.get()?.as_ref()?)))
        });
        pages.flat_map(|(first, page)| {
            page.balances.iter().zip(&page.kinds).enumerate().filter_map(move |(n, (balance, kind))| {
                let balance = balance.load(Ordering::Relaxed);
                let kind = Kind::from_code(kind.load(Ordering::Relaxed) & 15);
                let counts = matches!(kind, Kind::File(_) | Kind::Invalid);
                (balance != 0 && counts).then_some((InodeNumber(first + n.fit_u32()), balance))
            })
        })
    }
}

/// Looks up inodes, and remembers the page of the last one.
pub(crate) struct Near<'a> {
    inodes: &'a Inodes,
    /// The first inode of the page, and the number of inodes from there on that are in it.
    first: u32,
    count: u32,
    page: Option<&'a Slots>,
}

impl<'a> Near<'a> {
    fn slot(&mut self, number: InodeNumber) -> Option<(&'a Slots, usize)> {
        let at = number.0.wrapping_sub(self.first);
        if at < self.count {
            return Some((self.page?, at.to_usize()));
        }
        let (group, n) = self.inodes.place(number)?;
        let page = self.inodes.page(group, n)?;
        let at = n % PAGE_SLOTS;
        self.first = number.0 - at;
        self.count = PAGE_SLOTS.min(self.inodes.per_group - (n - at));
        self.page = Some(page);
        Some((page, at.to_usize()))
    }

    /// The kind of an inode, and whether it is encrypted.
    pub(crate) fn get(&mut self, number: InodeNumber) -> (Kind, bool) {
        let code = self.slot(number).map_or(0, |(page, at)| page.kinds[at].load(Ordering::Relaxed));
        (Kind::from_code(code & 15), code & ENCRYPTED != 0)
    }

    /// Whether the inode is in the page of the last one.
    pub(crate) fn is_near(&self, number: InodeNumber) -> bool {
        number.0.wrapping_sub(self.first) < self.count
    }

    /// Counts a name.
    pub(crate) fn named(&mut self, number: InodeNumber) {
        if let Some((page, at)) = self.slot(number) {
            page.balances[at].fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cancel;

    fn claims(per_group: u64, groups: u64) -> Claims {
        Claims {
            pages: (0..groups).map(|_| OnceLock::new()).collect(),
            per_group,
            clusters: per_group * groups - 7,
            first_block: 1,
            cluster_shift: 0,
            limits: Arc::new(Limits::new(None, Cancel::default())),
        }
    }

    #[test]
    fn near_inodes_are_found_up_to_the_ends_of_groups() {
        let inodes = Inodes {
            groups: (0..3).map(|_| OnceLock::new()).collect(),
            per_group: 1500,
            limits: Arc::new(Limits::new(None, Cancel::default())),
        };
        let kind = |number: u32| match (1..=4500).contains(&number) && !number.is_multiple_of(3) {
            true => Kind::File(1 + (number % 7).low_u8()),
            false => Kind::Unused,
        };
        for number in (1..=4500).filter(|&number| kind(number) != Kind::Unused) {
            inodes.set(InodeNumber(number), kind(number), 1, Marks { encrypted: false, used: true });
        }
        let mut near = inodes.near();
        for number in (0..5000).chain((0..5000).rev()) {
            assert_eq!(near.get(InodeNumber(number)).0, kind(number), "inode {number}");
        }
    }

    #[test]
    fn claims_agree_with_counters() {
        for seed in 1..40_u64 {
            let mut state = seed;
            let mut below = |n: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % n
            };
            let per_group = 64 * (1 + below(130));
            let claims = claims(per_group, 3);
            let mut counters = vec![0_u32; claims.clusters as usize];
            for _ in 0..below(40) {
                let start = below(claims.clusters);
                let most = if below(2) == 0 { 70 } else { 2 * per_group };
                let count = 1 + below(most);
                let end = (start + count).min(claims.clusters);
                let mine = &mut counters[start as usize..end as usize];
                assert_eq!(claims.claim(start, count), mine.iter().any(|&n| n > 0), "seed {seed}");
                mine.iter_mut().for_each(|n| *n += 1);
            }
            let mut shared = vec![false; counters.len()];
            let mut last = None;
            for (start, end) in claims.shared() {
                assert!(start < end && last.is_none_or(|last| last < start), "seed {seed}: runs touch");
                shared[start as usize..end as usize].fill(true);
                last = Some(end);
            }
            let expected: Vec<bool> = counters.iter().map(|&n| n > 1).collect();
            assert_eq!(shared, expected, "seed {seed}");
            let at = below(claims.clusters);
            let (is_shared, alike) = claims.is_shared(claims.block(at), 100);
            let run =
                expected[at as usize..].iter().take_while(|&&shared| shared == is_shared).count() as u64;
            let left = per_group - at % per_group;
            assert_eq!(
                (is_shared, alike),
                (expected[at as usize], run.min(left).clamp(1, 100)),
                "seed {seed}"
            );
        }
    }
}
