//! Setting and removing an attribute: the new contents of the inode's own area and of its attribute
//! block.
//!
//! As in Linux, an attribute goes into the inode if it fits there, otherwise into the block, and is
//! never in both.

use super::in_inode;
use extant_format::{
    Corrupt, Inode, Xattr, XattrBlock, XattrName, XattrWriteError, write_inode_xattrs, write_xattr_block,
    xattr_space,
};

/// Longest value of an attribute (`XATTR_SIZE_MAX`).
pub(crate) const VALUE_MAX: usize = 64 << 10;
/// Longest name of an attribute with its prefix (`XATTR_NAME_MAX`).
pub(crate) const NAME_MAX: usize = 255;

/// Precondition for setting an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetMode {
    /// None.
    #[default]
    Any,
    /// The attribute must not exist (`XATTR_CREATE`).
    Create,
    /// The attribute must exist (`XATTR_REPLACE`).
    Replace,
}

/// A change to one attribute.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change<'a> {
    pub(crate) name: XattrName<'a>,
    /// `None` removes the attribute.
    pub(crate) value: Option<&'a [u8]>,
    pub(crate) mode: SetMode,
}

/// The result of changing an inode's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The inode's tail, after its fixed fields, if it changes.
    pub(crate) body: Option<Box<[u8]>>,
    pub(crate) block: BlockPlan,
}

/// What to do with the attribute block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BlockPlan {
    Keep,
    /// The inode no longer needs one.
    Release,
    /// The inode needs a block of its own with these contents: its current one, unless that is
    /// shared. The contents say one reference and have a stale checksum.
    Write(Box<[u8]>),
}

/// Why a change is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Exists,
    NoData,
    NoSpace,
    Corrupt(Corrupt),
}

impl From<Corrupt> for Refused {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// Computes what a change does to `inode` and its attribute block, without changing them.
pub(crate) fn plan(
    inode: &Inode,
    block: Option<&XattrBlock<'_>>,
    block_bytes: usize,
    change: &Change<'_>,
) -> Result<Plan, Refused> {
    let value = change.value.map(|value| Xattr::new(change.name, value));
    plan_entry(inode, block, block_bytes, change, value)
}

/// Like [`plan`], with the entry for the new value, which may be in an inode of its own.
pub(crate) fn plan_entry(
    inode: &Inode,
    block: Option<&XattrBlock<'_>>,
    block_bytes: usize,
    change: &Change<'_>,
    value: Option<Xattr<'_>>,
) -> Result<Plan, Refused> {
    let Change { name, mode, .. } = *change;
    let body: Vec<Xattr<'_>> = in_inode(inode)?.iter().collect();
    let shared: Vec<Xattr<'_>> = block.iter().flat_map(|block| block.xattrs.iter()).collect();
    let old = body.iter().chain(&shared).find(|xattr| xattr.name == name);
    match (old, mode, value) {
        (Some(_), SetMode::Create, Some(_)) => return Err(Refused::Exists),
        (None, SetMode::Replace, Some(_)) | (None, _, None) => return Err(Refused::NoData),
        _ => {}
    }
    let holds = |list: &[Xattr<'_>]| list.iter().any(|xattr| xattr.name == name);
    let (in_body, in_block) = (holds(&body), holds(&shared));
    let (mut new_body, mut new_block) = (body.clone(), shared);
    new_body.retain(|xattr| xattr.name != name);
    new_block.retain(|xattr| xattr.name != name);
    let (mut body_changes, mut block_changes) = (in_body, in_block);
    if let Some(xattr) = value {
        let kept = new_body.len();
        // A replaced attribute keeps its place in the list.
        let at = body.iter().position(|xattr| xattr.name == name).unwrap_or(kept);
        new_body.insert(at, xattr);
        if body_room(inode).is_some_and(|room| xattr_space(&new_body) <= room) {
            body_changes = true;
        } else {
            new_body.remove(at);
            let at = new_block.partition_point(|xattr| xattr.name < name);
            new_block.insert(at, xattr);
            block_changes = true;
        }
    }
    let body = match body_changes {
        true => {
            let mut bytes = inode.tail.clone();
            write_inode_xattrs(&mut bytes, &new_body).map_err(refused)?;
            Some(bytes)
        }
        false => None,
    };
    let block = match (block_changes, new_block.is_empty()) {
        (false, _) => BlockPlan::Keep,
        (true, true) => BlockPlan::Release,
        (true, false) => {
            // Linux finds names in a block only if they are sorted, but an image may have another
            // order.
            new_block.sort_by_key(|xattr| xattr.name);
            let mut bytes = vec![0; block_bytes].into_boxed_slice();
            write_xattr_block(&mut bytes, &new_block, 1, Default::default(), None).map_err(refused)?;
            BlockPlan::Write(bytes)
        }
    };
    Ok(Plan { body, block })
}

fn refused(error: XattrWriteError) -> Refused {
    match error {
        XattrWriteError::NoSpace { .. } => Refused::NoSpace,
        // The name to set has been checked; a list with duplicates comes from the volume.
        XattrWriteError::BadName(_) | XattrWriteError::Unsorted => Refused::NoData,
    }
}

/// Bytes for entries and values in an inode; `None` if it has no room for attributes.
fn body_room(inode: &Inode) -> Option<usize> {
    let magic = size_of_val(&extant_format::XATTR_MAGIC);
    let has_area = inode.extra.i_extra_isize.get() != 0 && inode.tail.len() >= magic + 4;
    has_area.then(|| (inode.tail.len() - magic) & !3)
}

/// Sets the number of inodes that share an attribute block.
pub(crate) fn set_references(block: &mut [u8], references: u32) {
    let at = std::mem::offset_of!(extant_format::RawXattrBlockHeader, h_refcount);
    block[at..at + 4].copy_from_slice(&references.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_format::{InodeNumber, Superblock, VolumeBlock, XattrIndex, XattrValue};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCK: VolumeBlock = VolumeBlock(77);

    fn inode(size: u16) -> Inode {
        let mut raw = *Superblock::parse(include_bytes!("../../../format/tests/data/superblock.bin"))
            .expect("a superblock that mke2fs wrote")
            .raw();
        raw.s_inode_size = size.into();
        Inode::new(InodeNumber(12), &Superblock::from_raw(raw).expect("another inode size"))
    }

    fn name(number: u8) -> Vec<u8> {
        let len = [1, 3, 7, 30, 200][usize::from(number) % 5];
        let mut name = vec![b'a' + number % 26];
        name.resize(len, b'n');
        name.push(b'0' + number / 26);
        name
    }

    fn xattr_name(suffix: &[u8], number: u8) -> XattrName<'_> {
        XattrName { index: [XattrIndex::USER, XattrIndex::TRUSTED][usize::from(number) % 2], suffix }
    }

    proptest! {
        #[test]
        fn any_changes_leave_what_a_map_would_have(
            size in prop::sample::select(vec![128u16, 256, 512]),
            changes in prop::collection::vec(
                (0u8..30, prop::option::weighted(0.7, 0usize..600), 0u8..3), 0..60),
        ) {
            let mut inode = inode(size);
            let mut block: Option<Box<[u8]>> = None;
            let mut model: BTreeMap<(XattrIndex, Vec<u8>), Vec<u8>> = BTreeMap::new();
            for (number, len, mode) in changes {
                let suffix = name(number);
                let value = len.map(|len| vec![number; len]);
                let mode = [SetMode::Any, SetMode::Create, SetMode::Replace][usize::from(mode)];
                let name = xattr_name(&suffix, number);
                let change = Change { name, value: value.as_deref(), mode };
                let parsed = block.as_deref().map(|block| XattrBlock::parse(block, inode.number, BLOCK).unwrap());
                let result = plan(&inode, parsed.as_ref(), 1024, &change);
                let key = (name.index, suffix.clone());
                let there = model.contains_key(&key);
                match result {
                    Ok(Plan { body, block: new }) => {
                        if let Some(body) = body {
                            inode.tail = body;
                        }
                        match new {
                            BlockPlan::Keep => {}
                            BlockPlan::Release => block = None,
                            BlockPlan::Write(bytes) => block = Some(bytes),
                        }
                        match value {
                            Some(value) => model.insert(key, value),
                            None => model.remove(&key),
                        };
                    }
                    Err(Refused::Exists) => prop_assert!(there && mode == SetMode::Create),
                    Err(Refused::NoData) => prop_assert!(!there),
                    Err(Refused::NoSpace) => {
                        model.remove(&key);
                        let all = model.iter().chain([(&key, value.as_ref().unwrap())]);
                        let bytes: usize =
                            all.map(|((_, name), value)| 16 + name.len() + 3 + value.len() + 3).sum();
                        prop_assert!(bytes > 1024 - 32 - 4, "{} bytes fit a block", bytes);
                        break;
                    }
                    Err(other) => prop_assert!(false, "{:?}", other),
                }
                let parsed = block.as_deref().map(|block| XattrBlock::parse(block, inode.number, BLOCK).unwrap());
                let sound = parsed.is_none_or(|block| {
                    let hashed = block.hash == block.computed_hash();
                    block.xattrs.is_sorted() && hashed && !block.xattrs.is_empty()
                });
                prop_assert!(sound);
                let body = in_inode(&inode).unwrap();
                let all = body.iter().chain(parsed.iter().flat_map(|block| block.xattrs.iter()));
                let mut found = BTreeMap::new();
                for xattr in all {
                    let XattrValue::Bytes(value) = xattr.value else { panic!("a value in an inode") };
                    let key = (xattr.name.index, xattr.name.suffix.to_vec());
                    prop_assert_eq!(found.insert(key, value.to_vec()), None);
                }
                prop_assert_eq!(&found, &model);
                prop_assert!(size > 128 || body.is_empty());
            }
        }
    }

    #[test]
    fn a_value_that_outgrows_the_inode_moves_to_the_block_and_back() {
        let mut inode = inode(256);
        let suffix = b"x";
        let name = xattr_name(suffix, 0);
        let set = |value| Change { name, value: Some(value), mode: SetMode::Any };
        let small = plan(&inode, None, 1024, &set(b"v")).unwrap();
        assert_eq!(small.block, BlockPlan::Keep);
        inode.tail = small.body.unwrap();
        let large = plan(&inode, None, 1024, &set(&[1; 500])).unwrap();
        inode.tail = large.body.unwrap();
        assert!(in_inode(&inode).unwrap().is_empty());
        let BlockPlan::Write(mut block) = large.block else { panic!("{:?}", large.block) };
        set_references(&mut block, 3);
        let parsed = XattrBlock::parse(&block, inode.number, BLOCK).unwrap();
        assert_eq!(parsed.references, 3);
        let back = plan(&inode, Some(&parsed), 1024, &set(b"w")).unwrap();
        assert_eq!(back.block, BlockPlan::Release);
        assert!(back.body.is_some());
        assert_eq!(plan(&inode, Some(&parsed), 1024, &set(&[1; 1000])), Err(Refused::NoSpace));
    }
}
