//! Directories of blocks in memory, compared with a map and checked by e2fsck's rules for trees.

use super::cookie::{Cookie, list};
use super::edit::{self, Gap, Looked, is_empty, look, parent, remove, set, set_parent};
use super::insert::insert;
use super::leaf::{LeafFormat, is_node};
use super::linear_index::NameIndex;
use super::shape::{Blocks, BlocksMut, Form, Shape, Stop};
use extant_format::{
    ChecksumSeed, DirEntries, DxEntry, DxNode, DxRoot, FileBlock, FileKind, HashVersion, InodeNumber,
    verify_dirent_checksum, verify_dx_checksum, write_dirent_tail, write_dx_checksum,
};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const DIR: InodeNumber = InodeNumber(12);
const SEED: ChecksumSeed = ChecksumSeed(7);

/// Blocks, some of which must be loaded first.
struct Memory {
    blocks: Vec<Vec<u8>>,
    forms: Vec<Form>,
    loaded: RefCell<BTreeSet<u32>>,
}

impl Blocks for Memory {
    type Bytes = Box<[u8]>;

    fn get(&self, at: FileBlock) -> Result<Box<[u8]>, Stop> {
        match self.loaded.borrow().contains(&at.0) {
            true => Ok(self.blocks[at.0 as usize].clone().into()),
            false => Err(Stop::Missing(at)),
        }
    }
}

impl BlocksMut for Memory {
    fn edit(&mut self, at: FileBlock, form: Form, change: impl FnOnce(&mut [u8])) {
        change(&mut self.blocks[at.0 as usize]);
        self.forms[at.0 as usize] = form;
    }

    fn create(&mut self, at: FileBlock, form: Form, change: impl FnOnce(&mut [u8])) {
        assert_eq!(at.0 as usize, self.blocks.len(), "blocks are appended in order");
        let mut block = vec![0; self.blocks[0].len()];
        change(&mut block);
        self.blocks.push(block);
        self.forms.push(form);
        self.loaded.borrow_mut().insert(at.0);
    }
}

struct Directory {
    shape: Shape,
    memory: Memory,
    index: Option<NameIndex>,
    names: BTreeMap<Vec<u8>, (u32, FileKind)>,
}

impl Directory {
    fn new(shape: Shape) -> Self {
        let mut block = vec![0xaa; shape.block_bytes];
        shape.leaf.init_first(&mut block, DIR, InodeNumber::ROOT);
        let memory = Memory { blocks: vec![block], forms: vec![Form::Leaf], loaded: Default::default() };
        Self { shape, memory, index: None, names: BTreeMap::new() }
    }

    /// Runs a step, loading the blocks it finds missing.
    fn run<T>(&self, step: impl Fn(&Shape, &Memory) -> Result<T, Stop>) -> T {
        loop {
            match step(&self.shape, &self.memory) {
                Ok(value) => return value,
                Err(Stop::Missing(at)) => assert!(self.memory.loaded.borrow_mut().insert(at.0)),
                Err(Stop::Failed(error)) => panic!("{error}"),
            }
        }
    }

    fn evict(&self) {
        self.memory.loaded.borrow_mut().clear();
    }

    fn look(&mut self, name: &[u8]) -> Looked {
        if self.index.is_none() && !self.shape.tree && self.shape.blocks > 1 && self.shape.new_tree.is_none()
        {
            self.index = Some(self.run(NameIndex::build));
        }
        self.run(|shape, memory| look(shape, memory, name, self.index.as_ref()))
    }

    /// Adds a name; returns false if it exists.
    fn add(&mut self, name: &[u8], inode: u32, kind: FileKind) -> bool {
        let gap = match self.look(name) {
            Looked::Found(found) => {
                assert_eq!(self.names[name].0, found.entry.inode.0);
                return false;
            }
            Looked::Absent(gap) => gap,
        };
        let new = gap.new_blocks(&self.shape).expect("room for the directory to grow");
        let (shape, inode) = (self.shape, InodeNumber(inode));
        let planted = insert(&shape, &mut self.memory, &gap, inode, name, kind, self.index.as_mut()).unwrap();
        self.shape.blocks += new;
        assert_eq!(self.memory.blocks.len(), self.shape.blocks as usize, "as many blocks as were promised");
        if planted {
            self.shape.set_tree();
        }
        self.names.insert(name.to_vec(), (inode.0, kind));
        true
    }

    fn remove(&mut self, name: &[u8]) -> bool {
        match self.look(name) {
            Looked::Found(found) => {
                let (inode, kind) = self.names.remove(name).expect("a name that was added");
                assert_eq!(found.entry.inode.0, inode);
                assert_eq!(found.entry.kind, self.shape.leaf.filetype.then_some(kind));
                let shape = self.shape;
                remove(&shape, &mut self.memory, &found, name, self.index.as_mut());
                true
            }
            Looked::Absent(_) => {
                assert!(!self.names.contains_key(name));
                false
            }
        }
    }

    /// Checks that every block has its form, that each name appears once where the tree leads to
    /// it, and that the names match the map.
    fn check(&mut self) {
        let leaf = self.shape.leaf;
        let mut seen = BTreeMap::new();
        let mut collect = |at: usize, low: u32, high: u32, version: Option<HashVersion>| {
            let mut block = self.memory.blocks[at].clone();
            assert_eq!(self.memory.forms[at], Form::Leaf);
            if leaf.checksums {
                write_dirent_tail(&mut block, SEED);
                let place = extant_format::Place::DirectoryBlock(DIR, FileBlock(at as u32));
                verify_dirent_checksum(&block, SEED, place).unwrap();
            }
            for entry in DirEntries::new(&block, leaf.filetype, leaf.max_inode, DIR, FileBlock(at as u32)) {
                let entry = entry.unwrap();
                if entry.inode.0 == 0 || entry.name == b"." || entry.name == b".." {
                    continue;
                }
                if let Some(version) = version {
                    let hash = self.shape.hash(version, entry.name).unwrap().major;
                    assert!((low & !1..=high).contains(&hash), "{hash:#x} in {low:#x}..={high:#x}");
                    assert!(hash != high || high & 1 == 1 || high == u32::MAX);
                }
                let old =
                    seen.insert(entry.name.to_vec(), (entry.inode.0, entry.kind.unwrap_or(FileKind::Fifo)));
                assert_eq!(old, None, "{} twice", entry.name.escape_ascii());
            }
        };
        if self.shape.tree {
            let context = self.shape.context(FileBlock(0));
            let root = DxRoot::parse(&self.memory.blocks[0], &context).unwrap();
            assert_eq!((root.info.dir, root.info.parent), (DIR, InodeNumber::ROOT));
            let mut level: Vec<DxEntry> = root.entries.iter().collect();
            let mut referenced = level.len();
            for _ in 0..root.info.levels {
                let mut below = Vec::new();
                for entry in &level {
                    let at = entry.block.0 as usize;
                    assert_eq!(self.memory.forms[at], Form::Node);
                    assert!(is_node(&self.memory.blocks[at]));
                    let node =
                        DxNode::parse(&self.memory.blocks[at], &self.shape.context(entry.block)).unwrap();
                    let first = node.entries.get(0).unwrap();
                    below.push(DxEntry { hash: entry.hash, ..first });
                    below.extend(node.entries.iter().skip(1));
                }
                assert!(below.is_sorted_by_key(|entry| entry.hash & !1));
                referenced += below.len();
                level = below;
            }
            assert_eq!(referenced + 1, self.memory.blocks.len(), "every block is referenced once");
            for (i, entry) in level.iter().enumerate() {
                // If the next entry has its continuation bit set, names with its hash may be here.
                let high = level
                    .get(i + 1)
                    .map_or(u32::MAX, |next| if next.hash & 1 == 1 { next.hash } else { next.hash - 1 });
                collect(entry.block.0 as usize, entry.hash, high, Some(root.info.hash_version));
            }
            if leaf.checksums {
                for (at, form) in self.memory.forms.iter().enumerate() {
                    if *form == Form::Node {
                        let mut block = self.memory.blocks[at].clone();
                        write_dx_checksum(&mut block, SEED);
                        verify_dx_checksum(&block, &self.shape.context(FileBlock(at as u32)), SEED).unwrap();
                    }
                }
            }
        } else {
            (0..self.memory.blocks.len()).for_each(|at| collect(at, 0, 0, None));
        }
        let names: BTreeMap<_, _> = self
            .names
            .iter()
            .map(|(name, (inode, kind))| {
                (name.clone(), (*inode, if leaf.filetype { *kind } else { FileKind::Fifo }))
            })
            .collect();
        assert_eq!(seen, names);
        assert_eq!(self.run(parent), InodeNumber::ROOT);
        assert_eq!(self.run(is_empty), self.names.is_empty());
    }

    /// Reads up to `step` names; returns them in order, and where to continue.
    fn read(&self, from: Cookie, step: usize) -> (Vec<Vec<u8>>, Cookie) {
        let (mut at, mut all) = (from, Vec::new());
        while at < Cookie::END && all.len() < step {
            let found = RefCell::new(Vec::new());
            let left = step - all.len();
            at = self.run(|shape, memory| {
                found.borrow_mut().clear();
                list(shape, memory, at, &mut |listed| {
                    found.borrow_mut().push(listed.name.to_vec());
                    found.borrow().len() < left
                })
            });
            all.append(&mut found.borrow_mut());
        }
        (all, at)
    }
}

fn shape(tree: bool, checksums: bool, large_dir: bool, block_bytes: usize) -> Shape {
    let leaf = LeafFormat { filetype: checksums || large_dir, checksums, max_inode: 1 << 20 };
    Shape::for_tests(DIR, block_bytes, leaf, tree.then_some(HashVersion::HalfMd4), large_dir)
}

fn name(number: u32, len: usize) -> Vec<u8> {
    let mut name = format!("{number}-").into_bytes();
    name.resize(len.max(name.len()), b'x');
    name
}

fn kind(number: u32) -> FileKind {
    [FileKind::Regular, FileKind::Directory, FileKind::Symlink][number as usize % 3]
}

#[derive(Clone, Debug)]
enum Change {
    Add(u32, usize),
    Remove(u32, usize),
    Set(u32, usize, u32),
    Evict,
}

fn change() -> impl Strategy<Value = Change> {
    let len = || prop_oneof![Just(6usize), Just(40), Just(255)];
    prop_oneof![
        8 => (0u32..150, len()).prop_map(|(number, len)| Change::Add(number, len)),
        3 => (0u32..150, len()).prop_map(|(number, len)| Change::Remove(number, len)),
        1 => (0u32..150, len(), 1u32..1000).prop_map(|(number, len, to)| Change::Set(number, len, to)),
        1 => Just(Change::Evict),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_changes_leave_what_a_map_would_have(
        tree: bool, checksums: bool, large_dir: bool, few_hashes: bool,
        changes in prop::collection::vec(change(), 0..400),
    ) {
        let mut directory = Directory::new(shape(tree, checksums, large_dir, 1024));
        if few_hashes {
            // Every name has one of four hashes, so leaves are full of one hash, and its names
            // continue in the next leaf.
            directory.shape.hash_mask = 0xc000_0000;
        }
        for (step, change) in changes.into_iter().enumerate() {
            match change {
                Change::Add(number, len) => {
                    let expected = !directory.names.contains_key(&name(number, len));
                    prop_assert_eq!(directory.add(&name(number, len), number + 11, kind(number)), expected);
                }
                Change::Remove(number, len) => {
                    let expected = directory.names.contains_key(&name(number, len));
                    prop_assert_eq!(directory.remove(&name(number, len)), expected);
                }
                Change::Set(number, len, to) => {
                    let name = name(number, len);
                    if let Looked::Found(found) = directory.look(&name) {
                        let shape = directory.shape;
                        set(&shape, &mut directory.memory, &found, InodeNumber(to), kind(to));
                        directory.names.insert(name, (to, kind(to)));
                    }
                }
                Change::Evict => directory.evict(),
            }
            if step % 64 == 0 {
                directory.check();
            }
        }
        directory.check();
        let (all, end) = directory.read(Cookie::START, usize::MAX);
        prop_assert_eq!(end, Cookie::END);
        let mut sorted = all.clone();
        sorted.sort();
        let mut names: Vec<_> = directory.names.keys().cloned().chain([b".".to_vec(), b"..".to_vec()]).collect();
        names.sort();
        prop_assert_eq!(sorted, names);
        // A reader that stops and continues reads the same names, except for chains, which it reads
        // again. With few hashes there are only chains.
        if !few_hashes {
            let (mut pieces, mut at) = (Vec::new(), Cookie::START);
            while at < Cookie::END {
                let (mut piece, next) = directory.read(at, 3);
                pieces.append(&mut piece);
                at = next;
            }
            prop_assert_eq!(pieces, all);
        }
    }
}

#[test]
fn a_tree_grows_to_all_its_levels() {
    for (large_dir, checksums) in [(false, true), (true, false), (true, true)] {
        let mut directory = Directory::new(shape(true, checksums, large_dir, 1024));
        let count = if large_dir { 40_000 } else { 12_000 };
        for number in 0..count {
            assert!(directory.add(&name(number, 200), number + 11, FileKind::Regular));
        }
        let root =
            DxRoot::parse(&directory.memory.blocks[0], &directory.shape.context(FileBlock(0))).unwrap();
        assert_eq!(root.info.levels, 1 + u8::from(large_dir));
        directory.check();
        for number in (0..count).step_by(2) {
            assert!(directory.remove(&name(number, 200)));
        }
        directory.check();
    }
}

#[test]
fn a_tree_of_two_levels_is_full_some_time() {
    let mut directory = Directory::new(shape(true, true, false, 1024));
    let full = (0..).find(|number| {
        let name = name(*number, 255);
        match directory.look(&name) {
            Looked::Absent(gap @ Gap::Full) => {
                assert_eq!(gap.new_blocks(&directory.shape), None);
                true
            }
            _ => {
                assert!(directory.add(&name, number + 11, FileKind::Regular));
                false
            }
        }
    });
    assert!(full.unwrap() > 123 * 126, "more names than leaves that two levels lead to: {full:?}");
    directory.check();
}

#[test]
fn positions_survive_the_growth_to_a_tree() {
    let mut directory = Directory::new(shape(true, true, false, 1024));
    for number in 0..20 {
        assert!(directory.add(&name(number, 20), number + 11, FileKind::Regular));
    }
    assert!(!directory.shape.tree);
    let (before, at) = directory.read(Cookie::START, 10);
    let old: BTreeSet<_> = directory.names.keys().cloned().collect();
    for number in 20..400 {
        assert!(directory.add(&name(number, 20), number + 11, FileKind::Regular));
    }
    assert!(directory.shape.tree);
    let (after, _) = directory.read(at, usize::MAX);
    let mut read: Vec<_> = before.into_iter().chain(after).filter(|name| old.contains(name)).collect();
    read.sort();
    assert!(read.iter().eq(old.iter()), "names that were there all the time are read exactly once");
}

#[test]
fn the_parent_changes_in_every_form() {
    for tree in [false, true] {
        for names in [0, 300] {
            let mut directory = Directory::new(shape(tree, true, false, 1024));
            for number in 0..names {
                directory.add(&name(number, 20), number + 11, FileKind::Regular);
            }
            assert_eq!(directory.shape.tree, tree && names > 0);
            directory.run(parent);
            let shape = directory.shape;
            set_parent(&shape, &mut directory.memory, InodeNumber(99));
            assert_eq!(directory.run(parent), InodeNumber(99));
            let Looked::Found(found) = directory.run(|shape, memory| edit::look(shape, memory, b".", None))
            else {
                panic!("no dot");
            };
            assert_eq!(found.entry.inode, DIR);
        }
    }
}

#[test]
fn a_linear_directory_uses_the_room_of_removed_names_again() {
    let mut directory = Directory::new(shape(false, true, false, 1024));
    for number in 0..2000 {
        directory.add(&name(number, 20), number + 11, FileKind::Regular);
    }
    let blocks = directory.shape.blocks;
    for number in (0..2000).rev() {
        directory.remove(&name(number, 20));
    }
    directory.check();
    for number in 0..2000 {
        directory.add(&name(number, 20), number + 11, FileKind::Regular);
    }
    assert_eq!(directory.shape.blocks, blocks);
    directory.check();
}

#[test]
fn encrypted_names_become_names_of_a_path() {
    assert_eq!(super::shown_encrypted(b"\xff/%\0a"), b"\xff%2F%25%00a");
}
