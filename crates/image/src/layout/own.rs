//! The volume's own files: journal, orphan file, resize inode.

use super::block_map::{FileMap, LogicalRun};
use super::free_runs::{Short, Space};
use super::geometry::Geometry;
use super::params::Params;
use extant_format::{Compat, FileBlock, VolumeBlock};

/// The locations of these files.
#[derive(Debug, Default)]
pub(crate) struct Own {
    pub(crate) journal: Option<FileMap>,
    pub(crate) orphan_file: Option<FileMap>,
    /// The double indirect block of the resize inode.
    pub(crate) resize_map: Option<VolumeBlock>,
}

impl Own {
    /// Places the files on a volume of `blocks` blocks.
    pub(crate) fn place(geometry: &mut Geometry, params: &Params, blocks: u64) -> Result<Self, Short> {
        let mut own = Self::default();
        let heads = geometry.growing_heads();
        let space = &mut geometry.space;
        let outside = |space: &mut Space, blocks| {
            heads
                .iter()
                .find_map(|zones| space.take_run_outside(zones, blocks))
                .or_else(|| space.take_run(blocks))
        };
        if geometry.sb.compat().contains(Compat::RESIZE_INODE) {
            own.resize_map = Some(outside(space, 1).ok_or(Short { missing: 1 })?);
        }
        let whole = |blocks| [LogicalRun::written(FileBlock(0), blocks)];
        if let Some(blocks) = params.orphan_blocks(blocks) {
            // Without extents, the file would need map blocks, which must not move either; such
            // volumes are too rare to handle.
            let start = if params.has_extents() { outside(space, blocks.into()) } else { None };
            own.orphan_file = Some(match start {
                Some(start) => FileMap::single(start, blocks),
                None => FileMap::take(space, &whole(blocks), params)?,
            });
        }
        if let Some(blocks) = params.journal_blocks(blocks) {
            own.journal = Some(FileMap::take(space, &whole(blocks), params)?);
        }
        Ok(own)
    }
}
