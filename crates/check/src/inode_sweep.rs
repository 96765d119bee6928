//! The sweep over inode tables: every inode's own fields, its map and its attributes.

use crate::context::Context;
use crate::file::{File, Role};
use crate::finding::Spot;
use crate::found::{Dir, Found, GroupTotals, ValueHolder};
use crate::limits::PAGE_SLOTS;
use crate::map::Files;
use crate::source::{Feed, Piece};
use crate::state::{Kind, Marks};
use crate::{Code, Cost, fields, xattr_checks};
use extant_format::{
    Compat, FileKind, Group, GroupFlags, Incompat, InlineData, Inode, InodeFlags, InodeNumber, Problem,
    RoCompat, UintExt, ValueInode, Xattrs, bit, bits_are_clear, indirect_capacity, verify_inode_bitmap,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What is read together: bitmaps of some groups, or a part of a group's table.
pub(crate) enum Part {
    /// The groups, each with the block of its inode bitmap.
    Bitmaps(Vec<(u64, u32)>),
    Inodes(Inodes),
}

/// Inodes of a group, numbered from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inodes {
    group: u32,
    /// The first inode in the part's first block.
    start: u32,
    /// Inodes to look at.
    first: u32,
    end: u32,
}

/// The sweep over all inode tables, as far as its tasks share it.
pub(crate) struct Tables {
    groups: Vec<GroupState>,
    /// Inodes that descriptors say are unused, and bitmaps say are not.
    late: Mutex<Vec<Late>>,
}

struct GroupState {
    /// Parts that have not been looked at.
    left: AtomicU32,
    bitmap: Mutex<Option<Box<[u8]>>>,
}

struct Late {
    group: u32,
    first: u32,
    end: u32,
    bitmap: Box<[u8]>,
}

/// Inodes of each group to look at, from the start of its table: those in use by its descriptor.
fn told(ctx: &Context, group: u32) -> u32 {
    let info = &ctx.groups[group.to_usize()];
    let all = ctx.sb.inodes_per_group();
    if !info.table || info.has(&ctx.sb, GroupFlags::INODE_UNINIT) {
        return 0;
    }
    match ctx.sb.has_group_csum() {
        true => all - info.gd.unused_inodes.min(all),
        false => all,
    }
}

fn has_bitmap(ctx: &Context, group: u32) -> bool {
    let info = &ctx.groups[group.to_usize()];
    info.bitmaps && !info.has(&ctx.sb, GroupFlags::INODE_UNINIT)
}

fn per_block(ctx: &Context) -> u32 {
    (ctx.source.block_bytes() / usize::from(ctx.sb.inode_size())).fit_u32()
}

/// The pieces of a group's inode table that hold these inodes, each with its block.
fn inodes_of(ctx: &Context, group: u32, first: u32, end: u32) -> impl Iterator<Item = (Part, u64, u32)> {
    let per_block = per_block(ctx);
    let table = ctx.groups[group.to_usize()].gd.inode_table.0;
    let (from, to) = (first / per_block, end.div_ceil(per_block));
    let most = ctx.source.most();
    (from..to).step_by(most.to_usize()).map(move |block| {
        let blocks = most.min(to - block);
        let start = block * per_block;
        let (first, end) = (first.max(start), end.min(start + blocks * per_block));
        (Part::Inodes(Inodes { group, start, first, end }), table + u64::from(block), blocks)
    })
}

/// Groups whose bitmaps and tables lie together are read together.
fn groups_together(ctx: &Context) -> u32 {
    match ctx.sb.incompat().contains(Incompat::FLEX_BG) {
        true => 1 << ctx.sb.raw().s_log_groups_per_flex.min(6),
        false => 1,
    }
}

/// All parts, in the order of the disk as far as possible, and of inodes in any case.
pub(crate) fn parts(ctx: Arc<Context>) -> impl Iterator<Item = (Part, u64, u32)> {
    let (all, together) = (ctx.groups.len().fit_u32(), groups_together(&ctx));
    (0..all).step_by(together.to_usize()).flat_map(move |first| {
        let groups = first..(first + together).min(all);
        let mut bitmaps: Vec<(u64, u32)> = groups
            .clone()
            .filter(|&group| has_bitmap(&ctx, group))
            .map(|group| (ctx.groups[group.to_usize()].gd.inode_bitmap.0, group))
            .collect();
        bitmaps.sort_unstable();
        let mut parts = Vec::new();
        let mut rest = &bitmaps[..];
        while let Some((start, blocks, count)) = ctx.source.first_run(rest.iter().map(|one| one.0)) {
            let (mine, others) = rest.split_at(count);
            parts.push((Part::Bitmaps(mine.to_vec()), start, blocks));
            rest = others;
        }
        parts.extend(groups.flat_map(|group| inodes_of(&ctx, group, 0, told(&ctx, group))));
        parts
    })
}

impl Tables {
    pub(crate) fn new(ctx: &Context) -> Self {
        let most = ctx.source.most() * per_block(ctx);
        let groups = (0..ctx.groups.len().fit_u32()).map(|group| {
            let parts = told(ctx, group).div_ceil(most) + u32::from(has_bitmap(ctx, group));
            GroupState { left: AtomicU32::new(parts), bitmap: Mutex::default() }
        });
        Self { groups: groups.collect(), late: Mutex::default() }
    }

    /// Number of parts.
    pub(crate) fn parts(&self) -> u64 {
        self.groups.iter().map(|group| u64::from(group.left.load(Ordering::Relaxed))).sum()
    }

    /// Looks at a part that has been read; the inodes are parsed into `inode`.
    pub(crate) fn look(
        &self,
        ctx: &Context,
        part: Part,
        piece: &Piece,
        inode: &mut Inode,
        files: &mut Files,
        found: &mut Found,
    ) {
        match part {
            Part::Bitmaps(bitmaps) => {
                for (at, group) in bitmaps {
                    let bitmap = bitmap(ctx, group, at, piece.block(at), found);
                    *self.groups[group.to_usize()].bitmap.lock() = bitmap;
                    self.part_is_done(ctx, group, found);
                }
            }
            Part::Inodes(inodes) => {
                look_at(ctx, inodes, piece, inode, files, found);
                self.part_is_done(ctx, inodes.group, found);
            }
        }
    }

    /// Compares a group's bitmap with its inodes once all of them are known.
    fn part_is_done(&self, ctx: &Context, group: u32, found: &mut Found) {
        let state = &self.groups[group.to_usize()];
        // What the other tasks have done for the group is seen by the last of them.
        if state.left.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        let Some(bitmap) = state.bitmap.lock().take() else { return };
        if !ctx.groups[group.to_usize()].table || ctx.limits.stopped() {
            return;
        }
        let (told, all) = (told(ctx, group), ctx.sb.inodes_per_group());
        compare(ctx, group, 0..told, &bitmap, found);
        if bits_are_clear(&bitmap, told, all) {
            return;
        }
        if let Some(last) = (told..all).rev().find(|&n| bit(&bitmap, n)) {
            let text = format!("{} unused inodes", ctx.groups[group.to_usize()].gd.unused_inodes);
            let expected = format!("at most {}, by the inode bitmap", all - last - 1);
            found.report.add(Code::DescriptorUnused, Spot::group(group), text, expected);
            if ctx.limits.take(bitmap.len().to_u64()) {
                self.late.lock().push(Late { group, first: told, end: last + 1, bitmap });
            }
        }
    }

    /// Looks at inodes that only the bitmaps say are in use.
    pub(crate) async fn late(self, ctx: &Context, files: &mut Files, found: &mut Found) {
        let mut late = self.late.into_inner();
        late.sort_unstable_by_key(|late| late.group);
        let mut inode = Inode::new(InodeNumber::ROOT, &ctx.sb);
        for late in late {
            let parts = inodes_of(ctx, late.group, late.first, late.end);
            let feed = Feed::new(ctx.source.clone(), parts);
            while let Some((part, piece)) = feed.next().await {
                if let Part::Inodes(inodes) = part {
                    look_at(ctx, inodes, &piece, &mut inode, files, found);
                }
                drop(piece);
                if files.is_full() {
                    files.drain(ctx, found).await;
                }
            }
            if ctx.limits.stopped() {
                return;
            }
            compare(ctx, late.group, late.first..late.end, &late.bitmap, found);
        }
        files.drain(ctx, found).await;
        found.claiming.finish(&ctx.claims);
    }
}

/// Checks an inode bitmap by itself; `None` if it cannot be read.
fn bitmap(ctx: &Context, group: u32, at: u64, block: Option<&[u8]>, found: &mut Found) -> Option<Box<[u8]>> {
    let spot = Spot::group(group).at_block(at);
    let Some(block) = block else {
        found.report.add(Code::ReadError, spot, "unreadable", "an inode bitmap");
        return None;
    };
    let gd = &ctx.groups[group.to_usize()].gd;
    if let Err(corrupt) = verify_inode_bitmap(block, &ctx.sb, Group(group), gd) {
        found.report.corrupt(Code::InodeBitmapChecksum, spot.clone(), &corrupt);
    }
    let (bits, padding) = block.split_at(ctx.sb.inodes_per_group().to_usize().div_ceil(8));
    if padding.iter().any(|&byte| byte != 0xff) {
        found.report.add(Code::InodeBitmapPadding, spot, "clear bits", "set ones");
    }
    Some(bits.into())
}

/// Compares a range of a group's bitmap with its inodes. All of them have been checked before.
fn compare(ctx: &Context, group: u32, range: Range<u32>, bitmap: &[u8], found: &mut Found) {
    let first = group * ctx.sb.inodes_per_group();
    let first_free = ctx.sb.first_inode();
    let mut page = range.start / PAGE_SLOTS * PAGE_SLOTS;
    while page < range.end {
        let mut used = ctx.inodes.used(group, page);
        for n in page..page.saturating_add(PAGE_SLOTS).min(range.end) {
            let is_used = used.as_mut().and_then(Iterator::next).unwrap_or(false);
            let number = InodeNumber(first + n + 1);
            let is_used = is_used || number < first_free && number != InodeNumber::ROOT;
            if n < range.start || is_used == bit(bitmap, n) {
                continue;
            }
            let spot = Spot::inode(number.0);
            match is_used {
                true => found.report.add(Code::InodeBitmapFree, spot, "marked as free", "used"),
                false => found.report.add(Code::InodeBitmapLeaked, spot, "marked as used", "free"),
            }
        }
        page += PAGE_SLOTS;
    }
}

/// Looks at inodes that have been read.
fn look_at(
    ctx: &Context,
    inodes: Inodes,
    piece: &Piece,
    inode: &mut Inode,
    files: &mut Files,
    found: &mut Found,
) {
    let Inodes { group, start, first, end } = inodes;
    for &at in piece.bad() {
        let spot = Spot::group(group).at_block(at);
        found.report.add(Code::ReadError, spot, "unreadable", "inodes");
    }
    let before = group * ctx.sb.inodes_per_group() + 1;
    let inode_bytes = usize::from(ctx.sb.inode_size());
    let mut totals = GroupTotals { group, ..GroupTotals::default() };
    let range = (first - start).to_usize()..(end - start).to_usize();
    for (n, bytes) in piece.bytes().chunks_exact(inode_bytes).enumerate().take(range.end).skip(range.start) {
        let number = InodeNumber(before + start + n.fit_u32());
        totals.used += u32::from(look(ctx, number, bytes, inode, files, found, &mut totals.directories));
    }
    ctx.rt.charge(Cost::Inode((end - first).into()));
    match found.totals.last_mut().filter(|last| last.group == group) {
        Some(last) => last.add(&totals),
        None => found.totals.push(totals),
    }
}

/// Looks at one inode, which it parses into `inode`; returns whether it is in use.
fn look(
    ctx: &Context,
    number: InodeNumber,
    bytes: &[u8],
    inode: &mut Inode,
    files: &mut Files,
    found: &mut Found,
    directories: &mut u32,
) -> bool {
    let sb = &ctx.sb;
    let is_own = sb.is_own_inode(number);
    let is_reserved = number < sb.first_inode() && number != InodeNumber::ROOT;
    if bytes.iter().all(|&byte| byte == 0) {
        if is_own {
            ctx.inodes.set(number, Kind::Own, 0, Marks { encrypted: false, used: is_reserved });
        }
        return is_reserved;
    }
    let spot = Spot::inode(number.0);
    if !parse(ctx, number, bytes, inode, found) {
        return is_reserved;
    }
    let inode = &*inode;
    let is_orphan = ctx.orphans.contains(&number.0);
    let is_used = inode.links() > 0 || is_orphan;
    let dtime = inode.raw.i_dtime.get();
    if dtime != 0 && dtime < sb.inodes_count() && !is_orphan && ctx.low_dtimes {
        let text = format!("i_dtime is {dtime}, which looks like a link of the orphan list");
        found.report.add(Code::OrphanList, spot.clone(), text, "an inode on the list, or a time");
    } else if inode.links() > 0 && dtime != 0 && !is_orphan && number != InodeNumber::BAD_BLOCKS {
        found.report.add(Code::InodeDtime, spot.clone(), format!("i_dtime is {dtime}, in use"), "0");
    }
    if is_own {
        let used = is_reserved || is_used;
        ctx.inodes.set(number, Kind::Own, 0, Marks { encrypted: false, used });
        own(ctx, inode, files, found);
        return used;
    }
    if !is_used {
        if dtime == 0 && inode.mode() != 0 {
            found.report.add(Code::InodeDtime, spot, "deleted, i_dtime is 0", "the time of deletion");
        }
        return false;
    }
    file(ctx, inode, is_orphan, files, found, directories);
    true
}

/// Parses an inode; returns false if nothing of it can be read.
fn parse(ctx: &Context, number: InodeNumber, bytes: &[u8], inode: &mut Inode, found: &mut Found) -> bool {
    let corrupt = match inode.replace_sealed(bytes, &ctx.sb, number, ctx.seed) {
        Ok(()) => return true,
        Err(corrupt) => corrupt,
    };
    let spot = Spot::inode(number.0);
    if matches!(corrupt.problem, Problem::Checksum { .. }) {
        found.report.corrupt(Code::InodeChecksum, spot, &corrupt);
        return true;
    }
    // `i_extra_isize` makes no sense; without it the rest can be read.
    let mut bytes = bytes.to_vec();
    let Some(extra_size) = bytes.get_mut(128..130) else { return false };
    extra_size.fill(0);
    let Ok(parsed) = Inode::parse_unchecked(&bytes, &ctx.sb, number) else { return false };
    *inode = Inode { tail: Box::default(), ..parsed };
    // For a free inode only the checksum matters, and it is wrong in that case.
    if inode.links() > 0 || ctx.seed.is_some() {
        found.report.corrupt(Code::InodeExtraSize, spot, &corrupt);
    }
    true
}

/// An inode of the volume itself.
fn own(ctx: &Context, inode: &Inode, files: &mut Files, found: &mut Found) {
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

/// An inode in use that may have names.
fn file(
    ctx: &Context,
    inode: &Inode,
    is_orphan: bool,
    files: &mut Files,
    found: &mut Found,
    directories: &mut u32,
) {
    let number = inode.number;
    let spot = Spot::inode(number.0);
    let (flags, kind) = (inode.flags(), inode.kind());
    let is_value =
        flags.contains(InodeFlags::EA_INODE) && ctx.has_values() && kind == Some(FileKind::Regular);
    let state = match kind {
        _ if is_value => Kind::Value,
        Some(kind) => Kind::File(kind.dirent_code()),
        None => Kind::Invalid,
    };
    let links = if is_orphan && inode.links() == 0 { 0 } else { inode.links() };
    let marks = Marks { encrypted: flags.contains(InodeFlags::ENCRYPT), used: true };
    ctx.inodes.set(number, state, links, marks);
    // A directory that was deleted while open has no entries left, and a file that was being
    // truncated may have any size.
    if is_orphan {
        let mut record = File::new(ctx, inode, Role::Symlink);
        let xattrs = xattr_checks::in_inode(ctx, inode, found);
        record.clusters += xattrs.blocks;
        record.charge(xattrs.values);
        record.owners = Some(owners(ctx, inode));
        *directories += u32::from(kind == Some(FileKind::Directory));
        let is_mapped = matches!(kind, Some(FileKind::Regular | FileKind::Directory))
            || kind == Some(FileKind::Symlink) && !is_fast_symlink(inode);
        let inode = match is_mapped && !flags.contains(InodeFlags::INLINE_DATA) {
            true => inode.clone(),
            false => without_map(inode.clone()),
        };
        return files.add(ctx, found, record, &inode);
    }
    if kind.is_none() {
        let text = format!("mode {:06o}", inode.mode());
        return found.report.add(Code::InodeMode, spot, text, "a kind of file");
    }
    if number == InodeNumber::ROOT && kind != Some(FileKind::Directory) {
        let text = format!("mode {:06o}", inode.mode());
        found.report.add(Code::RootMissing, spot.clone(), text, "that of a directory");
    }
    fields::check(ctx, inode, found);
    let xattrs = xattr_checks::in_inode(ctx, inode, found);
    let mut record = File::new(ctx, inode, Role::Regular);
    record.clusters += xattrs.blocks;
    record.charge(xattrs.values);
    if !is_value {
        record.owners = Some(owners(ctx, inode));
    }
    match kind {
        Some(FileKind::Directory) => {
            *directories += 1;
            record.role = Role::Directory;
            found.keep(Dir {
                number: number.0,
                seed: record.seed(ctx).map(Into::into),
                blocks: 0,
                inline: flags.contains(InodeFlags::INLINE_DATA),
                indexed: flags.contains(InodeFlags::INDEX),
                casefold: flags.contains(InodeFlags::CASEFOLD),
                encrypted: flags.contains(InodeFlags::ENCRYPT),
                damaged: false,
                dotdot: 0,
                parent: 0,
            });
        }
        Some(FileKind::Symlink) => record.role = Role::Symlink,
        Some(FileKind::Regular) if is_value => {
            record.role = Role::Value;
            let raw = &inode.raw;
            let value = ValueInode::from_fields(raw.i_atime.get(), raw.i_ctime.get(), raw.i_version_lo.get());
            found.keep(ValueHolder {
                number: number.0,
                references: value.references,
                hash: value.hash,
                size: inode.size(),
                user: (raw.i_mtime.get(), raw.i_generation.get()),
                has_times: raw.i_ctime == raw.i_atime,
            });
        }
        _ => {}
    }
    if flags.contains(InodeFlags::INLINE_DATA) {
        inline(ctx, inode, found);
        let role = std::mem::replace(&mut record.role, Role::Symlink);
        if role == Role::Directory {
            // A task meets inodes in ascending order.
            if let Some(dir) = found.dirs.last_mut().filter(|dir| dir.number == number.0) {
                dir.blocks = 0;
            }
        }
        return files.add(ctx, found, record, &without_map(inode.clone()));
    }
    match kind {
        Some(FileKind::Regular | FileKind::Directory) => files.add(ctx, found, record, inode),
        Some(FileKind::Symlink) => {
            if is_fast_symlink(inode) {
                fast_symlink(ctx, inode, found);
                files.add(ctx, found, record, &without_map(inode.clone()));
            } else {
                record.lacks_target = true;
                files.add(ctx, found, record, inode);
            }
        }
        _ => {
            record.role = Role::Symlink;
            files.add(ctx, found, record, &without_map(inode.clone()));
        }
    }
}

/// Returns the user, group and project that an inode is charged to.
fn owners(ctx: &Context, inode: &Inode) -> [u32; 3] {
    let has_projects = ctx.sb.ro_compat().contains(RoCompat::PROJECT);
    [inode.uid(), inode.gid(), inode.project().filter(|_| has_projects).unwrap_or(0)]
}

/// Returns a copy of an inode without a map, for an inode whose map area holds something else.
fn without_map(mut inode: Inode) -> Inode {
    inode.raw.i_block = [0; 60];
    inode.raw.i_flags = (inode.flags() - InodeFlags::EXTENTS).bits().into();
    inode
}

/// Decides by the length of the target, as e2fsck and Linux since 4.13 do.
fn is_fast_symlink(inode: &Inode) -> bool {
    inode.size() < 60 && !inode.flags().contains(InodeFlags::EXTENTS)
}

fn fast_symlink(ctx: &Context, inode: &Inode, found: &mut Found) {
    let spot = Spot::inode(inode.number.0);
    let end = inode.map().iter().position(|&byte| byte == 0).unwrap_or(60);
    let (size, encrypted) = (inode.size(), inode.flags().contains(InodeFlags::ENCRYPT));
    if size == 0 {
        found.report.add(Code::Symlink, spot, "an empty target", "at least one byte");
    } else if !encrypted && end.to_u64() != size {
        let expected = format!("{end}, where its target ends");
        found.report.add(Code::Symlink, spot, format!("i_size is {size}"), expected);
    } else if encrypted && !ctx.sb.incompat().contains(Incompat::ENCRYPT) {
        found.report.add(Code::FeatureMissing, spot, "an encrypted link", "the feature encrypt");
    }
}

/// Checks data in the inode: attribute and size, and the entries of a directory.
fn inline(ctx: &Context, inode: &Inode, found: &mut Found) {
    let spot = Spot::inode(inode.number.0);
    // Attributes that cannot be parsed have already been reported.
    let xattrs = match Xattrs::parse_inode(&inode.tail, inode.number) {
        Ok(xattrs) => xattrs,
        Err(corrupt) if matches!(corrupt.problem, Problem::Magic { .. }) => Xattrs::EMPTY,
        Err(_) => return,
    };
    if xattrs.get(extant_format::XattrName::INLINE_DATA).is_none() {
        found.report.add(Code::InlineData, spot.clone(), "no attribute system.data", "one, maybe empty");
    }
    let data = match InlineData::parse(inode.map(), &xattrs, inode.size(), inode.number) {
        Ok(data) => data,
        Err(corrupt) => {
            let is_size = matches!(corrupt.problem, Problem::Field { field: "i_size", .. });
            let is_file = inode.kind() != Some(FileKind::Directory);
            let most = indirect_capacity(ctx.sb.block_size()) << ctx.sb.block_size().log2();
            let code = match is_size && is_file {
                true if inode.size() > most => Code::InodeSize,
                true => Code::InlineSize,
                false => Code::InlineData,
            };
            return found.report.corrupt(code, spot, &corrupt);
        }
    };
    match inode.kind() {
        Some(FileKind::Directory) => match data.as_directory() {
            Ok(_) => {
                let rest = xattrs.get(extant_format::XattrName::INLINE_DATA).map(|xattr| xattr.value);
                let stored = 60
                    + match rest {
                        Some(extant_format::XattrValue::Bytes(value)) => value.len().to_u64(),
                        _ => 0,
                    };
                if inode.size() != stored {
                    let text = format!("i_size is {}", inode.size());
                    found.report.add(Code::InlineData, spot, text, stored.to_string());
                }
            }
            Err(corrupt) => found.report.corrupt(Code::InlineData, spot, &corrupt),
        },
        Some(FileKind::Symlink) => {
            let encrypted = inode.flags().contains(InodeFlags::ENCRYPT);
            if inode.size() == 0 || (!encrypted && data.to_vec().contains(&0)) {
                let expected = "a target without NUL bytes";
                found.report.add(Code::Symlink, spot, "an empty or interrupted target", expected);
            }
        }
        _ => {}
    }
}
