//! The orphan file of a volume.

use crate::view::View;
use crate::{Result, RunState};
use extant_format::{Corrupt, FileBlock, Place, UintExt, VolumeBlock};

/// The largest orphan file that Linux accepts, in blocks.
const FILE_BLOCKS_MAX: u64 = 512;

/// Returns the blocks of the orphan file, in order; none on a volume without one.
///
/// # Errors
/// The file has holes, or is longer than Linux creates it.
pub(crate) async fn orphan_file_blocks(view: &View) -> Result<Vec<VolumeBlock>> {
    let Some(number) = view.superblock().orphan_file() else { return Ok(Vec::new()) };
    let inode = view.inode(number).await?;
    let mut blocks = Vec::new();
    let mut runs = view.runs(&inode);
    while let Some(run) = runs.next().await.map_err(|lost| lost.error)? {
        let place = Place::OrphanFile(FileBlock(run.logical.fit_u32()));
        let RunState::Written(first) = run.state else {
            return Err(Corrupt::field(place, "block", 0, "mapped and written").into());
        };
        if run.logical + run.blocks > FILE_BLOCKS_MAX {
            let rule = "at most 512 blocks long";
            return Err(Corrupt::field(place, "length", run.logical + run.blocks, rule).into());
        }
        blocks.extend((first.0..first.0 + run.blocks).map(VolumeBlock));
    }
    Ok(blocks)
}
