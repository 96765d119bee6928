//! The sweep over directories' blocks, in disk order.

use crate::context::Context;
use crate::finding::{Finding, Report, Spot};
use crate::found::{Dir, Run};
use crate::listing::{Directories, DirsFound, INLINE, Item, Leaf, Link, Node, Root, htree_context};
use crate::state::Kind;
use crate::{Code, Cost};
use extant_format::{
    CharSign, ChecksumSeed, DirEntries, DirEntry, DxNode, FileBlock, FileKind, HashVersion, Incompat,
    InlineData, Inode, InodeNumber, NameHash, Place, UintExt, Xattrs, hash_name, is_dx_block,
    verify_dirent_checksum, verify_dx_checksum,
};
use rustc_hash::FxHasher;
use std::collections::BTreeMap;
use std::hash::Hasher;

/// Blocks that a task takes at a time.
pub(crate) const BLOCKS: usize = 1024;

/// Lists the blocks of all directories in disk order; reports holes. Both lists are sorted.
///
/// A block that several directories share is read for each of them, up to a limit.
pub(crate) fn list(ctx: &Context, dirs: Vec<Dir>, runs: &[Run], report: &Report) -> Directories {
    let mut items = Vec::new();
    let mut keep = |item: Item| ctx.limits.push(&mut items, item);
    let mut rest = runs;
    for (index, dir) in dirs.iter().enumerate() {
        let index = index.fit_u32();
        while rest.first().is_some_and(|run| run.number < dir.number) {
            rest = &rest[1..];
        }
        if dir.inline {
            if let Some((block, _)) = ctx.inode_place(InodeNumber(dir.number)) {
                keep(Item { block, dir: index, logical: INLINE });
            }
            continue;
        }
        let mut next = 0;
        while let Some((run, others)) = rest.split_first().filter(|(run, _)| run.number == dir.number) {
            rest = others;
            if run.logical >= dir.blocks {
                continue;
            }
            hole(dir, next, run.logical, report);
            let blocks = run.blocks.min(dir.blocks - run.logical);
            let mut n = 0;
            while n < blocks && !ctx.limits.stopped() {
                let at = run.block + u64::from(n);
                let (is_shared, alike) = ctx.claims.is_shared(at, (blocks - n).into());
                if !is_shared || ctx.limits.repeat(alike) {
                    for more in 0..alike {
                        keep(Item {
                            block: at + more,
                            dir: index,
                            logical: run.logical + n + more.fit_u32(),
                        });
                        if ctx.limits.stopped() {
                            break;
                        }
                    }
                }
                n += alike.fit_u32();
            }
            next = next.max(run.logical + blocks);
        }
        hole(dir, next, dir.blocks, report);
        if ctx.limits.stopped() {
            break;
        }
    }
    items.sort_unstable();
    Directories { dirs, items, roots: BTreeMap::new() }
}

fn hole(dir: &Dir, from: u32, to: u32, report: &Report) {
    if from < to && !dir.damaged {
        let spot = Spot::inode(dir.number).at_file_block(from.into());
        let text = format!("{} blocks without a place", to - from);
        report.add(Code::DirectoryHole, spot, text, "a block with entries");
    }
}

/// Reads the roots of indexes, which say how names are hashed.
pub(crate) async fn read_roots(ctx: &Context, all: &mut Directories, report: &mut Report) {
    let is_root = |item: &&Item| item.logical == 0 && all.dirs[item.dir.to_usize()].indexed;
    let items: Vec<Item> = all.items.iter().filter(is_root).copied().collect();
    let blocks: Vec<u64> = items.iter().map(|item| item.block).collect();
    let mut roots = BTreeMap::new();
    ctx.source
        .scattered(&blocks, |n, block| {
            let dir = &all.dirs[items[n].dir.to_usize()];
            // An unreadable block is reported when its entries are read.
            let Some(block) = block else { return };
            let spot = Spot::inode(dir.number).at_file_block(0);
            match Root::read(ctx, dir, block) {
                Ok(root) => {
                    if ctx.limits.take(64 + 8 * root.entries.len().to_u64()) {
                        roots.insert(items[n].dir, root);
                    }
                }
                Err(corrupt) => report.corrupt(Code::HtreeRoot, spot, &corrupt),
            }
        })
        .await;
    all.roots = roots;
}

/// Checks some blocks.
pub(crate) async fn sweep(
    ctx: &Context,
    all: &Directories,
    items: &[Item],
    sign: CharSign,
    found: &mut DirsFound,
) {
    let blocks: Vec<u64> = items.iter().map(|item| item.block).collect();
    let mut scratch = Vec::new();
    ctx.source
        .scattered(&blocks, |n, block| {
            let item = items[n];
            let dir = &all.dirs[item.dir.to_usize()];
            let spot = Spot::inode(dir.number).at_block(item.block);
            match block {
                None => found.report.add(Code::ReadError, spot, "unreadable", "entries"),
                Some(block) if item.logical == INLINE => inline(ctx, item, dir, block, found),
                Some(block) => {
                    let root = all.roots.get(&item.dir);
                    let scratch = &mut scratch;
                    if !ctx.limits.stopped() {
                        Block { ctx, item, dir, root, sign, found: &mut *found, scratch }.check(block);
                    }
                }
            }
        })
        .await;
    found.named.count(&ctx.inodes);
}

/// Entries in an inode.
fn inline(ctx: &Context, item: Item, dir: &Dir, block: &[u8], found: &mut DirsFound) {
    let Some((_, at)) = ctx.inode_place(InodeNumber(dir.number)) else { return };
    let Ok(inode) = Inode::parse_unchecked(&block[at..], &ctx.sb, InodeNumber(dir.number)) else { return };
    let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
    // Errors in the inline data were reported with the inode.
    let Ok(data) = InlineData::parse(inode.map(), &xattrs, inode.size(), inode.number) else { return };
    let Ok(directory) = data.as_directory() else { return };
    ctx.inodes.named(inode.number, 1);
    ctx.limits.push(&mut found.dotdots, (item.dir, directory.parent.0));
    let filetype = ctx.sb.incompat().contains(Incompat::FILETYPE);
    let mut scratch = Vec::new();
    for area in directory.areas {
        let item = Item { logical: 0, ..item };
        let (sign, scratch) = (CharSign::Unsigned, &mut scratch);
        let mut block = Block { ctx, item, dir, root: None, sign, found: &mut *found, scratch };
        for entry in DirEntries::new(area, filetype, u32::MAX, inode.number, FileBlock(0)) {
            match entry {
                Ok(entry) if entry.inode.0 != 0 => block.entry(area, &entry, None),
                Ok(_) => {}
                Err(corrupt) => {
                    let spot = Spot::inode(dir.number);
                    block.found.report.corrupt(Code::DirectoryBlock, spot, &corrupt);
                }
            }
        }
        block.duplicates(area);
    }
}

/// A name in a block, ordered by hash and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Name {
    hash: u64,
    /// Offset of its entry.
    offset: u32,
    /// Hash of the name in the directory's index; 0 without an index.
    major: u32,
}

/// A block that is being checked.
struct Block<'a> {
    ctx: &'a Context,
    item: Item,
    dir: &'a Dir,
    root: Option<&'a Root>,
    sign: CharSign,
    found: &'a mut DirsFound,
    scratch: &'a mut Vec<Name>,
}

impl Block<'_> {
    fn spot(&self) -> Spot {
        Spot::inode(self.dir.number).at_block(self.item.block).at_file_block(self.item.logical.into())
    }

    fn add(
        &mut self,
        code: Code,
        entry: &DirEntry<'_>,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) {
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

    fn check(&mut self, block: &[u8]) {
        let logical = self.item.logical;
        let is_node = self.node(block);
        if let Some(seed) = self.dir.seed {
            let seed = ChecksumSeed(seed.0);
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
        self.scratch.clear();
        let filetype = self.ctx.sb.incompat().contains(Incompat::FILETYPE);
        let (mut lowest, mut highest) = (u32::MAX, 0);
        let (mut entries, mut hashes) = (0, 0);
        let mut expect = if logical == 0 { 0 } else { 2 };
        for entry in
            DirEntries::new(block, filetype, u32::MAX, InodeNumber(self.dir.number), FileBlock(logical))
        {
            let entry = match entry {
                Ok(entry) => entry,
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
            if entry.inode.0 == 0 {
                continue;
            }
            entries += 1;
            let major = self.hash(entry.name).map(|hash| hash.major);
            if let Some(major) = major {
                (lowest, highest) = (lowest.min(major), highest.max(major));
                hashes += 1;
            }
            self.entry(block, &entry, major);
        }
        if expect < 2 && logical == 0 {
            let code = if expect == 0 { Code::DirectoryDot } else { Code::DirectoryDotDot };
            self.found.report.add(code, self.spot(), "no such entry", "one at the start of the directory");
        }
        self.duplicates(block);
        self.names_across(lowest, highest);
        let rt = &self.ctx.rt;
        rt.charge(Cost::DirectoryBlock(1));
        rt.charge(Cost::Entry(entries));
        rt.charge(Cost::NameHash(hashes));
        if self.root.is_some() && !is_node && logical != 0 {
            let range = (hashes > 0).then_some((lowest, highest));
            self.ctx.limits.push(&mut self.found.leaves, Leaf { dir: self.item.dir, logical, range });
        }
    }

    /// Returns the hash of a name in the index; `None` without an index, or if the directory
    /// ignores case.
    fn hash(&self, name: &[u8]) -> Option<NameHash> {
        let root = self.root.filter(|_| !self.dir.casefold)?;
        hash_name(root.version, self.sign, &self.ctx.sb.hash_seed(), name)
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
                if self.ctx.limits.take(8 * entries.len().to_u64()) {
                    let node = Node { dir: self.item.dir, logical, entries };
                    self.ctx.limits.push(&mut self.found.nodes, node);
                }
                true
            }
            Err(corrupt) if self.dir.seed.is_some() => {
                self.found.report.corrupt(Code::HtreeNode, self.spot(), &corrupt);
                true
            }
            Err(_) => false,
        }
    }

    /// Checks `.` (0) or `..` (1); returns false if the entry is neither.
    fn dot(&mut self, block: &[u8], entry: &DirEntry<'_>, which: u32) -> bool {
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
            self.ctx.limits.push(&mut self.found.dotdots, (self.item.dir, entry.inode.0));
        }
        true
    }

    fn kind(&mut self, block: &[u8], entry: &DirEntry<'_>, expected: u8) {
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

    /// Checks an entry. `major` is the hash of its name in the directory's index.
    fn entry(&mut self, block: &[u8], entry: &DirEntry<'_>, major: Option<u32>) {
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
        let major = major.unwrap_or(0);
        self.scratch.push(Name { hash: hash_of(name), offset: entry.offset.fit_u32(), major });
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
        let (kind, encrypted) = self.ctx.inodes.get(number);
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
                if kind.is_directory() {
                    // Links are counted once it is known which name of the directory is the right
                    // one.
                    let link = Link {
                        child: number.0,
                        parent: self.dir.number,
                        logical: self.item.logical,
                        offset: entry.offset.fit_u32(),
                    };
                    self.ctx.limits.push(&mut self.found.links, link);
                } else {
                    self.found.named.add(number, &self.ctx.inodes);
                }
            }
        }
    }

    /// Names that occur twice in this block.
    fn duplicates(&mut self, block: &[u8]) {
        self.scratch.sort_unstable();
        let name_at = |offset: u32| {
            let at = offset.to_usize();
            let len = block.get(at + 6).copied().unwrap_or(0).to_usize();
            block.get(at + 8..at + 8 + len).unwrap_or_default()
        };
        let twice: Vec<u32> = self
            .scratch
            .windows(2)
            .filter(|pair| pair[0].hash == pair[1].hash && name_at(pair[0].offset) == name_at(pair[1].offset))
            .map(|pair| pair[1].offset)
            .collect();
        for offset in twice {
            self.found.report.push(Finding {
                code: Code::EntryDuplicate,
                spot: self.spot().at_offset(offset.to_usize()),
                name: Some(name_at(offset).to_vec()),
                path: None,
                found: "the name occurs twice".into(),
                expected: "each name once".into(),
                value: None,
                suspected: false,
            });
        }
    }

    /// Records names that another block may contain as well: in a linear directory all names, in an
    /// indexed one those at the ends of a leaf's hash range.
    fn names_across(&mut self, lowest: u32, highest: u32) {
        if self.dir.blocks < 2 {
            return;
        }
        let is_hashed = self.root.is_some_and(|root| root.version != HashVersion::SipHash);
        let is_indexed = is_hashed && !self.dir.casefold;
        // Hashes of hostile names may be equal, but then the names are compared.
        for name in self.scratch.iter() {
            // Rarely more than two names of a leaf match.
            if !is_indexed || name.major == lowest || name.major == highest {
                self.ctx.limits.push(&mut self.found.names, (self.item.dir, name.hash));
            }
        }
    }
}

fn hash_of(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.write_usize(name.len());
    hasher.finish()
}

/// Looks for names that occur in several blocks of a directory.
pub(crate) async fn duplicates_across(
    ctx: &Context,
    all: &Directories,
    mut names: Vec<(u32, u64)>,
    report: &Report,
) {
    names.sort_unstable();
    let mut suspects: Vec<(u32, u64)> =
        names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect();
    drop(names);
    suspects.dedup();
    let is_suspect = |item: &&Item| {
        let first = suspects.partition_point(|suspect| suspect.0 < item.dir);
        suspects.get(first).is_some_and(|suspect| suspect.0 == item.dir)
    };
    let mut items: Vec<Item> = all.items.iter().filter(is_suspect).copied().collect();
    items.sort_unstable_by_key(|item| (item.dir, item.logical));
    let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let (mut current, mut kept_bytes) = (None, 0);
    let mut stream = ctx.source.stream(items.iter().map(|item| (item.block, 1)));
    let mut next = items.iter();
    while let (Some(piece), Some(item)) = (stream.next().await, next.next()) {
        if current.replace(item.dir) != Some(item.dir) {
            seen.clear();
            ctx.limits.give_back(std::mem::take(&mut kept_bytes));
        }
        let Some(block) = piece.block(item.block).filter(|_| item.logical != INLINE) else { continue };
        let dir = all.dirs[item.dir.to_usize()].number;
        for entry in DirEntries::new(block, false, u32::MAX, InodeNumber(dir), FileBlock(item.logical))
            .map_while(Result::ok)
        {
            let is_dot = entry.name == b"." || entry.name == b"..";
            let suspect = (item.dir, hash_of(entry.name));
            if entry.inode.0 == 0 || is_dot || suspects.binary_search(&suspect).is_err() {
                continue;
            }
            let Some(&first) = seen.get(entry.name) else {
                let bytes = entry.name.len().to_u64() + 64;
                if ctx.limits.take(bytes) {
                    kept_bytes += bytes;
                    seen.insert(entry.name.to_vec(), item.logical);
                }
                continue;
            };
            if first != item.logical {
                let spot = Spot::inode(dir).at_block(item.block).at_file_block(item.logical.into());
                report.push(Finding {
                    code: Code::EntryDuplicateAcross,
                    spot: spot.at_offset(entry.offset),
                    name: Some(entry.name.to_vec()),
                    path: None,
                    found: format!("also in block {first} of the directory"),
                    expected: "each name once".into(),
                    value: None,
                    suspected: false,
                });
            }
        }
    }
    ctx.limits.give_back(kept_bytes);
}
