//! Parsing arbitrary bytes returns a value or an error, and values can be printed.

use extant_format::*;
use proptest::prelude::*;

const SUPERBLOCK: &[u8] = include_bytes!("data/superblock.bin");

/// A superblock with a few bytes changed, which gets further than noise.
fn changed_superblock() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec((0usize..1024, any::<u8>()), 0..6).prop_map(|changes| {
        let mut bytes = SUPERBLOCK.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes
    })
}

proptest! {
    #[test]
    fn superblocks(bytes in changed_superblock(), group in any::<u32>(), inode in any::<u32>()) {
        let Ok(sb) = Superblock::parse(&bytes) else { return Ok(()) };
        let _ = (sb.to_string(), sb.verify_checksum(), sb.has_backup(Group(group)), sb.locate_inode(InodeNumber(inode)));
        let _ = (sb.descriptor_blocks(), sb.group_blocks(Group(group)), inode_table_blocks(&sb));
        let group = group % sb.group_count();
        let _ = (sb.descriptor_block(group / sb.descriptors_per_block()), sb.group_first_block(Group(group)));
        let _ = GroupDescriptor::parse(&bytes, &sb, Group(group)).map(|gd| gd.to_string());
        if let Ok(inode) = Inode::parse_unchecked(&bytes, &sb, InodeNumber(inode)) {
            let _ = (inode.to_string(), inode.device(), inode.is_fast_symlink(&sb), inode.blocks_512(&sb));
            let _ = (inode.size_in_blocks(&sb), inode.xattr_block());
        }
    }

    #[test]
    fn extent_nodes(mut bytes in prop::collection::vec(any::<u8>(), 0..200), entries in 0u8..20, depth in 0u8..7) {
        let sb = Superblock::parse(SUPERBLOCK).unwrap();
        if bytes.len() > 12 {
            bytes[..12].copy_from_slice(&[0x0a, 0xf3, entries, 0, 20, 0, depth, 0, 0, 0, 0, 0]);
        }
        let cx = ExtentContext::root(&sb, InodeNumber(12));
        if let Ok(node) = ExtentNode::parse(&bytes, &cx) {
            let _ = node.to_string();
            if let ExtentNode::Index { depth, entries } = node {
                for n in 0..entries.len() {
                    let _ = ExtentNode::parse(&bytes, &cx.child(depth, &entries, n));
                }
            }
        }
        let _ = verify_extent_checksum(&bytes, ChecksumSeed(0), Place::Superblock);
    }

    #[test]
    fn directory_blocks(bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(12), any::<u8>()], 0..300)) {
        let entries = DirEntries::new(&bytes, true, 1 << 20, InodeNumber(2), FileBlock(0));
        prop_assert!(entries.count() <= bytes.len() / 12 + 1);
        let _ = verify_dirent_checksum(&bytes, ChecksumSeed(0), Place::Superblock);
    }

    #[test]
    fn bitmaps(bytes in prop::collection::vec(any::<u8>(), 0..64), bits in 0u32..600) {
        let free = (0..bits).filter(|&n| !bit(&bytes, n)).count() as u32;
        prop_assert_eq!(count_free(&bytes, bits), free);
    }
}
