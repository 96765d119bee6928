//! An inode's own fields: what can be judged without reading anything else.

use crate::Code;
use crate::context::Context;
use crate::finding::Spot;
use crate::found::Found;
use extant_format::{
    Compat, EXTENT_MAGIC, ExtentContext, ExtentNode, FileKind, Incompat, Inode, InodeFlags, RoCompat,
};
use std::sync::LazyLock;

/// Flags that Linux or e2fsprogs assign a meaning to, beyond those named in `format`.
const ASSIGNED: u32 =
    0x8 | 0x100 | 0x200 | 0x400 | 0x40_0000 | 0x100_0000 | 0x400_0000 | 0x800_0000 | 0x8000_0000;

/// Checks the fields that can be judged from the inode alone.
pub(crate) fn check(ctx: &Context, inode: &Inode, found: &mut Found) {
    let (sb, raw) = (&ctx.sb, &inode.raw);
    let spot = || Spot::inode(inode.number.0);
    let report = &mut found.report;
    let (flags, kind) = (inode.flags(), inode.kind());
    let is_directory = kind == Some(FileKind::Directory);
    let is_special = matches!(
        kind,
        Some(FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket)
    );
    let (incompat, ro, compat) = (sb.incompat(), sb.ro_compat(), sb.compat());
    let is_hurd = sb.raw().s_creator_os.get() == 1;
    let obsolete = |field: &str, value: u32| {
        if value != 0 {
            report.add(Code::InodeObsolete, spot(), format!("{field} is {value}"), "0");
        }
    };
    if !is_hurd {
        obsolete("i_obso_faddr", raw.i_obso_faddr.get());
        if !incompat.contains(Incompat::BIT64) {
            obsolete("i_file_acl_high", raw.i_file_acl_high.get().into());
        }
        if !ro.contains(RoCompat::HUGE_FILE) {
            obsolete("i_blocks_hi", raw.i_blocks_hi.get().into());
        }
        // Linux ignores the field, but e2fsck removes a symbolic link in which it is set.
        let is_link = kind == Some(FileKind::Symlink);
        if is_link || is_directory && !incompat.contains(Incompat::LARGEDIR) {
            obsolete("i_size_high", raw.i_size_high.get());
        }
    }
    let missing = |flag: InodeFlags, there: bool, feature: &str| {
        if flags.contains(flag) && !there {
            report.add(Code::FeatureMissing, spot(), format!("a flag that needs {feature}"), "the feature");
        }
    };
    missing(InodeFlags::EXTENTS, incompat.contains(Incompat::EXTENTS), "extent");
    missing(InodeFlags::INLINE_DATA, incompat.contains(Incompat::INLINE_DATA), "inline_data");
    missing(InodeFlags::EA_INODE, ctx.has_values(), "ea_inode");
    if is_large(inode) && !ro.contains(RoCompat::LARGE_FILE) {
        let text = format!("a file of {} bytes", inode.size());
        report.add(Code::FeatureMissing, spot(), text, "the feature large_file");
    }
    let wrong = |is_wrong: bool, text: &str, expected: &str| {
        if is_wrong {
            report.add(Code::InodeFlags, spot(), text, expected);
        }
    };
    let has = |flag| flags.contains(flag);
    wrong(
        has(InodeFlags::EA_INODE) && ctx.has_values() && kind != Some(FileKind::Regular),
        "the mark of an attribute's value",
        "none, for it is no regular file",
    );
    wrong(
        has(InodeFlags::IMAGIC) && !compat.contains(Compat::IMAGIC_INODES),
        "imagic without the feature",
        "no such flag",
    );
    wrong(
        has(InodeFlags::INDEX) && !compat.contains(Compat::DIR_INDEX) && is_directory,
        "an index without dir_index",
        "no index",
    );
    wrong(has(InodeFlags::INDEX) && !is_directory && !is_special, "an index", "none, for it is no directory");
    wrong(
        has(InodeFlags::CASEFOLD) && !(is_directory && incompat.contains(Incompat::CASEFOLD)),
        "casefold",
        "a directory, on a volume with the feature",
    );
    wrong(
        flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND)
            && (is_special || kind == Some(FileKind::Symlink)),
        "immutable or append-only",
        "no such flag, for it is no file or directory",
    );
    let mut unknown = flags.bits() & !ASSIGNED & !*NAMED;
    if !incompat.contains(Incompat::ENCRYPT) {
        unknown |= (flags & InodeFlags::ENCRYPT).bits();
    }
    if !ro.contains(RoCompat::VERITY) {
        unknown |= (flags & InodeFlags::VERITY).bits();
    }
    if unknown != 0 {
        report.add(Code::InodeUnknownFlags, spot(), format!("bits {unknown:#x}"), "none of them");
    }
    if is_special {
        if inode.size() != 0 {
            report.add(Code::InodeSpecial, spot(), format!("i_size is {}", inode.size()), "0");
        }
        if flags.intersects(InodeFlags::INDEX | InodeFlags::EXTENTS | InodeFlags::INLINE_DATA) {
            report.add(Code::InodeSpecial, spot(), "flags of a file or directory", "none");
        }
    }
    times(inode, found);
    form(ctx, inode, found);
}

/// Flags of the volume's own inodes, and the feature that a size needs. `is_file`: it is the
/// journal, a quota file or the orphan file.
pub(crate) fn check_own(ctx: &Context, inode: &Inode, is_file: bool, found: &mut Found) {
    let (sb, number) = (&ctx.sb, inode.number);
    if number >= sb.first_inode() && inode.links() == 0 {
        // It is not in use, which is reported elsewhere.
        return;
    }
    let has = |flag| inode.flags().contains(flag);
    let is_journal = sb.journal_inode() == Some(number);
    // Nothing reads what 1, 3, 4 and 8 have without a purpose.
    let may_be_file = is_file || !matches!(number.0, 1 | 3 | 4 | 8);
    let wrong = |code, is_wrong: bool, text: &str, expected: &str| {
        if is_wrong {
            found.report.add(code, Spot::inode(number.0), text, expected);
        }
    };
    wrong(Code::InodeFlags, has(InodeFlags::CASEFOLD), "casefold", "no such flag, for it is no directory");
    wrong(
        Code::InodeFlags,
        has(InodeFlags::INDEX) && may_be_file,
        "an index",
        "none, for it is no directory",
    );
    wrong(
        Code::InodeFlags,
        has(InodeFlags::EA_INODE) && is_file,
        "the mark of an attribute's value",
        "none, for it is a file of the volume itself",
    );
    wrong(
        Code::InodeFlags,
        has(InodeFlags::ENCRYPT) && is_journal,
        "an encrypted journal",
        "no such flag, for Linux refuses the journal",
    );
    let has_forms = sb.incompat().intersects(Incompat::EXTENTS | Incompat::INLINE_DATA);
    wrong(
        Code::MapForm,
        has(InodeFlags::EXTENTS) && has(InodeFlags::INLINE_DATA) && has_forms,
        "extents and inline data",
        "one of them",
    );
    if may_be_file && is_large(inode) && !sb.ro_compat().contains(RoCompat::LARGE_FILE) {
        let text = format!("a file of {} bytes", inode.size());
        wrong(Code::FeatureMissing, true, &text, "the feature large_file");
    }
}

/// Whether a file's size needs `large_file`.
fn is_large(inode: &Inode) -> bool {
    inode.kind() == Some(FileKind::Regular) && inode.size() > i32::MAX.unsigned_abs().into()
}

/// Bits that `format` has names for.
static NAMED: LazyLock<u32> =
    LazyLock::new(|| InodeFlags::all().iter_names().fold(0, |bits, (_, flag)| bits | flag.bits()));

fn times(inode: &Inode, found: &mut Found) {
    let (raw, extra) = (&inode.raw, &inode.extra);
    let size = usize::from(extra.i_extra_isize.get());
    let is_value = inode.flags().contains(InodeFlags::EA_INODE);
    if is_value {
        return;
    }
    for (name, base, more, end) in [
        ("ctime", raw.i_ctime, extra.i_ctime_extra, 8),
        ("mtime", raw.i_mtime, extra.i_mtime_extra, 12),
        ("atime", raw.i_atime, extra.i_atime_extra, 16),
        ("crtime", extra.i_crtime, extra.i_crtime_extra, 24),
    ] {
        if size < end {
            continue;
        }
        let (nanos, epoch) = (more.get() >> 2, more.get() & 3);
        let spot = || Spot::inode(inode.number.0);
        if nanos > 999_999_999 {
            let text = format!("{nanos} nanoseconds in {name}");
            found.report.add(Code::InodeTime, spot(), text, "at most 999999999");
        }
        if epoch == 3 && base.get().cast_signed() < 0 {
            found.report.add(
                Code::InodeTimeRange,
                spot(),
                format!("{name} after 2310"),
                "a time before 1970",
            );
        }
    }
}

/// Checks whether flags and contents agree on what kind of map this is.
fn form(ctx: &Context, inode: &Inode, found: &mut Found) {
    let (sb, flags, kind) = (&ctx.sb, inode.flags(), inode.kind());
    let spot = Spot::inode(inode.number.0);
    let extents = flags.contains(InodeFlags::EXTENTS);
    let inline = flags.contains(InodeFlags::INLINE_DATA);
    let add = |text: &str, expected: &str| found.report.add(Code::MapForm, spot.clone(), text, expected);
    if extents && inline {
        add("extents and inline data", "one of them");
    }
    if extents && kind == Some(FileKind::Symlink) && inode.size() < 60 {
        add("extents in a short symbolic link", "the target in the inode");
    }
    let magic = u16::from_le_bytes([inode.map()[0], inode.map()[1]]);
    let may_have_map = matches!(kind, Some(FileKind::Regular | FileKind::Directory));
    if !extents
        && !inline
        && may_have_map
        && magic == EXTENT_MAGIC
        && sb.incompat().contains(Incompat::EXTENTS)
    {
        let cx = ExtentContext::root(sb, inode.number);
        // Block pointers rarely parse as a sensible extent tree.
        if ExtentNode::parse(inode.map(), &cx).is_ok() {
            add("an extent tree without the flag", "the flag");
        }
    }
    let bigalloc = sb.ro_compat().contains(RoCompat::BIGALLOC);
    if bigalloc && !extents && !inline && may_have_map && inode.map().iter().any(|&byte| byte != 0) {
        found.report.add(Code::MapCluster, spot, "block pointers", "extents, with bigalloc");
    }
}
