//! Chooses where to store extended attributes: in the inode, in a shared block, or in inodes of
//! their own.

use super::inode_numbers::Inodes;
use super::params::Params;
use crate::tree::XattrSetId;
use crate::{BuildError, quoted};
use extant_format::{
    Acl, BlockSize, CAPABILITY_XATTR, GOOD_OLD_INODE_SIZE, Incompat, InodeNumber, UintExt,
    XATTR_BLOCK_SHARES_MAX, Xattr, XattrIndex, XattrName, xattr_space,
};
use std::collections::BTreeMap;

const EXTRA_ISIZE: usize = 32;
const BLOCK_HEADER: usize = 32;
/// Maximum length of an attribute name that programs can use, including the prefix (xattr(7)).
const XATTR_NAME_MAX: usize = 255;

/// Maximum length of an attribute value that programs can use (`XATTR_SIZE_MAX`, xattr(7)).
const XATTR_VALUE_MAX: usize = 64 << 10;

/// Placement of the attributes of every set.
#[derive(Debug, Default)]
pub(crate) struct AttrPlan {
    sets: BTreeMap<XattrSetId, SetPlan>,
    /// Values stored in separate inodes, in inode order.
    pub(crate) values: Vec<Value>,
    /// Attribute blocks, in order.
    pub(crate) blocks: Vec<AttrBlock>,
    /// Inodes that have an attribute block, in order, with the block's index.
    users: Vec<(InodeNumber, u32)>,
}

#[derive(Debug)]
pub(crate) struct Value {
    pub(crate) bytes: Vec<u8>,
    pub(crate) references: u64,
}

#[derive(Debug)]
pub(crate) struct AttrBlock {
    pub(crate) set: XattrSetId,
    /// Number of inodes that share the block.
    pub(crate) references: u32,
}

#[derive(Debug, Default)]
struct SetPlan {
    in_inode: Vec<Attr>,
    in_block: Vec<Attr>,
}

#[derive(Debug)]
struct Attr {
    index: XattrIndex,
    suffix: Vec<u8>,
    place: AttrPlace,
}

#[derive(Debug)]
enum AttrPlace {
    Here(Vec<u8>),
    /// Index into the values.
    Value(u32),
}

impl AttrPlan {
    /// Index of the attribute block used by an inode.
    pub(crate) fn block_of(&self, inode: InodeNumber) -> Option<u32> {
        let at = self.users.binary_search_by_key(&inode, |user| user.0).ok()?;
        Some(self.users[at].1)
    }

    /// Blocks of a set's values in separate inodes; they are charged to the owner.
    pub(crate) fn value_blocks(&self, set: XattrSetId, block: BlockSize) -> u64 {
        let Some(plan) = self.sets.get(&set) else { return 0 };
        let blocks_of = |attr: &Attr| match attr.place {
            AttrPlace::Value(at) => block.blocks_for(self.values[at.to_usize()].bytes.len().to_u64()),
            AttrPlace::Here(_) => 0,
        };
        plan.in_inode.iter().chain(&plan.in_block).map(blocks_of).sum()
    }

    /// Attributes stored in the inode itself.
    pub(crate) fn in_inode(&self, set: XattrSetId, value: impl Fn(u32) -> ValueRef) -> Vec<Xattr<'_>> {
        self.sets
            .get(&set)
            .map_or_else(Vec::new, |plan| plan.in_inode.iter().map(|a| a.entry(&value)).collect())
    }

    /// Attributes stored in a block, in the order required there.
    pub(crate) fn in_block(&self, set: XattrSetId, value: impl Fn(u32) -> ValueRef) -> Vec<Xattr<'_>> {
        self.sets
            .get(&set)
            .map_or_else(Vec::new, |plan| plan.in_block.iter().map(|a| a.entry(&value)).collect())
    }
}

/// An entry's reference to a value inode.
pub(crate) struct ValueRef {
    pub(crate) inode: InodeNumber,
    pub(crate) size: u32,
    pub(crate) hash: u32,
}

impl Attr {
    fn name(&self) -> XattrName<'_> {
        XattrName { index: self.index, suffix: &self.suffix }
    }

    fn entry(&self, value: impl Fn(u32) -> ValueRef) -> Xattr<'_> {
        match &self.place {
            AttrPlace::Here(bytes) => Xattr::new(self.name(), bytes),
            AttrPlace::Value(at) => {
                let ValueRef { inode, size, hash } = value(*at);
                Xattr::in_inode(self.name(), inode, size, hash)
            }
        }
    }

    fn space(&self) -> usize {
        let nowhere = |_| ValueRef { inode: InodeNumber(1), size: 0, hash: 0 };
        xattr_space([&self.entry(nowhere)]) - END_MARK
    }
}

/// Bytes that [`xattr_space`] counts for the end marker of a list.
const END_MARK: usize = 4;

/// Places the sets used by the inodes, in inode order.
pub(crate) fn plan_attrs(inodes: &Inodes, params: &Params) -> Result<AttrPlan, BuildError> {
    let mut plan = AttrPlan::default();
    // For each set, the block that its next user can share.
    let mut open: BTreeMap<XattrSetId, u32> = BTreeMap::new();
    for inode in inodes.all() {
        let set = inodes.tree.node(inodes.node_of(inode)).xattrs;
        if set == XattrSetId::EMPTY {
            continue;
        }
        if !plan.sets.contains_key(&set) {
            let placed = place(inodes, params, inode, set, &mut plan.values)?;
            plan.sets.insert(set, placed);
        }
        let placed = &plan.sets[&set];
        count_references(&placed.in_inode, &mut plan.values);
        if placed.in_block.is_empty() {
            continue;
        }
        let shared = open
            .get(&set)
            .copied()
            .filter(|&b| plan.blocks[b.to_usize()].references < XATTR_BLOCK_SHARES_MAX);
        let block = match shared {
            Some(block) => block,
            None => {
                count_references(&placed.in_block, &mut plan.values);
                plan.blocks.push(AttrBlock { set, references: 0 });
                plan.blocks.len().fit_u32() - 1
            }
        };
        open.insert(set, block);
        plan.blocks[block.to_usize()].references += 1;
        plan.users.push((inode, block));
    }
    Ok(plan)
}

/// Whether Linux accepts the value for `security.capability` (`cap_convert_nscap`, capability.h):
/// `vfs_cap_data` of revision 2, or of revision 3, which adds the user that is root in its
/// namespace.
fn is_capability(value: &[u8]) -> bool {
    const EFFECTIVE: u32 = 1;
    let Some(&head) = value.first_chunk() else { return value.is_empty() };
    let revision = u32::from_le_bytes(head) & !EFFECTIVE;
    matches!((revision, value.len()), (0x0200_0000, 20) | (0x0300_0000, 24))
}

fn count_references(attrs: &[Attr], values: &mut [Value]) {
    for attr in attrs {
        if let AttrPlace::Value(at) = attr.place {
            values[at.to_usize()].references += 1;
        }
    }
}

fn place(
    inodes: &Inodes,
    params: &Params,
    inode: InodeNumber,
    set: XattrSetId,
    values: &mut Vec<Value>,
) -> Result<SetPlan, BuildError> {
    let mut attrs = Vec::new();
    for xattr in inodes.tree.xattrs(set) {
        let name = XattrName::from_full(&xattr.name).expect("others were taken out of the tree");
        if xattr.name.len() > XATTR_NAME_MAX || xattr.name.contains(&0) {
            let (path, name) = (inodes.quoted_path_of(inode), quoted(&xattr.name));
            return Err(BuildError::XattrName { path, name });
        }
        if xattr.value.len() > XATTR_VALUE_MAX {
            return Err(BuildError::XattrTooLong {
                path: inodes.quoted_path_of(inode),
                name: quoted(&xattr.name),
                bytes: xattr.value.len().to_u64(),
                limit: XATTR_VALUE_MAX.to_u64(),
            });
        }
        if *xattr.name == *CAPABILITY_XATTR && !is_capability(&xattr.value) {
            return Err(BuildError::Capability { path: inodes.quoted_path_of(inode) });
        }
        let mut value = xattr.value.to_vec();
        if matches!(name.index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT) {
            let acl = Acl::parse_xattr(&value, inode).map_err(|e| BuildError::Acl {
                path: inodes.quoted_path_of(inode),
                name: extant_fs::quote(&xattr.name),
                reason: e.problem.to_string(),
            })?;
            value = acl.to_stored();
        }
        attrs.push(Attr { index: name.index, suffix: name.suffix.to_vec(), place: AttrPlace::Here(value) });
    }
    attrs.sort_by(|a, b| a.name().cmp(&b.name()));
    let mut room =
        usize::from(params.inode_size).saturating_sub(GOOD_OLD_INODE_SIZE + EXTRA_ISIZE + 4 + END_MARK);
    let mut plan = SetPlan::default();
    for attr in attrs {
        // The in-inode area starts with a magic number, and is left out if no entry fits.
        if attr.space() <= room {
            room -= attr.space();
            plan.in_inode.push(attr);
        } else {
            plan.in_block.push(attr);
        }
    }
    let room = params.block.byte_len() - BLOCK_HEADER - END_MARK;
    let mut needed: usize = plan.in_block.iter().map(Attr::space).sum();
    let wanted = needed;
    while needed > room {
        let here = |attr: &&mut Attr| match &attr.place {
            AttrPlace::Here(bytes) if params.incompat.contains(Incompat::EA_INODE) => bytes.len(),
            _ => 0,
        };
        let Some(largest) = plan.in_block.iter_mut().max_by_key(here).filter(|attr| here(attr) > 0) else {
            let path = inodes.quoted_path_of(inode);
            let ea_inode = params.incompat.contains(Incompat::EA_INODE);
            return Err(BuildError::XattrsTooLarge {
                path,
                bytes: wanted.to_u64(),
                limit: room.to_u64(),
                ea_inode,
            });
        };
        needed -= largest.space();
        let at = values.len().fit_u32();
        if let AttrPlace::Here(bytes) = std::mem::replace(&mut largest.place, AttrPlace::Value(at)) {
            values.push(Value { bytes, references: 0 });
        }
        needed += largest.space();
    }
    Ok(plan)
}
