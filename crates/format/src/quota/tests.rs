//! The fixture was created by e2fsprogs 1.47.0; see tests/data/README.md.

use super::*;
use proptest::prelude::*;

const FILE: &[u8; 11 * 1024] = include_bytes!("../../tests/data/quota_user_e2fsprogs.bin");
const INODE: InodeNumber = InodeNumber::USER_QUOTA;

fn block(number: u32) -> &'static [u8] {
    &FILE[number as usize * QUOTA_BLOCK_BYTES..][..QUOTA_BLOCK_BYTES]
}

fn lookup(id: u32) -> Option<QuotaEntry> {
    let header = QuotaHeader::parse(block(0), INODE).unwrap();
    let mut at = QUOTA_TREE_ROOT;
    for level in 0..QUOTA_TREE_DEPTH {
        at = QuotaTreeNode::parse(block(at.0), INODE, at, header.blocks).unwrap().child(id, level)?;
    }
    QuotaLeaf::parse(block(at.0), INODE, at, header.blocks).unwrap().get(id)
}

#[test]
fn layouts_have_the_documented_sizes() {
    assert_eq!(size_of::<RawQuotaHeader>(), 32);
    assert_eq!(size_of::<RawQuotaLeafHeader>(), 16);
    assert_eq!(size_of::<RawQuotaEntry>(), 72);
    assert_eq!(QUOTA_LEAF_ENTRIES, 14);
}

/// Expected numbers are from `list_quota` of debugfs 1.47.0.
#[test]
fn a_file_of_e2fsprogs_is_read() {
    let header = QuotaHeader::parse(block(0), INODE).unwrap();
    assert_eq!(header.to_string(), "user quota: 11 blocks, grace 604800 s for space, 604800 s for inodes");
    let usage = |id| lookup(id).map(|entry| (entry.space_bytes, entry.inodes));
    assert_eq!(usage(0), Some((13312, 2)));
    assert_eq!(usage(1000), Some((5120, 1)));
    assert_eq!(usage(101_000), Some((10240, 1)));
    assert_eq!(usage(201_000), Some((15360, 1)));
    assert_eq!((usage(1), usage(u32::MAX)), (None, None));
    let leaf = QuotaLeaf::parse(block(5), INODE, FileBlock(5), 11).unwrap();
    assert_eq!(leaf.entries().count(), 4);
    assert!(
        leaf.to_string().contains("1000: 5120 bytes (soft 0 KiB, hard 0 KiB), 1 inodes (soft 0, hard 0)\n")
    );
}

#[test]
fn writing_gives_the_bytes_of_e2fsprogs() {
    let mut ours = [0xaa; QUOTA_BLOCK_BYTES];
    QuotaHeader::parse(block(0), INODE).unwrap().write_to(&mut ours);
    assert_eq!(ours, block(0));
    for number in [1, 2, 3, 4, 6, 7, 8, 9, 10] {
        let node = QuotaTreeNode::parse(block(number), INODE, FileBlock(number), 11).unwrap();
        let child = |byte: u8| node.child(byte.into(), 3).map(|child| (byte, child));
        write_quota_tree_node(&mut ours, (0..=255).filter_map(child));
        assert_eq!(ours, block(number), "block {number}");
        assert!(node.children().count() >= 1);
    }
    let leaf = QuotaLeaf::parse(block(5), INODE, FileBlock(5), 11).unwrap();
    let entries: Vec<_> = leaf.entries().collect();
    write_quota_leaf(&mut ours, [leaf.next_free, leaf.previous_free], &entries);
    assert_eq!(ours, block(5));

    write_quota_leaf(&mut ours, [Some(FileBlock(3)), None], &[QuotaEntry::default()]);
    let leaf = QuotaLeaf::parse(&ours, INODE, FileBlock(5), 11).unwrap();
    assert_eq!(
        (leaf.next_free, leaf.entries().count()),
        (Some(FileBlock(3)), 1),
        "id 0 without usage is an entry"
    );
}

#[test]
fn one_wrong_field_is_named() {
    let place = |number| Place::Quota(INODE, FileBlock(number));
    let with = |number: u32, at: usize, byte: u8| {
        let mut block = block(number).to_vec();
        block[at] = byte;
        block
    };
    let header = |at, byte| QuotaHeader::parse(&with(0, at, byte), INODE).unwrap_err();
    assert_eq!(
        header(0, 0x12),
        Corrupt::field(place(0), "dqh_magic", 0xd9c0_1f12, "that of user, group or project quota")
    );
    assert_eq!(header(4, 0), Corrupt::field(place(0), "dqh_version", 0, "1"));
    assert_eq!(header(0x14, 1), Corrupt::field(place(0), "dqi_blocks", 1, "at least 2"));
    assert_eq!(header(0x18, 11), Corrupt::field(place(0), "dqi_free_blk", 11, "a block of the quota file"));
    assert_eq!(header(0x1c, 11), Corrupt::field(place(0), "dqi_free_entry", 11, "a block of the quota file"));
    assert_eq!(QuotaHeader::parse(&[0; 31], INODE).unwrap_err(), Corrupt::truncated(place(0), 32, 31));

    let node = QuotaTreeNode::parse(&with(2, 0, 11), INODE, FileBlock(2), 11).unwrap_err();
    assert_eq!(node, Corrupt::field(place(2), "child", 11, "a block of the quota file"));
    let leaf = |at, byte| QuotaLeaf::parse(&with(5, at, byte), INODE, FileBlock(5), 11).unwrap_err();
    assert_eq!(leaf(0, 12), Corrupt::field(place(5), "dqdh_next_free", 12, "a block of the quota file"));
    assert_eq!(leaf(5, 1), Corrupt::field(place(5), "dqdh_prev_free", 256, "a block of the quota file"));
    assert_eq!(leaf(8, 5), Corrupt::field(place(5), "dqdh_entries", 5, "the number of entries in use"));
    assert_eq!(
        QuotaLeaf::parse(&[0; 1023], INODE, FileBlock(5), 11).unwrap_err(),
        Corrupt::truncated(place(5), 1024, 1023)
    );
}

proptest! {
    #[test]
    fn mutated_blocks_are_parsed_or_refused(edits in prop::collection::vec((0usize..1024, any::<u8>()), 0..8)) {
        for number in 0..11 {
            let mut block = block(number).to_vec();
            edits.iter().for_each(|&(at, byte)| block[at] = byte);
            let _ = QuotaHeader::parse(&block, INODE).map(|header| header.to_string());
            let _ = QuotaTreeNode::parse(&block, INODE, FileBlock(1), 11).map(|node| node.children().count());
            let _ = QuotaLeaf::parse(&block, INODE, FileBlock(1), 11).map(|leaf| leaf.to_string());
        }
    }
}
