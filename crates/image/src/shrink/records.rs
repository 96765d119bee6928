//! Checks single inodes and their attributes for damage that e2fsck would report. Without this
//! check, the copy would keep the damage, or lose data silently.

use super::renumber::value_inodes;
use super::survey::{Found, Role, Survey, read_blocks};
use extant_format::{
    CharSign, Corrupt, ExtentContext, ExtentNode, FileKind, Inode, InodeFlags, InodeNumber, Place, Problem,
    Superblock, UintExt, ValueInode, VolumeBlock, Xattr, XattrBlock, XattrIndex, XattrValue, Xattrs,
};
use extant_fs::{Error, Volume};
use std::collections::BTreeMap;

/// Length of `fscrypt_context` by its version, the first byte (Linux, fs/crypto/fscrypt_private.h).
const CONTEXT_BYTES: [(u8, usize); 2] = [(1, 28), (2, 40)];
/// Minimum length of an encrypted name (`FSCRYPT_FNAME_MIN_MSG_LEN`).
const ENCRYPTED_NAME_MIN: usize = 16;
/// Bytes of `i_block` that a device number uses.
const DEVICE_BYTES: usize = 16;

fn bad<T>(place: Place, field: &'static str, value: u64, rule: &'static str) -> Result<T, Error> {
    Err(Corrupt::field(place, field, value, rule).into())
}

/// How often attribute blocks and the inodes of values are referred to.
#[derive(Debug, Default)]
struct References {
    blocks: BTreeMap<VolumeBlock, (u32, InodeNumber)>,
    values: BTreeMap<InodeNumber, u64>,
}

/// Checks every inode that has a name or holds a value.
///
/// # Errors
/// The first damage found.
pub(super) async fn check(volume: &Volume, survey: &Survey) -> Result<(), Error> {
    let sb = volume.superblock();
    if let Some(journal) = &survey.journal {
        let users = journal.raw().s_nr_users.get();
        if users > 1 || journal.is_v1() && users > 0 {
            return bad(Place::JournalSuperblock, "s_nr_users", users.into(), "those of one volume");
        }
        if journal.ro_compat() != 0 {
            let rule = "0, for none is known";
            return bad(Place::JournalSuperblock, "s_feature_ro_compat", journal.ro_compat().into(), rule);
        }
    }
    let mut references = References::default();
    for found in &survey.inodes {
        let inode = volume.inode(found.number).await?;
        if found.number != InodeNumber::ROOT && sb.is_own_inode(found.number) {
            // The copy's journal and orphan file keep the rest of their records.
            if found.is_mapped() || matches!(found.role, Role::Journal | Role::OrphanFile) {
                check_deleted(&inode)?;
            }
            continue;
        }
        check_record(found, survey, &inode, sb)?;
        if found.has_extents && found.is_mapped() {
            check_tree(volume, &inode).await?;
        }
        if inode.kind() == Some(FileKind::Symlink) && !inode.flags().contains(InodeFlags::ENCRYPT) {
            check_target(volume, survey, found, &inode).await?;
        }
        // Values in inodes of their own, and access control lists.
        volume.xattrs(&inode).await?;
        check_attributes(volume, &inode, &mut references).await?;
    }
    for (number, (owners, first)) in references.blocks {
        let block = read_blocks(volume, number, 1).await?;
        let stored = XattrBlock::parse(&block, first, number)?.references;
        if stored != owners {
            let rule = "the number of inodes that have this attribute block";
            return bad(Place::XattrBlock(first, number), "h_refcount", stored.into(), rule);
        }
    }
    for (number, holders) in references.values {
        let stored = value_of(&volume.inode(number).await?).references;
        if stored != holders {
            let rule = "the number of attributes that have this value";
            return bad(Place::XattrInode(number), "references", stored, rule);
        }
    }
    Ok(())
}

fn check_deleted(inode: &Inode) -> Result<(), Error> {
    match inode.raw.i_dtime.get() {
        0 => Ok(()),
        deleted => bad(Place::Inode(inode.number), "i_dtime", deleted.into(), "0, for the inode is in use"),
    }
}

fn check_record(found: &Found, survey: &Survey, inode: &Inode, sb: &Superblock) -> Result<(), Error> {
    let place = Place::Inode(inode.number);
    check_deleted(inode)?;
    match inode.kind() {
        Some(FileKind::Regular) if !inode.flags().contains(InodeFlags::VERITY) => {
            let written = survey.runs_of(found).iter().filter(|run| !run.unwritten);
            let last = written.map(|run| u64::from(run.logical.0) + u64::from(run.blocks) - 1).max();
            if last.is_some_and(|last| inode.size() < last << sb.block_size().log2()) {
                return bad(place, "i_size", inode.size(), "behind the first byte of the last written block");
            }
        }
        Some(FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket) => {
            if inode.size() != 0 {
                return bad(place, "i_size", inode.size(), "0, for it has no contents");
            }
            // Linux did not always clear the rest of the field, and e2fsck complains only if one of
            // these flags is set.
            if inode.flags().intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
                && inode.map()[DEVICE_BYTES..].iter().any(|&byte| byte != 0)
            {
                return bad(place, "i_block", 1, "a device number at most, for it has no contents");
            }
        }
        _ => {}
    }
    Ok(())
}

/// Checks that each node of an extent tree begins with the file block in the entry that leads to
/// it.
async fn check_tree(volume: &Volume, inode: &Inode) -> Result<(), Error> {
    let root = ExtentContext::root(volume.superblock(), inode.number);
    let mut todo = vec![(root, ExtentNode::parse(inode.map(), &root)?)];
    while let Some((parent, node)) = todo.pop() {
        let ExtentNode::Index { depth, entries } = node else { continue };
        for (n, entry) in entries.iter().enumerate() {
            let cx = parent.child(depth, &entries, n);
            let node = ExtentNode::parse(&read_blocks(volume, entry.child, 1).await?, &cx)?;
            let first = match &node {
                ExtentNode::Leaf(extents) => extents.first().map(|extent| extent.logical),
                ExtentNode::Index { entries, .. } => entries.first().map(|entry| entry.logical),
            };
            if first.is_some_and(|first| first != entry.logical) {
                let place = Place::ExtentNode(inode.number, parent.block);
                let rule = "the first file block of the node that the entry leads to";
                return bad(place, "ei_block", entry.logical.0.into(), rule);
            }
            todo.push((cx, node));
        }
    }
    Ok(())
}

/// Checks that a link's target is as long as its size says, and that a NUL follows where e2fsck
/// expects one.
async fn check_target(volume: &Volume, survey: &Survey, found: &Found, inode: &Inode) -> Result<(), Error> {
    let place = Place::Symlink(inode.number);
    let size = inode.size();
    let target = volume.read_link(inode).await?.len().to_u64();
    if target != size {
        return bad(place, "position of the first NUL in the target", target, "i_size, behind the target");
    }
    let end = match found.role {
        Role::Symlink => {
            let block = match survey.runs_of(found) {
                [run] if run.logical.0 == 0 && run.blocks == 1 => {
                    read_blocks(volume, run.physical, 1).await?
                }
                runs => return bad(place, "runs of blocks", runs.len().to_u64(), "one block"),
            };
            block.get(size.to_usize()).copied()
        }
        _ if inode.flags().contains(InodeFlags::INLINE_DATA) => Some(0),
        _ => inode.map().get(size.to_usize()).copied(),
    };
    match end {
        Some(0) => Ok(()),
        _ => bad(place, "i_size", size, "the length of a target that a NUL ends"),
    }
}

async fn check_attributes(volume: &Volume, inode: &Inode, references: &mut References) -> Result<(), Error> {
    let mut context = None;
    let own = in_inode(inode)?;
    check_entries(volume, own, Place::InodeXattrs(inode.number), false).await?;
    note(own, &mut context, references);
    if let Some(number) = inode.xattr_block() {
        let block = read_blocks(volume, number, 1).await?;
        let parsed = XattrBlock::parse(&block, inode.number, number)?;
        let owners = references.blocks.entry(number).or_insert((0, inode.number));
        owners.0 += 1;
        // Count the values of a shared block once.
        if owners.0 == 1 {
            check_entries(volume, parsed.xattrs, Place::XattrBlock(inode.number, number), true).await?;
            note(parsed.xattrs, &mut context, references);
        } else {
            note(parsed.xattrs, &mut context, &mut References::default());
        }
    }
    if !inode.flags().contains(InodeFlags::ENCRYPT) {
        return Ok(());
    }
    let length = context.as_ref().map_or(0, Vec::len);
    let version = context.as_ref().and_then(|context| context.first().copied());
    let wanted = CONTEXT_BYTES.iter().find(|(known, _)| Some(*known) == version);
    match wanted.map_or(version.is_some(), |(_, wanted)| *wanted == length) {
        true => Ok(()),
        false => {
            let rule = "that of an encryption context, for the inode is encrypted";
            bad(Place::Inode(inode.number), "length of the context", length.to_u64(), rule)
        }
    }
}

/// Counts the values in inodes, and finds the encryption context.
fn note(xattrs: Xattrs<'_>, context: &mut Option<Vec<u8>>, references: &mut References) {
    for (value, _) in value_inodes(xattrs) {
        *references.values.entry(value).or_default() += 1;
    }
    let found = xattrs.iter().find(|xattr| xattr.name.index == XattrIndex::ENCRYPTION);
    if let Some(Xattr { value: XattrValue::Bytes(bytes), .. }) = found {
        *context = Some(bytes.to_vec());
    }
}

/// Checks entries' hashes, and that no two values share bytes.
async fn check_entries(
    volume: &Volume,
    xattrs: Xattrs<'_>,
    place: Place,
    is_block: bool,
) -> Result<(), Error> {
    let mut values = Vec::new();
    for xattr in xattrs.iter() {
        let stored = match xattr.value {
            XattrValue::Inode { inode, .. } => Some(value_of(&volume.inode(inode).await?).hash),
            XattrValue::Bytes(value) => {
                let start = value.as_ptr().addr();
                values.push(start..start + value.len().next_multiple_of(4));
                None
            }
        };
        let is_computed = [CharSign::Unsigned, CharSign::Signed]
            .map(|sign| xattr.computed_hash(sign))
            .contains(&Some(xattr.hash));
        // Linux leaves 0 as the hash of values next to their entries, but only in inodes.
        if !xattr.hash_is_valid(stored) || is_block && stored.is_none() && !is_computed {
            return bad(place, "e_hash", xattr.hash.into(), "the hash of the attribute's name and value");
        }
    }
    values.retain(|range| !range.is_empty());
    values.sort_unstable_by_key(|range| range.start);
    match values.windows(2).any(|pair| pair[1].start < pair[0].end) {
        true => bad(place, "values with the same bytes", 2, "0"),
        false => Ok(()),
    }
}

/// The attributes in an inode. As on Linux, an area without the magic number has none.
fn in_inode(inode: &Inode) -> Result<Xattrs<'_>, Corrupt> {
    match Xattrs::parse_inode(&inode.tail, inode.number) {
        Err(Corrupt { problem: Problem::Magic { .. }, .. }) => Ok(Xattrs::EMPTY),
        other => other,
    }
}

fn value_of(inode: &Inode) -> ValueInode {
    let raw = &inode.raw;
    ValueInode::from_fields(raw.i_atime.get(), raw.i_ctime.get(), raw.i_version_lo.get())
}

/// Checks an inode's block count; `mapped` is the number of blocks in its map.
pub(super) fn check_count(survey: &Survey, inode: &Inode, mapped: u64, sb: &Superblock) -> Result<(), Error> {
    let block = sb.block_size();
    let mut blocks = mapped;
    if let Some(at) = inode.xattr_block().and_then(|number| survey.attr_index(number)) {
        blocks += 1 + survey.attrs[at].value_blocks;
    }
    blocks += value_inodes(in_inode(inode)?).map(|(_, size)| block.blocks_for(size.into())).sum::<u64>();
    let stored = inode.blocks_512(sb);
    match stored == blocks << (block.log2() - 9) {
        true => Ok(()),
        false => bad(Place::Inode(inode.number), "i_blocks", stored, "the space that the inode takes"),
    }
}

/// Checks an entry of an encrypted directory: a long enough name, of an encrypted file.
pub(super) async fn check_encrypted(
    volume: &Volume,
    dir: &Inode,
    name: &[u8],
    child: InodeNumber,
) -> Result<(), Error> {
    let place = Place::Inode(dir.number);
    // Names are listed with `%` and two digits for one byte.
    let length = name.len() - 2 * name.iter().filter(|&&byte| byte == b'%').count();
    if length < ENCRYPTED_NAME_MIN {
        return bad(place, "length of an encrypted name", length.to_u64(), "at least 16");
    }
    let child = volume.inode(child).await?;
    let is_encrypted = child.flags().contains(InodeFlags::ENCRYPT);
    let needs_it = matches!(child.kind(), Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink));
    match needs_it && !is_encrypted {
        true => bad(place, "inode of an encrypted name", child.number.0.into(), "an encrypted file"),
        false => Ok(()),
    }
}
