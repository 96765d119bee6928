//! Contents of files that are stored in their inodes: inline data, and targets of short symbolic
//! links.

use crate::Code;
use crate::context::Context;
use crate::finding::Spot;
use crate::found::Found;
use extant_format::{
    FileKind, Incompat, InlineData, Inode, InodeFlags, Problem, UintExt, Xattrs, indirect_capacity,
};

/// Decides by the length of the target, as e2fsck and Linux since 4.13 do.
pub(crate) fn is_fast_symlink(inode: &Inode) -> bool {
    inode.size() < 60 && !inode.flags().contains(InodeFlags::EXTENTS)
}

/// Checks the target of a short symbolic link.
pub(crate) fn fast_symlink(ctx: &Context, inode: &Inode, found: &mut Found) {
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
pub(crate) fn check(ctx: &Context, inode: &Inode, found: &mut Found) {
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
