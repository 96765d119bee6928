//! Directories: their blocks, entries and indexes.

use super::dir_blocks::{self, Entry};
use super::editor::Editor;
use super::{Policy, index, is_safe, lost_blocks, maps, tree, xattrs};
use crate::Code;
use crate::finding::Finding;
use crate::found::Dir;
use crate::state::Kind;
use extant_format::{
    ChecksumSeed, FileKind, Group, GroupFlags, Incompat, Inode, InodeFlags, InodeNumber, has_dirent_tail,
    is_dx_block, write_dx_checksum,
};
use std::collections::{BTreeMap, BTreeSet};

/// Repairs directories; returns whether anything changed.
pub(super) async fn repair(editor: &mut Editor<'_>, findings: &[&Finding]) -> bool {
    let mut changed = false;
    let mut blocks: BTreeMap<(u32, u32), Vec<&Finding>> = BTreeMap::new();
    let mut indexes = BTreeSet::new();
    for &finding in findings {
        if editor.policy == Policy::Safe && !is_safe(finding.code) {
            continue;
        }
        let Some(dir) = finding.spot.inode else { continue };
        match finding.code {
            Code::HtreeRoot | Code::HtreeNode | Code::HtreeReference | Code::HtreeRange => {
                if indexes.insert(dir) {
                    index::drop_index(editor, InodeNumber(dir)).await;
                    changed |= editor.end_step(finding);
                }
            }
            Code::DirectoryHole => {
                fill_holes(editor, InodeNumber(dir)).await;
                changed |= editor.end_step(finding);
            }
            _ => {
                if finding.code == Code::EntryValueInode && keep_value(editor, finding).await {
                    changed |= editor.end_step(finding);
                    continue;
                }
                if finding.code == Code::EntryUnused && widen(editor, finding).await {
                    changed |= editor.end_step(finding);
                    continue;
                }
                let logical = finding.spot.file_block.and_then(|block| u32::try_from(block).ok());
                blocks.entry((dir, logical.unwrap_or(0))).or_default().push(finding);
            }
        }
    }
    if changed {
        // The next check judges entries, once it is known what is in use.
        return true;
    }
    for ((number, logical), mine) in blocks {
        let all = &editor.survey.all;
        let Some(n) = all.find(number) else { continue };
        let dir = all.dirs[n];
        if dir.inline {
            inline(editor, &dir, &mine).await;
        } else {
            block(editor, &dir, logical, &mine).await;
        }
        let Some(finding) = mine.first() else { continue };
        if editor.end_step(finding) {
            changed = true;
            // One change of the block repairs all of these findings.
            mine[1..].iter().for_each(|finding| editor.also(finding));
        }
    }
    changed
}

/// Turns the inode that an entry names into an ordinary file, if only its flag says that it holds a
/// value.
async fn keep_value(editor: &mut Editor<'_>, finding: &Finding) -> bool {
    let number = finding.found.rsplit(' ').next().and_then(|number| number.parse().ok()).map(InodeNumber);
    let Some(number) = number else { return false };
    let Some(inode) = editor.inode(number).await else { return false };
    if xattrs::is_value(editor, &inode).await {
        return false;
    }
    xattrs::unmark_value(editor, number).await;
    true
}

/// If an entry names an inode that is in use, but lies in the part of the inode table that is
/// marked as unused, marks that part as used.
async fn widen(editor: &mut Editor<'_>, finding: &Finding) -> bool {
    let number = finding.found.split_whitespace().find_map(|word| word.trim_end_matches(',').parse().ok());
    let Some(number) = number.map(InodeNumber) else { return false };
    let Some((group, n)) = editor.sb.locate_inode(number) else { return false };
    if !editor.sb.has_group_csum() {
        return false;
    }
    let Some(mut gd) = editor.descriptor(group).await else { return false };
    let is_unread = gd.flags.contains(GroupFlags::INODE_UNINIT)
        || n >= editor.sb.inodes_per_group() - gd.unused_inodes.min(editor.sb.inodes_per_group());
    if !is_unread {
        return false;
    }
    let Some(bytes) = editor.inode_bytes(number).await else { return false };
    let Ok(inode) = Inode::parse(&bytes, &editor.sb, number) else { return false };
    if inode.links() == 0 || inode.kind().is_none() {
        return false;
    }
    if gd.flags.contains(GroupFlags::INODE_UNINIT) {
        let mut bitmap = vec![0; editor.block_bytes()];
        extant_format::set_bits(&mut bitmap, n, n + 1);
        editor.set_block(gd.inode_bitmap.0, &bitmap).await;
    }
    gd.flags -= GroupFlags::INODE_UNINIT;
    gd.unused_inodes = gd.unused_inodes.min(editor.sb.inodes_per_group() - n - 1);
    editor.set_descriptor(Group(group.0), &gd).await;
    editor.say("look at the part of the table that was marked as unused: the inode is there", "");
    true
}

/// What to do with an entry.
enum Verdict {
    Keep,
    Drop,
    Kind(u8),
    Rename(Vec<u8>),
}

/// What to do with the entries at certain offsets of a block.
#[derive(Default)]
struct Orders {
    drop: BTreeSet<usize>,
    rename: BTreeSet<usize>,
}

fn orders(findings: &[&Finding]) -> Orders {
    let mut orders = Orders::default();
    for finding in findings {
        let Some(offset) = finding.spot.offset.and_then(|offset| usize::try_from(offset).ok()) else {
            continue;
        };
        let of_code = match finding.code {
            Code::EntryDirectoryLink => &mut orders.drop,
            Code::EntryDuplicateAcross => &mut orders.rename,
            _ => continue,
        };
        of_code.insert(offset);
    }
    orders
}

fn judge(editor: &Editor<'_>, dir: &Dir, entry: &Entry) -> Verdict {
    let (ctx, number) = (editor.ctx, InodeNumber(entry.inode));
    if entry.name == b"." || entry.name == b".." || entry.inode > editor.sb.inodes_count() {
        return Verdict::Drop;
    }
    if number == InodeNumber::ROOT || entry.inode == dir.number || ctx.is_nameless(number) {
        return Verdict::Drop;
    }
    if !dir.encrypted && (entry.name.contains(&b'/') || entry.name.contains(&0)) {
        let name = entry.name.iter().map(|&byte| if matches!(byte, 0 | b'/') { b'.' } else { byte });
        return Verdict::Rename(name.collect());
    }
    if dir.encrypted && entry.name.len() < 16 {
        return Verdict::Drop;
    }
    let has_kinds = editor.sb.incompat().contains(Incompat::FILETYPE);
    match ctx.inodes.kind(number) {
        Kind::Unused | Kind::Value => Verdict::Drop,
        Kind::File(code) => {
            let wanted = if has_kinds { code } else { 0 };
            if entry.kind == wanted { Verdict::Keep } else { Verdict::Kind(wanted) }
        }
        Kind::Invalid | Kind::Own => Verdict::Keep,
    }
}

/// A name that none of the others has.
fn unique(name: &[u8], taken: &BTreeSet<Vec<u8>>) -> Vec<u8> {
    for n in 0..10_000_u32 {
        let tail = format!("~{n}");
        let keep = name.len().min(extant_format::NAME_MAX - tail.len());
        let new = [&name[..keep], tail.as_bytes()].concat();
        if !taken.contains(&new) {
            return new;
        }
    }
    name.to_vec()
}

/// Entries as they should be, whether any of them changed, and names that were removed or renamed.
struct Judged {
    entries: Vec<Entry>,
    is_new_form: bool,
    lost: Vec<Vec<u8>>,
}

fn judge_all(editor: &Editor<'_>, dir: &Dir, found: Vec<Entry>, orders: &Orders) -> Judged {
    let mut judged = Judged { entries: Vec::new(), is_new_form: false, lost: Vec::new() };
    let mut taken: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let mut names: BTreeSet<Vec<u8>> = found.iter().map(|entry| entry.name.clone()).collect();
    for mut entry in found {
        let mut verdict = judge(editor, dir, &entry);
        if orders.drop.contains(&entry.offset) {
            verdict = Verdict::Drop;
        }
        match verdict {
            Verdict::Drop => {
                judged.lost.push(entry.name);
                continue;
            }
            Verdict::Kind(code) => entry.kind = code,
            Verdict::Rename(name) => {
                entry.name = if names.contains(&name) { unique(&name, &names) } else { name };
                judged.is_new_form = true;
                if let Kind::File(code) = editor.ctx.inodes.kind(InodeNumber(entry.inode)) {
                    entry.kind = code;
                }
            }
            Verdict::Keep => {}
        }
        match taken.get(&entry.name) {
            Some(&first) if first == entry.inode => {
                judged.lost.push(entry.name);
                continue;
            }
            Some(_) => {
                entry.name = unique(&entry.name, &names);
                judged.is_new_form = true;
            }
            None if orders.rename.contains(&entry.offset) => {
                entry.name = unique(&entry.name, &names);
                judged.is_new_form = true;
            }
            None => {}
        }
        names.insert(entry.name.clone());
        taken.insert(entry.name.clone(), entry.inode);
        judged.entries.push(entry);
    }
    judged
}

/// Repairs one block of a directory.
async fn block(editor: &mut Editor<'_>, dir: &Dir, logical: u32, findings: &[&Finding]) {
    let number = InodeNumber(dir.number);
    let Some(mut inode) = editor.inode(number).await else { return };
    let map = maps::read(editor, &inode).await;
    let Some(at) = map.place(logical) else { return };
    let Some(mut bytes) = editor.block(at).await else { return };
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    if dir.indexed && (logical == 0 || is_dx_block(&bytes)) {
        return index_block(editor, dir, logical, at, bytes, seed).await;
    }
    let salvaged = dir_blocks::salvage(editor, &bytes);
    let (mut is_new_form, found) = (!salvaged.is_whole, salvaged.entries);
    is_new_form |= seed.is_some() && !has_dirent_tail(&bytes);
    let mut rest = found;
    let mut dots = Vec::new();
    if logical == 0 {
        let parent = match rest.iter().find(|entry| entry.name == b"..") {
            Some(entry) if editor.ctx.inodes.kind(InodeNumber(entry.inode)).is_directory() => {
                InodeNumber(entry.inode)
            }
            _ => dir_blocks::parent_of(editor, number),
        };
        dots = vec![
            Entry::new(number, b".", FileKind::Directory),
            Entry::new(parent, b"..", FileKind::Directory),
        ];
        let has_kinds = editor.sb.incompat().contains(Incompat::FILETYPE);
        let code = if has_kinds { FileKind::Directory.dirent_code() } else { 0 };
        let is_dot = |n: usize, offset: usize| {
            let nul = bytes.get(offset + 8 + dots[n].name.len());
            rest.get(n).is_some_and(|entry| {
                entry.offset == offset
                    && entry.name == dots[n].name
                    && entry.inode == dots[n].inode
                    && entry.kind == code
                    && nul == Some(&0)
            })
        };
        is_new_form |= !is_dot(0, 0) || !is_dot(1, 12);
        let mut seen = (false, false);
        rest.retain(|entry| match &entry.name[..] {
            b"." => std::mem::replace(&mut seen.0, true),
            b".." => std::mem::replace(&mut seen.1, true),
            _ => true,
        });
    }
    let before = rest.clone();
    let judged = judge_all(editor, dir, rest, &orders(findings));
    if !judged.lost.is_empty() {
        let names = judged.lost.iter().map(|name| extant_fs::quote(name)).collect::<Vec<_>>().join(", ");
        editor.say("remove entries that lead nowhere", format!("the names {names}"));
    }
    if is_new_form || judged.is_new_form {
        dots.extend(judged.entries);
        let (new, left) = dir_blocks::pack(editor, &dots, seed);
        editor.set_block(at, &new).await;
        for entry in left {
            tree::add_entry(editor, &mut inode, entry).await;
        }
        return;
    }
    for entry in &before {
        match judged.entries.iter().find(|kept| kept.offset == entry.offset) {
            None => dir_blocks::remove(&mut bytes, entry.offset),
            Some(kept) => bytes[kept.offset + 7] = kept.kind,
        }
    }
    dir_blocks::seal(&mut bytes, seed);
    editor.set_block(at, &bytes).await;
}

/// Repairs the root of an index, which contains `.` and `..`, or an inner node.
async fn index_block(
    editor: &mut Editor<'_>,
    dir: &Dir,
    logical: u32,
    at: u64,
    mut bytes: Vec<u8>,
    seed: Option<ChecksumSeed>,
) {
    if logical != 0 {
        return;
    }
    let has_kinds = editor.sb.incompat().contains(Incompat::FILETYPE);
    let code = if has_kinds { FileKind::Directory.dirent_code() } else { 0 };
    let is_dot = bytes[4..7] == [12, 0, 1] && bytes[8] == b'.' && bytes[18] == 2 && bytes[20..22] == *b"..";
    if !is_dot {
        return index::drop_index(editor, InodeNumber(dir.number)).await;
    }
    bytes[..4].copy_from_slice(&dir.number.to_le_bytes());
    bytes[9..12].fill(0);
    bytes[22..24].fill(0);
    (bytes[7], bytes[19]) = (code, code);
    let parent = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    if !editor.ctx.inodes.kind(InodeNumber(parent)).is_directory() {
        let parent = dir_blocks::parent_of(editor, InodeNumber(dir.number));
        bytes[12..16].copy_from_slice(&parent.0.to_le_bytes());
    }
    if let Some(seed) = seed {
        write_dx_checksum(&mut bytes, seed);
    }
    editor.set_block(at, &bytes).await;
}

/// Number of holes to fill in any directory, even one that has fewer blocks.
const HOLES: u64 = 8;

/// Closes the holes of a directory. More holes than blocks mean that a block is mapped in the wrong
/// place.
pub(super) async fn close_holes(editor: &mut Editor<'_>, inode: &mut Inode, map: maps::Map) {
    let mut closed = maps::Map { nodes: map.nodes, ..maps::Map::default() };
    let mut next = 0;
    for extent in map.extents {
        closed.push(next, extent.physical.0, extent.blocks, extent.unwritten);
        next += u64::from(extent.blocks);
    }
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        // Writing the map leaves pointers that it does not set, so clear them first.
        inode.raw.i_block = [0; 60];
    }
    if maps::write(editor, inode, &closed).await {
        inode.set_size(next * editor.block_len());
        editor.set_inode(inode).await;
        editor.say("close the holes, of which there are more than blocks", "");
    }
}

/// Gives a directory empty blocks where it has none.
async fn fill_holes(editor: &mut Editor<'_>, number: InodeNumber) {
    let Some(mut inode) = editor.inode(number).await else { return };
    if lost_blocks::restore(editor, &mut inode).await {
        return editor.set_inode(&inode).await;
    }
    let seed = editor.seed().map(|seed| inode.checksum_seed(seed));
    let mut map = maps::read(editor, &inode).await;
    let blocks = u32::try_from(inode.size() / editor.block_len()).unwrap_or(0);
    let mapped: u64 = map.extents.iter().map(|extent| u64::from(extent.blocks)).sum();
    if mapped > 0 && u64::from(blocks).saturating_sub(mapped) > mapped.max(HOLES) {
        return close_holes(editor, &mut inode, map).await;
    }
    let mut is_changed = false;
    for logical in 0..blocks {
        if map.place(logical).is_some() {
            continue;
        }
        let goal = map.extents.first().map_or(0, |extent| extent.physical.0);
        let Some(at) = editor.allocate(goal) else { return };
        let dots = (logical == 0).then(|| (number, dir_blocks::parent_of(editor, number)));
        let block = dir_blocks::empty(editor, dots, seed);
        editor.set_block(at, &block).await;
        map.replace(logical, at);
        is_changed = true;
    }
    if is_changed && maps::write(editor, &mut inode, &map).await {
        editor.set_inode(&inode).await;
    }
}

/// Repairs entries in an inode, in place.
async fn inline(editor: &mut Editor<'_>, dir: &Dir, findings: &[&Finding]) {
    let number = InodeNumber(dir.number);
    let Some(mut inode) = editor.inode(number).await else { return };
    let value = extant_format::Xattrs::parse_inode(&inode.tail, number)
        .ok()
        .and_then(|xattrs| xattrs.value_range_in_inode(extant_format::XattrName::INLINE_DATA));
    let orders = orders(findings);
    // Keeps an entry, unless it should be dropped. Returns whether something changes.
    let take = |mut entry: Entry, area: &mut [u8], kept: &mut Vec<Entry>| {
        match judge(editor, dir, &entry) {
            _ if orders.drop.contains(&entry.offset) => return true,
            Verdict::Drop => return true,
            Verdict::Kind(code) => {
                area[entry.offset + 7] = code;
                entry.kind = code;
            }
            Verdict::Rename(name) => {
                entry.name = name;
                kept.push(entry);
                return true;
            }
            Verdict::Keep => {}
        }
        kept.push(entry);
        false
    };
    let fix = |area: &mut [u8]| {
        let (mut at, mut is_new_form, mut kept) = (0, false, Vec::new());
        while at + 8 < area.len() {
            let record = usize::from(u16::from_le_bytes([area[at + 4], area[at + 5]]));
            let len = usize::from(area[at + 6]);
            if record < 12 || record % 4 != 0 || at + record > area.len() || 8 + len > record {
                break;
            }
            let inode = u32::from_le_bytes([area[at], area[at + 1], area[at + 2], area[at + 3]]);
            if inode != 0 {
                let name = area[at + 8..at + 8 + len].to_vec();
                let entry = Entry { inode, name, kind: area[at + 7], offset: at };
                is_new_form |= take(entry, area, &mut kept);
            }
            at += record;
        }
        for entry in dir_blocks::salvage(editor, &area[at..]).entries {
            // Behind damage, search for entries as in a block.
            is_new_form |= take(Entry { offset: at + entry.offset, ..entry }, area, &mut kept);
        }
        if (is_new_form || at != area.len()) && area.len() >= 12 {
            let entries = kept
                .iter()
                .map(|entry| (InodeNumber(entry.inode), &entry.name[..], FileKind::from_dirent(entry.kind)));
            extant_format::write_inline_entries(area, entries);
        }
    };
    fix(&mut inode.raw.i_block[4..]);
    if let Some(range) = value {
        fix(&mut inode.tail[range]);
    }
    editor.set_inode(&inode).await;
}
