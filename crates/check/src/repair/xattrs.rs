//! Extended attributes: those that make no sense are dropped one by one, and the rest are written
//! anew.

use super::editor::Editor;
use crate::Code;
use crate::finding::Finding;
use crate::state::Kind;
use extant_format::{
    Acl, CAPABILITY_XATTR, ChecksumSeed, FileKind, Inode, InodeFlags, InodeNumber, ValueInode, VolumeBlock,
    Xattr, XattrBlock, XattrIndex, XattrName, XattrValue, capability_root, verify_xattr_block,
    write_inode_xattrs, write_xattr_block, write_xattr_checksum,
};

/// Bytes of a block's header.
const HEADER: usize = extant_format::XATTR_BLOCK_HEADER_BYTES;
/// Bytes of an entry before its name.
const ENTRY: usize = 16;

/// Repairs what a finding about attributes asks for.
pub(super) async fn repair(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(number) = finding.spot.inode.map(InodeNumber) else { return };
    match (finding.code, finding.spot.block) {
        (Code::XattrPointer, _) => {
            editor.with_inode(number, |inode, _| inode.set_xattr_block(VolumeBlock(0))).await;
        }
        (Code::XattrReferences, Some(at)) => references(editor, number, at, finding.value).await,
        (Code::XattrInodeReferences, _) => value_references(editor, number, finding.value).await,
        (Code::XattrInode | Code::XattrHash, None) => {
            let holds = editor.ctx.inodes.kind(number) == Kind::Value;
            if holds {
                value_hash(editor, number).await;
            } else if !mark_values(editor, number).await {
                both(editor, number).await;
            }
        }
        (_, Some(at)) => block(editor, finding, number, at).await,
        (_, None) => in_inode(editor, number).await,
    }
}

/// Whether a block looks like one of attributes.
pub(super) async fn is_block(editor: &Editor<'_>, at: u64) -> bool {
    editor.block(at).await.is_some_and(|block| word(&block, 0) == extant_format::XATTR_MAGIC)
}

async fn both(editor: &mut Editor<'_>, number: InodeNumber) {
    in_inode(editor, number).await;
    let Some(inode) = editor.inode(number).await else { return };
    if let Some(at) = inode.xattr_block_in(&editor.sb) {
        let Some(mut bytes) = editor.block(at.0).await else { return };
        rewrite(editor, &mut bytes, number, at.0).await;
        editor.set_block(at.0, &bytes).await;
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

/// Returns the attributes of an area that make sense, as far as entries can be followed.
fn lenient<'a>(editor: &Editor<'_>, base: &'a [u8], first: usize, number: InodeNumber) -> Vec<Xattr<'a>> {
    let mut found: Vec<Xattr<'a>> = Vec::new();
    let mut at = first;
    while at + ENTRY <= base.len() && word(base, at) != 0 {
        let len = usize::from(base[at]);
        let Some(suffix) = base.get(at + ENTRY..at + ENTRY + len) else { break };
        let name = XattrName { index: XattrIndex(base[at + 1]), suffix };
        let offset = usize::from(u16::from_le_bytes([base[at + 2], base[at + 3]]));
        let (inode, size) = (word(base, at + 4), word(base, at + 8));
        let bytes = usize::try_from(size).ok().and_then(|size| base.get(offset..offset.checked_add(size)?));
        let value = match (inode, bytes) {
            (0, Some(_)) if size == 0 => Some(XattrValue::Bytes(&[])),
            (0, Some(bytes)) => Some(XattrValue::Bytes(bytes)),
            (0, None) => None,
            (inode, _) => Some(XattrValue::Inode { inode: InodeNumber(inode), size }),
        };
        let hash = word(base, at + 12);
        at += ENTRY + len.next_multiple_of(4);
        let Some(value) = value else { continue };
        let xattr = Xattr { name, value, hash };
        let is_twice = found.iter().any(|before| before.name == name);
        if !is_twice && is_sound(editor, &xattr, number) {
            found.push(xattr);
        }
    }
    found
}

fn is_sound(editor: &Editor<'_>, xattr: &Xattr<'_>, number: InodeNumber) -> bool {
    let index = xattr.name.index;
    let known = index.prefix().is_some() || matches!(index, XattrIndex::LUSTRE | XattrIndex::ENCRYPTION);
    if !known || xattr.name.suffix.contains(&0) || xattr.name.suffix.is_empty() && !index.is_whole_name() {
        return false;
    }
    match xattr.value {
        XattrValue::Bytes(value) => {
            let is_acl = matches!(index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT);
            let is_capability = xattr.name.to_full().as_deref() == Some(CAPABILITY_XATTR);
            let is_right_acl = || Acl::parse_stored(value, number).is_ok();
            let is_right_capability = || capability_root(value).is_some();
            (!is_acl || is_right_acl()) && (!is_capability || is_right_capability())
        }
        XattrValue::Inode { inode, .. } => {
            editor.ctx.has_values()
                && xattr.name != XattrName::INLINE_DATA
                && editor.ctx.inodes.kind(inode) == Kind::Value
        }
    }
}

/// Corrects the hashes of attributes whose values are in other inodes.
async fn rehash(editor: &Editor<'_>, xattrs: &mut [Xattr<'_>]) {
    for xattr in xattrs {
        let XattrValue::Inode { inode, size } = xattr.value else { continue };
        let Some(holder) = editor.inode(inode).await else { continue };
        let hash = holder.raw.i_atime.get();
        if !xattr.hash_is_valid(Some(hash)) {
            *xattr = Xattr::in_inode(xattr.name, inode, size, hash);
        }
    }
}

/// Writes the attributes in an inode anew.
async fn in_inode(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    let tail = inode.tail.clone();
    let Some(base) = tail.get(4..) else { return };
    if word(&tail, 0) != extant_format::XATTR_MAGIC {
        return;
    }
    let mut kept = lenient(editor, base, 0, number);
    rehash(editor, &mut kept).await;
    let mut area = vec![0; tail.len()];
    let mut count = kept.len();
    while write_inode_xattrs(&mut area, &kept[..count]).is_err() && count > 0 {
        count -= 1;
    }
    inode.tail = area.into();
    editor.set_inode(&inode).await;
    editor.say("drop the attribute, and keep the others in the inode", "the attribute");
}

/// Writes the attributes of a block anew; returns false if it is not an attribute block.
async fn rewrite(editor: &Editor<'_>, bytes: &mut [u8], number: InodeNumber, at: u64) -> bool {
    if word(bytes, 0) != extant_format::XATTR_MAGIC {
        return false;
    }
    let old = bytes.to_vec();
    let mut kept = lenient(editor, &old, HEADER, number);
    rehash(editor, &mut kept).await;
    kept.sort_by(|a, b| a.name.cmp(&b.name));
    let references = word(&old, 4).max(1);
    !kept.is_empty() && write_xattr_block(bytes, &kept, references, VolumeBlock(at), editor.seed()).is_ok()
}

async fn block(editor: &mut Editor<'_>, finding: &Finding, number: InodeNumber, at: u64) {
    let Some(mut bytes) = editor.block(at).await else { return };
    let block = VolumeBlock(at);
    let is_parsed = XattrBlock::parse(&bytes, number, block).is_ok();
    match finding.code {
        Code::XattrChecksum if is_parsed => {
            let Some(seed) = editor.seed() else { return };
            if verify_xattr_block(&bytes, number, block, seed).is_err() {
                write_xattr_checksum(&mut bytes, block, seed);
                editor.set_block(at, &bytes).await;
                editor.say("reseal it, for its entries make sense", "");
            }
        }
        // The duplicate is in the inode, where Linux looks first.
        Code::XattrDuplicate => {
            let Some(inode) = editor.inode(number).await else { return };
            drop_from_inode(editor, inode, &bytes).await;
        }
        _ => {
            if rewrite(editor, &mut bytes, number, at).await {
                return editor.set_block(at, &bytes).await;
            }
            // The block contains no attributes.
            editor
                .with_inode(number, |inode, _| {
                    if inode.xattr_block() == Some(block) {
                        inode.set_xattr_block(VolumeBlock(0));
                    }
                })
                .await;
        }
    }
}

/// Removes attributes from the inode that are also in its attribute block. The block may be shared,
/// so it is left alone. The inode's copy stays only if the block's copy makes no sense.
async fn drop_from_inode(editor: &mut Editor<'_>, mut inode: Inode, bytes: &[u8]) {
    let number = inode.number;
    let tail = inode.tail.clone();
    let in_block: Vec<Xattr<'_>> = lenient(editor, bytes, HEADER, number);
    let Some(base) = tail.get(4..) else { return };
    let mut kept = lenient(editor, base, 0, number);
    let twice = lenient(editor, base, 0, number).len();
    kept.retain(|xattr| !in_block.iter().any(|other| other.name == xattr.name));
    if kept.len() == twice {
        return;
    }
    let mut area = vec![0; tail.len()];
    if write_inode_xattrs(&mut area, &kept).is_ok() {
        inode.tail = area.into();
        editor.set_inode(&inode).await;
    }
}

async fn references(editor: &mut Editor<'_>, number: InodeNumber, at: u64, count: Option<u64>) {
    let Some(count) = count.and_then(|count| u32::try_from(count).ok()) else { return };
    let Some(mut bytes) = editor.block(at).await else { return };
    if XattrBlock::parse(&bytes, number, VolumeBlock(at)).is_err() {
        return;
    }
    bytes[4..8].copy_from_slice(&count.to_le_bytes());
    if let Some(seed) = editor.seed() {
        write_xattr_checksum(&mut bytes, VolumeBlock(at), seed);
    }
    editor.set_block(at, &bytes).await;
}

async fn value_references(editor: &mut Editor<'_>, number: InodeNumber, count: Option<u64>) {
    let Some(count) = count else { return };
    if count == 0 {
        return unmark_value(editor, number).await;
    }
    editor
        .with_inode(number, |inode, _| {
            let value = ValueInode { hash: inode.raw.i_atime.get(), references: count };
            let (_, high, low) = value.to_fields();
            (inode.raw.i_ctime, inode.raw.i_version_lo) = (high.into(), low.into());
        })
        .await;
}

/// Returns the value stored in a value inode.
async fn value(editor: &Editor<'_>, inode: &Inode) -> Option<Vec<u8>> {
    let size = usize::try_from(inode.size()).ok().filter(|&size| size <= 1 << 20)?;
    let map = super::maps::read(editor, inode).await;
    let mut bytes = Vec::new();
    for logical in 0..u32::try_from(size.div_ceil(editor.block_bytes())).ok()? {
        bytes.extend(editor.block(map.place(logical)?).await?);
    }
    bytes.truncate(size);
    Some(bytes)
}

fn value_seed(editor: &Editor<'_>) -> ChecksumSeed {
    editor.seed().unwrap_or_else(|| ChecksumSeed::from_uuid(&editor.sb.uuid()))
}

/// Whether an inode's contents match the hash that a value inode stores.
pub(super) async fn is_value(editor: &Editor<'_>, inode: &Inode) -> bool {
    let value = value(editor, inode).await;
    value.is_some_and(|value| ValueInode::hash_of(&value, value_seed(editor)) == inode.raw.i_atime.get())
}

/// Stores the hash of its contents in a value inode.
async fn value_hash(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    let Some(value) = value(editor, &inode).await else { return };
    inode.raw.i_atime = ValueInode::hash_of(&value, value_seed(editor)).into();
    editor.set_inode(&inode).await;
    editor.say("take the hash of the value that is there", "");
}

/// Marks the inodes that an inode's attributes name as holders of values, if their hashes prove it.
async fn mark_values(editor: &mut Editor<'_>, number: InodeNumber) -> bool {
    let Some(inode) = editor.inode(number).await else { return false };
    let mut wanted = Vec::new();
    if word(&inode.tail, 0) == extant_format::XATTR_MAGIC {
        wanted.extend(values_of(&inode.tail[4..], 0));
    }
    if let Some(at) = inode.xattr_block_in(&editor.sb)
        && let Some(block) = editor.block(at.0).await
        && word(&block, 0) == extant_format::XATTR_MAGIC
    {
        wanted.extend(values_of(&block, HEADER));
    }
    let mut changed = false;
    for number in wanted {
        let Some(mut holder) = editor.inode(number).await else { continue };
        if holder.kind() != Some(FileKind::Regular) || holder.flags().contains(InodeFlags::EA_INODE) {
            continue;
        }
        let Some(value) = value(editor, &holder).await else { continue };
        if ValueInode::hash_of(&value, value_seed(editor)) == holder.raw.i_atime.get() {
            let flags = holder.flags() | InodeFlags::EA_INODE;
            holder.raw.i_flags = flags.bits().into();
            editor.set_inode(&holder).await;
            changed = true;
        }
    }
    if changed {
        editor.say("mark the inode as a value's, which its hash proves", "");
    }
    changed
}

/// Inodes that contain values of attributes in an area.
fn values_of(base: &[u8], first: usize) -> Vec<InodeNumber> {
    let (mut at, mut found) = (first, Vec::new());
    while at + ENTRY <= base.len() && word(base, at) != 0 {
        if word(base, at + 4) != 0 {
            found.push(InodeNumber(word(base, at + 4)));
        }
        at += ENTRY + usize::from(base[at]).next_multiple_of(4);
    }
    found
}

/// Turns a value inode that no attribute refers to into an ordinary file, so that it can get a
/// name.
pub(super) async fn unmark_value(editor: &mut Editor<'_>, number: InodeNumber) {
    editor
        .with_inode(number, |inode, _| {
            let flags = inode.flags() - InodeFlags::EA_INODE;
            inode.raw.i_flags = flags.bits().into();
        })
        .await;
    editor.say("make it a file, for no attribute refers to it", "");
}
