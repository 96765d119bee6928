//! Extended attributes, and inode data stored in them.

pub(crate) mod acl;
pub(crate) mod change_plan;
pub(crate) mod live;
mod values;

pub use change_plan::SetMode;

use crate::map::Mapper;
use crate::view::View;
use crate::{Error, Result};
use extant_format::{
    Acl, Corrupt, FileKind, INLINE_HEAD_BYTES, InlineData, Inode, InodeFlags, Place, Problem, UintExt,
    ValueInode, Xattr, XattrBlock, XattrIndex, XattrName, XattrValue, Xattrs, verify_xattr_block,
};

/// Largest value in an inode of its own that is read, as on Linux.
const VALUE_MAX: u64 = 64 << 10;

/// An attribute as `getfattr` would show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Full name with its prefix, like `user.comment`.
    pub name: Vec<u8>,
    /// The value. Access control lists have the format of Linux's `system.posix_acl_*` attributes.
    pub value: Vec<u8>,
}

impl View {
    /// Returns all attributes of an inode, sorted by name, except those that Linux keeps to itself
    /// (inline data, encryption).
    pub(crate) async fn xattrs(&self, inode: &Inode) -> Result<Vec<Attribute>> {
        let mut found = Vec::new();
        match in_inode(inode) {
            Ok(list) => {
                for xattr in list.iter() {
                    found.extend(self.attribute(inode, &xattr).await?);
                }
            }
            Err(corrupt) => self.note(Err(corrupt))?,
        }
        let sb = self.superblock();
        if inode.xattr_block() != inode.xattr_block_in(sb) {
            let high = inode.raw.i_file_acl_high.get().into();
            let rule = "0 on a volume without 64bit";
            self.note(Err(Corrupt::field(Place::Inode(inode.number), "i_file_acl_high", high, rule)))?;
        }
        if let Some(number) = inode.xattr_block_in(sb) {
            if !self.superblock().is_valid_block(number) {
                let place = Place::Inode(inode.number);
                self.note(Err(Corrupt::field(place, "i_file_acl", number.0, "0 or a block of the volume")))?;
            } else {
                let block = self.buffers().block(number).await?;
                if let Some(seed) = self.superblock().checksum_seed() {
                    self.note_checksum(|| verify_xattr_block(&block, inode.number, number, seed))?;
                }
                match XattrBlock::parse(&block, inode.number, number) {
                    Ok(parsed) => {
                        for xattr in parsed.xattrs.iter() {
                            found.extend(self.attribute(inode, &xattr).await?);
                        }
                    }
                    Err(corrupt) => self.note(Err(corrupt))?,
                }
            }
        }
        found.sort_by(|a: &Attribute, b| a.name.cmp(&b.name));
        Ok(found)
    }

    async fn attribute(&self, inode: &Inode, xattr: &Xattr<'_>) -> Result<Option<Attribute>> {
        let Some(name) = xattr.name.to_full().filter(|_| xattr.name.index.is_visible()) else {
            return Ok(None);
        };
        if xattr.name == XattrName::INLINE_DATA {
            return Ok(None);
        }
        let value = match self.value(inode, xattr).await {
            Ok(value) => value,
            Err(Error::Corrupt(corrupt)) => {
                self.note(Err(corrupt))?;
                return Ok(None);
            }
            Err(other) => return Err(other),
        };
        let value = if matches!(xattr.name.index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT) {
            match Acl::parse_stored(&value, inode.number) {
                Ok(acl) => acl.to_xattr(),
                Err(corrupt) => {
                    self.note(Err(corrupt))?;
                    return Ok(None);
                }
            }
        } else {
            value
        };
        Ok(Some(Attribute { name, value }))
    }

    /// The value of an attribute of `owner`.
    pub(crate) async fn value(&self, owner: &Inode, xattr: &Xattr<'_>) -> Result<Vec<u8>> {
        let (number, size) = match xattr.value {
            XattrValue::Bytes(bytes) => return Ok(bytes.to_vec()),
            XattrValue::Inode { inode, size } => (inode, size),
        };
        let place = Place::XattrInode(number);
        values::check_feature(self.superblock(), place, number)?;
        let holder = self.inode(number).await?;
        if !holder.flags().contains(InodeFlags::EA_INODE) || holder.kind() != Some(FileKind::Regular) {
            let flags = holder.flags().bits().into();
            return Err(
                Corrupt::field(place, "i_flags", flags, "those of a file with EXT4_EA_INODE_FL").into()
            );
        }
        if holder.size() != u64::from(size) || holder.size() > VALUE_MAX {
            let rule = "the attribute's e_value_size and at most 64 KiB";
            return Err(Corrupt::field(place, "i_size", holder.size(), rule).into());
        }
        let stored = ValueInode::from_fields(
            holder.raw.i_atime.get(),
            holder.raw.i_ctime.get(),
            holder.raw.i_version_lo.get(),
        );
        let mut value = vec![0; size.to_usize()];
        // Inline data would be in the value inode's own attributes, and lead back here.
        if holder.flags().contains(InodeFlags::INLINE_DATA) {
            return Err(Corrupt::field(
                place,
                "i_flags",
                holder.flags().bits().into(),
                "without inline data",
            )
            .into());
        }
        if holder.flags().contains(InodeFlags::ENCRYPT) {
            return Err(Error::Encrypted(number));
        }
        Mapper::default().read(self, &holder, 0, &mut value).await?;
        let computed = values::hash_of(&value, self.superblock());
        if stored.hash != computed && !is_sole_holder(owner, &holder) {
            self.note(Err(Corrupt::checksum(place, stored.hash, computed)))?;
        } else if !xattr.hash_is_valid(Some(stored.hash)) && !is_sole_holder(owner, &holder) {
            let rule = "that of the attribute's name and value";
            self.note(Err(Corrupt::field(place, "e_hash", xattr.hash.into(), rule)))?;
        }
        Ok(value)
    }
}

/// Whether the value inode `value` names `owner` as its only holder, as written by Lustre before
/// Linux had the feature (`EXT4_XATTR_INODE_GET_PARENT`). It then has no hash and no reference
/// count.
pub(crate) fn is_sole_holder(owner: &Inode, value: &Inode) -> bool {
    value.raw.i_mtime.get() == owner.number.0 && value.raw.i_generation == owner.raw.i_generation
}

/// The attributes in an inode. As on Linux, an area without the magic number contains none.
pub(crate) fn in_inode(inode: &Inode) -> std::result::Result<Xattrs<'_>, Corrupt> {
    match Xattrs::parse_inode(&inode.tail, inode.number) {
        Err(Corrupt { problem: Problem::Magic { .. }, .. }) => Ok(Xattrs::EMPTY),
        other => other,
    }
}

/// The contents of an inode with `EXT4_INLINE_DATA_FL`.
pub(crate) fn inline_data(inode: &Inode) -> std::result::Result<InlineData<'_>, Corrupt> {
    InlineData::parse(inode.map(), &in_inode(inode)?, inode.size(), inode.number)
}

/// The contents of an inline directory. Like Linux, it takes all the room in the inode for names,
/// whatever the directory's size says.
pub(crate) fn inline_names(dir: &Inode) -> std::result::Result<InlineData<'_>, Corrupt> {
    let attributes = in_inode(dir)?;
    let value = attributes.value_range_in_inode(XattrName::INLINE_DATA).map_or(0, |range| range.len());
    InlineData::parse(dir.map(), &attributes, (INLINE_HEAD_BYTES + value).to_u64(), dir.number)
}

/// The inode's tail without the attribute that holds inline data.
pub(crate) fn without_inline_data(inode: &Inode) -> std::result::Result<Box<[u8]>, Corrupt> {
    let change = change_plan::Change { name: XattrName::INLINE_DATA, value: None, mode: SetMode::Any };
    match change_plan::plan(inode, None, 0, &change) {
        Ok(plan) => Ok(plan.body.unwrap_or_else(|| inode.tail.clone())),
        Err(change_plan::Refused::Corrupt(corrupt)) => Err(corrupt),
        // An empty area has nothing to remove.
        Err(_) => Ok(inode.tail.clone()),
    }
}
