//! Chooses the volume's size.

use super::contents::Contents;
use super::geometry::{Geometry, GeometryError, Misfit, first_data_block, group_count, max_inodes_per_group};
use super::params::Params;
use super::plan::Plan;
use crate::{BuildError, SizePolicy};
use extant_format::{BlockSize, Group, Incompat, UintExt};

/// Bytes that `--size exact` leaves free: enough to mount for writing. Linux reserves a fiftieth of
/// the blocks, so nothing that needs a block can be added.
const EXACT_SLACK_BYTES: u64 = 32 << 10;
/// Sizes that Extant chooses are multiples of this, whatever the block size, because dm-verity and
/// disks with 4 KiB sectors require it.
const SIZE_UNIT_BYTES: u64 = 4096;
/// Number of such multiples to try.
const LARGER_SIZES: u64 = 64;
/// Minimum size of a volume in blocks.
const MIN_BLOCKS: u64 = 64;
/// Maximum number of search steps for a size; after that, the best one found so far is used.
const MAX_STEPS: u32 = 64;

/// Chooses the size according to the options, and lays out the contents.
pub(crate) fn plan(contents: &Contents, params: &Params) -> Result<Plan, BuildError> {
    let mut plan = match params.size {
        SizePolicy::Fixed(bytes) => fixed(contents, params, bytes)?,
        SizePolicy::Exact => smallest(contents, params, Headroom::NONE)?,
        SizePolicy::PlusPercent(percent) => smallest(contents, params, Headroom::Percent(percent.into()))?,
        SizePolicy::PlusBytes(bytes) => smallest(contents, params, Headroom::Bytes(bytes))?,
    };
    plan.list_pieces(contents, params);
    Ok(plan)
}

/// Inodes that the contents need.
fn inodes_needed(contents: &Contents) -> u64 {
    u64::from(contents.orphan_inode.0)
}

/// Room on a volume for new files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Headroom {
    /// This percentage of the space in use.
    Percent(u64),
    /// This many bytes.
    Bytes(u64),
}

impl Headroom {
    pub(crate) const NONE: Self = Self::Percent(0);

    /// Free blocks for a volume with this many in use.
    fn blocks(self, used: u64, block: BlockSize) -> u64 {
        match self {
            Self::Percent(percent) => used * percent / 100,
            Self::Bytes(0) => 0,
            Self::Bytes(bytes) => {
                let blocks = bytes.div_ceil(block.bytes().into());
                // Linux keeps the last fiftieth, at most 4,096 blocks, for its own allocations for
                // extents.
                blocks + ((used + blocks) / 49 + 1).min(4096)
            }
        }
    }
}

/// What the number of inodes depends on.
#[derive(Clone, Copy)]
enum Room {
    /// A volume of this size in bytes.
    Volume(u64),
    /// The contents and new files.
    Contents(Headroom),
}

/// A volume whose room is given in percent or bytes gets one additional inode for this many bytes
/// of free space.
const FREE_BYTES_PER_INODE: u64 = 8192;
/// Minimum number of additional inodes that such a volume gets for new files.
const LEAST_FREE_INODES: u64 = 64;

/// Number of inodes for the contents, and for the files that may be added.
fn inodes_wanted(contents: &Contents, params: &Params, room: Room) -> Result<u64, BuildError> {
    let needed = inodes_needed(contents);
    let few = needed + needed / 32 + 16;
    match (params.inodes, room) {
        (Some(given), _) if u64::from(given) < needed => {
            Err(BuildError::TooFewInodes { needed, given: given.into() })
        }
        (Some(given), _) => Ok(given.into()),
        (None, Room::Volume(bytes)) => Ok((bytes / params.bytes_per_inode).max(needed + 1)),
        (None, Room::Contents(Headroom::NONE | Headroom::Bytes(0))) => Ok(few),
        (None, Room::Contents(headroom)) => {
            let free_bytes = headroom.blocks(contents.all_blocks, params.block) << params.block.log2();
            let by_files = match headroom {
                Headroom::Percent(percent) => needed * percent / 100,
                Headroom::Bytes(_) => 0,
            };
            Ok(few + by_files.max(free_bytes / FREE_BYTES_PER_INODE).max(LEAST_FREE_INODES))
        }
    }
}

fn fixed(contents: &Contents, params: &Params, bytes: u64) -> Result<Plan, BuildError> {
    match try_fixed(contents, params, bytes)? {
        Some(plan) => Ok(plan),
        None => Err(too_small(contents, params, bytes)),
    }
}

/// Lays out a volume of fixed size; `None` if the contents do not fit.
fn try_fixed(contents: &Contents, params: &Params, bytes: u64) -> Result<Option<Plan>, BuildError> {
    let mut blocks = bytes >> params.block.log2();
    if blocks < MIN_BLOCKS {
        return Ok(None);
    }
    if blocks == 1 << 32 && !params.incompat.contains(Incompat::BIT64) {
        blocks -= 1; // as mke2fs does: 16 TiB are one block more than 32 bits can count
    }
    let mut wanted = inodes_wanted(contents, params, Room::Volume(bytes))?;
    // A plan with a very small last group. That group is dropped if the contents fit without it.
    let mut with_crumb = None;
    loop {
        let groups = group_count(params, blocks);
        let rounded = rounded_inodes(params, wanted, groups);
        let inodes =
            if rounded >= inodes_needed(contents) && params.inodes.is_none() { rounded } else { wanted };
        match Plan::lay_out(contents, params, blocks, inodes) {
            Ok(plan) => match crumb(&plan) {
                Some(less) if less >= MIN_BLOCKS => {
                    with_crumb = Some(plan);
                    blocks = less;
                }
                _ => return Ok(Some(plan)),
            },
            Err(_) if with_crumb.is_some() => return Ok(with_crumb),
            Err(Misfit::Geometry(GeometryError::Tail { at_most, .. })) if at_most >= MIN_BLOCKS => {
                blocks = at_most;
            }
            Err(Misfit::Geometry(GeometryError::Refused(error))) => return Err(error),
            Err(Misfit::Inodes { needed }) => {
                let most = u64::from(max_inodes_per_group(params)) * groups;
                if needed <= most || inodes_needed(contents) > most || params.inodes.is_some() {
                    return Err(BuildError::TooFewInodes { needed, given: most });
                }
                wanted = most;
            }
            Err(_) => return Ok(None),
        }
    }
}

/// Inodes in `groups` groups, rounded as in mke2fs: up to whole table blocks, then down to whole
/// bitmap bytes.
fn rounded_inodes(params: &Params, inodes: u64, groups: u64) -> u64 {
    let per_block = u64::from(params.block.bytes()) / u64::from(params.inode_size);
    let per_group = inodes.div_ceil(groups).next_multiple_of(per_block) & !7;
    // Inode numbers have 32 bits.
    let unit = per_block.max(8);
    per_group.min(u64::from(u32::MAX) / groups / unit * unit) * groups
}

/// mke2fs drops a last group with fewer than 50 blocks beyond the group's own metadata. Do the same
/// if the user fixed the size.
fn crumb(plan: &Plan) -> Option<u64> {
    let geometry = &plan.geometry;
    let last = Group(geometry.groups() - 1);
    let tail = geometry.sb.blocks_count() - geometry.first_block(last).0;
    let own = geometry.head_blocks(last) + 2 + u64::from(geometry.table_blocks) + 50;
    let is_crumb = last != Group(0) && tail < own && tail < u64::from(geometry.sb.blocks_per_group());
    is_crumb.then(|| geometry.first_block(last).0)
}

fn too_small(contents: &Contents, params: &Params, given: u64) -> BuildError {
    let smallest = match smallest(contents, params, Headroom::NONE) {
        Ok(plan) => plan.geometry.sb.blocks_count() << params.block.log2(),
        Err(error) => return error,
    };
    // A volume of fixed size gets more inodes, so it needs a little more space.
    let mut needed = smallest.max(given + 1).next_multiple_of(1 << 20);
    while let Ok(None) = try_fixed(contents, params, needed) {
        needed += (needed / 64).next_multiple_of(1 << 20);
    }
    BuildError::TooSmall { needed, given }
}

/// The smallest volume with this much room.
fn smallest(contents: &Contents, params: &Params, headroom: Headroom) -> Result<Plan, BuildError> {
    let mut best = smallest_of_groups(contents, params, headroom)?;
    // If files average less than a block, full groups with inodes for all of them would leave most
    // blocks free. Smaller groups need less metadata, so a few steps find the right size.
    let inodes = inodes_wanted(contents, params, Room::Contents(headroom))?;
    let groups = inodes.div_ceil(max_inodes_per_group(params).into());
    for _ in 0..16 {
        let used = best.geometry.sb.blocks_count() - best.geometry.space.free();
        let wanted = used + headroom.blocks(used, params.block);
        let group_blocks = (wanted / groups) & !7;
        if groups < 2 || group_blocks >= best.geometry.sb.blocks_per_group().into() {
            break;
        }
        let smaller = Params { group_blocks: group_blocks.fit_u32(), ..params.clone() };
        match smallest_of_groups(contents, &smaller, headroom) {
            Ok(plan) if plan.geometry.sb.blocks_count() < best.geometry.sb.blocks_count() => best = plan,
            _ => break,
        }
    }
    Ok(best)
}

fn smallest_of_groups(contents: &Contents, params: &Params, headroom: Headroom) -> Result<Plan, BuildError> {
    let inodes = inodes_wanted(contents, params, Room::Contents(headroom))?;
    let lay_out = |blocks| Plan::lay_out(contents, params, blocks, inodes);
    let plan = smallest_for(params, contents.all_blocks, headroom, lay_out)?;
    let unit = (SIZE_UNIT_BYTES >> params.block.log2()).max(1);
    let blocks = plan.geometry.sb.blocks_count();
    if blocks.is_multiple_of(unit) {
        return Ok(plan);
    }
    // Not every size is possible: the last group may be too small for its metadata.
    let larger = (1..=LARGER_SIZES).map(|n| (blocks / unit + n) * unit);
    Ok(larger.filter_map(|blocks| lay_out(blocks).ok()).next().unwrap_or(plan))
}

/// A plan with the volume's geometry.
pub(crate) trait Planned {
    fn geometry(&self) -> &Geometry;
}

impl Planned for Plan {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

/// Finds the smallest volume with this much room for about `content_blocks`, by trial layouts.
pub(crate) fn smallest_for<P: Planned>(
    params: &Params,
    content_blocks: u64,
    headroom: Headroom,
    lay_out: impl Fn(u64) -> Result<P, Misfit>,
) -> Result<P, BuildError> {
    let base = EXACT_SLACK_BYTES >> params.block.log2();
    let mut best: Option<P> = None;
    // The largest size known to be too small, and the next size to try.
    let mut too_small = MIN_BLOCKS - 1;
    let mut stride = base.max(1);
    let mut next =
        MIN_BLOCKS.max(content_blocks + content_blocks / 32 + headroom.blocks(content_blocks, params.block));
    for _ in 0..MAX_STEPS {
        let tried = next;
        match lay_out(tried) {
            Ok(plan) => {
                let geometry = plan.geometry();
                let used = geometry.sb.blocks_count() - geometry.space.free();
                let wanted = base.max(1) + headroom.blocks(used, params.block);
                let free = geometry.space.free();
                if free < wanted {
                    too_small = too_small.max(tried);
                    next = tried + (wanted - free);
                } else {
                    let spare = free - wanted;
                    let smaller = best.as_ref().is_none_or(|best| tried < best.geometry().sb.blocks_count());
                    if smaller {
                        best = Some(plan);
                    }
                    if spare <= 1 {
                        break;
                    }
                    next = tried - spare;
                }
            }
            Err(Misfit::Short(short)) => {
                too_small = too_small.max(tried);
                // The actual shortage may be larger. Overshooting is fine: the search comes back.
                stride *= 2;
                next = tried + short.missing + stride;
            }
            Err(Misfit::Geometry(GeometryError::Tail { at_least, .. })) => {
                too_small = too_small.max(tried);
                next = at_least;
            }
            Err(Misfit::Geometry(GeometryError::Full)) => {
                too_small = too_small.max(tried);
                next = tried + tried / 16 + 64;
            }
            Err(Misfit::Geometry(GeometryError::Refused(error))) => return Err(error),
            Err(Misfit::Inodes { needed }) => {
                too_small = too_small.max(tried);
                let groups = group_count(params, tried) + 1;
                let per_group = u64::from(params.group_blocks);
                if needed > u64::from(u32::MAX) {
                    return Err(BuildError::TooManyEntries);
                }
                next = first_data_block(params.block).0 + (groups - 1) * per_group + 1;
            }
        }
        if let Some(best) = &best {
            let best = best.geometry().sb.blocks_count();
            if best <= too_small + 1 {
                break;
            }
            if next <= too_small || next >= best {
                next = too_small + (best - too_small) / 2;
            }
        } else {
            next = next.max(too_small + 1);
        }
    }
    best.ok_or_else(|| BuildError::Options("no volume of these options holds the contents".into()))
}
