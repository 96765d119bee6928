//! Extents of volumes that allocate clusters (`bigalloc`).
//!
//! The blocks of one logical cluster are in one physical cluster, at the same offsets. Some of them
//! may be unmapped. Those are *implied*: their place is known and belongs to the file, and they
//! read as zeroes (Linux: `get_implied_cluster_alloc`).

use super::block_state::OnDisk;
use extant_format::{BlockRange, ClusterSize, Corrupt, Extent, Place, VolumeBlock};

/// Checks the extents of one node.
///
/// # Errors
/// An extent whose offset within its physical cluster differs from that in the file, or a logical
/// cluster split over two physical ones.
pub(crate) fn check(extents: &[Extent], cluster: ClusterSize, place: Place) -> Result<(), Corrupt> {
    let is_aligned = |e: &Extent| cluster.offset(e.physical.0) == cluster.offset(e.logical.0.into());
    let in_two = |two: &[Extent]| {
        let (last, next) = (two[0].logical_end() - 1, u64::from(two[1].logical.0));
        let last_at = two[0].physical.0 + u64::from(two[0].blocks) - 1;
        cluster.start(last) == cluster.start(next)
            && cluster.start(last_at) != cluster.start(two[1].physical.0)
    };
    let unaligned = extents.iter().find(|e| !is_aligned(e));
    match unaligned.or_else(|| extents.windows(2).find(|two| in_two(two)).map(|two| &two[1])) {
        None => Ok(()),
        Some(extent) => Err(broken(extent, place)),
    }
}

/// The error for an extent whose place does not fit its cluster.
pub(super) fn broken(extent: &Extent, place: Place) -> Corrupt {
    let rule = "at the place of its blocks within their cluster (bigalloc)";
    Corrupt::field(place, "ee_start", extent.physical.0, rule)
}

/// Marks the implied blocks among the holes. The runs are in order, without gaps, and cover whole
/// clusters. A run whose offset within its physical cluster differs from that in the file implies
/// nothing: this is damage, and changing the map will report it.
pub(crate) fn with_implied(
    runs: Vec<(BlockRange, OnDisk)>,
    cluster: ClusterSize,
) -> Vec<(BlockRange, OnDisk)> {
    let mut joined: Vec<(BlockRange, OnDisk)> = Vec::with_capacity(runs.len());
    for (range, known) in runs {
        match joined.last_mut() {
            Some((last, OnDisk::Hole)) if known == OnDisk::Hole => last.end = range.end,
            _ => joined.push((range, known)),
        }
    }
    let place = |n: Option<usize>| match n.and_then(|n| joined.get(n)) {
        Some((range, OnDisk::Written(at) | OnDisk::Unwritten(at)))
            if cluster.offset(at.0) == cluster.offset(range.start) =>
        {
            Some((*range, *at))
        }
        _ => None,
    };
    let mut found = Vec::with_capacity(joined.len());
    for (n, &(range, known)) in joined.iter().enumerate() {
        if known != OnDisk::Hole {
            found.push((range, known));
            continue;
        }
        let before = place(n.checked_sub(1));
        let head = before.map_or(range.start, |_| cluster.end(range.start).min(range.end));
        if let Some((run, at)) = before.filter(|_| range.start < head) {
            let at = VolumeBlock(at.0 + run.len());
            found.push((range.until(head), OnDisk::Implied(at)));
        }
        let behind = place(Some(n + 1));
        let tail = behind.map_or(range.end, |_| cluster.start(range.end).max(head));
        if head < tail {
            found.push((BlockRange::new(head, tail), OnDisk::Hole));
        }
        if let Some((_, at)) = behind.filter(|_| tail < range.end) {
            let at = VolumeBlock(at.0 - (range.end - tail));
            found.push((BlockRange::new(tail, range.end), OnDisk::Implied(at)));
        }
    }
    found
}

#[cfg(test)]
mod tests;
