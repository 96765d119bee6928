//! Compares quota files with the usage that the check has counted.

use crate::Code;
use crate::context::Context;
use crate::finding::{Report, Spot};
use crate::own_files::{is_in_use, read_inode, runs};
use crate::usage::Usage;
use extant_format::{
    Corrupt, FileBlock, FileKind, Inode, InodeNumber, Place, QUOTA_BLOCK_BYTES, QUOTA_TREE_DEPTH,
    QUOTA_TREE_ROOT, QuotaEntry, QuotaHeader, QuotaKind, QuotaLeaf, QuotaTreeNode, RoCompat, UintExt,
};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum size of a quota file to read.
const QUOTA_BYTES_MAX: u64 = 256 << 20;

/// Compares quota files with the counted usage.
pub(crate) async fn quota(ctx: &Context, usage: &Usage, report: &mut Report) {
    let (sb, raw) = (&ctx.sb, ctx.sb.raw());
    if !sb.ro_compat().contains(RoCompat::QUOTA) {
        return without_quota(ctx, report).await;
    }
    for (kind, number) in [
        (QuotaKind::User, raw.s_usr_quota_inum.get()),
        (QuotaKind::Group, raw.s_grp_quota_inum.get()),
        (QuotaKind::Project, raw.s_prj_quota_inum.get()),
    ] {
        let is_unused = kind == QuotaKind::Project && !sb.ro_compat().contains(RoCompat::PROJECT);
        if number == 0 || is_unused && number <= sb.inodes_count() {
            continue;
        }
        let spot = Spot::inode(number);
        let inode = match number <= sb.inodes_count() {
            true => read_inode(ctx, InodeNumber(number)).await,
            false => None,
        };
        let Some(inode) = inode.filter(|inode| inode.kind() == Some(FileKind::Regular)) else {
            report.add(Code::QuotaInode, spot, format!("inode {number}"), "a regular file");
            continue;
        };
        if inode.links() == 0 {
            report.add(Code::QuotaInode, spot, "not in use", "a quota file");
            continue;
        }
        let blocks = contents(ctx, &inode).await;
        match entries(&blocks, ctx.source.block_bytes(), kind, &inode) {
            (stored, None) => compare(kind, &stored, usage, &spot, report),
            (_, Some(corrupt)) => report.corrupt(Code::QuotaFile, spot, &corrupt),
        }
    }
}

/// Looks for numbers of quota files on a volume without the quota feature. Linux does not open
/// files with these numbers.
async fn without_quota(ctx: &Context, report: &mut Report) {
    let raw = ctx.sb.raw();
    let mut seen = BTreeSet::new();
    for (name, number) in [
        ("s_usr_quota_inum", raw.s_usr_quota_inum.get()),
        ("s_grp_quota_inum", raw.s_grp_quota_inum.get()),
        ("s_prj_quota_inum", raw.s_prj_quota_inum.get()),
    ] {
        if number > ctx.sb.inodes_count() {
            let found = format!("{name} is {number}, without quota");
            report.add(Code::QuotaInode, Spot::inode(number), found, format!("{name} 0"));
        }
        // Reserved inodes are covered by other checks.
        if number >= ctx.sb.first_inode().0
            && number <= ctx.sb.inodes_count()
            && seen.insert(number)
            && read_inode(ctx, InodeNumber(number)).await.is_some_and(|inode| is_in_use(&inode))
        {
            let found = format!("it is in use, and {name} names it without quota");
            report.add(Code::QuotaInode, Spot::inode(number), found, format!("{name} 0"));
        }
    }
}

/// The mapped blocks of a quota file, by file block.
pub(crate) async fn contents(ctx: &Context, inode: &Inode) -> BTreeMap<u64, Vec<u8>> {
    let block_bytes = ctx.source.block_bytes();
    let end = inode.size().min(QUOTA_BYTES_MAX).div_ceil(block_bytes.to_u64());
    let mut blocks = BTreeMap::new();
    for (logical, at, len) in runs(ctx, inode).await {
        for n in 0..len.min(end.saturating_sub(logical)) {
            if blocks.contains_key(&(logical + n)) || !ctx.limits.take(block_bytes.to_u64() + 64) {
                break;
            }
            if let Some(piece) = ctx.source.one(at + n).await {
                blocks.insert(logical + n, piece.bytes().to_vec());
            }
        }
    }
    blocks
}

/// Returns the entries that a lookup by id finds, and the first error in the tree.
///
/// Linux follows the bytes of an id to a leaf and takes the first entry of that id there. If there
/// is none, or if a node is reached twice, it gives an error.
pub(crate) fn entries(
    blocks: &BTreeMap<u64, Vec<u8>>,
    block_bytes: usize,
    kind: QuotaKind,
    inode: &Inode,
) -> (BTreeMap<u32, QuotaEntry>, Option<Corrupt>) {
    let number = inode.number;
    let mut tree = Tree { blocks, block_bytes, number, found: BTreeMap::new(), wrong: None, damages: 0 };
    let per_block = (block_bytes / QUOTA_BLOCK_BYTES).to_u64();
    let mut end = blocks.last_key_value().map_or(0, |(last, _)| (last + 1).saturating_mul(per_block));
    match QuotaHeader::parse(tree.block(FileBlock(0)), number) {
        Ok(header) if header.kind == kind => {
            end = header.blocks.into();
            // Linux refuses a file that is shorter than its header says.
            if end > inode.size() / QUOTA_BLOCK_BYTES.to_u64() {
                tree.wrong_field(
                    FileBlock(0),
                    "dqi_blocks",
                    header.blocks,
                    "at most those of the file's size",
                );
            }
        }
        Ok(header) => {
            let place = Place::Quota(number, FileBlock(0));
            let rule = "that of this kind of quota";
            let wrong = Corrupt::field(place, "dqh_magic", header.kind.magic().into(), rule);
            return (BTreeMap::new(), Some(wrong));
        }
        // The tree can be read even if the header is damaged.
        Err(wrong) => tree.wrong(wrong),
    }
    tree.walk(u32::try_from(end).unwrap_or(u32::MAX));
    (tree.found.into_iter().map(|(id, found)| (id, found.1)).collect(), tree.wrong)
}

/// A quota file that is being read.
struct Tree<'a> {
    blocks: &'a BTreeMap<u64, Vec<u8>>,
    block_bytes: usize,
    number: InodeNumber,
    /// Entries by id, each with the block of its leaf.
    found: BTreeMap<u32, (FileBlock, QuotaEntry)>,
    wrong: Option<Corrupt>,
    damages: u32,
}

/// Reading a quota file is given up after this many errors.
const DAMAGES: u32 = 10_000;

impl<'a> Tree<'a> {
    /// A block; a hole reads as zeros.
    fn block(&self, at: FileBlock) -> &'a [u8] {
        const EMPTY: &[u8] = &[0; QUOTA_BLOCK_BYTES];
        let byte = at.0.to_usize() * QUOTA_BLOCK_BYTES;
        let block = self.blocks.get(&(byte / self.block_bytes).to_u64());
        block.and_then(|block| block.get(byte % self.block_bytes..)).unwrap_or(EMPTY)
    }

    fn wrong(&mut self, wrong: Corrupt) {
        self.wrong.get_or_insert(wrong);
        self.damages += 1;
    }

    fn wrong_field(&mut self, at: FileBlock, field: &'static str, value: u32, rule: &'static str) {
        self.wrong(Corrupt::field(Place::Quota(self.number, at), field, value.into(), rule));
    }

    fn walk(&mut self, end: u32) {
        const TWICE: &str = "a block that nothing else leads to";
        let (mut nodes, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        let mut todo = vec![(QUOTA_TREE_ROOT, 0, 0_u32)];
        while let Some((at, level, start)) = todo.pop() {
            if !nodes.insert(at) || leaves.contains(&at) {
                self.wrong_field(at, "child", at.0, TWICE);
                continue;
            }
            let Some(node) = QuotaTreeNode::salvage(self.block(at)) else { continue };
            for (byte, child) in node.slots() {
                if self.damages > DAMAGES {
                    return;
                }
                let id = start | u32::from(byte) << (24 - 8 * level);
                if child.0 >= end {
                    self.wrong_field(at, "child", child.0, "a block of the quota file");
                } else if level + 1 < QUOTA_TREE_DEPTH {
                    todo.push((child, level + 1, id));
                } else if nodes.contains(&child) {
                    self.wrong_field(at, "child", child.0, TWICE);
                } else {
                    if leaves.insert(child)
                        && let Err(wrong) = QuotaLeaf::parse(self.block(child), self.number, child, end)
                    {
                        self.wrong(wrong);
                    }
                    match QuotaLeaf::salvage(self.block(child)).and_then(|leaf| leaf.get(id)) {
                        Some(entry) => {
                            self.found.insert(id, (child, entry));
                        }
                        None => self.wrong_field(at, "child", child.0, "a leaf with an entry of the id"),
                    }
                }
            }
        }
        for at in leaves {
            let mut ids = BTreeSet::new();
            for entry in QuotaLeaf::salvage(self.block(at)).iter().flat_map(QuotaLeaf::entries) {
                let leaf = self.found.get(&entry.id).map(|found| found.0);
                if leaf != Some(at) || !ids.insert(entry.id) {
                    self.wrong_field(at, "dqb_id", entry.id, "an id that leads here, once");
                }
            }
        }
    }
}

fn compare(
    kind: QuotaKind,
    stored: &BTreeMap<u32, QuotaEntry>,
    usage: &Usage,
    spot: &Spot,
    report: &mut Report,
) {
    let counted = usage.of(kind);
    let mut ids: Vec<u32> = stored.keys().chain(counted.keys()).copied().collect();
    ids.sort_unstable();
    ids.dedup();
    for id in ids {
        let has = stored.get(&id).map_or((0, 0), |entry| (entry.space_bytes, entry.inodes));
        let should = counted.get(&id).copied().unwrap_or_default();
        if has != should {
            let text = format!("{kind} {id}: {} bytes, {} inodes", has.0, has.1);
            let expected = format!("{} bytes, {} inodes", should.0, should.1);
            report.add(Code::QuotaUsage, spot.clone(), text, expected);
        }
    }
}
