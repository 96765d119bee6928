//! Inodes of the volume itself: reserved ones, and those that the superblock names.

use crate::context::Context;
use crate::file::{File, Role};
use crate::finding::Spot;
use crate::found::Found;
use crate::map::Files;
use crate::{Code, fields, xattr_checks};
use extant_format::{Compat, FileKind, Inode, InodeFlags, InodeNumber, RoCompat, indirect_capacity};

/// Checks an inode of the volume itself, and adds its map to `files`.
pub(crate) fn check(ctx: &Context, inode: &Inode, files: &mut Files, found: &mut Found) {
    let (sb, number) = (&ctx.sb, inode.number);
    let spot = Spot::inode(number.0);
    let raw = sb.raw();
    let has_quota = sb.ro_compat().contains(RoCompat::QUOTA);
    let quotas = [raw.s_usr_quota_inum, raw.s_grp_quota_inum, raw.s_prj_quota_inum];
    let is_quota = has_quota && quotas.iter().any(|quota| quota.get() == number.0);
    let is_journal = sb.journal_inode() == Some(number);
    let is_orphan_file = sb.orphan_file() == Some(number);
    fields::check_own(ctx, inode, is_journal || is_quota || is_orphan_file, found);
    let has_map = inode.raw.i_block != [0; 60];
    let empty = inode.links() == 0 && inode.block_pointer(0).0 == 0 && inode.raw.i_blocks_lo.get() == 0;
    let role = match number {
        InodeNumber::BAD_BLOCKS => Role::BadBlocks,
        InodeNumber::RESIZE => Role::Resize,
        _ => Role::Own,
    };
    if is_journal || is_quota || is_orphan_file {
        if inode.kind() != Some(FileKind::Regular) {
            let code = match (is_journal, is_quota) {
                (true, _) => Code::JournalInode,
                (_, true) => Code::QuotaInode,
                _ => Code::OrphanFile,
            };
            found.report.add(code, spot, format!("mode {:06o}", inode.mode()), "that of a regular file");
            return;
        }
    } else if matches!(number, InodeNumber::JOURNAL | InodeNumber::USER_QUOTA | InodeNumber::GROUP_QUOTA)
        && !empty
    {
        found.report.add(Code::InodeReserved, spot, "it has contents", "none, for nothing refers to it");
        return;
    } else if number == InodeNumber::RESIZE {
        if inode.mode() != 0 && inode.kind() != Some(FileKind::Regular) {
            let text = format!("mode {:06o}", inode.mode());
            found.report.add(Code::InodeMode, spot, text, "that of a regular file");
            return;
        }
        if !sb.compat().contains(Compat::RESIZE_INODE) {
            if !empty || has_map {
                found.report.add(Code::ResizeInode, spot, "it has contents", "none without resize_inode");
            }
            return;
        }
    } else if number == InodeNumber(5) {
        // The boot loader's inode, which a program may have filled.
        if inode.kind() == Some(FileKind::Directory) {
            found.report.add(Code::InodeMode, spot, "a directory", "a regular file");
            return;
        }
        if inode.mode() == 0 && inode.xattr_block().is_some() {
            return xattr_checks::of_no_file(ctx, inode, found);
        }
    } else if number == InodeNumber::BAD_BLOCKS {
        let raw = &inode.raw;
        let owned = inode.mode() != 0 || raw.i_uid.get() != 0 || raw.i_gid.get() != 0 || inode.links() != 0;
        let inline = inode.flags().contains(InodeFlags::INLINE_DATA);
        if owned || inline || raw.i_file_acl_lo.get() != 0 {
            let expected = "nothing but a list of blocks";
            return found.report.add(Code::InodeReserved, spot, "owner, mode, links or attributes", expected);
        }
    } else if inode.mode() != 0 {
        let text = format!("mode {:06o}", inode.mode());
        found.report.add(Code::InodeMode, spot, text, "0, for it is reserved");
        return;
    } else if inode.xattr_block().is_some() {
        return xattr_checks::of_no_file(ctx, inode, found);
    }
    // An inode without a file kind has no map, except for these two.
    let is_file = inode.kind() == Some(FileKind::Regular) || role != Role::Own;
    let most = indirect_capacity(sb.block_size()) << sb.block_size().log2();
    // Only regular files use the high bits, but e2fsck looks at them in other inodes, too.
    let size = u64::from(inode.raw.i_size_high.get()) << 32 | u64::from(inode.raw.i_size_lo.get());
    if !is_file && (inode.blocks_512(sb) != 0 || size > most) {
        found.report.add(Code::InodeReserved, spot, "it has contents", "none, for it is no file");
        return;
    }
    if !is_file || inode.flags().contains(InodeFlags::INLINE_DATA) {
        return;
    }
    let mut record = File::new(ctx, inode, role);
    // Check only the attribute block, as e2fsck does; attributes in the inode itself do no harm in
    // such a file.
    record.clusters += xattr_checks::in_block(ctx, inode, Vec::new(), found);
    if has_map || inode.blocks_512(sb) != 0 || record.clusters != 0 {
        files.add(ctx, found, record, inode);
    }
}
