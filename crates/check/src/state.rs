//! What a check keeps per block and per inode. Pages are made for groups that need them, so that a
//! large, mostly empty volume takes little memory.

use extant_format::{InodeNumber, Superblock, VolumeBlock};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

/// Clusters claimed so far: one bit each.
pub(crate) struct Claims {
    pages: Vec<OnceLock<Box<[AtomicU64]>>>,
    per_group: u64,
    clusters: u64,
    first_block: u64,
    cluster_shift: u32,
}

impl Claims {
    pub(crate) fn new(sb: &Superblock, groups: u32) -> Self {
        let shift = sb.blocks_per_cluster().trailing_zeros();
        let first_block = sb.first_data_block().0;
        let blocks = sb.blocks_count() - first_block;
        Self {
            pages: (0..groups).map(|_| OnceLock::new()).collect(),
            per_group: sb.clusters_per_group().into(),
            clusters: blocks.div_ceil(1 << shift),
            first_block,
            cluster_shift: shift,
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

    fn page(&self, group: usize) -> Option<&[AtomicU64]> {
        let words = self.per_group.div_ceil(64) as usize;
        Some(self.pages.get(group)?.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect()))
    }

    /// Claims clusters; `twice` gets those that already were, as runs.
    pub(crate) fn claim(&self, start: u64, count: u64, mut twice: impl FnMut(u64, u64)) {
        let end = start.saturating_add(count).min(self.clusters);
        let mut at = start;
        while at < end {
            let (group, bit) = ((at / self.per_group) as usize, at % self.per_group);
            let Some(page) = self.page(group) else { return };
            let len = (64 - bit % 64).min(end - at).min(self.per_group - bit);
            let mask = (u64::MAX >> (64 - len)) << (bit % 64);
            let mut both = page[(bit / 64) as usize].fetch_or(mask, Ordering::Relaxed) & mask;
            while both != 0 {
                let from = both.trailing_zeros();
                let run = (both >> from).trailing_ones();
                twice(at - bit % 64 + u64::from(from), run.into());
                both &= !((u64::MAX >> (64 - run)) << from);
            }
            at += len;
        }
    }

    /// The claimed bits of a group, in words; `None` if there are none.
    pub(crate) fn words(&self, group: u32) -> Option<impl Iterator<Item = u64> + '_> {
        let page = self.pages.get(group as usize)?.get()?;
        Some(page.iter().map(|word| word.load(Ordering::Relaxed)))
    }
}

/// What an inode is, for those that name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Unused,
    /// A kind of file, as in directory entries: 1 to 7.
    File(u8),
    /// In use, with an invalid mode.
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

#[derive(Debug, Default)]
struct Slot {
    /// Links minus names, modulo 2^16.
    balance: AtomicU16,
    /// [`Kind`] in the low four bits; [`ENCRYPTED`].
    kind: AtomicU8,
}

const ENCRYPTED: u8 = 0x10;

/// What is known of inodes.
pub(crate) struct Inodes {
    pages: Vec<OnceLock<Box<[Slot]>>>,
    per_group: u32,
}

impl Inodes {
    pub(crate) fn new(sb: &Superblock, groups: u32) -> Self {
        Self { pages: (0..groups).map(|_| OnceLock::new()).collect(), per_group: sb.inodes_per_group() }
    }

    fn place(&self, number: InodeNumber) -> Option<(usize, usize)> {
        let n = number.0.checked_sub(1)?;
        Some(((n / self.per_group) as usize, (n % self.per_group) as usize))
    }

    /// Records an inode in use. Must not be called for two sizes of one group's part in use.
    pub(crate) fn set(&self, number: InodeNumber, used: u32, kind: Kind, links: u16, encrypted: bool) {
        let Some((group, n)) = self.place(number) else { return };
        let Some(page) = self.pages.get(group) else { return };
        let page = page.get_or_init(|| (0..used).map(|_| Slot::default()).collect());
        let Some(slot) = page.get(n) else { return };
        slot.balance.fetch_add(links, Ordering::Relaxed);
        slot.kind.store(kind.code() | if encrypted { ENCRYPTED } else { 0 }, Ordering::Relaxed);
    }

    fn slot(&self, number: InodeNumber) -> Option<&Slot> {
        let (group, n) = self.place(number)?;
        self.pages.get(group)?.get()?.get(n)
    }

    pub(crate) fn kind(&self, number: InodeNumber) -> Kind {
        self.slot(number).map_or(Kind::Unused, |slot| Kind::from_code(slot.kind.load(Ordering::Relaxed) & 15))
    }

    pub(crate) fn is_encrypted(&self, number: InodeNumber) -> bool {
        self.slot(number).is_some_and(|slot| slot.kind.load(Ordering::Relaxed) & ENCRYPTED != 0)
    }

    /// Counts a name.
    pub(crate) fn named(&self, number: InodeNumber) {
        if let Some(slot) = self.slot(number) {
            slot.balance.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Inodes whose links and names differ, with the difference, in order.
    pub(crate) fn unbalanced(&self) -> impl Iterator<Item = (InodeNumber, u16)> + '_ {
        let pages = self.pages.iter().enumerate().filter_map(|(group, page)| Some((group, page.get()?)));
        pages.flat_map(move |(group, page)| {
            let first = group as u32 * self.per_group + 1;
            page.iter().enumerate().filter_map(move |(n, slot)| {
                let balance = slot.balance.load(Ordering::Relaxed);
                let kind = Kind::from_code(slot.kind.load(Ordering::Relaxed) & 15);
                let counts = matches!(kind, Kind::File(_) | Kind::Invalid);
                (balance != 0 && counts).then_some((InodeNumber(first + n as u32), balance))
            })
        })
    }
}
