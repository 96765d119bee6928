//! Repairs that checksums determine: single flipped bits, and single lost fields of extent nodes.

use super::editor::Editor;
use super::flips::{self, Flip};
use super::maps;
use crate::Code;
use crate::finding::Finding;
use crate::listing::htree_context;
use extant_format::{
    BlockRange, ChecksumSeed, DIRENT_TAIL_BYTES, ExtentContext, ExtentNode, FileBlock, Inode, InodeFlags,
    InodeNumber, Place, VolumeBlock, XattrBlock, init_dirent_tail, verify_dirent_checksum,
    verify_dx_checksum, verify_extent_checksum, verify_xattr_block,
};
use std::collections::BTreeSet;

/// Maximum number of nodes of a tree to look at for one finding.
const NODES_MAX: usize = 1 << 16;

/// Repairs everything that a checksum proves; returns whether anything changed.
pub(super) async fn repair(editor: &mut Editor<'_>, findings: &[Finding]) -> bool {
    if editor.seed().is_none() {
        return false;
    }
    let mut changed = false;
    let mut seen = BTreeSet::new();
    for finding in findings {
        let spot = &finding.spot;
        let is_new = match finding.code {
            Code::InodeChecksum | Code::InodeExtraSize => seen.insert((spot.inode, None, None)),
            Code::ExtentChecksum | Code::ExtentHeader | Code::ExtentEntry | Code::ExtentIndex => {
                spot.block.is_some() && seen.insert((spot.inode, spot.block, None))
            }
            Code::DirectoryChecksum | Code::DirectoryBlock | Code::HtreeNode | Code::HtreeRoot => {
                seen.insert((spot.inode, spot.block, spot.file_block))
            }
            Code::XattrChecksum | Code::XattrBlock => {
                spot.block.is_some() && seen.insert((spot.inode, spot.block, None))
            }
            _ => false,
        };
        if !is_new {
            continue;
        }
        match finding.code {
            Code::InodeChecksum | Code::InodeExtraSize => inode(editor, finding).await,
            Code::ExtentChecksum | Code::ExtentHeader | Code::ExtentEntry | Code::ExtentIndex => {
                extent_node(editor, finding).await;
            }
            Code::XattrChecksum | Code::XattrBlock => xattr_block(editor, finding).await,
            _ => directory_block(editor, finding).await,
        }
        changed |= editor.end_step(finding);
    }
    changed
}

const FLIPPED: &str = "flip back the bit that the checksum names";

async fn inode(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(number) = finding.spot.inode.map(InodeNumber) else { return };
    let Some(mut bytes) = editor.inode_bytes(number).await else { return };
    // The 16-bit checksum of a 128-byte inode matches many bits.
    if bytes.len() <= 128 {
        return;
    }
    let sb = &editor.sb;
    let is_right = |bytes: &[u8]| {
        Inode::parse(bytes, sb, number).is_ok_and(|inode| inode.extra.i_extra_isize.get() >= 4)
    };
    if is_right(&bytes) {
        return;
    }
    let len = bytes.len();
    if let Some(Flip { byte, mask }) = flips::by_trial(&mut bytes, 0..len, is_right) {
        bytes[byte] ^= mask;
        editor.set_inode_bytes(number, &bytes).await;
        editor.say(FLIPPED, "");
    }
}

/// What a node must contain according to its parents.
struct Expected {
    depth: u16,
    range: BlockRange,
}

/// Finds a node in an inode's tree.
async fn place_of(editor: &Editor<'_>, inode: &Inode, wanted: u64) -> Option<Expected> {
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return None;
    }
    let mut seen = BTreeSet::new();
    let mut todo = vec![(ExtentContext::root(&editor.sb, inode.number), inode.map().to_vec())];
    while let Some((cx, bytes)) = todo.pop() {
        let Ok((ExtentNode::Index { depth, entries }, _)) = ExtentNode::salvage(&bytes, &cx) else {
            continue;
        };
        for n in 0..entries.len() {
            let (child, below) = (entries[n].child.0, cx.child(depth, &entries, n));
            if child == wanted {
                return Some(Expected { depth: depth - 1, range: below.range });
            }
            if depth > 1
                && seen.len() < NODES_MAX
                && seen.insert(child)
                && let Some(block) = editor.block(child).await
            {
                todo.push((below, block));
            }
        }
    }
    None
}

async fn extent_node(editor: &mut Editor<'_>, finding: &Finding) {
    let (Some(number), Some(at)) = (finding.spot.inode.map(InodeNumber), finding.spot.block) else { return };
    let (Some(inode), Some(mut block)) = (editor.inode(number).await, editor.block(at).await) else { return };
    let Some(seed) = editor.seed().map(|seed| inode.checksum_seed(seed)) else { return };
    let place = Place::ExtentNode(number, Some(VolumeBlock(at)));
    let is_sealed = |block: &[u8]| verify_extent_checksum(block, seed, place).is_ok();
    if is_sealed(&block) {
        return;
    }
    if let Some(Flip { byte, mask }) = flipped_node(&mut block, seed, is_sealed) {
        block[byte] ^= mask;
        editor.set_block(at, &block).await;
        return editor.say(FLIPPED, "");
    }
    let Some(expected) = place_of(editor, &inode, at).await else { return };
    let sb = editor.sb.clone();
    let cx = ExtentContext {
        sb: &sb,
        inode: number,
        block: Some(VolumeBlock(at)),
        depth: Some(expected.depth),
        range: expected.range,
    };
    if let Some(restored) = maps::restored(&block, &cx, &inode, editor) {
        editor.set_block(at, &restored).await;
        editor.say("restore the one field with which the checksum is right", "");
    }
}

fn flipped_node(block: &mut [u8], seed: ChecksumSeed, is_sealed: impl Fn(&[u8]) -> bool) -> Option<Flip> {
    // The location of the checksum depends on these bytes.
    if let Some(flip) = flips::by_trial(block, 4..6, &is_sealed) {
        return Some(flip);
    }
    let at = 12 + 12 * ExtentNode::stored_capacity(block);
    let stored = u32::from_le_bytes(*block.get(at..)?.first_chunk()?);
    by_checksum(seed.over(&block[..at]).0 ^ stored, at)
}

/// Returns the flipped bit in a message, or in the checksum that follows it.
fn by_checksum(off: u32, at: usize) -> Option<Flip> {
    let in_sum = || {
        let bit = off.is_power_of_two().then(|| off.trailing_zeros())?;
        let byte = at + usize::try_from(bit / 8).ok()?;
        Some(Flip { byte, mask: 1 << (bit % 8) })
    };
    flips::of_message(off, at).or_else(in_sum)
}

async fn directory_block(editor: &mut Editor<'_>, finding: &Finding) {
    let Some(number) = finding.spot.inode.map(InodeNumber) else { return };
    let Some(inode) = editor.inode(number).await else { return };
    let Some(seed) = editor.seed().map(|seed| inode.checksum_seed(seed)) else { return };
    let map = maps::read(editor, &inode).await;
    let found = finding.spot.file_block.and_then(|logical| u32::try_from(logical).ok());
    let Some(logical) = found.or_else(|| {
        let at = finding.spot.block?;
        let extent =
            map.extents.iter().find(|e| (e.physical.0..e.physical.0 + u64::from(e.blocks)).contains(&at))?;
        Some(extent.logical.0 + u32::try_from(at - extent.physical.0).ok()?)
    }) else {
        return;
    };
    let Some(at) = finding.spot.block.or_else(|| map.place(logical)) else { return };
    let Some(mut block) = editor.block(at).await else { return };
    let place = Place::DirectoryBlock(number, FileBlock(logical));
    let cx = htree_context(editor.ctx, number.0, logical);
    let is_linear = |block: &[u8]| verify_dirent_checksum(block, seed, place).is_ok();
    let is_node = |block: &[u8]| {
        verify_dx_checksum(block, &cx, seed).is_ok()
            && match logical {
                0 => extant_format::DxRoot::parse(block, &cx).is_ok(),
                _ => extant_format::DxNode::parse(block, &cx).is_ok(),
            }
    };
    let is_indexed = inode.flags().contains(InodeFlags::INDEX);
    if is_linear(&block) || is_indexed && is_node(&block) {
        return;
    }
    // The entry that holds the checksum has the same head in all blocks.
    let mut whole = block.clone();
    let sum: [u8; 4] = block.last_chunk().copied().unwrap_or_default();
    init_dirent_tail(&mut whole);
    let end = whole.len() - DIRENT_TAIL_BYTES;
    whole[end + 8..].copy_from_slice(&sum);
    let changed_tail = block.iter().zip(&whole).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    if is_linear(&whole) {
        editor.set_block(at, &whole).await;
        return editor.say("restore the entry of the checksum", "");
    }
    if changed_tail == 0 {
        let off = seed.over(&block[..end]).0 ^ u32::from_le_bytes(sum);
        let flip = by_checksum(off, end).map(|flip| match flip.byte >= end {
            // The checksum follows the head of its entry.
            true => Flip { byte: flip.byte + 8, ..flip },
            false => flip,
        });
        if let Some(Flip { byte, mask }) = flip {
            block[byte] ^= mask;
            editor.set_block(at, &block).await;
            return editor.say(FLIPPED, "");
        }
    }
    if is_indexed {
        let len = block.len();
        if let Some(Flip { byte, mask }) = flips::by_trial(&mut block, 0..len, is_node) {
            block[byte] ^= mask;
            editor.set_block(at, &block).await;
            editor.say(FLIPPED, "");
        }
    }
}

async fn xattr_block(editor: &mut Editor<'_>, finding: &Finding) {
    let (Some(number), Some(at)) = (finding.spot.inode.map(InodeNumber), finding.spot.block) else { return };
    let (Some(mut block), Some(seed)) = (editor.block(at).await, editor.seed()) else { return };
    let at_block = VolumeBlock(at);
    let is_right = |block: &[u8]| {
        verify_xattr_block(block, number, at_block, seed).is_ok()
            && XattrBlock::parse(block, number, at_block).is_ok()
    };
    if is_right(&block) {
        return;
    }
    /// Where a block's checksum is.
    const SUM: std::ops::Range<usize> = 16..20;
    let stored = block[SUM].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let mut zeroed = block.clone();
    zeroed[SUM].fill(0);
    let off = seed.over(&at.to_le_bytes()).over(&zeroed).0 ^ stored;
    let flip = match off.is_power_of_two() {
        true => by_checksum(off, 0).map(|flip| Flip { byte: flip.byte + SUM.start, ..flip }),
        false => flips::of_message(off, block.len()).filter(|flip| !SUM.contains(&flip.byte)),
    };
    if let Some(Flip { byte, mask }) = flip {
        block[byte] ^= mask;
        if is_right(&block) {
            editor.set_block(at, &block).await;
            editor.say(FLIPPED, "");
        }
    }
}
