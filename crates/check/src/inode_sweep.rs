//! Looks at the inodes of the tables: every inode's own fields, its map and its attributes.

use crate::context::Context;
use crate::file::{File, Role};
use crate::finding::Spot;
use crate::found::{Dir, Found, GroupTotals, ValueHolder};
use crate::map::Files;
use crate::source::Piece;
use crate::state::{Kind, Marks};
use crate::{Code, Cost, contents, fields, own_inodes, xattr_checks};
use extant_format::{FileKind, Inode, InodeFlags, InodeNumber, Problem, RoCompat, UintExt, ValueInode};

/// Number of inodes whose checksums are computed before anything else is done with them. No
/// checksum needs another, so the processor computes several at a time.
const TOGETHER: u32 = 16;

/// An inode as it lies in a table.
struct Raw<'a> {
    number: InodeNumber,
    bytes: &'a [u8],
    /// Its checksum is known to be right, or there is none.
    is_sealed: bool,
}

/// Bit n says that the checksum of inode `first + n` is right, or that there is none.
fn sealed<'a>(ctx: &Context, first: u32, inodes: impl Iterator<Item = &'a [u8]>) -> u32 {
    let Some(seed) = ctx.seed else { return u32::MAX };
    let is_right = |bytes, n| ctx.stored_sums.is_right(bytes, InodeNumber(first + n), seed);
    inodes.zip(0..).fold(0, |sealed, (bytes, n)| sealed | u32::from(is_right(bytes, n)) << n)
}

/// Inodes of a group, numbered from 0.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inodes {
    pub(crate) group: u32,
    /// The first inode in the part's first block.
    pub(crate) start: u32,
    /// Inodes to look at.
    pub(crate) first: u32,
    pub(crate) end: u32,
}

/// Looks at inodes that have been read.
pub(crate) fn look_at(
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
    let range = (first - start).to_usize() * inode_bytes..(end - start).to_usize() * inode_bytes;
    let steps = (first..end).step_by(TOGETHER.to_usize());
    for (together, first) in piece.bytes()[range].chunks(TOGETHER.to_usize() * inode_bytes).zip(steps) {
        let sealed = sealed(ctx, before + first, together.chunks_exact(inode_bytes));
        for (bytes, n) in together.chunks_exact(inode_bytes).zip(0..) {
            let number = InodeNumber(before + first + n);
            let raw = Raw { number, bytes, is_sealed: sealed >> n & 1 != 0 };
            totals.used += u32::from(look(ctx, &raw, inode, files, found, &mut totals.directories));
        }
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
    raw: &Raw<'_>,
    inode: &mut Inode,
    files: &mut Files,
    found: &mut Found,
    directories: &mut u32,
) -> bool {
    let (sb, number) = (&ctx.sb, raw.number);
    let is_own = sb.is_own_inode(number);
    let is_reserved = number < sb.first_inode() && number != InodeNumber::ROOT;
    if raw.bytes.iter().all(|&byte| byte == 0) {
        if is_own {
            ctx.inodes.set(number, Kind::Own, 0, Marks { encrypted: false, used: is_reserved });
        }
        return is_reserved;
    }
    let spot = Spot::inode(number.0);
    if !parse(ctx, raw, inode, found) {
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
        own_inodes::check(ctx, inode, files, found);
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
fn parse(ctx: &Context, raw: &Raw<'_>, inode: &mut Inode, found: &mut Found) -> bool {
    let (number, bytes) = (raw.number, raw.bytes);
    let seed = ctx.seed.filter(|_| !raw.is_sealed);
    let corrupt = match inode.replace_sealed(bytes, &ctx.sb, number, seed) {
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
            || kind == Some(FileKind::Symlink) && !contents::is_fast_symlink(inode);
        return match is_mapped && !flags.contains(InodeFlags::INLINE_DATA) {
            true => files.add(ctx, found, record, inode),
            false => files.add_unmapped(ctx, found, record, inode),
        };
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
            record.dir = found.dirs.len();
            found.keep(Dir::new(inode, record.seed(ctx)));
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
        contents::check(ctx, inode, found);
        record.role = Role::Symlink;
        return files.add_unmapped(ctx, found, record, inode);
    }
    match kind {
        Some(FileKind::Regular | FileKind::Directory) => files.add(ctx, found, record, inode),
        Some(FileKind::Symlink) => {
            if contents::is_fast_symlink(inode) {
                contents::fast_symlink(ctx, inode, found);
                files.add_unmapped(ctx, found, record, inode);
            } else {
                record.lacks_target = true;
                files.add(ctx, found, record, inode);
            }
        }
        _ => {
            record.role = Role::Symlink;
            files.add_unmapped(ctx, found, record, inode);
        }
    }
}

/// Returns the user, group and project that an inode is charged to.
fn owners(ctx: &Context, inode: &Inode) -> [u32; 3] {
    let has_projects = ctx.sb.ro_compat().contains(RoCompat::PROJECT);
    [inode.uid(), inode.gid(), inode.project().filter(|_| has_projects).unwrap_or(0)]
}
