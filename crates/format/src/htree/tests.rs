//! The fixtures were created by Linux 6.18; see tests/data/README.md.

use super::*;
use crate::{CharSign, Problem};
use proptest::prelude::*;
use std::mem::offset_of;

const ROOT: &[u8; 1024] = include_bytes!("../../tests/data/dx_root_kernel.bin");
const NODE: &[u8; 1024] = include_bytes!("../../tests/data/dx_node_kernel.bin");
const SEED: [u32; 4] = [0x1111_1111, 0x3333_2222, 0x5555_4444, 0x5555_5555];

const ROOT_CONTEXT: HtreeContext =
    HtreeContext { dir: InodeNumber(3753), block: FileBlock(0), checksums: true, large_dir: true };
const NODE_CONTEXT: HtreeContext =
    HtreeContext { dir: InodeNumber(12), block: FileBlock(124), checksums: true, large_dir: true };

fn seed_of(context: &HtreeContext) -> ChecksumSeed {
    let generation = if context.dir == ROOT_CONTEXT.dir { 889_760_115 } else { 3_566_339_975 };
    ChecksumSeed::from_uuid(&0x01234567_89ab_cdef_0123_456789abcdef_u128.to_be_bytes())
        .for_inode(context.dir, generation)
}

#[test]
fn layouts_have_the_documented_sizes() {
    assert_eq!(size_of::<RawDxRoot>(), 32);
    assert_eq!(offset_of!(RawDxRoot, hash_version), 0x1c);
    assert_eq!(size_of::<RawDxEntry>(), 8);
    assert_eq!(size_of::<RawDxCountLimit>(), 4);
    assert_eq!(size_of::<RawDxTail>(), 8);
}

/// Expected numbers are from `htree_dump` of debugfs 1.47.0.
#[test]
fn nodes_that_linux_wrote_are_read() {
    let root = DxRoot::parse(ROOT, &ROOT_CONTEXT).unwrap();
    let want = DxRootInfo {
        dir: InodeNumber(3753),
        parent: InodeNumber(2),
        filetype: true,
        hash_version: HashVersion::HalfMd4,
        levels: 0,
    };
    assert_eq!(root.info, want);
    assert_eq!((root.entries.count(), root.entries.limit()), (9, 123));
    assert_eq!(root.entries.get(8), Some(DxEntry { hash: 0xe2a1_ebf2, block: FileBlock(6) }));
    assert_eq!(root.entries.get(9), None);
    assert!(root.to_string().starts_with(
        "htree root: directory 3753, parent 2, hash half_md4, levels 0\n\
         entries: 9 of 123\n  0x00000000: block 1\n  0x21eb4d10: block 8\n"
    ));
    verify_dx_checksum(ROOT, &ROOT_CONTEXT, seed_of(&ROOT_CONTEXT)).unwrap();
    assert_eq!(dx_checksum_seed(ROOT, &ROOT_CONTEXT), Ok(seed_of(&ROOT_CONTEXT)));

    let node = DxNode::parse(NODE, &NODE_CONTEXT).unwrap();
    assert_eq!((node.entries.count(), node.entries.limit()), (90, 126));
    assert_eq!(node.entries.get(7), Some(DxEntry { hash: 0x04b8_82c2, block: FileBlock(212) }));
    verify_dx_checksum(NODE, &NODE_CONTEXT, seed_of(&NODE_CONTEXT)).unwrap();
}

/// Names, and the leaf in which debugfs finds them.
#[test]
fn names_lead_to_the_leaf_where_linux_put_them() {
    let entries = DxRoot::parse(ROOT, &ROOT_CONTEXT).unwrap().entries;
    for (name, leaf) in [
        (&b"file-with-a-long-name-000000000000000000000000000000000000000000000000000000000001"[..], 1),
        (b"file-with-a-long-name-000000000000000000000000000000000000000000000000000000000014", 8),
        (b"h\xe9\xff-0", 1),
        (b"h\xe9\xff-9", 8),
    ] {
        let hash = hash_name(HashVersion::HalfMd4, CharSign::Signed, &SEED, name).unwrap();
        assert_eq!(
            entries.get(entries.find(hash)).unwrap().block,
            FileBlock(leaf),
            "{}",
            name.escape_ascii()
        );
    }
    let first = NameHash { major: 0, minor: 0 };
    let last = NameHash { major: 0xffff_fffc, minor: 0 };
    assert_eq!((entries.find(first), entries.find(last)), (0, 8));
    assert!(DxEntry { hash: 0x11, block: FileBlock(1) }.continues(NameHash { major: 0x10, minor: 3 }));
    assert!(!DxEntry { hash: 0x10, block: FileBlock(1) }.continues(NameHash { major: 0x10, minor: 3 }));
}

#[test]
fn writing_gives_the_bytes_of_linux() {
    let root = DxRoot::parse(ROOT, &ROOT_CONTEXT).unwrap();
    let mut ours = [0xaa; 1024];
    let list: Vec<_> = root.entries.iter().collect();
    write_dx_root(&mut ours, &root.info, list.into_iter(), Some(seed_of(&ROOT_CONTEXT)));
    // Linux leaves stale contents of the block in unused entries and in dt_reserved.
    let used = 32 + 9 * 8;
    assert_eq!(ours[..used], ROOT[..used]);
    verify_dx_checksum(&ours, &ROOT_CONTEXT, seed_of(&ROOT_CONTEXT)).unwrap();

    let node = DxNode::parse(NODE, &NODE_CONTEXT).unwrap();
    let list: Vec<_> = node.entries.iter().collect();
    write_dx_node(&mut ours, list.into_iter(), Some(seed_of(&NODE_CONTEXT)));
    let used = 8 + 90 * 8;
    assert_eq!(ours[..used], NODE[..used]);
    verify_dx_checksum(&ours, &NODE_CONTEXT, seed_of(&NODE_CONTEXT)).unwrap();
}

#[test]
fn every_block_size_is_read_back() {
    for (block_len, checksums) in (10..=16).flat_map(|log| [(1 << log, false), (1 << log, true)]) {
        let context = HtreeContext { checksums, large_dir: false, ..ROOT_CONTEXT };
        let seed = checksums.then(|| seed_of(&context));
        let entries =
            |count: usize| (0..count as u32).map(|i| DxEntry { hash: i * 4, block: FileBlock(i + 1) });
        let info = DxRootInfo { levels: 1, ..DxRoot::parse(ROOT, &ROOT_CONTEXT).unwrap().info };
        let mut block = vec![0; block_len];

        write_dx_root(&mut block, &info, entries(context.root_limit(block_len)), seed);
        let root = DxRoot::parse(&block, &context).unwrap();
        assert_eq!(root.info, info);
        assert!(root.entries.iter().eq(entries(context.root_limit(block_len))));

        write_dx_node(&mut block, entries(context.node_limit(block_len)), seed);
        let node = DxNode::parse(&block, &context).unwrap();
        assert!(node.entries.iter().eq(entries(context.node_limit(block_len))));
        if let Some(seed) = seed {
            verify_dx_checksum(&block, &context, seed).unwrap();
        }
    }
}

#[test]
fn a_node_that_is_changed_in_place_is_the_one_that_would_have_been_written() {
    for checksums in [false, true] {
        let seed = checksums.then(|| seed_of(&NODE_CONTEXT));
        let entry = |hash: u32| DxEntry { hash, block: FileBlock(hash / 2 + 1) };
        for context in [ROOT_CONTEXT, NODE_CONTEXT].map(|context| HtreeContext { checksums, ..context }) {
            let info = DxRootInfo { levels: 1, ..DxRoot::parse(ROOT, &ROOT_CONTEXT).unwrap().info };
            let write = |hashes: &[u32], levels: u8| {
                let mut block = vec![0xaa; 1024];
                let entries = hashes.iter().map(|&hash| entry(hash));
                match context.block.0 {
                    0 => write_dx_root(&mut block, &DxRootInfo { levels, ..info }, entries, seed),
                    _ => write_dx_node(&mut block, entries, seed),
                }
                block
            };
            let mut block = vec![0xbb; 1024];
            match context.block.0 {
                0 => init_dx_root(&mut block, &context, &info, [entry(0), entry(80)].into_iter()),
                _ => init_dx_node(&mut block, &context, [entry(0), entry(80)].into_iter()),
            }
            let mut entries = DxEntriesMut::open(&mut block, &context).unwrap();
            entries.insert(2, entry(90));
            entries.insert(1, entry(40));
            entries.insert(3, entry(85));
            assert_eq!(entries.count(), 5);
            let seal = |block: &mut [u8]| seed.into_iter().for_each(|seed| write_dx_checksum(block, seed));
            seal(&mut block);
            assert_eq!(block, write(&[0, 40, 80, 85, 90], 1));
            let mut entries = DxEntriesMut::open(&mut block, &context).unwrap();
            entries.truncate(2);
            let opened = DxEntries::open_at(&block, context.entries_at(), &context).unwrap();
            assert!(opened.iter().eq([entry(0), entry(40)]));
            let levels = if context.block.0 == 0 {
                set_dx_levels(&mut block, 2);
                2
            } else {
                0
            };
            seal(&mut block);
            assert_eq!(block, write(&[0, 40], levels));
        }
    }
    let mut root = *ROOT;
    set_dotdot(&mut root, InodeNumber(77));
    assert_eq!(DxRoot::parse(&root, &ROOT_CONTEXT).unwrap().info.parent, InodeNumber(77));
}

#[test]
fn one_wrong_field_is_named() {
    let place = ROOT_CONTEXT.place();
    let root = |at: usize, bytes: &[u8]| {
        let mut block = *ROOT;
        block[at..at + bytes.len()].copy_from_slice(bytes);
        DxRoot::parse(&block, &ROOT_CONTEXT).unwrap_err()
    };
    let field = |field, value, rule| Corrupt::field(place, field, value, rule);
    assert_eq!(root(4, &[16]), field("dot.rec_len", 16, "12"));
    assert_eq!(root(6, &[2]), field("dot.name_len", 2, "1, of the name ."));
    assert_eq!(root(0x10, &[0xf5]), field("dotdot.rec_len", 0x3f5, "the rest of the block"));
    assert_eq!(root(0x15, b"x"), field("dotdot.name_len", 2, "2, of the name .."));
    assert_eq!(root(0x18, &[1]), field("reserved_zero", 1, "0"));
    assert_eq!(root(0x1c, &[3]), field("hash_version", 3, "0, 1, 2 or 6"));
    assert_eq!(root(0x1d, &[0]), field("info_length", 0, "8"));
    assert_eq!(root(0x1e, &[3]), field("indirect_levels", 3, "at most 2"));
    assert_eq!(root(0x1f, &[1]), field("unused_flags", 1, "even"));
    assert_eq!(root(0x20, &[124]), field("limit", 124, "the number of entries that fit the block"));
    assert_eq!(root(0x22, &[0]), field("count", 0, "from 1 to limit"));
    assert_eq!(root(0x22, &[124]), field("count", 124, "from 1 to limit"));
    let descending = field("hash", 0x0100_0000, "no lower than that of the entry before");
    assert_eq!(root(0x30, &0x0100_0000u32.to_le_bytes()), descending);

    let mut deep = *ROOT;
    deep[0x1e] = 2;
    let small = HtreeContext { large_dir: false, ..ROOT_CONTEXT };
    assert_eq!(
        DxRoot::parse(&deep, &small).unwrap_err(),
        field("indirect_levels", 2, "at most 1 without large_dir")
    );
    assert_eq!(DxRoot::parse(&ROOT[..31], &ROOT_CONTEXT).unwrap_err(), Corrupt::truncated(place, 32, 31));

    let node = |at: usize, byte: u8| {
        let mut block = *NODE;
        block[at] = byte;
        (DxNode::parse(&block, &NODE_CONTEXT).map(drop), {
            verify_dx_checksum(&block, &NODE_CONTEXT, seed_of(&NODE_CONTEXT)).unwrap_err().problem
        })
    };
    assert_eq!(node(0, 7).0, Err(Corrupt::field(NODE_CONTEXT.place(), "fake.inode", 7, "0")));
    assert_eq!(
        node(4, 12).0,
        Err(Corrupt::field(NODE_CONTEXT.place(), "fake.rec_len", 0x40c, "the whole block"))
    );
    assert!(matches!(node(12, 9), (Ok(()), Problem::Checksum { stored: 0xa642_643c, .. })));
}

fn exercise(block: &[u8]) {
    for large_dir in [false, true] {
        for checksums in [false, true] {
            let context = HtreeContext { large_dir, checksums, ..ROOT_CONTEXT };
            let _ = DxRoot::parse(block, &context).map(|root| root.to_string());
            if let Ok(node) = DxNode::parse(block, &context) {
                let _ = node.to_string();
                assert!(node.entries.find(NameHash { major: u32::MAX, minor: 0 }) < node.entries.count());
            }
            let _ = verify_dx_checksum(block, &context, ChecksumSeed(0));
        }
    }
}

proptest! {
    #[test]
    fn random_bytes_are_parsed_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        exercise(&bytes);
    }

    #[test]
    fn mutated_nodes_are_parsed_or_refused(edits in prop::collection::vec((0usize..1024, any::<u8>()), 1..8)) {
        for mut block in [*ROOT, *NODE] {
            for &(at, byte) in &edits {
                block[at] = byte;
            }
            exercise(&block);
        }
    }
}
