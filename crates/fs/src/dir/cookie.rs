//! Reading a directory from a position that stays valid while names are added and removed.
//!
//! A name's position is its hash if the directory has a hash tree, or may get one next because it
//! has one block or is inline. Positions then survive these conversions (fs/ext4/dir.c:
//! `is_dx_dir`, `hash2pos`). `.` and `..` are at the hashes 0 and 2, as in a tree on Linux. In
//! other directories, positions are byte offsets.

use super::edit::names;
use super::hash_tree::Path;
use super::inline;
use super::shape::{Blocks, Shape, Stop};
use extant_format::{
    DxRoot, FileBlock, FileKind, HashVersion, Inode, InodeNumber, NameHash, UintExt, dirent_bytes,
};

/// A position in a directory; 0 is the start. Stays valid when the volume is closed and reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cookie(pub u64);

impl Cookie {
    /// The start.
    pub const START: Self = Self(0);
    /// After the last name.
    pub const END: Self = Self(i64::MAX.unsigned_abs());

    const DOT: Self = Self(0);
    const DOTDOT: Self = Self(1 << 32);

    fn of(hash: NameHash) -> Self {
        Self((u64::from(hash.major) >> 1) << 32 | u64::from(hash.minor))
    }

    /// The position of the first name in a tree with this hash or a higher one.
    fn of_node(hash: u32) -> Self {
        Self((u64::from(hash) >> 1) << 32)
    }

    /// The hash of the first name that may be here.
    fn hash(self) -> NameHash {
        NameHash { major: (self.0 >> 32 << 1).low_u32(), minor: self.0.low_u32() }
    }
}

/// A name in a directory, with the position to continue reading from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// The name, including `.` and `..`.
    pub name: &'a [u8],
    /// Its inode.
    pub inode: InodeNumber,
    /// The inode's kind, if the entry records it.
    pub kind: Option<FileKind>,
    /// Where to continue. Names that share a position are read again from the first of them.
    pub next: Cookie,
}

type Name<'a> = (Cookie, &'a [u8], InodeNumber, Option<FileKind>);

/// Passes names from `from` on to `emit` until it returns false or a part of the directory ends.
/// Returns where to continue. No name is passed before all blocks of the part are in memory.
pub(crate) fn list(
    shape: &Shape,
    blocks: &impl Blocks,
    from: Cookie,
    emit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Cookie, Stop> {
    if shape.tree {
        return list_tree(shape, blocks, from, emit);
    }
    match shape.new_tree.filter(|_| shape.blocks == 1 && shape.frozen.is_none()) {
        Some(version) => {
            let at = FileBlock(0);
            let bytes = blocks.get(at)?;
            let mut list = Vec::new();
            for entry in names(shape, at, &bytes)? {
                let position = match entry.name {
                    b"." => Cookie::DOT,
                    b".." => Cookie::DOTDOT,
                    name => position(shape, version, name),
                };
                list.push((position, entry.name, InodeNumber(entry.inode), shape.leaf.kind(&entry)));
            }
            Ok(emit_sorted(list, from, Cookie::END, emit))
        }
        None => list_linear(shape, blocks, from, emit),
    }
}

/// Like [`list`], for an inline directory.
pub(crate) fn list_inline(
    shape: &Shape,
    dir: &Inode,
    from: Cookie,
    emit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Cookie, Stop> {
    let kind = shape.leaf.filetype.then_some(FileKind::Directory);
    let (dot, dotdot) = (dir.number, inline::parent(dir));
    let mut list: Vec<Name<'_>> = Vec::new();
    match shape.new_tree {
        Some(version) => {
            list.push((Cookie::DOT, b".", dot, kind));
            list.push((Cookie::DOTDOT, b"..", dotdot, kind));
            for (inode, name, kind) in inline::names(shape.leaf, dir)? {
                list.push((position(shape, version, name), name, inode, kind));
            }
        }
        // The offsets that the names will have once the directory has moved to a block.
        None => {
            let mut at = 0;
            let all = [(dot, &b"."[..], kind), (dotdot, b"..", kind)];
            for (inode, name, kind) in all.into_iter().chain(inline::names(shape.leaf, dir)?) {
                list.push((Cookie(at), name, inode, kind));
                at += dirent_bytes(name.len()).to_u64();
            }
        }
    }
    Ok(emit_sorted(list, from, Cookie::END, emit))
}

fn position(shape: &Shape, version: HashVersion, name: &[u8]) -> Cookie {
    shape.hash(version, name).map_or(Cookie::START, Cookie::of)
}

/// Passes on the names from `from` in order. `end` is the position after the last.
fn emit_sorted(
    mut list: Vec<Name<'_>>,
    from: Cookie,
    end: Cookie,
    emit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Cookie {
    list.retain(|(position, ..)| *position >= from);
    list.sort_by_key(|(position, ..)| *position);
    for (i, &(position, name, inode, kind)) in list.iter().enumerate() {
        // Names with the same position form a chain, which is read completely or again from its
        // start.
        let chained = list.get(i + 1).is_some_and(|(next, ..)| *next == position);
        let next = if chained { position } else { Cookie(position.0 + 1) };
        if !emit(Listed { name, inode, kind, next }) {
            return next;
        }
    }
    end
}

fn list_tree(
    shape: &Shape,
    blocks: &impl Blocks,
    from: Cookie,
    emit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Cookie, Stop> {
    if from >= Cookie::END {
        return Ok(Cookie::END);
    }
    let start = NameHash { minor: 0, ..from.hash() };
    let (mut path, _) = Path::find(shape, blocks, |version| {
        // Nor is there an order if the names cannot be hashed.
        shape.hash(version, b"").map(|_| start)
    })?;
    let mut leaves = vec![(path.leaf, blocks.get(path.leaf)?)];
    let end = loop {
        match path.next(shape, blocks, None)? {
            None => break Cookie::END,
            Some(hash) if hash & 1 == 0 => break Cookie::of_node(hash),
            // Names with this hash continue in the next leaf.
            Some(_) if leaves.len().fit_u32() >= shape.blocks => {
                return Err(shape.bad_block(path.leaf, "passed once"));
            }
            Some(_) => leaves.push((path.leaf, blocks.get(path.leaf)?)),
        }
    };
    let root = blocks.get(FileBlock(0))?;
    let info = DxRoot::open(&root, &shape.context(FileBlock(0)))?.info;
    let mut list: Vec<Name<'_>> = Vec::new();
    let kind = shape.leaf.filetype.then_some(FileKind::Directory);
    for dot in [(Cookie::DOT, &b"."[..], info.dir, kind), (Cookie::DOTDOT, b"..", info.parent, kind)] {
        if dot.0 < end {
            list.push(dot);
        }
    }
    for (at, bytes) in &leaves {
        for entry in names(shape, *at, bytes)? {
            let position = position(shape, path.version, entry.name);
            list.push((position, entry.name, InodeNumber(entry.inode), shape.leaf.kind(&entry)));
        }
    }
    Ok(emit_sorted(list, from, end, emit))
}

/// Lists one block of a directory that has no order.
fn list_linear(
    shape: &Shape,
    blocks: &impl Blocks,
    from: Cookie,
    emit: &mut dyn FnMut(Listed<'_>) -> bool,
) -> Result<Cookie, Stop> {
    let block_bytes = shape.block_bytes.to_u64();
    let Some(at) = u32::try_from(from.0 / block_bytes).ok().filter(|at| *at < shape.blocks) else {
        return Ok(Cookie::END);
    };
    let start = u64::from(at) * block_bytes;
    let at = FileBlock(at);
    let bytes = blocks.get(at)?;
    for entry in names(shape, at, &bytes)? {
        if start + entry.offset.to_u64() < from.0 {
            continue;
        }
        // Not the end of its record, because a name may be added in the free space after it.
        let next = Cookie(start + entry.offset.to_u64() + 1);
        let kind = shape.leaf.kind(&entry);
        if !emit(Listed { name: entry.name, inode: InodeNumber(entry.inode), kind, next }) {
            return Ok(next);
        }
    }
    let next = start + block_bytes;
    Ok(if at.0 + 1 < shape.blocks { Cookie(next) } else { Cookie::END })
}
