//! Directory blocks: one linear block, or a hash tree over full leaves.

use super::inode_numbers::{Inodes, LOST_AND_FOUND};
use super::params::Params;
use crate::BuildError;
use crate::tree::{EntryId, Kind, NodeId};
use extant_format::{
    CharSign, ChecksumSeed, Compat, DxEntry, DxRootInfo, FileBlock, FileKind, HashVersion, HtreeContext,
    Incompat, InodeNumber, UintExt, dirent_bytes, hash_name, write_dirent, write_dirent_tail, write_dx_node,
    write_dx_root,
};

/// Bytes of `.` and `..`.
const DOTS: usize = dirent_bytes(1) + dirent_bytes(2);

/// Distribution of a directory's names over its blocks.
pub(crate) struct Shape {
    dir: InodeNumber,
    names: Vec<Name>,
    kind: ShapeKind,
}

struct Name {
    entry: EntryId,
    /// Major and minor hash; zero in linear directories.
    hash: (u32, u32),
}

enum ShapeKind {
    /// The first name of each block.
    Linear { firsts: Vec<u32>, blocks: u32 },
    /// The first name of each leaf, and the number of nodes in each level below the root, top
    /// first.
    Tree { firsts: Vec<u32>, levels: Vec<u32> },
}

impl Shape {
    /// Distributes a directory's names over blocks. Deterministic, so it can be repeated when the
    /// blocks are written.
    pub(crate) fn of(inodes: &Inodes, params: &Params, dir: InodeNumber) -> Result<Self, BuildError> {
        let id = inodes.node_of(dir);
        let tree = &inodes.tree;
        let space = params.dirent_space();
        let linear_bytes: usize =
            DOTS + tree.children(id).map(|e| dirent_bytes(tree.entry_name(e).len())).sum::<usize>();
        let spare = spare_blocks(inodes, params, dir);
        let bytes = |name: &Name| dirent_bytes(tree.entry_name(name.entry).len());
        if linear_bytes <= space || !params.compat.contains(Compat::DIR_INDEX) || spare > 1 {
            let names: Vec<_> =
                tree.sorted_children(id).into_iter().map(|entry| Name { entry, hash: (0, 0) }).collect();
            let firsts = pack(&names, DOTS, space, bytes);
            let blocks = spare.max(firsts.len().fit_u32());
            return Ok(Self { dir, names, kind: ShapeKind::Linear { firsts, blocks } });
        }
        let names = hashed(inodes, params, id);
        let firsts = pack(&names, 0, space, bytes);
        let levels = levels(params, firsts.len());
        let large_dir = params.incompat.contains(Incompat::LARGEDIR);
        if levels.len() > 1 + usize::from(large_dir) {
            let (path, names) = (inodes.quoted_path_of(dir), names.len());
            return Err(BuildError::DirectoryFull {
                path,
                names,
                block_bytes: params.block.bytes(),
                large_dir,
            });
        }
        Ok(Self { dir, names, kind: ShapeKind::Tree { firsts, levels } })
    }

    /// Number of blocks of the directory.
    pub(crate) fn blocks(&self) -> u32 {
        match &self.kind {
            ShapeKind::Linear { blocks, .. } => *blocks,
            ShapeKind::Tree { firsts, levels } => 1 + levels.iter().sum::<u32>() + firsts.len().fit_u32(),
        }
    }

    /// Whether a directory of `blocks` blocks has a hash tree.
    pub(crate) fn is_indexed(inodes: &Inodes, params: &Params, dir: InodeNumber, blocks: u32) -> bool {
        params.compat.contains(Compat::DIR_INDEX) && spare_blocks(inodes, params, dir) <= 1 && blocks > 1
    }

    /// Writes block `index` of the directory into `block`, which is zeroed.
    pub(crate) fn write(
        &self,
        inodes: &Inodes,
        params: &Params,
        seed: Option<ChecksumSeed>,
        index: FileBlock,
        block: &mut [u8],
    ) {
        let index = index.0;
        match &self.kind {
            ShapeKind::Linear { firsts, .. } => {
                let parent = (index == 0).then(|| inodes.parent_of(self.dir));
                self.write_names(inodes, seed, block, parent, part(firsts, &self.names, index.to_usize()));
            }
            ShapeKind::Tree { firsts, levels } => {
                let inner: u32 = levels.iter().sum();
                if index > inner {
                    let names = part(firsts, &self.names, (index - 1 - inner).to_usize());
                    self.write_names(inodes, seed, block, None, names);
                } else {
                    self.write_inner(inodes, params, seed, index, block);
                }
            }
        }
    }

    fn write_names(
        &self,
        inodes: &Inodes,
        seed: Option<ChecksumSeed>,
        block: &mut [u8],
        parent: Option<InodeNumber>,
        names: &[Name],
    ) {
        let end = block.len() - if seed.is_some() { extant_format::DIRENT_TAIL_BYTES } else { 0 };
        let dots = parent.map(|parent| {
            let dir = Some(FileKind::Directory);
            [(self.dir, &b"."[..], dir), (parent, &b".."[..], dir)]
        });
        let entries = names.iter().map(|name| {
            let node = inodes.tree.entry_node(name.entry);
            let kind = file_kind(inodes.tree.node(node).kind);
            (inodes.number_of(node), inodes.tree.entry_name(name.entry), Some(kind))
        });
        let mut at = 0;
        let mut all = dots.into_iter().flatten().chain(entries).peekable();
        if all.peek().is_none() {
            write_dirent(&mut block[..end], InodeNumber(0), b"", None);
        }
        while let Some((inode, name, kind)) = all.next() {
            // The last entry of a block extends to its end.
            let next = if all.peek().is_some() { at + dirent_bytes(name.len()) } else { end };
            write_dirent(&mut block[at..next], inode, name, kind);
            at = next;
        }
        if let Some(seed) = seed {
            write_dirent_tail(block, seed);
        }
    }

    fn write_inner(
        &self,
        inodes: &Inodes,
        params: &Params,
        seed: Option<ChecksumSeed>,
        index: u32,
        block: &mut [u8],
    ) {
        let ShapeKind::Tree { firsts, levels } = &self.kind else { return };
        let cx = htree_context(params);
        let fan_out = cx.node_limit(params.block.byte_len()).fit_u32();
        // Level of the block, and index of its node there.
        let mut level_start = 0;
        let mut level = 0;
        let mut level_len = 1;
        while index >= level_start + level_len {
            level_start += level_len;
            level_len = levels[level];
            level += 1;
        }
        let node = index - level_start;
        let below_start = level_start + level_len;
        let below_len = levels.get(level).copied().unwrap_or(firsts.len().fit_u32());
        // The root has all nodes of the level below as children; other nodes have `fan_out` each.
        let (first, last) =
            if level == 0 { (0, below_len) } else { (node * fan_out, ((node + 1) * fan_out).min(below_len)) };
        let leaves_per_child = fan_out.pow((levels.len() - level).fit_u32());
        let entries: Vec<_> = (first..last)
            .map(|child| {
                let leaf = child * leaves_per_child;
                DxEntry {
                    hash: self.leaf_hash(firsts, leaf.to_usize()),
                    block: FileBlock(below_start + child),
                }
            })
            .collect();
        if level == 0 {
            let info = DxRootInfo {
                dir: self.dir,
                parent: inodes.parent_of(self.dir),
                filetype: true,
                hash_version: HashVersion::HalfMd4,
                levels: levels.len().fit_u8(),
            };
            write_dx_root(block, &info, entries.into_iter(), seed);
        } else {
            write_dx_node(block, entries.into_iter(), seed);
        }
    }

    /// The lowest hash in a leaf; odd if names with that hash begin in the previous leaf.
    fn leaf_hash(&self, firsts: &[u32], leaf: usize) -> u32 {
        let first = firsts[leaf].to_usize();
        let hash = self.names[first].hash.0;
        let continues = first > 0 && self.names[first - 1].hash.0 == hash;
        hash | u32::from(continues)
    }
}

/// Keeps 16 KiB of lost+found allocated, so that e2fsck can add names without allocating.
fn spare_blocks(inodes: &Inodes, params: &Params, dir: InodeNumber) -> u32 {
    let is_lost_and_found = dir != InodeNumber::ROOT
        && inodes.parent_of(dir) == InodeNumber::ROOT
        && inodes.tree.entry_name(inodes.entry_of(dir)) == LOST_AND_FOUND;
    if is_lost_and_found { ((16 << 10) / params.block.bytes()).clamp(2, 12) } else { 1 }
}

fn hashed(inodes: &Inodes, params: &Params, dir: NodeId) -> Vec<Name> {
    let mut seed = [0; 4];
    for (word, bytes) in seed.iter_mut().zip(params.hash_seed.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    let tree = &inodes.tree;
    let mut names: Vec<_> = tree
        .children(dir)
        .map(|entry| {
            let hash = hash_name(HashVersion::HalfMd4, CharSign::Signed, &seed, tree.entry_name(entry))
                .expect("half MD4 needs no key");
            Name { entry, hash: (hash.major, hash.minor) }
        })
        .collect();
    names
        .sort_unstable_by(|a, b| (a.hash, tree.entry_name(a.entry)).cmp(&(b.hash, tree.entry_name(b.entry))));
    names
}

/// First name of each block when blocks are filled in order.
fn pack(names: &[Name], head: usize, space: usize, bytes: impl Fn(&Name) -> usize) -> Vec<u32> {
    let mut firsts = vec![0];
    let mut used = head;
    for (at, name) in names.iter().enumerate() {
        if used + bytes(name) > space {
            firsts.push(at.fit_u32());
            used = 0;
        }
        used += bytes(name);
    }
    firsts
}

fn part<'a>(firsts: &[u32], names: &'a [Name], block: usize) -> &'a [Name] {
    let Some(&first) = firsts.get(block) else { return &[] };
    let end = firsts.get(block + 1).map_or(names.len(), |&n| n.to_usize());
    &names[first.to_usize()..end]
}

/// Nodes per level between the root and `leaves` leaves, top first.
fn levels(params: &Params, leaves: usize) -> Vec<u32> {
    let cx = htree_context(params);
    let (root, node) = (cx.root_limit(params.block.byte_len()), cx.node_limit(params.block.byte_len()));
    let mut levels = Vec::new();
    let mut below = leaves;
    while below > root {
        below = below.div_ceil(node);
        levels.insert(0, below.fit_u32());
    }
    levels
}

fn htree_context(params: &Params) -> HtreeContext {
    HtreeContext {
        dir: InodeNumber::ROOT,
        block: FileBlock(0),
        checksums: params.has_metadata_csum(),
        large_dir: params.incompat.contains(Incompat::LARGEDIR),
    }
}

pub(crate) fn file_kind(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::Regular,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::CharDevice => FileKind::CharDevice,
        Kind::BlockDevice => FileKind::BlockDevice,
        Kind::Fifo => FileKind::Fifo,
        Kind::Socket => FileKind::Socket,
    }
}
