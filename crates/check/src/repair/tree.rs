//! The tree: directories and inodes without names.

mod lost_found;

use super::dir_blocks::{self, Entry};
use super::editor::Editor;
use super::{index, lost_blocks, maps, xattrs};
use crate::Code;
use crate::finding::Finding;
use crate::state::{Kind, Marks};
use extant_format::{
    DirEntries, DirEntry, FileBlock, FileKind, Incompat, Inode, InodeFlags, InodeNumber, set_dotdot,
    write_dx_checksum,
};

/// Repairs what a finding about the tree asks for.
pub(super) async fn repair(editor: &mut Editor<'_>, finding: &Finding) {
    let number = InodeNumber(finding.spot.inode.unwrap_or(0));
    match finding.code {
        Code::RootMissing => root(editor).await,
        Code::LostFound => lost_found::rename_file(editor).await,
        Code::DirectoryDotDot => match finding.value {
            Some(parent) => dotdot(editor, number, InodeNumber(u32::try_from(parent).unwrap_or(2))).await,
            None => first_block(editor, number).await,
        },
        Code::DirectoryLoop => cut(editor, number).await,
        Code::InodeUnattached if editor.ctx.inodes.kind(number) == Kind::Value => {
            xattrs::unmark_value(editor, number).await;
        }
        _ => lost_found::attach(editor, number).await,
    }
}

/// Sets `..`.
async fn dotdot(editor: &mut Editor<'_>, number: InodeNumber, parent: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    if inode.flags().contains(InodeFlags::INLINE_DATA) {
        inode.raw.i_block[..4].copy_from_slice(&parent.0.to_le_bytes());
        return editor.set_inode(&inode).await;
    }
    let map = maps::read(editor, &inode).await;
    let Some(at) = map.place(0) else { return };
    let Some(mut block) = editor.block(at).await else { return };
    if block[4..6] != [12, 0] || block[20..22] != *b".." {
        return first_block(editor, number).await;
    }
    set_dotdot(&mut block, parent);
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    match (inode.flags().contains(InodeFlags::INDEX), seed) {
        (true, Some(seed)) => write_dx_checksum(&mut block, seed),
        _ => dir_blocks::seal(&mut block, seed),
    }
    editor.set_block(at, &block).await;
}

/// Writes `.` and `..` anew.
async fn first_block(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    if inode.flags().contains(InodeFlags::INDEX) {
        return index::drop_index(editor, number).await;
    }
    let map = maps::read(editor, &inode).await;
    let Some(at) = map.place(0) else { return };
    let Some(block) = editor.block(at).await else { return };
    let salvaged = dir_blocks::salvage(editor, &block);
    let parent = dir_blocks::parent_of(editor, number);
    let mut entries =
        vec![Entry::new(number, b".", FileKind::Directory), Entry::new(parent, b"..", FileKind::Directory)];
    entries.extend(salvaged.entries.into_iter().filter(|entry| entry.name != b"." && entry.name != b".."));
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let (new, left) = dir_blocks::pack(editor, &entries, seed);
    editor.set_block(at, &new).await;
    for entry in left {
        add_entry(editor, &mut inode, entry).await;
    }
}

/// Cuts a loop of directories at one of them, which gets a name in /lost+found afterwards.
async fn cut(editor: &mut Editor<'_>, number: InodeNumber) {
    let all = &editor.survey.all;
    let Some(n) = all.find(number.0) else { return };
    let parent = InodeNumber(all.parent(n));
    let Some(inode) = editor.inode(parent).await else { return };
    remove_entry(editor, &inode, |entry| entry.inode == number && entry.name != b"." && entry.name != b"..")
        .await;
}

/// Removes the first entry of a directory for which `is_meant` is true.
async fn remove_entry(editor: &mut Editor<'_>, dir: &Inode, is_meant: impl Fn(&DirEntry<'_>) -> bool) {
    let seed = editor.seed().map(|seed| dir.checksum_seed(seed));
    let map = maps::read(editor, dir).await;
    for extent in &map.extents {
        for n in 0..extent.blocks {
            let at = extent.physical.0 + u64::from(n);
            let Some(mut block) = editor.block(at).await else { continue };
            let entries =
                DirEntries::new(&block, false, u32::MAX, dir.number, FileBlock(extent.logical.0 + n));
            let found = entries.map_while(Result::ok).find(|entry| entry.inode.0 != 0 && is_meant(entry));
            if let Some(offset) = found.map(|entry| entry.offset) {
                dir_blocks::remove(&mut block, offset);
                dir_blocks::seal(&mut block, seed);
                return editor.set_block(at, &block).await;
            }
        }
    }
}

/// The inode that an entry of a directory names.
async fn look_up(editor: &Editor<'_>, dir: &Inode, name: &[u8]) -> Option<InodeNumber> {
    if dir.flags().contains(InodeFlags::INLINE_DATA) {
        let xattrs = extant_format::Xattrs::parse_inode(&dir.tail, dir.number).ok()?;
        let data = extant_format::InlineData::parse(dir.map(), &xattrs, dir.size(), dir.number).ok()?;
        for area in data.as_directory().ok()?.areas {
            let entries = DirEntries::new(area, false, u32::MAX, dir.number, FileBlock(0));
            let found = entries.map_while(Result::ok).find(|entry| entry.inode.0 != 0 && entry.name == name);
            if let Some(entry) = found {
                return Some(entry.inode);
            }
        }
        return None;
    }
    let map = maps::read(editor, dir).await;
    for extent in &map.extents {
        for n in 0..extent.blocks {
            let Some(block) = editor.block(extent.physical.0 + u64::from(n)).await else { continue };
            let entries =
                DirEntries::new(&block, false, u32::MAX, dir.number, FileBlock(extent.logical.0 + n));
            let found = entries.map_while(Result::ok).find(|entry| entry.inode.0 != 0 && entry.name == name);
            if let Some(entry) = found {
                return Some(entry.inode);
            }
        }
    }
    None
}

/// A free inode.
fn free_inode(editor: &Editor<'_>) -> Option<InodeNumber> {
    let first = editor.sb.first_inode().0;
    (first..=editor.sb.inodes_count()).map(InodeNumber).find(|&number| {
        editor.ctx.inodes.kind(number) == Kind::Unused
            && editor.ctx.inode_place(number).is_some()
            && !editor.sb.is_own_inode(number)
    })
}

/// Makes an empty directory.
async fn new_directory(
    editor: &mut Editor<'_>,
    number: Option<InodeNumber>,
    parent: InodeNumber,
) -> Option<Inode> {
    let number = number.or_else(|| free_inode(editor))?;
    let at = editor.allocate(0)?;
    let mut inode = Inode::new(number, &editor.sb);
    let mode = FileKind::Directory.mode_bits() | if number == InodeNumber::ROOT { 0o755 } else { 0o700 };
    inode.raw.i_mode = mode.into();
    inode.raw.i_links_count = 2.into();
    let now = editor.now.and_then(|now| u32::try_from(now).ok()).unwrap_or(editor.sb.raw().s_wtime.get());
    (inode.raw.i_atime, inode.raw.i_ctime, inode.raw.i_mtime) = (now.into(), now.into(), now.into());
    if editor.sb.incompat().contains(Incompat::EXTENTS) {
        inode.raw.i_flags = InodeFlags::EXTENTS.bits().into();
    }
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let own_parent = if number == InodeNumber::ROOT { number } else { parent };
    let block = dir_blocks::empty(editor, Some((number, own_parent)), seed);
    editor.set_block(at, &block).await;
    let mut map = maps::Map::default();
    map.replace(0, at);
    if !maps::write(editor, &mut inode, &map).await {
        return None;
    }
    inode.set_size(editor.block_len());
    let cluster = u64::from(editor.sb.blocks_per_cluster());
    let sb = editor.sb.clone();
    inode.set_blocks_512(cluster * editor.block_len() / 512, &sb);
    editor.set_inode(&inode).await;
    look_at(editor, number).await;
    editor.ctx.inodes.set(number, Kind::File(2), 2, Marks { encrypted: false, used: true });
    Some(inode)
}

/// Makes sure that the next check looks at an inode.
async fn look_at(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some((group, n)) = editor.sb.locate_inode(number) else { return };
    if !editor.sb.has_group_csum() {
        return;
    }
    let Some(mut gd) = editor.descriptor(group).await else { return };
    let before = gd;
    gd.unused_inodes = gd.unused_inodes.min(editor.sb.inodes_per_group() - n - 1);
    if gd.flags.contains(extant_format::GroupFlags::INODE_UNINIT) {
        gd.flags -= extant_format::GroupFlags::INODE_UNINIT;
        let mut bitmap = vec![0; editor.block_bytes()];
        extant_format::set_bits(&mut bitmap, n, n + 1);
        editor.set_block(gd.inode_bitmap.0, &bitmap).await;
    }
    if gd != before {
        editor.set_descriptor(group, &gd).await;
    }
}

/// Makes a root directory if there is none. Its former contents get names in /lost+found.
async fn root(editor: &mut Editor<'_>) {
    let Some(mut inode) = editor.inode(InodeNumber::ROOT).await else { return };
    let map = maps::read(editor, &inode).await;
    if let Some(at) = map.place(0)
        && let Some(block) = editor.block(at).await
        && block[..4] == InodeNumber::ROOT.0.to_le_bytes()
        && block[8] == b'.'
    {
        let mode = FileKind::Directory.mode_bits() | inode.mode() & 0o7777 | 0o755;
        inode.raw.i_mode = mode.into();
        inode.raw.i_dtime = 0.into();
        if inode.links() == 0 {
            inode.raw.i_links_count = 2.into();
        }
        editor.set_inode(&inode).await;
        return editor.say("make it a directory again, which its contents are", "");
    }
    if let Some(found) = lost_blocks::root(editor).await {
        return editor.set_inode(&found).await;
    }
    new_directory(editor, Some(InodeNumber::ROOT), InodeNumber::ROOT).await;
}

/// Adds an entry to a directory, which grows if necessary; returns false if there is no space.
pub(super) async fn add_entry(editor: &mut Editor<'_>, dir: &mut Inode, entry: &Entry) -> bool {
    if dir.flags().contains(InodeFlags::INDEX) {
        index::drop_index(editor, dir.number).await;
        let Some(now) = editor.inode(dir.number).await else { return false };
        *dir = now;
    }
    if dir.flags().contains(InodeFlags::INLINE_DATA) && !to_block(editor, dir).await {
        return false;
    }
    let seed = editor.seed().map(|seed| dir.checksum_seed(seed));
    let mut map = maps::read(editor, dir).await;
    for extent in map.extents.clone() {
        for n in 0..extent.blocks {
            let at = extent.physical.0 + u64::from(n);
            let Some(mut block) = editor.block(at).await else { continue };
            if dir_blocks::insert(editor, &mut block, entry) {
                dir_blocks::seal(&mut block, seed);
                editor.set_block(at, &block).await;
                return true;
            }
        }
    }
    let Ok(logical) = u32::try_from(map.end()) else { return false };
    let goal = map.extents.last().map_or(0, |extent| extent.physical.0 + u64::from(extent.blocks));
    let per_cluster = u64::from(editor.sb.blocks_per_cluster());
    // The rest of the last cluster already belongs to the directory.
    let own = (u64::from(logical) % per_cluster != 0).then_some(goal);
    let Some(at) = own.or_else(|| editor.allocate(goal)) else { return false };
    let (block, _) = dir_blocks::pack(editor, std::slice::from_ref(entry), seed);
    map.replace(logical, at);
    if !maps::write(editor, dir, &map).await {
        return false;
    }
    editor.set_block(at, &block).await;
    dir.set_size((u64::from(logical) + 1) * editor.block_len());
    editor.set_inode(dir).await;
    true
}

/// Moves a directory's entries from its inode to a block.
async fn to_block(editor: &mut Editor<'_>, dir: &mut Inode) -> bool {
    let tail = dir.tail.clone();
    let Ok(xattrs) = extant_format::Xattrs::parse_inode(&tail, dir.number) else { return false };
    let map = *dir.map();
    let parent = InodeNumber(u32::from_le_bytes([map[0], map[1], map[2], map[3]]));
    let mut entries = vec![
        Entry::new(dir.number, b".", FileKind::Directory),
        Entry::new(parent, b"..", FileKind::Directory),
    ];
    let Ok(data) = extant_format::InlineData::parse(&map, &xattrs, dir.size(), dir.number) else {
        return false;
    };
    let Ok(directory) = data.as_directory() else { return false };
    for area in directory.areas {
        let found = DirEntries::new(area, false, u32::MAX, dir.number, FileBlock(0)).map_while(Result::ok);
        for entry in found.filter(|entry| entry.inode.0 != 0) {
            let kind = area[entry.offset + 7];
            entries.push(Entry { inode: entry.inode.0, name: entry.name.to_vec(), kind, offset: 0 });
        }
    }
    let rest: Vec<_> =
        xattrs.iter().filter(|xattr| xattr.name != extant_format::XattrName::INLINE_DATA).collect();
    let mut new_tail = vec![0; tail.len()];
    if extant_format::write_inode_xattrs(&mut new_tail, &rest).is_err() {
        return false;
    }
    let Some(at) = editor.allocate(0) else { return false };
    dir.tail = new_tail.into();
    dir.raw.i_block = [0; 60];
    let mut flags = dir.flags() - InodeFlags::INLINE_DATA;
    if editor.sb.incompat().contains(Incompat::EXTENTS) {
        flags |= InodeFlags::EXTENTS;
    }
    dir.raw.i_flags = flags.bits().into();
    let seed = editor.seed().map(|seed| dir.checksum_seed(seed));
    let (block, _) = dir_blocks::pack(editor, &entries, seed);
    editor.set_block(at, &block).await;
    let mut blocks = maps::Map::default();
    blocks.replace(0, at);
    if !maps::write(editor, dir, &blocks).await {
        return false;
    }
    dir.set_size(editor.block_len());
    editor.set_inode(dir).await;
    true
}
