//! The blocks of the root directory and of the volume's own files. No other file may claim them.

use crate::Result;
use crate::alloc::Owned;
use crate::view::View;
use extant_format::{Compat, Incompat, InodeNumber, RoCompat, VolumeBlock};
use std::ops::Range;

/// Index of the resize inode's pointer to its only block outside the fronts of groups; all its
/// other blocks are reserved for descriptors.
const RESIZE_POINTER: usize = 13;
/// `EXT4_BOOT_LOADER_INO`.
const BOOT_LOADER: InodeNumber = InodeNumber(5);

/// Returns the blocks of each of the volume's own inodes and of its root directory, both data and
/// map nodes.
///
/// # Errors
/// One of them is damaged; such a volume is not opened for writing.
pub(crate) async fn own_blocks(view: &View) -> Result<Vec<Owned>> {
    let sb = view.superblock();
    let mut numbers = vec![InodeNumber::BAD_BLOCKS, InodeNumber::ROOT, BOOT_LOADER];
    numbers.extend(sb.journal_inode());
    numbers.extend(sb.orphan_file());
    if sb.ro_compat().contains(RoCompat::QUOTA) {
        let raw = sb.raw();
        let quotas = [raw.s_usr_quota_inum, raw.s_grp_quota_inum, raw.s_prj_quota_inum];
        numbers.extend(quotas.iter().map(|number| InodeNumber(number.get())).filter(|number| number.0 > 0));
    }
    let mut all = Vec::new();
    let mut own = |owner: InodeNumber, blocks: Range<VolumeBlock>| all.push(Owned { blocks, owner });
    for number in numbers {
        let inode = view.inode(number).await?;
        let is_unused = inode.raw.i_block == [0; 60] || (number == BOOT_LOADER && inode.links() == 0);
        if is_unused {
            continue;
        }
        view.blocks_of(&inode).await?.into_iter().for_each(|blocks| own(number, blocks));
    }
    let one = |at: VolumeBlock| at..VolumeBlock(at.0 + 1);
    if sb.compat().contains(Compat::RESIZE_INODE) {
        let inode = view.inode(InodeNumber::RESIZE).await?;
        let at = inode.block_pointer(RESIZE_POINTER);
        if at.0 > 0 && sb.is_valid_block(at) {
            own(InodeNumber::RESIZE, one(at));
        }
    }
    if sb.incompat().contains(Incompat::MMP) {
        own(InodeNumber(0), one(VolumeBlock(sb.raw().s_mmp_block.get())));
    }
    Ok(all)
}
