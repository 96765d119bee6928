//! Extended attributes: in inodes, in blocks, and values in inodes of their own.

use crate::Code;
use crate::context::Context;
use crate::finding::Spot;
use crate::found::{Found, Run, ValueUse, XattrUse};
use crate::state::Kind;
use extant_format::{
    Acl, CAPABILITY_XATTR, Corrupt, Inode, InodeFlags, InodeNumber, Problem, ValueInode, VolumeBlock,
    XattrBlock, XattrIndex, XattrName, XattrValue, Xattrs, capability_root, verify_xattr_block,
};
use rustc_hash::FxHasher;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// What an inode's own attributes add.
#[derive(Debug, Default)]
pub(crate) struct InInode {
    /// Clusters that count for the inode: its attribute block, and values in other inodes.
    pub(crate) clusters: u64,
    /// Values in other inodes.
    pub(crate) values: u64,
}

/// A hash of an attribute's name, for finding duplicates.
fn name_hash(name: &XattrName<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    (name.index.0, name.suffix).hash(&mut hasher);
    hasher.finish()
}

/// Checks the attributes in an inode, and records its attribute block.
pub(crate) fn in_inode(ctx: &Context, inode: &Inode, found: &mut Found) -> InInode {
    let (sb, number) = (&ctx.sb, inode.number);
    let spot = Spot::inode(number.0);
    let mut result = InInode::default();
    let xattrs = match Xattrs::parse_inode(&inode.tail, number) {
        Ok(xattrs) => xattrs,
        // Without the magic there are no attributes, whatever else is there.
        Err(corrupt) if matches!(corrupt.problem, Problem::Magic { .. }) => Xattrs::EMPTY,
        Err(corrupt) => {
            found.report.corrupt(code_of(&corrupt), spot.clone(), &corrupt);
            Xattrs::EMPTY
        }
    };
    each(ctx, &xattrs, number, &spot, found);
    let values = ctx.values(&xattrs);
    result.clusters += values.clusters;
    result.values += values.inodes;
    let mut names: Vec<u64> = xattrs.iter().map(|xattr| name_hash(&xattr.name)).collect();
    duplicates(&xattrs, &spot, found);
    overlaps(&xattrs, &spot, found);
    if let Some(block) = inode.xattr_block() {
        if sb.is_valid_block(block) {
            names.sort_unstable();
            found.xattr_uses.push(XattrUse { block: block.0, number: number.0, names: names.into() });
            result.clusters += 1;
        } else {
            let text = format!("i_file_acl is {block}");
            found.report.add(Code::XattrPointer, spot.clone(), text, "0 or a block of the volume");
        }
    }
    if inode.flags().contains(InodeFlags::ENCRYPT) && inode.xattr_block().is_none() {
        let context = xattrs.iter().find(|xattr| xattr.name.index == XattrIndex::ENCRYPTION);
        let is_context = |value: &[u8]| matches!((value.first(), value.len()), (Some(1), 28) | (Some(2), 40));
        match context.map(|xattr| xattr.value) {
            Some(XattrValue::Bytes(value)) if is_context(value) => {}
            Some(_) => found.report.add(Code::Encryption, spot, "a malformed context", "28 or 40 bytes"),
            None => found.report.add(Code::Encryption, spot, "no encryption context", "one"),
        }
    }
    result
}

/// The code for what `format` refused.
fn code_of(corrupt: &Corrupt) -> Code {
    match corrupt.problem {
        Problem::Field { field: "e_name_len", .. } => Code::XattrName,
        Problem::Field { field: "h_blocks", .. } | Problem::Magic { .. } => Code::XattrBlock,
        _ => Code::XattrEntry,
    }
}

fn duplicates(xattrs: &Xattrs<'_>, spot: &Spot, found: &mut Found) {
    let mut names: Vec<XattrName<'_>> = xattrs.iter().map(|xattr| xattr.name).collect();
    names.sort_unstable();
    for pair in names.windows(2).filter(|pair| pair[0] == pair[1]) {
        found.report.add(Code::XattrDuplicate, spot.clone(), pair[0].to_string(), "each name once");
    }
}

/// Checks each attribute of an area.
fn each(ctx: &Context, xattrs: &Xattrs<'_>, number: InodeNumber, spot: &Spot, found: &mut Found) {
    for xattr in xattrs.iter() {
        let name = xattr.name;
        let mut add =
            |code, text: String, expected: &str| found.report.add(code, spot.clone(), text, expected);
        let index = name.index;
        let known = index.prefix().is_some() || matches!(index, XattrIndex::LUSTRE | XattrIndex::ENCRYPTION);
        if name.suffix.is_empty() && !(known && index.is_whole_name()) {
            add(Code::XattrEntry, format!("{name} without a name"), "a name after the prefix");
        } else if !known {
            add(Code::XattrIndex, format!("prefix {} of {name}", index.0), "a prefix that Linux knows");
        }
        match xattr.value {
            XattrValue::Bytes(value) => {
                if !xattr.hash_is_valid(None) {
                    add(Code::XattrHash, format!("{name}: hash {:#010x}", xattr.hash), "that of the value");
                }
                if matches!(index, XattrIndex::ACL_ACCESS | XattrIndex::ACL_DEFAULT)
                    && let Err(corrupt) = Acl::parse_stored(value, number)
                {
                    let (text, expected) = crate::finding::words(&corrupt.problem);
                    add(Code::XattrAcl, format!("{name}: {text}"), &expected);
                }
                if name.to_full().as_deref() == Some(CAPABILITY_XATTR) && capability_root(value).is_none() {
                    add(
                        Code::XattrCapability,
                        format!("{} bytes", value.len()),
                        "a version that Linux knows",
                    );
                }
            }
            XattrValue::Inode { inode, size } => {
                if !ctx.has_values() {
                    add(Code::XattrEntry, format!("{name}: value in inode {inode}"), "0 without ea_inode");
                } else if name == XattrName::INLINE_DATA {
                    add(Code::XattrEntry, format!("{name}: value in inode {inode}"), "a value in the inode");
                } else {
                    found.value_uses.push(ValueUse { value: inode.0, number: number.0, size });
                }
            }
        }
    }
}

/// Finds values that overlap.
fn overlaps(xattrs: &Xattrs<'_>, spot: &Spot, found: &mut Found) {
    let mut places: Vec<(usize, usize)> = xattrs
        .iter()
        .filter_map(|xattr| match xattr.value {
            XattrValue::Bytes(value) if !value.is_empty() => {
                let start = value.as_ptr().addr();
                Some((start, start + value.len()))
            }
            _ => None,
        })
        .collect();
    places.sort_unstable();
    if places.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        found.report.add(Code::XattrEntry, spot.clone(), "two values share bytes", "bytes of its own each");
    }
}

/// Reads all attribute blocks, each once, in disk order.
pub(crate) async fn blocks(ctx: &Context, found: &mut Found) {
    let uses = std::mem::take(&mut found.xattr_uses);
    let mut blocks: Vec<u64> = uses.iter().map(|one| one.block).collect();
    blocks.dedup();
    let mut rest = &uses[..];
    ctx.source
        .scattered(&blocks, |n, block| {
            let at = blocks[n];
            let count = rest.partition_point(|one| one.block == at);
            let (mine, others) = rest.split_at(count);
            rest = others;
            ctx.claims.claim(ctx.claims.cluster(VolumeBlock(at)), 1, |start, count| {
                found.contested.push((start, count));
            });
            one_block(ctx, at, mine, block, found);
        })
        .await;
}

fn one_block(ctx: &Context, at: u64, uses: &[XattrUse], block: Option<&[u8]>, found: &mut Found) {
    let number = InodeNumber(uses[0].number);
    let spot = Spot::inode(number.0).at_block(at);
    let Some(bytes) = block else {
        return found.report.add(Code::ReadError, spot, "unreadable", "attributes");
    };
    if let Some(seed) = ctx.seed
        && let Err(corrupt) = verify_xattr_block(bytes, number, VolumeBlock(at), seed)
    {
        found.report.corrupt(Code::XattrChecksum, spot.clone(), &corrupt);
    }
    let block = match XattrBlock::parse(bytes, number, VolumeBlock(at)) {
        Ok(block) => block,
        Err(corrupt) => {
            return found.report.corrupt(code_of(&corrupt), spot, &corrupt);
        }
    };
    if u64::from(block.references) != uses.len() as u64 {
        let text = format!("h_refcount is {}", block.references);
        found.report.add(Code::XattrReferences, spot.clone(), text, uses.len().to_string());
    }
    let before = found.value_uses.len();
    each(ctx, &block.xattrs, number, &spot, found);
    // A block counts once for each value, however many inodes share it.
    found.value_uses[before..].sort_unstable();
    let computed = block.computed_hash();
    // Without a hash the block is not shared, which is no damage.
    if block.hash != 0 && block.hash != computed {
        let text = format!("h_hash is {:#010x}", block.hash);
        found.report.add(Code::XattrBlockHash, spot.clone(), text, format!("{computed:#010x}"));
    }
    duplicates(&block.xattrs, &spot, found);
    overlaps(&block.xattrs, &spot, found);
    if !block.xattrs.iter().is_sorted_by(|a, b| a.name <= b.name) {
        found.report.add(Code::XattrOrder, spot.clone(), "attributes out of order", "ascending names");
    }
    for one in uses.iter().filter(|one| !one.names.is_empty()) {
        for xattr in block.xattrs.iter() {
            if one.names.binary_search(&name_hash(&xattr.name)).is_ok() {
                let spot = Spot::inode(one.number).at_block(at);
                let text = format!("{} in the inode and in the block", xattr.name);
                found.report.add(Code::XattrDuplicate, spot, text, "each name once");
            }
        }
    }
}

/// Compares values in inodes with the attributes that refer to them.
pub(crate) async fn values(ctx: &Context, found: &mut Found) {
    if !ctx.has_values() {
        return;
    }
    let mut uses: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
    let holders: BTreeMap<u32, (u64, u32, u64)> = found
        .value_holders
        .iter()
        .map(|holder| (holder.number, (holder.references, holder.hash, holder.size)))
        .collect();
    for one in std::mem::take(&mut found.value_uses) {
        let spot = Spot::inode(one.number);
        uses.entry(one.value).or_insert((0, one.number)).0 += 1;
        match holders.get(&one.value) {
            None => {
                let text = match ctx.inodes.kind(InodeNumber(one.value)) {
                    Kind::Unused => format!("value in inode {}, which is not in use", one.value),
                    _ => format!("value in inode {}, which holds none", one.value),
                };
                found.report.add(Code::XattrInode, spot, text, "an inode that holds a value");
            }
            Some(&(_, _, size)) if size != u64::from(one.size) => {
                let text = format!("a value of {} bytes in inode {}", one.size, one.value);
                found.report.add(Code::XattrInode, spot, text, format!("{size} bytes, as that inode has"));
            }
            Some(_) => {}
        }
    }
    for holder in &found.value_holders {
        let count = uses.get(&holder.number).map_or(0, |uses| uses.0);
        if count != holder.references {
            let text = format!("{} references", holder.references);
            let code = if count == 0 { Code::InodeUnattached } else { Code::XattrInodeReferences };
            found.report.add(code, Spot::inode(holder.number), text, count.to_string());
        }
    }
    contents(ctx, found).await;
}

/// Checks the hashes of values.
async fn contents(ctx: &Context, found: &mut Found) {
    let Some(seed) = value_seed(ctx) else { return };
    let runs = std::mem::take(&mut found.value_runs);
    let block_bytes = ctx.source.block_bytes() as u64;
    for holder in found.value_holders.clone() {
        let from = runs.partition_point(|run| run.number < holder.number);
        let own: Vec<&Run> = runs[from..].iter().take_while(|run| run.number == holder.number).collect();
        let size = holder.size.min(u64::from(extant_format::XATTR_VALUE_MAX));
        let mut value = vec![0; size as usize];
        for run in own {
            for n in 0..u64::from(run.blocks) {
                let at = (u64::from(run.logical) + n) * block_bytes;
                if at >= size {
                    break;
                }
                if let Some(piece) = ctx.source.one(run.block + n).await {
                    let to = &mut value[at as usize..(at + block_bytes).min(size) as usize];
                    to.copy_from_slice(&piece.bytes()[..to.len()]);
                }
            }
        }
        let computed = ValueInode::hash_of(&value, seed);
        if computed != holder.hash {
            let text = format!("hash {:#010x} of the value", holder.hash);
            found.report.add(Code::XattrInode, Spot::inode(holder.number), text, format!("{computed:#010x}"));
        }
    }
}

/// Seed of the hashes of values, which volumes without checksums have, too.
fn value_seed(ctx: &Context) -> Option<extant_format::ChecksumSeed> {
    ctx.seed.or_else(|| Some(extant_format::ChecksumSeed::from_uuid(&ctx.sb.uuid())))
}
