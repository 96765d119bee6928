//! Extended attributes and access control lists.
#![no_main]

use extant_format::*;
use libfuzzer_sys::fuzz_target;

const INODE: InodeNumber = InodeNumber(12);
const NUMBER: VolumeBlock = VolumeBlock(100);
const SEED: ChecksumSeed = ChecksumSeed(1);

fuzz_target!(|data: &[u8]| {
    // Some seeds are whole inodes of 256 bytes, whose attribute area is the last 96.
    for area in [data, data.get(160..).unwrap_or_default()] {
        let _ = Xattrs::parse_inode(area, INODE).map(|xattrs| attributes(&xattrs));
    }
    let _ = verify_xattr_block(data, INODE, NUMBER, SEED);
    if let Ok(block) = XattrBlock::parse(data, INODE, NUMBER) {
        let _ = (block.to_string(), block.computed_hash());
        attributes(&block.xattrs);
    }
    list(data);
});

fn attributes(xattrs: &Xattrs<'_>) {
    let _ = xattrs.to_string();
    let mut attributes: Vec<_> = xattrs.iter().collect();
    for xattr in &attributes {
        let _ = xattr.hash_is_valid(Some(7));
        if let XattrValue::Bytes(value) = xattr.value {
            list(value);
        }
        if let Some(full) = xattr.name.to_full() {
            assert!(XattrName::from_full(&full).is_none_or(|name| name.to_full().as_ref() == Some(&full)));
        }
    }
    let mut area = vec![0; 4 + xattr_space(&attributes)];
    if write_inode_xattrs(&mut area, &attributes).is_ok() {
        let again = Xattrs::parse_inode(&area, INODE).unwrap();
        assert_eq!(xattrs.to_string(), again.to_string());
    }
    attributes.sort_by_key(|xattr| xattr.name);
    attributes.dedup_by_key(|xattr| xattr.name);
    let mut block = vec![0; 4096];
    if write_xattr_block(&mut block, &attributes, 1, NUMBER, Some(SEED)).is_ok() {
        verify_xattr_block(&block, INODE, NUMBER, SEED).unwrap();
        let again = XattrBlock::parse(&block, INODE, NUMBER).unwrap();
        assert!(again.xattrs.is_sorted() && again.computed_hash() == again.hash);
        let same = |a: &Xattr<'_>, b: &Xattr<'_>| a.name == b.name && a.value == b.value;
        assert!(again.xattrs.iter().zip(&attributes).all(|(a, b)| same(&a, b)));
        assert_eq!(again.xattrs.iter().count(), attributes.len());
    }
}

fn list(data: &[u8]) {
    for acl in [Acl::parse_stored(data, INODE), Acl::parse_xattr(data, INODE)].into_iter().flatten() {
        let _ = acl.to_string();
        assert_eq!(Acl::parse_stored(&acl.to_stored(), INODE).as_ref(), Ok(&acl));
        assert_eq!(Acl::parse_xattr(&acl.to_xattr(), INODE).as_ref(), Ok(&acl));
    }
}
