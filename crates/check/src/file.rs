//! What is known of a file while its map is read, and the checks made afterwards.

use crate::context::{Context, Values};
use crate::finding::Spot;
use crate::found::{Found, Uncharged};
use crate::{Code, finding};
use extant_format::{BlockRange, ChecksumSeed, FileKind, Inode, InodeFlags, InodeNumber, UintExt};

/// What a file's blocks are used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Regular,
    Directory,
    /// Only the count of its blocks and the link's target are checked.
    Symlink,
    /// An attribute's value.
    Value,
    /// Journal, quota or orphan file.
    Own,
    /// The list of bad blocks.
    BadBlocks,
    /// Reserved descriptor blocks.
    Resize,
}

/// A file whose map is being read.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) number: InodeNumber,
    pub(crate) role: Role,
    /// `i_generation`, for the checksums of its blocks.
    pub(crate) generation: u32,
    pub(crate) size: u64,
    pub(crate) flags: InodeFlags,
    /// `i_blocks`, in units of 512 bytes.
    pub(crate) stored_512: u64,
    /// Clusters found so far.
    pub(crate) clusters: u64,
    /// Values of attributes in other inodes, and the clusters that they are charged.
    pub(crate) values: u64,
    pub(crate) value_clusters: u64,
    /// One past the last mapped block, and one past the last written block.
    pub(crate) end: u64,
    pub(crate) written_end: u64,
    /// Runs in clusters (first logical, first physical, count), with bigalloc only: pieces of one
    /// cluster may lie in several nodes.
    pub(crate) cluster_runs: Vec<(u64, u64, u64)>,
    pub(crate) is_symlink: bool,
    /// A symbolic link whose target is in a block that the sweep has not found yet.
    pub(crate) lacks_target: bool,
    /// Parts of the map are missing.
    pub(crate) damaged: bool,
    /// Owners, if the file counts for quota.
    pub(crate) owners: Option<[u32; 3]>,
    /// Index in the task's list of directories, for a directory.
    pub(crate) dir: usize,
    /// Parts of the map that are still to be read.
    pub(crate) pending: u32,
}

/// Runs of a file on a volume with bigalloc that are not counted as memory.
const RUNS_FREE: usize = 1024;

impl File {
    pub(crate) fn new(ctx: &Context, inode: &Inode, role: Role) -> Self {
        Self {
            number: inode.number,
            role,
            generation: inode.raw.i_generation.get(),
            size: inode.size(),
            flags: inode.flags(),
            stored_512: inode.blocks_512(&ctx.sb),
            clusters: 0,
            values: 0,
            value_clusters: 0,
            end: 0,
            written_end: 0,
            cluster_runs: Vec::new(),
            is_symlink: inode.kind() == Some(FileKind::Symlink),
            lacks_target: false,
            damaged: false,
            owners: None,
            dir: 0,
            pending: 0,
        }
    }

    pub(crate) fn spot(&self) -> Spot {
        Spot::inode(self.number.0)
    }

    /// The seed of the checksums of its blocks, if they have checksums.
    pub(crate) fn seed(&self, ctx: &Context) -> Option<ChecksumSeed> {
        ctx.seed.map(|seed| seed.for_inode(self.number, self.generation))
    }

    /// Adds values in other inodes.
    pub(crate) fn charge(&mut self, values: Values) {
        self.clusters += values.clusters;
        self.value_clusters += values.clusters;
        self.values += values.inodes;
    }

    /// Keeps a run of clusters, to be claimed when the file is finished.
    pub(crate) fn keep_clusters(&mut self, ctx: &Context, logical: u64, at: u64, count: u64) {
        let run = (logical, at, count);
        if self.cluster_runs.len() < RUNS_FREE || ctx.limits.take(2 * size_of_val(&run).to_u64()) {
            self.cluster_runs.push(run);
        }
    }
}

/// Claims the clusters of bad blocks, each once.
fn claim_bad_clusters(ctx: &Context, file: &mut File) {
    let mut runs: Vec<(u64, u64)> = std::mem::take(&mut file.cluster_runs)
        .into_iter()
        .map(|(_, start, count)| (start, start + count))
        .collect();
    runs.sort_unstable();
    let mut next = 0;
    for (start, end) in runs {
        let start = start.max(next);
        if start < end {
            ctx.claims.claim(start, end - start);
            next = end;
        }
    }
}

/// Claims a file's clusters, each once. A cluster of the file occupies one cluster of the volume.
fn claim_clusters(ctx: &Context, found: &mut Found, file: &mut File) {
    let mut runs = std::mem::take(&mut file.cluster_runs);
    runs.sort_unstable();
    // The cluster claimed last: logical and physical.
    let mut last: Option<(u64, u64)> = None;
    for (mut logical, mut at, mut count) in runs {
        if let Some((_, other)) = last.filter(|last| last.0 == logical && last.1 != at) {
            let block = |cluster| ctx.claims.block(cluster);
            let spot = file.spot().at_file_block(logical * u64::from(ctx.sb.blocks_per_cluster()));
            let text = format!("a cluster of the file in those at blocks {} and {}", block(other), block(at));
            found.report.add(Code::MapCluster, spot, text, "in one");
        }
        if last == Some((logical, at)) {
            (logical, at, count) = (logical + 1, at + 1, count - 1);
        }
        if count == 0 {
            continue;
        }
        file.clusters += count;
        ctx.claims.claim(at, count);
        last = Some((logical + count - 1, at + count - 1));
    }
}

/// Checks size and count of blocks once the whole map is known.
pub(crate) fn finish(ctx: &Context, found: &mut Found, file: &mut File) {
    if found.owners.is_some() {
        return;
    }
    if file.role == Role::BadBlocks {
        claim_bad_clusters(ctx, file);
    } else if ctx.sb.blocks_per_cluster() > 1 {
        claim_clusters(ctx, found, file);
    }
    let spot = file.spot();
    let bytes_512 = u64::from(ctx.sb.blocks_per_cluster()) << (ctx.sb.block_size().log2() - 9);
    let counted = file.clusters * bytes_512;
    let without_values = (file.clusters - file.value_clusters) * bytes_512;
    if file.values > 0 && !file.damaged && file.stored_512 == without_values {
        // Judged once the form of the values is known.
        found.keep(Uncharged {
            number: file.number.0,
            stored_512: file.stored_512,
            counted_512: counted,
            values: file.values,
            owners: file.owners.take(),
        });
    } else if counted != file.stored_512 && !matches!(file.role, Role::BadBlocks) {
        let expected =
            format!("{counted}{}", if file.damaged { ", as far as the map can be read" } else { "" });
        found.report.add_with(
            Code::InodeBlocks,
            spot.clone(),
            format!("i_blocks is {}", file.stored_512),
            expected,
            Some(counted),
        );
    }
    if let Some(owners) = file.owners {
        found.usage.add(owners, counted * 512, 1 + file.values);
    }
    let block_bytes = u64::from(ctx.sb.block_size().bytes());
    let (found_size, end) = (file.size, file.end);
    let wrong_size = |expected: String| {
        let text = format!("i_size is {found_size}");
        found.report.push(finding::Finding {
            code: Code::InodeSize,
            spot: spot.clone(),
            name: None,
            path: None,
            found: text,
            expected,
            value: None,
            suspected: false,
        });
    };
    match file.role {
        Role::Directory => {
            let blocks = file.size / block_bytes;
            if !file.size.is_multiple_of(block_bytes) {
                wrong_size("whole blocks".into());
            } else if blocks == 0 || blocks > u64::from(u32::MAX) {
                wrong_size("at least one block".into());
            } else if blocks != end && !file.damaged {
                let spare = u64::from(ctx.sb.raw().s_prealloc_dir_blocks);
                if blocks > end || end - blocks > spare {
                    wrong_size(format!("{}, where the map ends", end * block_bytes));
                }
            }
            // Look for entries in the mapped blocks, whatever the size says.
            let blocks = u32::try_from(blocks.min(end.max(1))).unwrap_or(u32::MAX);
            // It is not in the list if there was no memory for it.
            if let Some(dir) = found.dirs.get_mut(file.dir).filter(|dir| dir.number == file.number.0) {
                dir.blocks = if file.damaged { u32::try_from(end).unwrap_or(u32::MAX) } else { blocks };
                dir.damaged = file.damaged;
            }
        }
        Role::Regular | Role::Value | Role::Own => {
            let is_extents = file.flags.contains(InodeFlags::EXTENTS);
            let most = match is_extents {
                true => BlockRange::MAP_END * block_bytes - 1,
                false => extant_format::indirect_capacity(ctx.sb.block_size()).saturating_mul(block_bytes),
            };
            // Blocks beyond the end are allowed if they were never written (preallocation), or for
            // a verity tree.
            let last_written = file.written_end.saturating_sub(1) * block_bytes;
            let beyond = file.written_end > 0 && file.size < last_written;
            if beyond && !file.flags.contains(InodeFlags::VERITY) {
                wrong_size(format!("at least {last_written}, where its last written block begins"));
            } else if file.size > most {
                wrong_size(format!("at most {most}"));
            }
        }
        Role::Symlink if file.lacks_target && !file.damaged => {
            found.report.add(Code::Symlink, spot, "its target has no block", "one");
        }
        Role::Symlink | Role::BadBlocks | Role::Resize => {}
    }
}
