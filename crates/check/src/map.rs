//! The maps of files: extent trees and block pointers.
//!
//! Nodes are not read when an inode is seen. They wait in a list that is read in disk order once it
//! is long enough, so one pass over the disk serves many files.

use crate::context::{Context, RootPointer, Values, root_pointers};
use crate::file::{File, Role, finish};
use crate::finding::Spot;
use crate::found::{Found, Run, Target};
use crate::{Code, Cost};
use extant_format::{
    BlockRange, Extent, ExtentContext, ExtentNode, Inode, InodeFlags, InodeNumber, Place, Problem, UintExt,
    VolumeBlock, check_pointer, parse_indirect, pointers_per_block, verify_extent_checksum,
};

/// A part of a map that is to be read.
#[derive(Clone, Copy, Debug)]
enum Job {
    Extents {
        depth: u16,
        range: BlockRange,
    },
    Pointers {
        levels: u32,
        logical: u64,
    },
    /// A block of attributes; only values in other inodes are counted.
    Xattrs,
}

/// Files whose maps are being read by one task.
#[derive(Debug, Default)]
pub(crate) struct Files {
    files: Vec<Option<File>>,
    jobs: Vec<(u64, u32, Job)>,
    /// Memory for the extents of the next leaf: most files have a leaf and nothing else.
    spare: Vec<Extent>,
}

/// How many jobs, and files with jobs, to collect before they are read.
const JOBS: usize = 16 << 10;
/// Maximum number of waiting jobs. Nodes that could lead to more are read later, and then possibly
/// out of order.
const JOBS_MAX: usize = 64 << 10;
/// How an extent tree without extents begins in an inode: magic number, no entries, room for four,
/// no levels.
const EMPTY_TREE: [u8; 8] = [0x0a, 0xf3, 0, 0, 4, 0, 0, 0];
/// The same for a tree with one extent.
const TREE_OF_ONE: [u8; 8] = [0x0a, 0xf3, 1, 0, 4, 0, 0, 0];

impl Files {
    pub(crate) fn is_full(&self) -> bool {
        self.jobs.len() >= JOBS || self.files.len() >= JOBS
    }

    /// Adds a file whose map is in its inode, or begins there.
    pub(crate) fn add(&mut self, ctx: &Context, found: &mut Found, mut file: File, inode: &Inode) {
        let first_job = self.jobs.len();
        let slot = self.files.len().fit_u32();
        if inode.flags().contains(InodeFlags::EXTENTS) {
            if inode.map().starts_with(&EMPTY_TREE) {
                return self.add_unmapped(ctx, found, file, inode);
            }
            let cx = ExtentContext::root(&ctx.sb, inode.number);
            let only = match inode.map().starts_with(&TREE_OF_ONE) {
                true => ExtentNode::only_extent(inode.map(), &cx),
                false => None,
            };
            match only.filter(|only| !only.unwritten || file.role != Role::Directory) {
                Some(Extent { logical, physical, blocks, unwritten }) => {
                    run(ctx, found, &mut file, logical.0.into(), physical, blocks, !unwritten);
                }
                None => self.extents(ctx, found, &mut file, slot, inode.map(), cx),
            }
        } else {
            self.root_pointers(ctx, found, &mut file, slot, inode);
        }
        self.add_from(first_job, ctx, found, file, inode);
    }

    /// Adds a file without a map: where it would be is nothing, or something else.
    pub(crate) fn add_unmapped(&mut self, ctx: &Context, found: &mut Found, file: File, inode: &Inode) {
        self.add_from(self.jobs.len(), ctx, found, file, inode);
    }

    /// Adds a file with the jobs from this one on.
    fn add_from(
        &mut self,
        first_job: usize,
        ctx: &Context,
        found: &mut Found,
        mut file: File,
        inode: &Inode,
    ) {
        let slot = self.files.len().fit_u32();
        if ctx.has_values()
            && let Some(block) = inode.xattr_block().filter(|&block| ctx.sb.is_valid_block(block))
        {
            self.jobs.push((block.0, slot, Job::Xattrs));
        }
        file.pending = (self.jobs.len() - first_job).fit_u32();
        if file.pending == 0 {
            finish(ctx, found, &mut file);
        } else {
            self.files.push(Some(file));
        }
    }

    /// Reads what is waiting, level by level.
    pub(crate) async fn drain(&mut self, ctx: &Context, found: &mut Found) {
        // An attribute block that many inodes share is parsed once.
        let mut xattrs: Option<(u64, Values)> = None;
        while !self.jobs.is_empty() && !ctx.limits.stopped() {
            let mut jobs = self.next_jobs(ctx.source.block_bytes());
            jobs.sort_unstable_by_key(|&(block, slot, _)| (block, slot));
            let blocks: Vec<u64> = jobs.iter().map(|job| job.0).collect();
            let source = ctx.source.of_one_task();
            source
                .scattered(&blocks, |n, block| {
                    let (at, slot, job) = jobs[n];
                    let Some(mut file) = self.files[slot.to_usize()].take() else { return };
                    let before = self.jobs.len();
                    ctx.rt.charge(Cost::MapNode(1));
                    match block {
                        Some(block) if matches!(job, Job::Xattrs) => {
                            let values = match xattrs {
                                Some((last, values)) if last == at => values,
                                _ => ctx.values_of_block(block, file.number, VolumeBlock(at)),
                            };
                            xattrs = Some((at, values));
                            file.charge(values);
                        }
                        Some(block) => self.job(ctx, found, &mut file, slot, VolumeBlock(at), block, job),
                        None => {
                            file.damaged = true;
                            found.report.add(
                                Code::ReadError,
                                file.spot().at_block(at),
                                "unreadable",
                                "a part of the map",
                            );
                        }
                    }
                    file.pending += (self.jobs.len() - before).fit_u32();
                    file.pending -= 1;
                    if file.pending == 0 {
                        finish(ctx, found, &mut file);
                    } else {
                        self.files[slot.to_usize()] = Some(file);
                    }
                })
                .await;
        }
        self.jobs.clear();
        self.files.clear();
    }

    /// Takes jobs off the list: all of them, unless they could lead to too many new jobs.
    fn next_jobs(&mut self, block_bytes: usize) -> Vec<(u64, u32, Job)> {
        let room = JOBS_MAX.saturating_sub(self.jobs.len());
        let more = |job: &Job| match job {
            Job::Extents { depth: 0, .. } | Job::Pointers { levels: 0 | 1, .. } | Job::Xattrs => 0,
            Job::Extents { .. } | Job::Pointers { .. } => block_bytes / 4,
        };
        let mut sum = 0;
        let fits = |(_, _, job): &&(u64, u32, Job)| {
            sum += more(job);
            sum <= room
        };
        let count = self.jobs.iter().rev().take_while(fits).count().max(1);
        self.jobs.split_off(self.jobs.len() - count)
    }

    #[allow(clippy::too_many_arguments)] // a job, its file and its block
    fn job(
        &mut self,
        ctx: &Context,
        found: &mut Found,
        file: &mut File,
        slot: u32,
        at: VolumeBlock,
        block: &[u8],
        job: Job,
    ) {
        match job {
            Job::Extents { depth, range } => {
                if let Some(seed) = file.seed(ctx)
                    && let Err(corrupt) =
                        verify_extent_checksum(block, seed, Place::ExtentNode(file.number, Some(at)))
                {
                    found.report.corrupt(Code::ExtentChecksum, file.spot().at_block(at.0), &corrupt);
                }
                let cx = ExtentContext {
                    sb: &ctx.sb,
                    inode: file.number,
                    block: Some(at),
                    depth: Some(depth),
                    range,
                };
                self.extents(ctx, found, file, slot, block, cx);
            }
            Job::Pointers { levels, logical } => {
                self.pointers(ctx, found, file, slot, at, block, levels, logical);
            }
            // The caller has read these.
            Job::Xattrs => {}
        }
    }

    fn extents(
        &mut self,
        ctx: &Context,
        found: &mut Found,
        file: &mut File,
        slot: u32,
        bytes: &[u8],
        cx: ExtentContext<'_>,
    ) {
        let spot = match cx.block {
            Some(block) => file.spot().at_block(block.0),
            None => file.spot(),
        };
        let (node, damaged) = match ExtentNode::salvage_into(bytes, &cx, &mut self.spare) {
            Ok(read) => read,
            Err(corrupt) => {
                file.damaged = true;
                let code = match corrupt.problem {
                    Problem::Field { field: "ei_block" | "ee_block", .. } => Code::ExtentEntry,
                    _ => Code::ExtentHeader,
                };
                return found.report.corrupt(code, spot, &corrupt);
            }
        };
        // e2fsck expects room for all entries that fit, or for up to two fewer; Linux accepts any
        // number but 0.
        let (stored, room) = (ExtentNode::stored_capacity(bytes), ExtentNode::capacity(bytes.len(), false));
        if stored + 2 < room {
            let expected = format!("at least {}", room - 2);
            found.report.add(Code::ExtentHeader, spot.clone(), format!("eh_max is {stored}"), expected);
        }
        for (range, corrupt) in &damaged {
            file.damaged = true;
            let at = spot.clone().at_file_block(range.start);
            found.report.corrupt(Code::ExtentEntry, at, corrupt);
        }
        let first = match &node {
            ExtentNode::Leaf(extents) => extents.first().map(|extent| u64::from(extent.logical.0)),
            ExtentNode::Index { entries, .. } => entries.first().map(|entry| u64::from(entry.logical.0)),
        };
        if cx.block.is_some()
            && damaged.is_empty()
            && let Some(first) = first
            && first != cx.range.start
        {
            let expected = format!("{first}, where its child begins");
            let found_text = format!("an index entry for block {}", cx.range.start);
            found.report.add(Code::ExtentIndex, spot.clone(), found_text, expected);
        }
        match node {
            ExtentNode::Leaf(extents) => {
                for extent in &extents {
                    if extent.unwritten && file.role == Role::Directory {
                        let at = spot.clone().at_file_block(extent.logical.0.into());
                        found.report.add(Code::ExtentUnwritten, at, "unwritten blocks", "written ones");
                    }
                    run(
                        ctx,
                        found,
                        file,
                        u64::from(extent.logical.0),
                        extent.physical,
                        extent.blocks,
                        !extent.unwritten,
                    );
                }
                self.spare = extents;
            }
            ExtentNode::Index { depth, entries } => {
                for n in 0..entries.len() {
                    let child = entries[n].child;
                    if !ctx.sb.is_valid_block(child) {
                        continue;
                    }
                    let range = cx.child(depth, &entries, n).range;
                    if claim_node(ctx, found, file, child) {
                        self.jobs.push((child.0, slot, Job::Extents { depth: depth - 1, range }));
                    }
                }
            }
        }
    }

    fn root_pointers(&mut self, ctx: &Context, found: &mut Found, file: &mut File, slot: u32, inode: &Inode) {
        for RootPointer { logical, at, levels } in root_pointers(&ctx.sb, inode) {
            match check_pointer(at, &ctx.sb, Place::Inode(inode.number)) {
                Ok(VolumeBlock(0)) => {}
                Ok(at) if levels == 0 => run(ctx, found, file, logical, at, 1, true),
                Ok(at) => {
                    if claim_node(ctx, found, file, at) {
                        self.jobs.push((at.0, slot, Job::Pointers { levels, logical }));
                    }
                }
                Err(corrupt) => {
                    file.damaged = true;
                    found.report.corrupt(pointer_code(file), file.spot().at_file_block(logical), &corrupt);
                }
            }
        }
    }

    #[allow(clippy::too_many_arguments)] // a job, its file and its block
    fn pointers(
        &mut self,
        ctx: &Context,
        found: &mut Found,
        file: &mut File,
        slot: u32,
        at: VolumeBlock,
        block: &[u8],
        levels: u32,
        logical: u64,
    ) {
        let step = u64::from(pointers_per_block(ctx.sb.block_size())).pow(levels - 1);
        // Neighbouring blocks are claimed together.
        let mut open: Option<(u64, VolumeBlock, u32)> = None;
        for (n, pointer) in parse_indirect(block, &ctx.sb, file.number, at).enumerate() {
            let logical = logical + n.to_u64() * step;
            match pointer {
                Ok(VolumeBlock(0)) => {}
                // In the resize inode only reserved blocks have a meaning; they are checked
                // separately.
                Ok(to) if file.role == Role::Resize && !ctx.own.contains(to.0) => file.clusters += 1,
                Ok(to) if levels == 1 => match &mut open {
                    Some((from, start, blocks))
                        if *from + u64::from(*blocks) == logical && start.0 + u64::from(*blocks) == to.0 =>
                    {
                        *blocks += 1;
                    }
                    _ => {
                        if let Some((from, start, blocks)) = open.replace((logical, to, 1)) {
                            run(ctx, found, file, from, start, blocks, true);
                        }
                    }
                },
                Ok(to) => {
                    if claim_node(ctx, found, file, to) {
                        self.jobs.push((to.0, slot, Job::Pointers { levels: levels - 1, logical }));
                    }
                }
                Err(corrupt) => {
                    file.damaged = true;
                    let spot = file.spot().at_block(at.0).at_file_block(logical);
                    found.report.corrupt(pointer_code(file), spot, &corrupt);
                }
            }
        }
        if let Some((from, start, blocks)) = open {
            run(ctx, found, file, from, start, blocks, true);
        }
    }
}

fn pointer_code(file: &File) -> Code {
    match file.role {
        Role::BadBlocks => Code::BadBlocks,
        Role::Resize => Code::ResizeInode,
        _ => Code::MapPointer,
    }
}

/// Claims a block of the map itself; returns whether to read it.
///
/// A block that is claimed twice is read again for each owner, up to a limit: a hostile tree could
/// otherwise name one block without end.
fn claim_node(ctx: &Context, found: &mut Found, file: &mut File, at: VolumeBlock) -> bool {
    file.clusters += 1;
    if let Some(owners) = &mut found.owners {
        owners.touch(at.0, 1, file.number.0);
        return !ctx.claims.is_shared(at.0, 1).0 || ctx.limits.repeat(1);
    }
    // The resize inode's blocks are part of the layout, and were claimed there.
    let is_own = file.role == Role::Resize && ctx.own.contains(at.0);
    let is_first = !is_own && !ctx.claims.claim(ctx.claims.cluster(at), 1);
    is_first || ctx.limits.repeat(1)
}

/// A run of a file's blocks.
fn run(
    ctx: &Context,
    found: &mut Found,
    file: &mut File,
    logical: u64,
    at: VolumeBlock,
    blocks: u32,
    written: bool,
) {
    let count = u64::from(blocks);
    ctx.rt.charge(Cost::Run(1));
    file.end = file.end.max(logical + count);
    if written {
        file.written_end = file.written_end.max(logical + count);
    }
    let claims = &ctx.claims;
    if let Some(owners) = &mut found.owners {
        return owners.touch(at.0, count, file.number.0);
    }
    match file.role {
        Role::Resize => {
            file.clusters += count;
            return;
        }
        Role::BadBlocks => return bad_blocks(ctx, found, file, at, count),
        _ => {}
    }
    // With blocks of more than 4 KiB, pointers reach beyond 2^32 file blocks, but no reader goes
    // there.
    let this =
        u32::try_from(logical).map(|logical| Run { number: file.number.0, logical, block: at.0, blocks });
    match (file.role, this) {
        (Role::Directory, Ok(this)) => found.keep_dir_run(this),
        (Role::Value, Ok(this)) => found.keep_value_run(this),
        (Role::Symlink, _) if logical == 0 && file.is_symlink => {
            let encrypted = file.flags.contains(InodeFlags::ENCRYPT);
            found.keep(Target { block: at.0, number: file.number.0, size: file.size, encrypted });
            file.lacks_target = false;
        }
        _ => {}
    }
    let per_cluster = u64::from(ctx.sb.blocks_per_cluster());
    if per_cluster == 1 {
        file.clusters += count;
        found.claiming.add(claims, claims.cluster(at), count);
        return;
    }
    if at.0 % per_cluster != logical % per_cluster {
        let text = format!("block {} of the file at block {at}", logical);
        let expected = "the same place in its cluster";
        found.report.add(Code::MapCluster, file.spot().at_file_block(logical), text, expected);
    }
    let first = logical / per_cluster;
    let last = (logical + count - 1) / per_cluster;
    file.keep_clusters(ctx, first, claims.cluster(at), last - first + 1);
}

/// Claims blocks of the list of bad blocks. They may be anywhere, but the volume cannot work if
/// blocks of its own are bad.
fn bad_blocks(ctx: &Context, found: &mut Found, file: &mut File, at: VolumeBlock, count: u64) {
    let end = at.0 + count;
    let mut next = at.0;
    // A cluster with several bad blocks is claimed once, when all of them are known.
    let mut claim = |from: u64, to: u64| {
        if from < to {
            let (first, last) =
                (ctx.claims.cluster(VolumeBlock(from)), ctx.claims.cluster(VolumeBlock(to - 1)));
            file.keep_clusters(ctx, 0, first, last - first + 1);
        }
    };
    for (from, to) in ctx.own.within(at.0, end) {
        let spot = Spot::inode(InodeNumber::BAD_BLOCKS.0).at_block(from);
        let text = match to - from {
            1 => "a block of the volume's own structures".to_owned(),
            more => format!("{more} blocks of the volume's own structures"),
        };
        found.report.add(Code::BadBlocks, spot, text, "blocks of files");
        claim(next, from);
        next = to;
    }
    claim(next, end);
}
