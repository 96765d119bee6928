//! Extended attributes in inodes and in blocks, and values in inodes of their own.

use crate::Code;
use crate::context::{Context, Values};
use crate::finding::Spot;
use crate::found::{Found, Run, ValueHolder, ValueUse, XattrUse};
use crate::state::Kind;
use extant_format::{
    Acl, CAPABILITY_XATTR, ChecksumSeed, Corrupt, Inode, InodeFlags, InodeNumber, Problem, UintExt,
    VolumeBlock, XATTR_MAGIC, XattrBlock, XattrIndex, XattrName, XattrValue, Xattrs, capability_root,
    verify_xattr_block,
};
use rustc_hash::FxHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// What the attributes in the inode itself add to its counts.
#[derive(Debug, Default)]
pub(crate) struct InInode {
    /// Number of attribute blocks, each of which counts as a cluster.
    pub(crate) blocks: u64,
    pub(crate) values: Values,
}

/// Hashes an attribute's name, to find duplicates.
fn name_hash(name: &XattrName<'_>) -> u64 {
    let mut hasher = FxHasher::default();
    (name.index.0, name.suffix).hash(&mut hasher);
    hasher.finish()
}

/// Checks the attributes in an inode, and records its attribute block.
pub(crate) fn in_inode(ctx: &Context, inode: &Inode, found: &mut Found) -> InInode {
    let number = inode.number;
    let mut result = InInode::default();
    let may_have_some = inode.tail.first_chunk() == Some(&XATTR_MAGIC.to_le_bytes());
    // Most inodes have no attributes.
    if !may_have_some && inode.xattr_block().is_none() && !inode.flags().contains(InodeFlags::ENCRYPT) {
        return result;
    }
    let spot = Spot::inode(number.0);
    let xattrs = match Xattrs::parse_inode(&inode.tail, number) {
        Ok(xattrs) => xattrs,
        // Without the magic number there are no attributes, whatever else is there.
        Err(corrupt) if matches!(corrupt.problem, Problem::Magic { .. }) => Xattrs::EMPTY,
        Err(corrupt) => {
            found.report.corrupt(code_of(&corrupt), spot.clone(), &corrupt);
            Xattrs::EMPTY
        }
    };
    let generation = inode.raw.i_generation.get();
    each(ctx, &xattrs, (number, generation), &spot, found);
    result.values = ctx.values(&xattrs);
    let mut names: Vec<u64> = xattrs.iter().map(|xattr| name_hash(&xattr.name)).collect();
    duplicates(&xattrs, &spot, found);
    overlaps(&xattrs, &spot, found);
    names.sort_unstable();
    result.blocks = in_block(ctx, inode, names, found);
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

/// Records an inode's attribute block, if it has one, and returns how many blocks that adds.
/// `names` are the names of the attributes in the inode, in order.
pub(crate) fn in_block(ctx: &Context, inode: &Inode, names: Vec<u64>, found: &mut Found) -> u64 {
    let Some(block) = inode.xattr_block() else { return 0 };
    let (number, generation) = (inode.number.0, inode.raw.i_generation.get());
    let lacks_feature = !ctx.has_xattr_blocks();
    if !ctx.sb.is_valid_block(block) || lacks_feature && ctx.sb.is_own_inode(inode.number) {
        senseless_pointer(inode, found);
        return 0;
    }
    if lacks_feature && inode.links() > 0 {
        let expected = "the feature ext_attr";
        found.report.add(Code::FeatureMissing, Spot::inode(number), "an attribute block", expected);
    }
    found.keep(XattrUse { block: block.0, number, generation, names: names.into() });
    1
}

fn senseless_pointer(inode: &Inode, found: &mut Found) {
    let block = inode.xattr_block().unwrap_or(VolumeBlock(0));
    let text = format!("i_file_acl is {block}");
    let expected = "0, or a block of the volume with ext_attr";
    found.report.add(Code::XattrPointer, Spot::inode(inode.number.0), text, expected);
}

/// Reports the attribute block of a reserved inode that is no file.
pub(crate) fn of_no_file(ctx: &Context, inode: &Inode, found: &mut Found) {
    match inode.xattr_block() {
        Some(block) if ctx.has_xattr_blocks() && ctx.sb.is_valid_block(block) => {
            let spot = Spot::inode(inode.number.0);
            found.report.add(Code::InodeReserved, spot, "it has contents", "none, for it is reserved");
        }
        Some(_) => senseless_pointer(inode, found),
        None => {}
    }
}

/// The code for an error that `format` returned.
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

/// Checks each attribute of an area. The inode has the given number and generation.
fn each(
    ctx: &Context,
    xattrs: &Xattrs<'_>,
    (number, generation): (InodeNumber, u32),
    spot: &Spot,
    found: &mut Found,
) {
    for xattr in xattrs.iter() {
        let name = xattr.name;
        let add = |code, text: String, expected: &str| found.report.add(code, spot.clone(), text, expected);
        let index = name.index;
        let known = index.prefix().is_some() || matches!(index, XattrIndex::LUSTRE | XattrIndex::ENCRYPTION);
        if !known {
            add(Code::XattrIndex, format!("prefix {} of {name}", index.0), "a prefix that Linux knows");
        } else if name.suffix.is_empty() && !index.is_whole_name() {
            add(Code::XattrEntry, format!("{name} without a name"), "a name after the prefix");
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
                    let wanted = xattr.wanted_value_hashes();
                    found.keep(ValueUse { value: inode.0, number: number.0, size, generation, wanted });
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
    // The uses are needed again for blocks with several owners.
    let uses = std::mem::take(&mut found.xattr_uses);
    let mut blocks: Vec<u64> = uses.iter().map(|one| one.block).collect();
    blocks.dedup();
    let mut rest = &uses[..];
    ctx.source
        .scattered(&blocks, |n, block| {
            let at = blocks[n];
            let count = rest.iter().take_while(|one| one.block == at).count();
            let (mine, others) = rest.split_at(count);
            rest = others;
            ctx.claims.claim(ctx.claims.cluster(VolumeBlock(at)), 1);
            one_block(ctx, at, mine, block, found);
        })
        .await;
    found.xattr_uses = uses;
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
    if u64::from(block.references) != uses.len().to_u64() {
        let text = format!("h_refcount is {}", block.references);
        found.report.add_value(Code::XattrReferences, spot.clone(), text, uses.len() as u64);
    }
    let before = found.value_uses.len();
    each(ctx, &block.xattrs, (number, uses[0].generation), &spot, found);
    // A value counts once for each block that uses it, however many inodes share the block.
    found.value_uses[before..].sort_unstable();
    let computed = block.computed_hash();
    // A hash of 0 means that the block is not to be shared, which is not damage.
    if block.hash != 0 && block.hash != computed {
        let text = format!("h_hash is {:#010x}", block.hash);
        found.report.add(Code::XattrBlockHash, spot.clone(), text, format!("{computed:#010x}"));
    }
    duplicates(&block.xattrs, &spot, found);
    overlaps(&block.xattrs, &spot, found);
    if !block.xattrs.iter().is_sorted_by(|a, b| a.name <= b.name) {
        found.report.add(Code::XattrOrder, spot.clone(), "attributes out of order", "ascending names");
    }
    let mut names: Vec<(u64, XattrName<'_>)> =
        block.xattrs.iter().map(|xattr| (name_hash(&xattr.name), xattr.name)).collect();
    names.sort_unstable();
    for one in uses {
        for hash in &one.names {
            let at_name = names.partition_point(|(other, _)| other < hash);
            if let Some((_, name)) = names.get(at_name).filter(|(other, _)| other == hash) {
                let spot = Spot::inode(one.number).at_block(at);
                let text = format!("{name} in the inode and in the block");
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
    let uses = std::mem::take(&mut found.value_uses);
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    // Values in Lustre's form, the users of such values, and inodes with values of any other form.
    let (mut lustre, mut uncharged, mut charged) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
    for one in &uses {
        let spot = Spot::inode(one.number);
        *counts.entry(one.value).or_default() += 1;
        let holder = found.value_holders.binary_search_by_key(&one.value, |holder| holder.number);
        let Ok(n) = holder else {
            charged.insert(one.number);
            let text = match ctx.inodes.kind(InodeNumber(one.value)) {
                Kind::Unused => format!("value in inode {}, which is not in use", one.value),
                _ => format!("value in inode {}, which holds none", one.value),
            };
            found.report.add(Code::XattrInode, spot, text, "an inode that holds a value");
            continue;
        };
        let holder = &found.value_holders[n];
        let is_lustre = holder.is_lustre_for(one);
        // Lustre left the size to the inode.
        if holder.size != u64::from(one.size) && !(is_lustre && one.size == 0) {
            let text = format!("a value of {} bytes in inode {}", one.size, one.value);
            let expected = format!("{} bytes, as that inode has", holder.size);
            found.report.add(Code::XattrInode, spot.clone(), text, expected);
        }
        if is_lustre {
            lustre.push(one.value);
            uncharged.insert(one.number);
            continue;
        }
        charged.insert(one.number);
        if !one.wanted.contains(&holder.hash) {
            let text = format!("an attribute with the value in inode {}", one.value);
            found.report.add(Code::XattrHash, spot, text, "a hash that agrees with the value's");
        }
    }
    lustre.sort_unstable();
    for holder in &found.value_holders {
        let count = counts.get(&holder.number).copied().unwrap_or(0);
        let is_uncounted = holder.has_times && lustre.binary_search(&holder.number).is_ok();
        if count != holder.references && !is_uncounted {
            let text = format!("{} references", holder.references);
            let code = if count == 0 { Code::InodeUnattached } else { Code::XattrInodeReferences };
            found.report.add_value(code, Spot::inode(holder.number), text, count);
        }
    }
    for file in std::mem::take(&mut found.uncharged) {
        let is_lustre = uncharged.contains(&file.number) && !charged.contains(&file.number);
        if !is_lustre && file.stored_512 != file.counted_512 {
            let text = format!("i_blocks is {}", file.stored_512);
            found.report.add_value(Code::InodeBlocks, Spot::inode(file.number), text, file.counted_512);
        }
        if let Some(owners) = file.owners {
            let blocks_512 = if is_lustre { file.stored_512 } else { file.counted_512 };
            let inodes = 1 + if is_lustre { 0 } else { file.values };
            found.usage.add(owners, blocks_512 * 512, inodes);
        }
    }
    contents(ctx, &lustre, found).await;
}

/// Number of values to read together.
const VALUES: usize = 128;

/// Checks the hashes of values, except of those in Lustre's form.
async fn contents(ctx: &Context, lustre: &[u32], found: &mut Found) {
    let seed = value_seed(ctx);
    let runs = std::mem::take(&mut found.value_runs);
    let holders = std::mem::take(&mut found.value_holders);
    for holders in holders.chunks(VALUES) {
        let mut reads = Vec::new();
        for (n, holder) in holders.iter().enumerate() {
            if lustre.binary_search(&holder.number).is_ok() {
                continue;
            }
            let from = runs.partition_point(|run| run.number < holder.number);
            let own = runs[from..].iter().take_while(|run| run.number == holder.number);
            match pieces(ctx, holder.size, own) {
                Pieces::Whole(pieces) if pieces.is_empty() => compare_hash(holder, seed, found),
                Pieces::Whole(pieces) => reads.extend(pieces.into_iter().map(|piece| (n, piece))),
                Pieces::Shared => {}
                Pieces::Missing(blocks) => {
                    let text = format!("a value of {} bytes, {blocks} blocks of it mapped", holder.size);
                    found.report.add(Code::XattrInode, Spot::inode(holder.number), text, "all of it mapped");
                }
            }
        }
        let (mut next, mut left, mut sum) = (0, 0, seed);
        let list = reads.iter().map(|&(_, run)| run);
        ctx.source
            .sweep(list, |piece| {
                let holder = &holders[reads[next].0];
                if left == 0 {
                    (left, sum) = (holder.size.to_usize(), seed);
                }
                let bytes = &piece.bytes()[..left.min(piece.bytes().len())];
                (left, next) = (left - bytes.len(), next + 1);
                sum = sum.over(bytes);
                if left == 0 {
                    compare_hash(holder, sum, found);
                }
            })
            .await;
    }
}

fn compare_hash(holder: &ValueHolder, computed: ChecksumSeed, found: &mut Found) {
    if computed.0 != holder.hash {
        let text = format!("hash {:#010x} of the value", holder.hash);
        let expected = format!("{:#010x}", computed.0);
        found.report.add(Code::XattrInode, Spot::inode(holder.number), text, expected);
    }
}

/// Where a value lies.
enum Pieces {
    Whole(Vec<(u64, u32)>),
    /// Some blocks have other owners, too. This is reported elsewhere, and they were read often
    /// enough.
    Shared,
    /// Only this many blocks are mapped.
    Missing(u64),
}

fn pieces<'a>(ctx: &Context, size: u64, runs: impl Iterator<Item = &'a Run>) -> Pieces {
    // The size of a larger value is reported where the value is used.
    let most = u64::from(extant_format::XATTR_VALUE_MAX);
    let blocks = size.min(most).div_ceil(ctx.source.block_bytes().to_u64());
    let (mut next, mut list) = (0, Vec::new());
    for run in runs {
        if u64::from(run.logical) != next || next >= blocks {
            break;
        }
        let count = (blocks - next).min(run.blocks.into());
        let mut at = 0;
        while at < count {
            let (is_shared, alike) = ctx.claims.is_shared(run.block + at, count - at);
            if is_shared {
                return Pieces::Shared;
            }
            at += alike;
        }
        list.extend((0..count).step_by(ctx.source.most().to_usize()).map(|from| {
            let len = u64::from(ctx.source.most()).min(count - from);
            (run.block + from, len.fit_u32())
        }));
        next += count;
    }
    match next == blocks && size <= most {
        true => Pieces::Whole(list),
        false => Pieces::Missing(next),
    }
}

/// Seed of the hashes of values, which exists even on volumes without checksums.
fn value_seed(ctx: &Context) -> ChecksumSeed {
    ctx.seed.unwrap_or_else(|| ChecksumSeed::from_uuid(&ctx.sb.uuid()))
}
