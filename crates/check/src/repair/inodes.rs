//! Inodes: their own fields, maps, sizes and counts.

use super::editor::Editor;
use super::{clusters, lost_blocks, maps, own, volume, xattrs};
use crate::Code;
use crate::finding::Finding;
use crate::state::Kind;
use extant_format::{
    Compat, DirEntries, EXTENT_MAGIC, ExtentContext, ExtentNode, FileBlock, FileKind, Incompat, InlineData,
    Inode, InodeFlags, InodeNumber, RoCompat, Superblock, XattrName, XattrValue, Xattrs,
};
use std::collections::{BTreeMap, BTreeSet};

/// Repairs what a finding about an inode asks for.
pub(super) async fn repair(editor: &mut Editor<'_>, finding: &Finding) {
    match finding.code {
        Code::SuperblockFeatures | Code::FeatureMissing | Code::SuperblockUuid | Code::SuperblockHint => {
            volume::features(editor, finding).await;
        }
        Code::OrphanList => own::orphan_list(editor, finding).await,
        Code::OrphanFile => own::orphan_file(editor).await,
        Code::Mmp => own::mmp(editor).await,
        Code::QuotaInode => own::quota(editor, finding).await,
        Code::JournalErrno => volume::journal(editor, finding).await,
        Code::ResizeInode => own::resize_inode(editor).await,
        Code::BadBlocks => own::bad_blocks(editor).await,
        Code::XattrBlock
        | Code::XattrPointer
        | Code::XattrChecksum
        | Code::XattrReferences
        | Code::XattrEntry
        | Code::XattrName
        | Code::XattrHash
        | Code::XattrBlockHash
        | Code::XattrOrder
        | Code::XattrDuplicate
        | Code::XattrIndex
        | Code::XattrAcl
        | Code::XattrCapability
        | Code::XattrInode
        | Code::XattrInodeReferences => xattrs::repair(editor, finding).await,
        _ => {
            let Some(number) = finding.spot.inode.map(InodeNumber) else { return };
            let Some(mut inode) = editor.inode(number).await else { return };
            if finding.code == Code::InodeMode {
                mode(editor, &mut inode).await;
            } else {
                field(editor, finding, &mut inode).await;
            }
            editor.set_inode(&inode).await;
        }
    }
}

/// Finds inodes that are beyond repair: the checksum is wrong by more than one bit, the map is
/// invalid, and so are the mode or several other fields.
pub(super) async fn garbage(editor: &Editor<'_>, findings: &[&Finding]) -> BTreeSet<u32> {
    let mut codes: BTreeMap<u32, BTreeSet<Code>> = BTreeMap::new();
    for finding in findings {
        if let Some(number) = finding.spot.inode {
            codes.entry(number).or_default().insert(finding.code);
        }
    }
    let is_suspect = |codes: &BTreeSet<Code>| {
        let is_unsealed = codes.contains(&Code::InodeChecksum) || codes.contains(&Code::InodeExtraSize);
        is_unsealed && (codes.contains(&Code::InodeMode) || codes.len() > 4)
    };
    let mut found = BTreeSet::new();
    for (number, _) in codes.into_iter().filter(|(_, codes)| is_suspect(codes)) {
        let inode = editor.inode(InodeNumber(number)).await;
        if !inode.is_some_and(|inode| has_sound_map(editor, &inode)) {
            found.insert(number);
        }
    }
    found
}

/// Whether an inode's map looks like an extent root, block pointers or the target of a link,
/// whatever its mode and flags say, or there is data in the inode. Random bytes are unlikely to
/// look like that.
fn has_sound_map(editor: &Editor<'_>, inode: &Inode) -> bool {
    let (map, size) = (inode.map(), inode.size());
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
        if xattrs.get(XattrName::INLINE_DATA).is_some() {
            return true;
        }
    }
    let is_tree = ExtentNode::parse(map, &ExtentContext::root(&editor.sb, inode.number)).is_ok();
    let pointers = || (0..15).map(|n| inode.block_pointer(n));
    let may_be = |at: extant_format::VolumeBlock| {
        at.0 == 0 || editor.sb.is_valid_block(at) && !editor.ctx.own.contains(at.0)
    };
    let is_target = usize::try_from(size).is_ok_and(|size| {
        (1..map.len()).contains(&size)
            && !map[..size].contains(&0)
            && map[size..].iter().all(|&byte| byte == 0)
    });
    is_tree || pointers().all(may_be) || is_target
}

/// Returns the flags without those that have no meaning to Linux or e2fsprogs.
fn unknown_flags(sb: &Superblock, finding: &Finding, flags: u32) -> u32 {
    // The text of the finding contains the unknown bits.
    let named = finding.found.rsplit("0x").next().and_then(|hex| u32::from_str_radix(hex, 16).ok());
    let mut unknown = named.unwrap_or(0);
    if !sb.incompat().contains(Incompat::ENCRYPT) {
        unknown |= InodeFlags::ENCRYPT.bits();
    }
    flags & !unknown
}

async fn field(editor: &mut Editor<'_>, finding: &Finding, inode: &mut Inode) {
    let sb = editor.sb.clone();
    match finding.code {
        // The checksum is set when the inode is written; single flipped bits were repaired before.
        Code::InodeChecksum => editor.say("reseal it; its other fields agree with the rest", ""),
        Code::InodeSpecial => {
            inode.set_size(0);
            let flags = inode.flags() - (InodeFlags::INDEX | InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
            inode.raw.i_flags = flags.bits().into();
        }
        Code::InodeDtime if inode.links() == 0 && is_still_named(editor, inode) => {
            let is_directory = inode.kind() == Some(FileKind::Directory);
            inode.raw.i_links_count = if is_directory { 2 } else { 1 }.into();
            editor.say("count its names again, for it has one and no time of deletion", "");
        }
        Code::InodeDtime => {
            let is_used = inode.links() > 0;
            inode.raw.i_dtime = if is_used { 0 } else { deletion_time(editor) }.into();
        }
        Code::InodeObsolete => obsolete(&sb, inode),
        Code::InodeFlags => flags(&sb, inode),
        Code::InodeUnknownFlags => {
            inode.raw.i_flags = unknown_flags(&sb, finding, inode.raw.i_flags.get()).into();
        }
        Code::InodeExtraSize => extra_size(editor, inode).await,
        Code::InodeTime | Code::InodeTimeRange => times(inode),
        Code::InodeReserved => {
            let number = inode.number;
            *inode = Inode::new(number, &sb);
        }
        Code::MapForm => form(editor, inode).await,
        // The repair of another finding has already cleared the flag.
        Code::InlineData | Code::InlineSize if !inode.flags().contains(InodeFlags::INLINE_DATA) => {}
        Code::InlineData | Code::InlineSize if is_tree_without_data(&sb, inode) => {
            let flags = (inode.flags() - InodeFlags::INLINE_DATA) | InodeFlags::EXTENTS;
            inode.raw.i_flags = flags.bits().into();
            editor.say("take the map for the extents that it has", "");
        }
        Code::InlineData => inline(editor, inode),
        Code::InlineSize => outsize(editor, inode).await,
        Code::Symlink => symlink(editor, inode).await,
        Code::MapCluster => clusters::align(editor, inode).await,
        _ => {
            if finding.code == Code::ExtentHeader && finding.spot.block.is_none() {
                root(editor, inode).await;
            }
            if !lost_blocks::restore(editor, inode).await {
                maps::mend(editor, inode).await;
            }
        }
    }
}

/// Whether an inode has lost its count of links but was not deleted. A deletion would have set the
/// time of deletion and removed the entry that still names the inode.
fn is_still_named(editor: &Editor<'_>, inode: &Inode) -> bool {
    let is_named = match editor.named.get(&inode.number.0) {
        Some(kind) => kind.is_none() || *kind == inode.kind(),
        None => false,
    };
    inode.raw.i_dtime.get() == 0
        && inode.number >= editor.sb.first_inode()
        && inode.kind().is_some()
        && is_named
        && has_sound_map(editor, inode)
}

/// Returns a deletion time that does not look like a link of the orphan list.
fn deletion_time(editor: &Editor<'_>) -> u32 {
    let now = editor.now.and_then(|now| u32::try_from(now).ok());
    now.unwrap_or_else(|| editor.sb.raw().s_wtime.get()).max(editor.sb.inodes_count())
}

fn obsolete(sb: &Superblock, inode: &mut Inode) {
    let raw = &mut inode.raw;
    raw.i_obso_faddr = 0.into();
    if !sb.incompat().contains(Incompat::BIT64) {
        raw.i_file_acl_high = 0.into();
    }
    if !sb.ro_compat().contains(RoCompat::HUGE_FILE) {
        raw.i_blocks_hi = 0.into();
    }
    let kind = FileKind::from_mode(raw.i_mode.get());
    let is_small_directory = kind == Some(FileKind::Directory) && !sb.incompat().contains(Incompat::LARGEDIR);
    if is_small_directory || kind == Some(FileKind::Symlink) {
        raw.i_size_high = 0.into();
    }
}

fn flags(sb: &Superblock, inode: &mut Inode) {
    let mut flags = inode.flags();
    let kind = inode.kind();
    let is_directory = kind == Some(FileKind::Directory);
    let is_file = matches!(kind, Some(FileKind::Regular | FileKind::Directory));
    if kind != Some(FileKind::Regular) || sb.is_own_inode(inode.number) {
        flags -= InodeFlags::EA_INODE;
    }
    if sb.journal_inode() == Some(inode.number) {
        flags -= InodeFlags::ENCRYPT;
    }
    if !sb.compat().contains(Compat::IMAGIC_INODES) {
        flags -= InodeFlags::IMAGIC;
    }
    if !is_directory || !sb.compat().contains(Compat::DIR_INDEX) {
        flags -= InodeFlags::INDEX;
    }
    if !is_directory || !sb.incompat().contains(Incompat::CASEFOLD) {
        flags -= InodeFlags::CASEFOLD;
    }
    if !is_file {
        flags -= InodeFlags::IMMUTABLE | InodeFlags::APPEND;
    }
    inode.raw.i_flags = flags.bits().into();
}

/// Sets the size of the extra fields: the usual size, or, if attributes begin behind another size,
/// that one.
async fn extra_size(editor: &mut Editor<'_>, inode: &mut Inode) {
    let Some(bytes) = editor.inode_bytes(inode.number).await else { return };
    let rest = &bytes[128..];
    let magic = extant_format::XATTR_MAGIC.to_le_bytes();
    let usual = usize::from(editor.sb.raw().s_want_extra_isize.get()).clamp(32, rest.len()) & !3;
    let begins = |size: usize| rest.get(size..size + 4) == Some(&magic[..]);
    let found = (4..rest.len()).step_by(4).find(|&size| begins(size));
    let size = if begins(usual) { usual } else { found.unwrap_or(usual) };
    let mut bytes = bytes.clone();
    if found.is_none() {
        bytes[128 + 32.min(size)..].fill(0);
    }
    bytes[128..130].copy_from_slice(&u16::try_from(size).unwrap_or(32).to_le_bytes());
    if let Ok(read) = Inode::parse_unchecked(&bytes, &editor.sb, inode.number) {
        *inode = read;
    }
}

fn times(inode: &mut Inode) {
    let (raw, extra) = (&mut inode.raw, &mut inode.extra);
    let size = extra.i_extra_isize.get();
    for (base, more, end) in [
        (raw.i_ctime, &mut extra.i_ctime_extra, 8),
        (raw.i_mtime, &mut extra.i_mtime_extra, 12),
        (raw.i_atime, &mut extra.i_atime_extra, 16),
        (extra.i_crtime, &mut extra.i_crtime_extra, 24),
    ] {
        if size < end {
            continue;
        }
        let (nanos, mut epoch) = (more.get() >> 2, more.get() & 3);
        if epoch == 3 && base.get() >> 31 == 1 {
            epoch = 0;
        }
        *more = (nanos.min(999_999_999) << 2 | epoch).into();
    }
}

/// Finds the kind of an inode whose mode has no valid kind, or one that is not allowed for this
/// inode.
async fn mode(editor: &mut Editor<'_>, inode: &mut Inode) {
    let number = inode.number;
    if editor.sb.is_own_inode(number) || number < editor.sb.first_inode() && number != InodeNumber::ROOT {
        let mode = match number {
            InodeNumber::RESIZE => FileKind::Regular.mode_bits() | 0o600,
            InodeNumber(5) => FileKind::Regular.mode_bits(),
            _ => 0,
        };
        inode.raw.i_mode = mode.into();
        return editor.say("set the mode that its number asks for", "");
    }
    let named = editor.named.get(&number.0).copied().flatten();
    let by_contents = || async {
        let map = maps::read(editor, inode).await;
        let first = map.place(0)?;
        let block = editor.block(first).await?;
        let is_directory = block[..4] == number.0.to_le_bytes() && block[6] == 1 && block[8] == b'.';
        Some(if is_directory { FileKind::Directory } else { FileKind::Regular })
    };
    let kind = match named {
        Some(kind) => kind,
        None => by_contents().await.unwrap_or(FileKind::Regular),
    };
    let mode = inode.mode() & 0o7777 | kind.mode_bits();
    inode.raw.i_mode = mode.into();
    let by =
        if named.is_some() { "the kind in its directory entry" } else { "the kind that its contents have" };
    editor.say(format!("take {by}"), "");
}

/// Returns the kind in the first entry that names each inode without a sound mode or count of
/// links; `None` if the entry has no kind.
pub(super) async fn names(editor: &Editor<'_>, findings: &[&Finding]) -> BTreeMap<u32, Option<FileKind>> {
    let is_doubtful = |finding: &&&Finding| matches!(finding.code, Code::InodeMode | Code::InodeDtime);
    let wanted: BTreeSet<u32> =
        findings.iter().filter(is_doubtful).filter_map(|finding| finding.spot.inode).collect();
    let mut named = BTreeMap::new();
    if wanted.is_empty() {
        return named;
    }
    let mut look = |area: &[u8], dir: InodeNumber| {
        let entries = DirEntries::new(area, true, u32::MAX, dir, FileBlock(0)).map_while(Result::ok);
        for entry in entries.filter(|entry| entry.name != b"." && entry.name != b"..") {
            if wanted.contains(&entry.inode.0) {
                named.entry(entry.inode.0).or_insert(entry.kind);
            }
        }
    };
    let all = &editor.survey.all;
    for item in &all.items {
        let Some(dir) = usize::try_from(item.dir).ok().and_then(|n| all.dirs.get(n)) else { continue };
        let number = InodeNumber(dir.number);
        if !dir.inline {
            if let Some(block) = editor.block(item.block).await {
                look(&block, number);
            }
            continue;
        }
        let Some(inode) = editor.inode(number).await else { continue };
        let xattrs = Xattrs::parse_inode(&inode.tail, number).unwrap_or(Xattrs::EMPTY);
        let Ok(data) = InlineData::parse(inode.map(), &xattrs, inode.size(), number) else { continue };
        if let Ok(directory) = data.as_directory() {
            directory.areas.iter().for_each(|area| look(area, number));
        }
    }
    named
}

/// Sets the flags according to what the map contains.
async fn form(editor: &mut Editor<'_>, inode: &mut Inode) {
    let flags = inode.flags();
    let cx_sb = editor.sb.clone();
    let cx = ExtentContext::root(&cx_sb, inode.number);
    let is_tree = ExtentNode::parse(inode.map(), &cx).is_ok();
    let has = |flag| flags.contains(flag);
    let new = if has(InodeFlags::EXTENTS) && has(InodeFlags::INLINE_DATA) {
        let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
        match xattrs.get(XattrName::INLINE_DATA) {
            Some(_) if !is_tree => flags - InodeFlags::EXTENTS,
            _ => flags - InodeFlags::INLINE_DATA,
        }
    } else if has(InodeFlags::EXTENTS) && inode.kind() == Some(FileKind::Symlink) {
        match is_tree {
            // The target is in a block, and is longer than the size says.
            true => {
                let map = maps::read(editor, inode).await;
                if let Some(first) = map.place(0)
                    && let Some(block) = editor.block(first).await
                {
                    let end = block.iter().position(|&byte| byte == 0).unwrap_or(block.len() - 1);
                    if end >= 60 {
                        inode.set_size(u64::try_from(end).unwrap_or(0));
                    } else if end > 0 {
                        inode.raw.i_block = [0; 60];
                        inode.raw.i_block[..end].copy_from_slice(&block[..end]);
                        inode.set_size(u64::try_from(end).unwrap_or(0));
                        inode.raw.i_flags = (flags - InodeFlags::EXTENTS).bits().into();
                    }
                }
                return;
            }
            false => flags - InodeFlags::EXTENTS,
        }
    } else if is_tree {
        flags | InodeFlags::EXTENTS
    } else {
        flags
    };
    inode.raw.i_flags = new.bits().into();
}

/// Repairs an extent root that cannot be parsed. It may be a header that lost a field, block
/// pointers, or nothing.
async fn root(editor: &mut Editor<'_>, inode: &mut Inode) {
    let sb = editor.sb.clone();
    let cx = ExtentContext::root(&sb, inode.number);
    if ExtentNode::salvage(inode.map(), &cx).is_ok() {
        return;
    }
    let map = *inode.map();
    let extents = maps::gather(editor, inode).await;
    if !extents.is_empty() {
        let whole = maps::Map { extents, nodes: Vec::new() };
        if maps::write(editor, inode, &whole).await {
            return editor.say("write the tree anew, which was too deep", "");
        }
    }
    // Restore the constants of the header, and count the entries.
    for depth in [u16::from_le_bytes([map[6], map[7]]), 0, 1] {
        for count in (1..=4_u8).rev() {
            let mut tried = map;
            tried[..2].copy_from_slice(&EXTENT_MAGIC.to_le_bytes());
            tried[2..4].copy_from_slice(&[count, 0]);
            tried[4..6].copy_from_slice(&[4, 0]);
            tried[6..8].copy_from_slice(&depth.to_le_bytes());
            if ExtentNode::parse(&tried, &cx).is_ok() && is_plausible(editor, &tried, &cx).await {
                inode.raw.i_block = tried;
                return editor.say("rebuild the header, for the entries make sense", "");
            }
        }
    }
    if lost_blocks::restore(editor, inode).await {
        return;
    }
    let pointers = || (0..15).map(|n| inode.block_pointer(n));
    let is_map = pointers().all(|at| at.0 == 0 || sb.is_valid_block(at) && !editor.ctx.own.contains(at.0));
    let may_be = !sb.ro_compat().contains(RoCompat::BIGALLOC);
    if may_be && is_map && pointers().any(|at| at.0 != 0) && map[..2] != EXTENT_MAGIC.to_le_bytes() {
        inode.raw.i_flags = (inode.flags() - InodeFlags::EXTENTS).bits().into();
        return editor.say("clear the flag, for these are block pointers", "");
    }
    let mut empty = [0; 60];
    ExtentNode::Leaf(Vec::new()).write_to(&mut empty);
    inode.raw.i_block = empty;
}

/// Whether the nodes or blocks that a root leads to can belong to this inode.
async fn is_plausible(editor: &Editor<'_>, map: &[u8; 60], cx: &ExtentContext<'_>) -> bool {
    match ExtentNode::parse(map, cx) {
        Ok(ExtentNode::Leaf(extents)) => extents.iter().all(|extent| {
            let (start, end) = (extent.physical.0, extent.physical.0 + u64::from(extent.blocks));
            editor.ctx.own.within(start, end).next().is_none() && start != 0
        }),
        Ok(ExtentNode::Index { depth, entries }) => {
            for n in 0..entries.len() {
                let Some(block) = editor.block(entries[n].child.0).await else { return false };
                if ExtentNode::parse(&block, &cx.child(depth, &entries, n)).is_err() {
                    return false;
                }
            }
            true
        }
        Err(_) => false,
    }
}

/// Whether an inode marked as inline has extents instead of data, and no attribute for more data.
fn is_tree_without_data(sb: &Superblock, inode: &Inode) -> bool {
    let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
    let is_tree = ExtentNode::parse(inode.map(), &ExtentContext::root(sb, inode.number)).is_ok();
    is_tree && sb.incompat().contains(Incompat::EXTENTS) && xattrs.get(XattrName::INLINE_DATA).is_none()
}

/// Cuts a file with data in the inode to the data that is there.
fn inline(editor: &mut Editor<'_>, inode: &mut Inode) {
    let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
    let is_directory = inode.kind() == Some(FileKind::Directory);
    let beyond = match xattrs.get(XattrName::INLINE_DATA).map(|xattr| xattr.value) {
        Some(XattrValue::Bytes(value)) => Some(u64::try_from(value.len()).unwrap_or(0)),
        Some(XattrValue::Inode { .. }) => None,
        None => {
            // An empty attribute means that all of the data is in the map.
            let mut all: Vec<_> = xattrs.iter().collect();
            all.push(extant_format::Xattr::new(XattrName::INLINE_DATA, b""));
            // Linux ignores attributes in an inode without extra fields.
            let adds = inode.extra.i_extra_isize.get() == 0 && inode.tail.len() > LEAST_EXTRA;
            let mut tail = vec![0; inode.tail.len() - if adds { LEAST_EXTRA } else { 0 }];
            if extant_format::write_inode_xattrs(&mut tail, &all).is_ok() {
                if adds {
                    inode.extra.i_extra_isize = u16::try_from(LEAST_EXTRA).unwrap_or(0).into();
                }
                inode.tail = tail.into();
            }
            Some(0)
        }
    };
    let Some(beyond) = beyond else { return };
    let size = match is_directory {
        true => 60 + beyond,
        false => inode.size().min(60 + beyond),
    };
    let size = if !is_directory && beyond > 0 { 60 + beyond } else { size };
    inode.set_size(size);
    editor.say("keep what is in the inode", "what is not there");
}

/// Gives a file with data in the inode a map, if its size is larger than the data. The map has a
/// hole behind the data, which is how Linux reads the file. mke2fs makes such files of zeros.
async fn outsize(editor: &mut Editor<'_>, inode: &mut Inode) {
    let xattrs = Xattrs::parse_inode(&inode.tail, inode.number).unwrap_or(Xattrs::EMPTY);
    let beyond = match xattrs.get(XattrName::INLINE_DATA).map(|xattr| xattr.value) {
        Some(XattrValue::Bytes(value)) => value.to_vec(),
        _ => Vec::new(),
    };
    let bytes = [&inode.map()[..], &beyond[..]].concat();
    let is_plain =
        inode.kind() == Some(FileKind::Regular) && editor.sb.incompat().contains(Incompat::EXTENTS);
    if !is_plain || inode.size() <= u64::try_from(bytes.len()).unwrap_or(u64::MAX) {
        return inline(editor, inode);
    }
    let others: Vec<_> = xattrs.iter().filter(|xattr| xattr.name != XattrName::INLINE_DATA).collect();
    let mut tail = vec![0; inode.tail.len()];
    if extant_format::write_inode_xattrs(&mut tail, &others).is_err() {
        return inline(editor, inode);
    }
    let mut map = maps::Map::default();
    if bytes.iter().any(|&byte| byte != 0) {
        let Some(at) = editor.allocate(0) else { return };
        let mut block = bytes;
        block.resize(editor.block_bytes(), 0);
        editor.set_block(at, &block).await;
        map.replace(0, at);
    }
    let flags = (inode.flags() - InodeFlags::INLINE_DATA) | InodeFlags::EXTENTS;
    let mut mapped = Inode { tail: tail.into(), ..inode.clone() };
    mapped.raw.i_flags = flags.bits().into();
    mapped.raw.i_block = [0; 60];
    if maps::write(editor, &mut mapped, &map).await {
        *inode = mapped;
        editor.say("give it a map with a hole behind what is in the inode, as Linux reads it", "");
    }
}

/// Size of all extra fields that are defined.
const LEAST_EXTRA: usize = 32;

/// Cuts a symbolic link to the part of its target that is readable.
async fn symlink(editor: &mut Editor<'_>, inode: &mut Inode) {
    let flags = inode.flags();
    if flags.contains(InodeFlags::INLINE_DATA) {
        return;
    }
    let is_short = inode.size() < 60 && !flags.contains(InodeFlags::EXTENTS);
    let map = maps::read(editor, inode).await;
    if map.place(0).is_some_and(|at| !is_short && editor.is_contested(at)) {
        return;
    }
    if let [only] = &map.extents[..]
        && !is_short
        && only.blocks == 1
        && only.logical.0 != 0
    {
        let mut moved = inode.clone();
        moved.raw.i_block = [0; 60];
        let mut first = maps::Map { nodes: map.nodes.clone(), ..maps::Map::default() };
        first.replace(0, only.physical.0);
        if maps::write(editor, &mut moved, &first).await {
            *inode = moved;
            return editor.say("map its only block at the beginning, where a target is", "");
        }
    }
    let (bytes, at) = match is_short {
        true => (inode.map().to_vec(), None),
        false => {
            // If the block is lost, nothing of the target is left.
            let block = match map.place(0) {
                Some(at) => editor.block(at).await.map(|block| (block, Some(at))),
                None => None,
            };
            block.unwrap_or((vec![0; 60], None))
        }
    };
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len() - 1);
    let end = end.min(bytes.len() - 1);
    if end == 0 {
        // Keep the link under its name, though it leads nowhere.
        inode.raw.i_block = [0; 60];
        inode.raw.i_block[0] = b'?';
        inode.raw.i_flags = (flags - InodeFlags::EXTENTS).bits().into();
        inode.set_size(1);
        return editor.say("make it lead to ?, for nothing of its target is left", "the target");
    }
    inode.set_size(u64::try_from(end).unwrap_or(0));
    if let Some(at) = at {
        if end >= 60 && map.end() > 1 {
            let mut first = maps::Map { nodes: map.nodes, ..maps::Map::default() };
            first.replace(0, at);
            inode.raw.i_block = [0; 60];
            if !maps::write(editor, inode, &first).await {
                return;
            }
            editor.say("cut it to its first block", "the rest of the target");
        }
        if end < 60 {
            inode.raw.i_block = [0; 60];
            inode.raw.i_block[..end].copy_from_slice(&bytes[..end]);
            inode.raw.i_flags = (flags - InodeFlags::EXTENTS).bits().into();
        } else if bytes[end] != 0 {
            let mut bytes = bytes;
            bytes[end] = 0;
            editor.set_block(at, &bytes).await;
        }
    }
}

/// Repairs a size or a block count.
pub(super) async fn size(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(number) = finding.spot.inode.map(InodeNumber) else { return };
    let Some(mut inode) = editor.inode(number).await else { return };
    // Part of the map is lost: the remaining map is shorter than the inode says.
    let is_short = match (finding.code, finding.value) {
        (Code::InodeBlocks, Some(count)) => inode.blocks_512(&editor.sb) > count,
        _ => inode.kind() == Some(FileKind::Directory),
    };
    if is_short && lost_blocks::restore(editor, &mut inode).await {
        return editor.set_inode(&inode).await;
    }
    if finding.code == Code::InodeBlocks {
        let Some(count) = finding.value else { return };
        inode.set_blocks_512(count, &editor.sb);
        return editor.set_inode(&inode).await;
    }
    let map = maps::read(editor, &inode).await;
    let block = editor.block_len();
    match inode.kind() {
        Some(FileKind::Directory) => {
            let mut map = map;
            if map.end() == 0 {
                // A directory without blocks gets an empty one.
                let Some(at) = editor.allocate(0) else { return };
                let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
                let parent = super::dir_blocks::parent_of(editor, number);
                let dir = super::dir_blocks::empty(editor, Some((number, parent)), seed);
                editor.set_block(at, &dir).await;
                map.replace(0, at);
                if !maps::write(editor, &mut inode, &map).await {
                    return;
                }
                inode.set_size(block);
            } else if map.end() * block > u64::from(u32::MAX) {
                // No directory is this large, so a block is mapped in the wrong place.
                return super::dirs::close_holes(editor, &mut inode, map).await;
            } else {
                inode.set_size(map.end() * block);
            }
        }
        _ => {
            let written = map.written_end() * block;
            let now = inode.size();
            let is_too_long = now > extant_format::BlockRange::MAP_END * block - 1;
            match is_too_long
                || !inode.flags().contains(InodeFlags::EXTENTS) && now > written && is_beyond(editor, now)
            {
                true => inode.set_size(map.end() * block),
                false => inode.set_size(written.max(now)),
            }
        }
    }
    editor.set_inode(&inode).await;
}

/// Whether a size is larger than block pointers can map.
fn is_beyond(editor: &Editor<'_>, size: u64) -> bool {
    let most = extant_format::indirect_capacity(editor.sb.block_size());
    size > most.saturating_mul(editor.block_len())
}

/// Sets a link count.
pub(super) async fn links(editor: &mut Editor<'_>, finding: &Finding) {
    let (Some(number), Some(count)) = (finding.spot.inode.map(InodeNumber), finding.value) else { return };
    let is_directory = editor.ctx.inodes.kind(number) == Kind::File(2);
    /// `EXT4_LINK_MAX`.
    const MOST: u64 = 65_000;
    let links = match u16::try_from(count) {
        Ok(links) if count < MOST => links,
        _ if is_directory => 1,
        _ => return,
    };
    if links == 0 {
        return;
    }
    editor.with_inode(number, |inode, _| inode.raw.i_links_count = links.into()).await;
}

/// Frees an inode that makes no sense.
pub(super) async fn discard(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(number) = finding.spot.inode.map(InodeNumber) else { return };
    let empty = Inode::new(number, &editor.sb);
    editor.set_inode(&empty).await;
    editor.say("free the inode, of which nothing makes sense", "the file");
}
