//! The fixtures were created by Linux 6.18 and debugfs 1.47.0; see tests/data/README.md.

use super::block::RawXattrBlockHeader;
use super::*;
use crate::{CharSign, ChecksumSeed, Corrupt, InodeNumber, Place, Problem, VolumeBlock};
use proptest::prelude::*;
use std::mem::offset_of;

const INODE: InodeNumber = InodeNumber(13);
const IN_INODE: Place = Place::InodeXattrs(INODE);
const BLOCK: VolumeBlock = VolumeBlock(1649);
const IN_BLOCK: Place = Place::XattrBlock(INODE, BLOCK);
const UUID: [u8; 16] = 0x01234567_89ab_cdef_0123_456789abcdef_u128.to_be_bytes();

const KERNEL_INODE: &[u8; 256] = include_bytes!("../../tests/data/inode_xattrs_kernel.bin");
const KERNEL_BLOCK: &[u8; 1024] = include_bytes!("../../tests/data/xattr_block_kernel.bin");
const KERNEL_VALUE: &[u8; 256] = include_bytes!("../../tests/data/inode_xattr_value_kernel.bin");
const E2FSPROGS_BLOCK: &[u8; 1024] = include_bytes!("../../tests/data/xattr_block_e2fsprogs.bin");

fn seed() -> ChecksumSeed {
    ChecksumSeed::from_uuid(&UUID)
}

fn kernel_area() -> &'static [u8] {
    &KERNEL_INODE[128 + 32..]
}

fn kernel_block() -> XattrBlock<'static> {
    XattrBlock::parse(KERNEL_BLOCK, INODE, BLOCK).unwrap()
}

/// Fields of the inode that holds the value of `user.huge`.
fn kernel_value() -> ValueInode {
    let field = |at: usize| u32::from_le_bytes(KERNEL_VALUE[at..at + 4].try_into().unwrap());
    ValueInode::from_fields(field(0x8), field(0xc), field(0x24))
}

#[test]
fn layouts_have_the_documented_sizes() {
    assert_eq!(size_of::<RawXattrEntry>(), 16);
    assert_eq!(offset_of!(RawXattrEntry, e_value_inum), 4);
    assert_eq!(offset_of!(RawXattrEntry, e_hash), 12);
    assert_eq!(size_of::<RawXattrBlockHeader>(), 32);
    assert_eq!(offset_of!(RawXattrBlockHeader, h_checksum), 16);
}

#[test]
fn attributes_that_linux_wrote_are_read() {
    let inline = Xattrs::parse_inode(kernel_area(), INODE).unwrap();
    assert_eq!(
        inline.to_string(),
        "user.small (5 bytes) = \"hello\"\n\
         security.selinux (26 bytes) = \"system_u:object_r:etc_t:s0\"\n"
    );
    assert!(!inline.is_empty());

    let block = kernel_block();
    verify_xattr_block(KERNEL_BLOCK, INODE, BLOCK, seed()).unwrap();
    assert!(block.xattrs.is_sorted());
    assert_eq!(block.references, 1);
    let names: Vec<_> = block.xattrs.iter().map(|xattr| xattr.name.to_string()).collect();
    let want = ["user.a", "user.zz", "user.b\\xe9\\xff", "user.huge", "system.posix_acl_access", "trusted.t"];
    assert_eq!(names, want);
    let get =
        |name: &'static str| block.xattrs.get(XattrName::from_full(name.as_bytes()).unwrap()).unwrap().value;
    assert_eq!(get("user.a"), XattrValue::Bytes(&[b'q'; 33]));
    assert_eq!(get("user.zz"), XattrValue::Bytes(b""));
    assert_eq!(get("trusted.t"), XattrValue::Bytes(&[b'y'; 201]));
    assert_eq!(get("user.huge"), XattrValue::Inode { inode: InodeNumber(14), size: 3000 });
    assert_eq!(block.xattrs.get(XattrName::from_full(b"user.b").unwrap()), None);
}

#[test]
fn hashes_are_those_of_linux() {
    let block = kernel_block();
    assert_eq!(block.computed_hash(), block.hash);
    let value = kernel_value();
    assert_eq!(value, ValueInode { hash: ValueInode::hash_of(&[b'z'; 3000], seed()), references: 1 });
    assert_eq!(ValueInode::from_fields(value.to_fields().0, value.to_fields().1, value.to_fields().2), value);
    for xattr in block.xattrs {
        assert!(xattr.hash_is_valid(Some(value.hash)), "{xattr}");
        match xattr.value {
            XattrValue::Bytes(_) => assert_eq!(xattr.computed_hash(CharSign::Unsigned), Some(xattr.hash)),
            XattrValue::Inode { inode, size } => {
                assert_eq!(Xattr::in_inode(xattr.name, inode, size, value.hash), xattr)
            }
        }
    }
    let signed = Xattr::new(XattrName { index: XattrIndex::USER, suffix: b"\xe9" }, b"v");
    let hash = signed.computed_hash(CharSign::Signed).unwrap();
    assert_ne!(Some(hash), signed.computed_hash(CharSign::Unsigned));
    assert!(Xattr { hash, ..signed }.hash_is_valid(None), "old kernels on x86 wrote signed hashes");
    assert!(!Xattr { hash: hash ^ 1, ..signed }.hash_is_valid(None));
}

#[test]
fn writing_gives_the_bytes_of_e2fsprogs() {
    let block = XattrBlock::parse(E2FSPROGS_BLOCK, InodeNumber(12), VolumeBlock(1617)).unwrap();
    let xattrs: Vec<_> = block.xattrs.iter().collect();
    assert!(xattrs.iter().all(|xattr| xattr.hash_is_valid(None)));
    let mut ours = [0xaa; 1024];
    write_xattr_block(&mut ours, &xattrs, 1, VolumeBlock(1617), Some(seed())).unwrap();
    // e2fsprogs leaves a block's hash as 0, which is valid but prevents sharing; the checksum
    // covers it.
    let mut theirs = *E2FSPROGS_BLOCK;
    theirs[0xc..0x14].copy_from_slice(&ours[0xc..0x14]);
    assert_eq!(ours, theirs);
    verify_xattr_block(&ours, InodeNumber(12), VolumeBlock(1617), seed()).unwrap();
}

#[test]
fn writing_gives_the_hashes_of_linux() {
    let xattrs: Vec<_> = kernel_block().xattrs.iter().collect();
    let mut bytes = [0; 1024];
    write_xattr_block(&mut bytes, &xattrs, 3, BLOCK, None).unwrap();
    let ours = XattrBlock::parse(&bytes, INODE, BLOCK).unwrap();
    assert_eq!((ours.hash, ours.references, ours.checksum), (kernel_block().hash, 3, 0));
    assert!(ours.xattrs.iter().eq(xattrs));

    let xattrs: Vec<_> = Xattrs::parse_inode(kernel_area(), INODE).unwrap().iter().collect();
    let mut area = [0xaa; 96];
    write_inode_xattrs(&mut area, &xattrs).unwrap();
    let ours = Xattrs::parse_inode(&area, INODE).unwrap();
    assert!(ours.iter().eq(xattrs));
    for xattr in ours {
        let range = ours.value_range_in_inode(xattr.name).unwrap();
        assert_eq!(xattr.value, XattrValue::Bytes(&area[range]));
    }
    write_inode_xattrs(&mut area, &[]).unwrap();
    assert_eq!(area, [0; 96]);
}

#[test]
fn values_that_cannot_be_written_are_refused() {
    let user = |suffix| XattrName { index: XattrIndex::USER, suffix };
    let mut area = [0; 96];
    let full = Xattr::new(user(b"abcd"), &[1; 68]);
    assert_eq!(xattr_space([&full]), 92);
    write_inode_xattrs(&mut area, &[full]).unwrap();
    let before = area;
    let over = Xattr::new(user(b"abcd"), &[1; 69]);
    assert_eq!(
        write_inode_xattrs(&mut area, &[over]),
        Err(XattrWriteError::NoSpace { needed: 96, room: 92 })
    );
    let long = Xattr::new(user(&[b'n'; 256]), b"");
    assert_eq!(write_inode_xattrs(&mut area, &[long]), Err(XattrWriteError::BadName(256)));
    let nul = Xattr::new(user(b"a\0"), b"");
    assert_eq!(write_inode_xattrs(&mut area, &[nul]), Err(XattrWriteError::BadName(2)));
    assert_eq!(area, before, "a refused write leaves the area alone");
    let (a, b) = (Xattr::new(user(b"b"), b""), Xattr::new(user(b"a"), b""));
    assert_eq!(write_xattr_block(&mut [0; 1024], &[a, b], 1, BLOCK, None), Err(XattrWriteError::Unsorted));
    assert_eq!(write_inode_xattrs(&mut [0; 3], &[a]), Err(XattrWriteError::NoSpace { needed: 24, room: 0 }));
}

#[test]
fn one_wrong_field_is_named() {
    let inode = |at: usize, bytes: &[u8]| {
        let mut area = kernel_area().to_vec();
        area[at..at + bytes.len()].copy_from_slice(bytes);
        Xattrs::parse_inode(&area, INODE).unwrap_err()
    };
    assert_eq!(
        inode(0, &[1]),
        Corrupt { place: IN_INODE, problem: Problem::Magic { found: 0xea02_0001, expected: XATTR_MAGIC } }
    );
    let e_name_len = Corrupt::field(IN_INODE, "e_name_len", 6, "the length of a name without NUL bytes");
    assert_eq!(inode(4, &[6]), e_name_len);
    assert_eq!(inode(4, &[93]), Corrupt::truncated(IN_INODE, 16 + 93, 92));
    let e_value_offs =
        |value| Corrupt::field(IN_INODE, "e_value_offs", value, "after the entries and within the area");
    assert_eq!(inode(6, &[0x10, 0]), e_value_offs(0x10));
    assert_eq!(inode(6, &[0xff, 0xff]), e_value_offs(0xffff));
    assert_eq!(inode(12, &9u32.to_le_bytes()), {
        Corrupt::field(IN_INODE, "e_value_size", 9, "no more than is left of the area after e_value_offs")
    });
    assert_eq!(inode(12, &0x0100_0001u32.to_le_bytes()), {
        Corrupt::field(IN_INODE, "e_value_size", 0x0100_0001, "at most 16 MiB")
    });
    // The first value now overlaps the second: 16 and 28 bytes, in the 40 after the entries.
    assert_eq!(inode(6, &[0x38, 0, 0, 0, 0, 0, 16]), {
        Corrupt::field(IN_INODE, "e_value_size", 26, "no more than the values before it leave of the area")
    });
    let endless = [&XATTR_MAGIC.to_le_bytes()[..], &[1; 92]].concat();
    assert_eq!(Xattrs::parse_inode(&endless, INODE).unwrap_err(), Corrupt::truncated(IN_INODE, 96, 92));

    let block = |at: usize, byte: u8| {
        let mut block = *KERNEL_BLOCK;
        block[at] = byte;
        let unchecked = XattrBlock::parse(&block, INODE, BLOCK).map(drop);
        (unchecked, verify_xattr_block(&block, INODE, BLOCK, seed()).unwrap_err().problem)
    };
    assert_eq!(block(3, 0).0.unwrap_err().problem, Problem::Magic { found: 0x2_0000, expected: XATTR_MAGIC });
    assert_eq!(block(8, 2).0, Err(Corrupt::field(IN_BLOCK, "h_blocks", 2, "1")));
    assert!(matches!(block(0x300, 0), (Ok(()), Problem::Checksum { stored: 0x037e_f6a6, .. })));
    assert_eq!(XattrBlock::parse(&[0; 31], INODE, BLOCK).unwrap_err(), Corrupt::truncated(IN_BLOCK, 32, 31));
    assert!(
        verify_xattr_block(KERNEL_BLOCK, INODE, VolumeBlock(1650), seed()).is_err(),
        "the block's number counts"
    );
}

#[test]
fn names_and_prefixes() {
    for (full, index, suffix) in [
        ("user.x", XattrIndex::USER, "x"),
        ("system.posix_acl_access", XattrIndex::ACL_ACCESS, ""),
        ("system.posix_acl_default", XattrIndex::ACL_DEFAULT, ""),
        ("system.data", XattrIndex::SYSTEM, "data"),
        ("trusted.overlay.opaque", XattrIndex::TRUSTED, "overlay.opaque"),
        ("security.capability", XattrIndex::SECURITY, "capability"),
    ] {
        let name = XattrName { index, suffix: suffix.as_bytes() };
        assert_eq!(XattrName::from_full(full.as_bytes()), Some(name));
        assert_eq!(name.to_full().unwrap(), full.as_bytes());
        assert_eq!(name.to_string(), full);
    }
    assert_eq!(XattrName::from_full(b"user."), None);
    assert_eq!(XattrName::from_full(b"unknown.x"), None);
    assert_eq!(XattrName { index: XattrIndex::ENCRYPTION, suffix: b"c" }.to_string(), "#9.c");
    assert!(!XattrIndex::SYSTEM.is_visible() && !XattrIndex::ENCRYPTION.is_visible());
}

/// Parses, iterates and prints; writing and reading again must give the same attributes.
fn exercise(area: &[u8]) {
    if let Ok(xattrs) = Xattrs::parse_inode(area, INODE) {
        let _ = xattrs.to_string();
        let list: Vec<_> = xattrs.iter().collect();
        let mut again = vec![0; 64 * 1024];
        if write_inode_xattrs(&mut again, &list).is_ok() {
            let same = |a: &Xattr<'_>, b: &Xattr<'_>| a.name == b.name && a.value == b.value;
            assert!(Xattrs::parse_inode(&again, INODE).unwrap().iter().zip(&list).all(|(a, b)| same(&a, b)));
        }
    }
    if let Ok(block) = XattrBlock::parse(area, INODE, BLOCK) {
        let _ = (block.to_string(), block.computed_hash(), block.xattrs.is_sorted());
    }
    let _ = verify_xattr_block(area, INODE, BLOCK, seed());
}

proptest! {
    #[test]
    fn random_bytes_are_parsed_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..200), magic: bool) {
        if let (true, Some(start)) = (magic, bytes.first_chunk_mut()) {
            *start = XATTR_MAGIC.to_le_bytes();
        }
        exercise(&bytes);
    }

    #[test]
    fn mutated_areas_are_parsed_or_refused(edits in prop::collection::vec((0usize..1024, any::<u8>()), 1..8)) {
        for original in [kernel_area(), &KERNEL_BLOCK[..]] {
            let mut bytes = original.to_vec();
            for &(at, byte) in &edits {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            exercise(&bytes);
        }
    }
}
