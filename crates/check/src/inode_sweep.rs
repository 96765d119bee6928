//! The sweep over inode tables: every inode's own fields, its map and its attributes.

use crate::context::Context;
use crate::file::{File, Role};
use crate::finding::Spot;
use crate::found::{Dir, Found, GroupTotals, ValueHolder};
use crate::map::Files;
use crate::state::Kind;
use crate::{Code, Cost, fields, xattr_checks};
use extant_format::{
    Compat, FileKind, Group, GroupFlags, Incompat, InlineData, Inode, InodeFlags, InodeNumber, Problem,
    RoCompat, UintExt, ValueInode, Xattrs, bit, bits_are_clear, indirect_capacity, verify_inode_bitmap,
};

/// Groups that a task takes at a time.
pub(crate) const GROUPS: u32 = 8;

/// What a pass over a group's inode table needs, and what it counts.
struct Table<'a> {
    group: u32,
    /// Number of inodes to look at, from the start of the table.
    used: u32,
    bitmap: Option<&'a [u8]>,
    totals: GroupTotals,
}

/// Checks the inodes of some groups.
pub(crate) async fn sweep(ctx: &Context, groups: std::ops::Range<u32>, files: &mut Files, found: &mut Found) {
    let bitmaps = read_bitmaps(ctx, groups.clone(), found).await;
    let mut tables = Vec::with_capacity(bitmaps.len());
    for (group, bitmap) in groups.zip(&bitmaps) {
        let bitmap = bitmap.as_deref();
        let mut used = used_part(ctx, group, bitmap, found);
        if !ctx.groups[group.to_usize()].table {
            used = 0;
        } else if used == 0 {
            // The table is not read, so every inode that the bitmap marks is missing.
            check_unread(ctx, group, 0, bitmap, found);
        }
        let totals = GroupTotals { group, ..GroupTotals::default() };
        tables.push(Table { group, used, bitmap, totals });
    }
    sweep_tables(ctx, &mut tables, files, found).await;
    if ctx.limits.stopped() {
        return;
    }
    found.totals.extend(tables.into_iter().map(|table| table.totals));
    files.drain(ctx, found).await;
}

async fn read_bitmaps(
    ctx: &Context,
    groups: std::ops::Range<u32>,
    found: &mut Found,
) -> Vec<Option<Vec<u8>>> {
    let mut bitmaps: Vec<Option<Vec<u8>>> = groups.clone().map(|_| None).collect();
    let mut wanted: Vec<(u64, u32)> = groups
        .clone()
        .filter(|&group| {
            let info = &ctx.groups[group.to_usize()];
            info.bitmaps && !info.has(&ctx.sb, GroupFlags::INODE_UNINIT)
        })
        .map(|group| (ctx.groups[group.to_usize()].gd.inode_bitmap.0, group))
        .collect();
    wanted.sort_unstable();
    let blocks: Vec<u64> = wanted.iter().map(|wanted| wanted.0).collect();
    ctx.source
        .scattered(&blocks, |n, block| {
            let (at, group) = wanted[n];
            let spot = Spot::group(group).at_block(at);
            let Some(block) = block else {
                return found.report.add(Code::ReadError, spot, "unreadable", "an inode bitmap");
            };
            let gd = &ctx.groups[group.to_usize()].gd;
            if let Err(corrupt) = verify_inode_bitmap(block, &ctx.sb, Group(group), gd) {
                found.report.corrupt(Code::InodeBitmapChecksum, spot.clone(), &corrupt);
            }
            let padding = &block[ctx.sb.inodes_per_group().to_usize().div_ceil(8)..];
            if padding.iter().any(|&byte| byte != 0xff) {
                found.report.add(Code::InodeBitmapPadding, spot, "clear bits", "set ones");
            }
            bitmaps[(group - groups.start).to_usize()] = Some(block.to_vec());
        })
        .await;
    bitmaps
}

/// How many inodes of a group to look at: those in use by the descriptor, and any in use by the
/// bitmap.
fn used_part(ctx: &Context, group: u32, bitmap: Option<&[u8]>, found: &mut Found) -> u32 {
    let info = &ctx.groups[group.to_usize()];
    let all = ctx.sb.inodes_per_group();
    if !ctx.sb.has_group_csum() {
        return all;
    }
    if info.has(&ctx.sb, GroupFlags::INODE_UNINIT) {
        return 0;
    }
    let told = all - info.gd.unused_inodes.min(all);
    let Some(bitmap) = bitmap.filter(|bitmap| !bits_are_clear(bitmap, told, all)) else { return told };
    match (told..all).rev().find(|&n| bit(bitmap, n)) {
        Some(last) => {
            let text = format!("{} unused inodes", info.gd.unused_inodes);
            let expected = format!("at most {}, by the inode bitmap", all - last - 1);
            found.report.add(Code::DescriptorUnused, Spot::group(group), text, expected);
            last + 1
        }
        None => told,
    }
}

/// Reports inodes that are in use by the bitmap, but not in the table.
fn check_unread(ctx: &Context, group: u32, from: u32, bitmap: Option<&[u8]>, found: &mut Found) {
    let all = ctx.sb.inodes_per_group();
    let Some(bitmap) = bitmap.filter(|bitmap| !bits_are_clear(bitmap, from, all)) else { return };
    let first = group * ctx.sb.inodes_per_group() + 1;
    for n in from..all {
        if bit(bitmap, n) {
            found.report.add(Code::InodeBitmapLeaked, Spot::inode(first + n), "marked as used", "free");
        }
    }
}

async fn sweep_tables(ctx: &Context, tables: &mut [Table<'_>], files: &mut Files, found: &mut Found) {
    let inode_bytes = usize::from(ctx.sb.inode_size());
    let per_block = (ctx.source.block_bytes() / inode_bytes).fit_u32();
    let most = u64::from(ctx.source.most());
    // Read all tables as one stream, so that the next table is read ahead while one is being
    // checked.
    let mut pieces = Vec::new();
    for (t, table) in tables.iter().enumerate() {
        let start = ctx.groups[table.group.to_usize()].gd.inode_table.0;
        let blocks = u64::from(table.used.div_ceil(per_block));
        let runs = (0..blocks).step_by(most.to_usize()).map(|at| (at, most.min(blocks - at).fit_u32()));
        pieces.extend(runs.map(|(at, blocks)| (t, at.fit_u32() * per_block, start + at, blocks)));
    }
    let mut stream = ctx.source.stream(pieces.iter().map(|&(_, _, start, blocks)| (start, blocks)));
    for &(t, mut n, ..) in &pieces {
        let Some(piece) = stream.next().await else { return };
        let table = &mut tables[t];
        for &at in piece.bad() {
            let spot = Spot::group(table.group).at_block(at);
            found.report.add(Code::ReadError, spot, "unreadable", "inodes");
        }
        let first = table.group * ctx.sb.inodes_per_group();
        let before = n;
        for bytes in piece.bytes().chunks_exact(inode_bytes) {
            if n >= table.used {
                break;
            }
            let number = InodeNumber(first + n + 1);
            let is_used = look(ctx, number, bytes, files, found, &mut table.totals);
            if let Some(bitmap) = table.bitmap {
                let spot = Spot::inode(number.0);
                match (is_used, bit(bitmap, n)) {
                    (true, false) => found.report.add(Code::InodeBitmapFree, spot, "marked as free", "used"),
                    (false, true) => {
                        found.report.add(Code::InodeBitmapLeaked, spot, "marked as used", "free")
                    }
                    _ => {}
                }
            }
            table.totals.used += u32::from(is_used);
            n += 1;
        }
        ctx.rt.charge(Cost::Inode((n - before).into()));
        drop(piece);
        if files.is_full() {
            files.drain(ctx, found).await;
        }
    }
    for table in tables.iter().filter(|table| table.used > 0) {
        check_unread(ctx, table.group, table.used, table.bitmap, found);
    }
}

/// Looks at one inode; returns whether it is in use.
fn look(
    ctx: &Context,
    number: InodeNumber,
    bytes: &[u8],
    files: &mut Files,
    found: &mut Found,
    totals: &mut GroupTotals,
) -> bool {
    let sb = &ctx.sb;
    let is_own = sb.is_own_inode(number);
    let is_reserved = number < sb.first_inode() && number != InodeNumber::ROOT;
    if bytes.iter().all(|&byte| byte == 0) {
        if is_own {
            ctx.inodes.set(number, Kind::Own, 0, false);
        }
        return is_reserved;
    }
    let spot = Spot::inode(number.0);
    let inode = match parse(ctx, number, bytes, found) {
        Some(inode) => inode,
        None => return is_reserved,
    };
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
        ctx.inodes.set(number, Kind::Own, 0, false);
        own(ctx, &inode, files, found);
        return is_reserved || is_used;
    }
    if !is_used {
        if dtime == 0 && inode.mode() != 0 {
            found.report.add(Code::InodeDtime, spot, "deleted, i_dtime is 0", "the time of deletion");
        }
        return false;
    }
    file(ctx, &inode, is_orphan, files, found, totals);
    true
}

fn parse(ctx: &Context, number: InodeNumber, bytes: &[u8], found: &mut Found) -> Option<Inode> {
    let corrupt = match Inode::parse_sealed(bytes, &ctx.sb, number, ctx.seed) {
        Ok(inode) => return Some(inode),
        Err(corrupt) => corrupt,
    };
    let spot = Spot::inode(number.0);
    if matches!(corrupt.problem, Problem::Checksum { .. }) {
        found.report.corrupt(Code::InodeChecksum, spot, &corrupt);
        return Inode::parse_unchecked(bytes, &ctx.sb, number).ok();
    }
    // `i_extra_isize` makes no sense; without it the rest can be read.
    let mut bytes = bytes.to_vec();
    bytes.get_mut(128..130)?.fill(0);
    let inode = Inode::parse_unchecked(&bytes, &ctx.sb, number).ok()?;
    // For a free inode only the checksum matters, and it is wrong in that case.
    if inode.links() > 0 || ctx.seed.is_some() {
        found.report.corrupt(Code::InodeExtraSize, spot, &corrupt);
    }
    Some(Inode { tail: Box::default(), ..inode })
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
    totals: &mut GroupTotals,
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
    ctx.inodes.set(number, state, links, flags.contains(InodeFlags::ENCRYPT));
    // A directory that was deleted while open has no entries left, and a file that was being
    // truncated may have any size.
    if is_orphan {
        let mut record = File::new(ctx, inode, Role::Symlink);
        let xattrs = xattr_checks::in_inode(ctx, inode, found);
        record.clusters += xattrs.blocks;
        record.charge(xattrs.values);
        record.owners = Some(owners(ctx, inode));
        totals.directories += u32::from(kind == Some(FileKind::Directory));
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
            totals.directories += 1;
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
