//! The volume's structures, except attributes and the journal.
#![no_main]

use extant_format::*;
use libfuzzer_sys::fuzz_target;

const SUPERBLOCK: &[u8] = include_bytes!("../../crates/format/tests/data/superblock.bin");
const INODE: InodeNumber = InodeNumber(12);
const INDEX: FileBlock = FileBlock(1);
const NUMBER: VolumeBlock = VolumeBlock(100);
const SEED: ChecksumSeed = ChecksumSeed(1);

fuzz_target!(|data: &[u8]| {
    let known = Superblock::parse(SUPERBLOCK).unwrap();
    volume(data, &known);
    // The other structures, parsed with these bytes as the superblock.
    if let Ok(sb) = Superblock::parse(data) {
        let _ = (sb.to_string(), sb.verify_checksum(), sb.has_backup(Group(49)), sb.locate_inode(INODE));
        let _ = (sb.descriptor_blocks(), inode_table_blocks(&sb), sb.journal_inode(), sb.orphan_file());
        let group = Group(7 % sb.group_count());
        let _ = (sb.group_blocks(group), sb.group_first_block(group));
        let _ = sb.descriptor_block(group.0 / sb.descriptors_per_block());
        volume(data, &sb);
        volume(&data[SUPERBLOCK_BYTES..], &sb);
    }
    directory(data);
    tables(data);
});

fn volume(data: &[u8], sb: &Superblock) {
    let _ = GroupDescriptor::parse_unchecked(data, sb, Group(0)).map(|descriptor| descriptor.to_string());
    let _ = GroupDescriptor::parse(data, sb, Group(0));
    let _ = Inode::parse(data, sb, INODE);
    if let Ok(inode) = Inode::parse_unchecked(data, sb, INODE) {
        let _ = (inode.to_string(), inode.device(), inode.is_fast_symlink(sb), inode.blocks_512(sb));
        let _ = (inode.size_in_blocks(sb), inode.xattr_block(), inode.kind());
        if let (Ok(xattrs), Some(map)) = (Xattrs::parse_inode(&inode.tail, INODE), inode.map().first_chunk())
        {
            let _ = InlineData::parse(map, &xattrs, inode.size(), INODE).map(|inline| {
                let entries = inline.as_directory().map(|directory| directory.entries(true, 1000).count());
                (inline.to_string(), entries)
            });
        }
        let _ = extents(inode.map(), sb);
    }
    let _ = extents(data, sb);
    let _ = verify_extent_checksum(data, SEED, Place::Superblock);
    let _ = parse_indirect(data, sb, INODE, NUMBER).filter(Result::is_err).count();
    let _ = (
        count_free(data, 1000),
        block_bitmap_checksum(SEED, data, sb),
        inode_bitmap_checksum(SEED, data, sb),
    );
}

fn extents(data: &[u8], sb: &Superblock) -> Result<(), Corrupt> {
    let context = ExtentContext::root(sb, INODE);
    let node = ExtentNode::parse(data, &context)?;
    let _ = node.to_string();
    if let ExtentNode::Index { depth, entries } = node {
        for n in 0..entries.len() {
            let _ = ExtentNode::parse(data, &context.child(depth, &entries, n));
        }
    }
    Ok(())
}

fn directory(data: &[u8]) {
    for filetype in [false, true] {
        let entries = DirEntries::new(data, filetype, 1 << 20, INODE, INDEX);
        assert!(entries.count() <= data.len() / 12 + 1);
    }
    let _ = (has_dirent_tail(data), verify_dirent_checksum(data, SEED, Place::Superblock));
    for (checksums, large_dir) in [(false, false), (true, false), (true, true)] {
        let context = HtreeContext { dir: INODE, block: INDEX, checksums, large_dir };
        let _ = verify_dx_checksum(data, &context, SEED);
        let seed = checksums.then_some(SEED);
        let mut again = vec![0; data.len()];
        if let Ok(root) = DxRoot::parse(data, &context) {
            let entries: Vec<_> = root.entries.iter().collect();
            write_dx_root(&mut again, &root.info, entries.iter().copied(), seed);
            assert_eq!(root.to_string(), DxRoot::parse(&again, &context).unwrap().to_string());
        }
        if let Ok(node) = DxNode::parse(data, &context) {
            let entries: Vec<_> = node.entries.iter().collect();
            write_dx_node(&mut again, entries.iter().copied(), seed);
            assert_eq!(node.to_string(), DxNode::parse(&again, &context).unwrap().to_string());
            let hash = NameHash { major: 0x8000_0000, minor: 0 };
            assert!(node.entries.find(hash) < node.entries.count());
        }
    }
    for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
        for sign in [CharSign::Signed, CharSign::Unsigned] {
            let hash = hash_name(version, sign, &[1, 2, 3, 4], data).unwrap();
            assert!(hash.major & 1 == 0 && hash.major != 0xffff_fffe);
        }
    }
}

fn tables(data: &[u8]) {
    if let Ok(block) = OrphanBlock::parse(data, INDEX) {
        let _ = (block.to_string(), block.free_slot(), block.verify_checksum(NUMBER, SEED));
    }
    if let Ok(mmp) = Mmp::parse(data, NUMBER) {
        let _ = (mmp.to_string(), mmp.verify_checksum(SEED));
    }
    let blocks = QuotaHeader::parse(data, INODE).map_or(1000, |header| {
        let _ = header.to_string();
        header.blocks
    });
    for block in data.chunks(QUOTA_BLOCK_BYTES) {
        let _ = QuotaTreeNode::parse(block, INODE, INDEX, blocks).map(|node| node.children().count());
        if let Ok(leaf) = QuotaLeaf::parse(block, INODE, INDEX, blocks) {
            let entries: Vec<_> = leaf.entries().collect();
            let mut again = [0; QUOTA_BLOCK_BYTES];
            write_quota_leaf(&mut again, [leaf.next_free, leaf.previous_free], &entries);
            let again = QuotaLeaf::parse(&again, INODE, INDEX, blocks).unwrap();
            assert_eq!(leaf.to_string(), again.to_string());
        }
    }
}
