//! Checks a block of a directory, or the entries in a directory's inode.

use crate::context::Context;
use crate::finding::{Finding, Spot};
use crate::found::Dir;
use crate::listing::{Directories, DirsFound, Item, Leaf, Link, Node, Root, htree_context};
use crate::state::{Kind, Near};
use crate::{Code, Cost};
use extant_format::{
    CharSign, DirEntries, DirEntry, DxNode, FileBlock, FileKind, HASH_LANES, HashVersion, Incompat,
    InodeNumber, Place, UintExt, hash_names, is_dx_block, verify_dirent_checksum, verify_dx_checksum,
};
use rustc_hash::FxHasher;
use std::hash::Hasher;

/// An entry that is being judged.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    inode: InodeNumber,
    name: &'a [u8],
    offset: usize,
}

impl<'a> From<DirEntry<'a>> for Entry<'a> {
    fn from(entry: DirEntry<'a>) -> Self {
        Self { inode: entry.inode, name: entry.name, offset: entry.offset }
    }
}

/// An entry with an inode, as long as its block is being checked.
#[derive(Clone, Copy, Debug)]
struct Kept {
    inode: InodeNumber,
    offset: u32,
    len: u8,
    /// Hash of the name in the directory's index; 0 without an index.
    major: u32,
    /// Kind of the inode, and whether it is encrypted.
    kind: (Kind, bool),
    /// What is known of the inode lies next to that of the inode of the entry before.
    is_near: bool,
}

impl Kept {
    fn entry<'a>(&self, block: &'a [u8]) -> Entry<'a> {
        let offset = self.offset.to_usize();
        Entry { inode: self.inode, name: name_at(block, self.offset, self.len), offset }
    }
}

fn name_at(block: &[u8], offset: u32, len: u8) -> &[u8] {
    block.get(offset.to_usize() + 8..).and_then(|rest| rest.get(..len.into())).unwrap_or_default()
}

/// A name in a block.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// Hash of the name in the directory's index, or without an index [`hash_of`] it.
    hash: u64,
    /// Offset of its entry.
    offset: u32,
    len: u8,
}

/// Memory that is used for block after block.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    kept: Vec<Kept>,
    names: Vec<Name>,
    filter: Filter,
    /// The directory after the one that was named last.
    next_dir: usize,
}

/// Tells most sets of different hashes from those with a hash that occurs twice.
#[derive(Debug)]
struct Filter(Box<[u64; FILTER_WORDS]>);

/// 2^15 bits. A leaf of 4 KiB has about a hundred names; two of them share a bit in one of seven
/// leaves.
const FILTER_WORDS: usize = 512;

impl Default for Filter {
    fn default() -> Self {
        Self(Box::new([0; FILTER_WORDS]))
    }
}

impl Filter {
    fn place(hash: u64) -> (usize, u64) {
        // 2^64 divided by the golden ratio, as in Knuth's multiplicative hashing.
        let mixed = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed >> 55).to_usize() % FILTER_WORDS, 1 << (mixed >> 49 & 63))
    }

    /// Whether two of the names may have the same hash.
    fn may_repeat(&mut self, names: &[Name]) -> bool {
        let mut repeats = false;
        for name in names {
            let (word, bit) = Self::place(name.hash);
            repeats |= self.0[word] & bit != 0;
            self.0[word] |= bit;
        }
        for name in names {
            self.0[Self::place(name.hash).0] = 0;
        }
        repeats
    }
}

/// A block that is being checked.
pub(crate) struct Block<'a> {
    pub(crate) ctx: &'a Context,
    pub(crate) all: &'a Directories,
    pub(crate) item: Item,
    pub(crate) dir: &'a Dir,
    pub(crate) root: Option<&'a Root>,
    pub(crate) sign: CharSign,
    pub(crate) found: &'a mut DirsFound,
    pub(crate) scratch: &'a mut Scratch,
}

impl Block<'_> {
    fn spot(&self) -> Spot {
        Spot::inode(self.dir.number).at_block(self.item.block).at_file_block(self.item.logical.into())
    }

    fn add(&mut self, code: Code, entry: &Entry<'_>, found: impl Into<String>, expected: impl Into<String>) {
        self.found.report.push(Finding {
            code,
            spot: self.spot().at_offset(entry.offset),
            name: Some(entry.name.to_vec()),
            path: None,
            found: found.into(),
            expected: expected.into(),
            value: None,
            suspected: false,
        });
    }

    pub(crate) fn check(&mut self, block: &[u8]) {
        let logical = self.item.logical;
        let is_node = self.node(block);
        if let Some(seed) = self.dir.seed(self.ctx) {
            let number = InodeNumber(self.dir.number);
            let is_dx = self.dir.indexed && is_dx_block(block);
            let sum = match is_dx {
                true => verify_dx_checksum(block, &htree_context(self.ctx, self.dir.number, logical), seed),
                false => {
                    verify_dirent_checksum(block, seed, Place::DirectoryBlock(number, FileBlock(logical)))
                }
            };
            if let Err(corrupt) = sum {
                // A damaged index block was already reported when it was parsed.
                let code = if is_dx { Code::HtreeNode } else { Code::DirectoryChecksum };
                self.found.report.corrupt(code, self.spot(), &corrupt);
            }
        }
        let filetype = self.ctx.sb.incompat().contains(Incompat::FILETYPE);
        let mut expect = if logical == 0 { 0 } else { 2 };
        for entry in
            DirEntries::new(block, filetype, u32::MAX, InodeNumber(self.dir.number), FileBlock(logical))
        {
            let entry = match entry {
                Ok(entry) => Entry::from(entry),
                Err(corrupt) => {
                    self.found.report.corrupt(Code::DirectoryBlock, self.spot(), &corrupt);
                    break;
                }
            };
            if expect < 2 {
                let is_dot = self.dot(block, &entry, expect);
                expect += 1;
                if is_dot {
                    continue;
                }
            }
            self.keep(&entry);
        }
        if expect < 2 && logical == 0 {
            let code = if expect == 0 { Code::DirectoryDot } else { Code::DirectoryDotDot };
            self.found.report.add(code, self.spot(), "no such entry", "one at the start of the directory");
        }
        let is_hashed = self.hash(block);
        self.entries(block);
        self.duplicates(block);
        let range = is_hashed.then(|| self.range()).flatten();
        self.names_across(block, range);
        let entries = self.scratch.kept.len().to_u64();
        let rt = &self.ctx.rt;
        rt.charge(Cost::DirectoryBlock(1));
        rt.charge(Cost::Entry(entries));
        rt.charge(Cost::NameHash(if is_hashed { entries } else { 0 }));
        if self.root.is_some() && !is_node && logical != 0 {
            self.found.purse.push(&mut self.found.leaves, Leaf { dir: self.item.dir, logical, range });
        }
        self.clear();
    }

    /// Whether names are hashed for an index, which says where they lie.
    fn hash_version(&self) -> Option<HashVersion> {
        let version = self.root.filter(|_| !self.dir.casefold)?.version;
        (version != HashVersion::SipHash).then_some(version)
    }

    /// Hashes names for the index; returns false without an index, or if the directory ignores
    /// case.
    fn hash(&mut self, block: &[u8]) -> bool {
        let Some(version) = self.hash_version() else { return false };
        let seed = self.ctx.sb.hash_seed();
        for some in self.scratch.kept.chunks_mut(HASH_LANES) {
            let mut names: [&[u8]; HASH_LANES] = [&[]; HASH_LANES];
            for (name, kept) in names.iter_mut().zip(&*some) {
                *name = kept.entry(block).name;
            }
            let Some(hashes) = hash_names(version, self.sign, &seed, names) else { return false };
            for (kept, hash) in some.iter_mut().zip(hashes) {
                kept.major = hash.major;
            }
        }
        true
    }

    /// The lowest and the highest hash of names in the index; `None` without names.
    fn range(&self) -> Option<(u32, u32)> {
        let majors = self.scratch.kept.iter().map(|kept| kept.major);
        majors.clone().min().zip(majors.max())
    }

    /// Records an inner node of the index.
    fn node(&mut self, block: &[u8]) -> bool {
        let logical = self.item.logical;
        if logical == 0 || self.root.is_none_or(|root| root.levels == 0) {
            return false;
        }
        // On a volume without checksums, an empty leaf looks like an inner node.
        if !is_dx_block(block) || block[8] == b'.' {
            return false;
        }
        match DxNode::parse(block, &htree_context(self.ctx, self.dir.number, logical)) {
            Ok(node) => {
                let entries: Vec<_> = node.entries.iter().map(|entry| (entry.hash, entry.block.0)).collect();
                if self.found.purse.take(8 * entries.len().to_u64()) {
                    let node = Node { dir: self.item.dir, logical, entries };
                    self.found.purse.push(&mut self.found.nodes, node);
                }
                true
            }
            Err(corrupt) if self.ctx.seed.is_some() => {
                self.found.report.corrupt(Code::HtreeNode, self.spot(), &corrupt);
                true
            }
            Err(_) => false,
        }
    }

    /// Checks `.` (0) or `..` (1); returns false if the entry is neither.
    fn dot(&mut self, block: &[u8], entry: &Entry<'_>, which: u32) -> bool {
        let dir = self.dir.number;
        let (name, code): (&[u8], _) = match which {
            0 => (b".", Code::DirectoryDot),
            _ => (b"..", Code::DirectoryDotDot),
        };
        if entry.name != name || entry.inode.0 == 0 {
            self.add(code, entry, "another entry in its place", name.escape_ascii().to_string());
            // `.` or `..` in the wrong place is reported only here.
            return entry.name == b"." || entry.name == b"..";
        }
        self.kind(block, entry, 2);
        // Old kernels expect a NUL after the name.
        if block.get(entry.offset + 8 + name.len()) != Some(&0) {
            self.add(code, entry, "no NUL after the name", "one");
        }
        if which == 0 {
            if entry.inode.0 != dir {
                self.add(code, entry, format!("inode {}", entry.inode), dir.to_string());
            }
            self.ctx.inodes.named(InodeNumber(dir), 1);
        } else {
            self.all.set_dotdot(self.item.dir.to_usize(), entry.inode.0);
        }
        true
    }

    fn kind(&mut self, block: &[u8], entry: &Entry<'_>, expected: u8) {
        let stored = block.get(entry.offset + 7).copied().unwrap_or(0);
        let filetype = self.ctx.sb.incompat().contains(Incompat::FILETYPE);
        let expected = if filetype { expected } else { 0 };
        // The Hurd does not store the file type.
        let is_hurd = self.ctx.sb.raw().s_creator_os.get() == 1 && stored == 0;
        if stored != expected && !is_hurd {
            let show = |code: u8| match (code, FileKind::from_dirent(code)) {
                (0, _) => "none".to_owned(),
                (_, Some(kind)) => format!("{kind:?}"),
                (code, None) => format!("{code:#x}"),
            };
            let code = if stored == 0 { Code::EntryNoKind } else { Code::EntryKind };
            self.add(code, entry, show(stored), show(expected));
        }
    }

    /// Keeps an entry for [`Self::entries`], unless it is unused.
    pub(crate) fn keep(&mut self, entry: &Entry<'_>) {
        if entry.inode.0 != 0 {
            let (offset, len) = (entry.offset.fit_u32(), entry.name.len().fit_u8());
            let kind = (Kind::Unused, false);
            self.scratch.kept.push(Kept { inode: entry.inode, offset, len, major: 0, kind, is_near: false });
        }
    }

    /// Checks the entries that were kept.
    pub(crate) fn entries(&mut self, block: &[u8]) {
        // Inodes are named in no order. When nothing else is done in between, the processor waits
        // for several of their kinds at a time.
        let mut near = self.ctx.inodes.near();
        for kept in &mut self.scratch.kept {
            kept.is_near = near.is_near(kept.inode);
            kept.kind = near.get(kept.inode);
        }
        for n in 0..self.scratch.kept.len() {
            let kept = self.scratch.kept[n];
            self.entry(block, &kept.entry(block), &kept, &mut near);
        }
    }

    /// Forgets the entries that were kept.
    pub(crate) fn clear(&mut self) {
        self.scratch.kept.clear();
        self.scratch.names.clear();
    }

    fn entry(&mut self, block: &[u8], entry: &Entry<'_>, kept: &Kept, near: &mut Near<'_>) {
        let sb = &self.ctx.sb;
        let (number, name) = (entry.inode, entry.name);
        if name == b"." || name == b".." {
            return self.add(Code::DirectoryDuplicateDot, entry, "a second one", "none");
        }
        if self.dir.encrypted {
            if name.len() < 16 {
                self.add(Code::EntryName, entry, format!("{} bytes", name.len()), "at least 16, encrypted");
            }
        } else if name.iter().fold(false, |bad, &byte| bad | (byte == b'/') | (byte == 0)) {
            self.add(Code::EntryName, entry, "/ or NUL in the name", "neither");
        }
        let hash = if self.hash_version().is_some() { kept.major.into() } else { hash_of(name) };
        self.scratch.names.push(Name { hash, offset: kept.offset, len: kept.len });
        if number.0 > sb.inodes_count() {
            let expected = format!("at most {}", sb.inodes_count());
            return self.add(Code::EntryInode, entry, format!("inode {number}"), expected);
        }
        if number == InodeNumber::ROOT || number.0 == self.dir.number || self.ctx.is_nameless(number) {
            let text = match number {
                InodeNumber::ROOT => "the root directory".to_owned(),
                number if number.0 == self.dir.number => "the directory itself".to_owned(),
                number => format!("inode {number}, which belongs to the volume itself"),
            };
            return self.add(Code::EntryInode, entry, text, "a file or another directory");
        }
        let (kind, encrypted) = kept.kind;
        match kind {
            Kind::Unused => {
                self.add(Code::EntryUnused, entry, format!("inode {number}, not in use"), "an inode in use");
            }
            Kind::Value => {
                let text = format!("inode {number}");
                self.add(Code::EntryValueInode, entry, text, "no inode of an attribute's value");
            }
            Kind::Own => {}
            kind => {
                let is_root = self.dir.number == InodeNumber::ROOT.0;
                if is_root && name == b"lost+found" && !kind.is_directory() {
                    self.add(Code::LostFound, entry, format!("inode {number}"), "a directory");
                }
                if let Kind::File(code) = kind {
                    self.kind(block, entry, code);
                    let policed = matches!(code, 1 | 2 | 7);
                    if self.dir.encrypted && policed && !encrypted {
                        let text = format!("inode {number} is not encrypted");
                        self.add(Code::EncryptionPolicy, entry, text, "encrypted, as its directory");
                    }
                }
                match (kind.is_directory(), kept.is_near) {
                    (true, _) => self.link(number, entry),
                    (_, true) => near.named(number),
                    (_, false) => self.found.named.add(number, &self.ctx.inodes),
                }
            }
        }
    }

    /// An entry that names another directory. A directory has one right name, which is counted.
    fn link(&mut self, child: InodeNumber, entry: &Entry<'_>) {
        // Most entries next to each other were made one after the other.
        let next = self.scratch.next_dir;
        let is_next = self.all.dirs.get(next).is_some_and(|dir| dir.number == child.0);
        let Some(n) = is_next.then_some(next).or_else(|| self.all.find(child.0)) else { return };
        self.scratch.next_dir = n + 1;
        if self.all.set_first_parent(n, self.dir.number) {
            return self.found.named.add(child, &self.ctx.inodes);
        }
        let link = Link {
            child: child.0,
            parent: self.dir.number,
            logical: self.item.logical,
            offset: entry.offset.fit_u32(),
        };
        self.found.purse.push(&mut self.found.links, link);
    }

    /// Names that occur twice in this block.
    pub(crate) fn duplicates(&mut self, block: &[u8]) {
        let Scratch { names, filter, .. } = &mut *self.scratch;
        if !filter.may_repeat(names) {
            return;
        }
        let text = |name: &Name| name_at(block, name.offset, name.len);
        names.sort_unstable_by(|a, b| (a.hash, text(a), a.offset).cmp(&(b.hash, text(b), b.offset)));
        let is_same = |pair: &&[Name]| pair[0].hash == pair[1].hash && text(&pair[0]) == text(&pair[1]);
        for pair in self.scratch.names.windows(2).filter(is_same) {
            self.found.report.push(Finding {
                code: Code::EntryDuplicate,
                spot: self.spot().at_offset(pair[1].offset.to_usize()),
                name: Some(text(&pair[1]).to_vec()),
                path: None,
                found: "the name occurs twice".into(),
                expected: "each name once".into(),
                value: None,
                suspected: false,
            });
        }
    }

    /// Records names that another block may contain as well: in a linear directory all names, in an
    /// indexed one those at the ends of a leaf's range of hashes.
    fn names_across(&mut self, block: &[u8], range: Option<(u32, u32)>) {
        if self.dir.blocks < 2 {
            return;
        }
        let is_indexed = self.hash_version().is_some();
        // Hashes of hostile names may be equal, but then the names are compared.
        for name in &self.scratch.names {
            // Rarely more than two names of a leaf match.
            let is_at_end =
                |(lowest, highest)| name.hash == u64::from(lowest) || name.hash == u64::from(highest);
            if !is_indexed {
                self.found.purse.push(&mut self.found.names, (self.item.dir, name.hash));
            } else if range.is_some_and(is_at_end) {
                let hash = hash_of(name_at(block, name.offset, name.len));
                self.found.purse.push(&mut self.found.names, (self.item.dir, hash));
            }
        }
    }
}

pub(crate) fn hash_of(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.write_usize(name.len());
    hasher.finish()
}
