//! Blocks that are claimed more than once: a second pass over maps that names all owners.

use crate::context::Context;
use crate::file::{File, Role};
use crate::found::{Found, XattrUse};
use crate::map::Files;
use crate::own_files::read_inode;
use crate::owners::{Contested, Owners};
use extant_format::{Compat, FileKind, Inode, InodeFlags, InodeNumber, UintExt};

/// The only pointer of the resize inode.
const RESIZE_POINTER: usize = 13;

/// Reads all maps again and reports who claims blocks that have several owners.
pub(crate) async fn name_owners(ctx: &Context, xattr_uses: &[XattrUse]) -> Vec<Contested> {
    let mut owners = Owners::new(ctx);
    if owners.is_empty() {
        return Vec::new();
    }
    ctx.limits.next_pass();
    for one in xattr_uses {
        owners.touch(one.block, 1, one.number);
    }
    if ctx.sb.compat().contains(Compat::RESIZE_INODE)
        && let Some(inode) = read_inode(ctx, InodeNumber::RESIZE).await
    {
        // The rest of its map consists of reserved descriptor blocks.
        owners.touch(inode.block_pointer(RESIZE_POINTER).0, 1, InodeNumber::RESIZE.0);
    }
    let mut found = Found::new(ctx);
    // Damage in maps was reported in the first pass.
    found.report = found.report.muted();
    found.owners = Some(owners);
    let mut files = Files::default();
    let inode_bytes = usize::from(ctx.sb.inode_size());
    for (group, info) in ctx.groups.iter().enumerate().filter(|(_, info)| info.table) {
        let first = group.fit_u32() * ctx.sb.inodes_per_group();
        let bytes = u64::from(ctx.sb.inodes_per_group()) * inode_bytes.to_u64();
        let blocks = bytes.div_ceil(ctx.source.block_bytes().to_u64());
        let most = u64::from(ctx.source.most());
        let start = info.gd.inode_table.0;
        let runs =
            (0..blocks).step_by(most.to_usize()).map(|at| (start + at, most.min(blocks - at).fit_u32()));
        let mut n = 0;
        let stream = ctx.source.stream(runs);
        while let Some(((), piece)) = stream.next().await {
            for bytes in
                piece.bytes().chunks_exact(inode_bytes).take((ctx.sb.inodes_per_group() - n).to_usize())
            {
                n += 1;
                if let Some((role, inode)) = with_map(ctx, InodeNumber(first + n), bytes) {
                    files.add(ctx, &mut found, File::new(ctx, &inode, role), &inode);
                }
            }
            if files.is_full() {
                files.drain(ctx, &mut found).await;
            }
        }
    }
    files.drain(ctx, &mut found).await;
    found.owners.map_or_else(Vec::new, |owners| {
        owners.report(ctx, &ctx.report);
        owners.into_contested()
    })
}

/// Parses an inode; `None` unless it is in use and has a map.
fn with_map(ctx: &Context, number: InodeNumber, bytes: &[u8]) -> Option<(Role, Inode)> {
    let is_known = ctx.inodes.kind(number) != crate::state::Kind::Unused;
    if !is_known || number == InodeNumber::RESIZE {
        return None;
    }
    let inode = Inode::parse_unchecked(bytes, &ctx.sb, number).ok()?;
    let is_own = ctx.sb.is_own_inode(number);
    let has_map = matches!(inode.kind(), Some(FileKind::Regular | FileKind::Directory))
        || is_own
        || inode.kind() == Some(FileKind::Symlink) && inode.size() >= 60;
    let role = if number == InodeNumber::BAD_BLOCKS { Role::BadBlocks } else { Role::Own };
    (has_map && !inode.flags().contains(InodeFlags::INLINE_DATA)).then_some((role, inode))
}
