//! Parsers for option values.

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use extant_format::BlockSize;
use extant_image::{FeatureChoices, FsType, IdRange, JournalSize, OwnerMap, SizePolicy};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The name of an image to write.
pub(crate) fn image_output() -> ValueParser {
    let parse = |path: OsString| match path.as_bytes() {
        b"-" => {
            Err("an image cannot be written to standard output; for a file of that name write ./-".into())
        }
        name => match other_format(name) {
            Some(format) => Err(format!(
                "images are written raw, and the name says {format}; name it .img, then convert or compress that"
            )),
            None => Ok(PathBuf::from(path)),
        },
    };
    OsStringValueParser::new().try_map(parse).into()
}

/// The format that a file name promises, unless it is raw bytes.
fn other_format(name: &[u8]) -> Option<&'static str> {
    const ENDINGS: [(&str, &str); 11] = [
        (".qcow2", "qcow2"),
        (".qcow", "qcow"),
        (".vmdk", "VMDK"),
        (".vhd", "VHD"),
        (".vhdx", "VHDX"),
        (".vdi", "VDI"),
        (".simg", "Android sparse"),
        (".gz", "gzip"),
        (".zst", "zstd"),
        (".xz", "xz"),
        (".bz2", "bzip2"),
    ];
    let name = name.to_ascii_lowercase();
    ENDINGS.into_iter().find(|(ending, _)| name.ends_with(ending.as_bytes())).map(|(_, format)| format)
}

/// Bytes, optionally with a binary unit, as in 64K.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        "T" | "TB" | "TIB" => 40,
        _ => return Err("a size is a number of bytes, or one with K, M, G or T behind it".into()),
    };
    if digits.starts_with('+') {
        return Err("a size is absolute: leave out the sign".into());
    }
    let number: u64 = digits.parse().map_err(|_| "a size begins with a whole number".to_string())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".into())
}

pub(crate) fn size_policy(text: &str) -> Result<SizePolicy, String> {
    if text == "exact" {
        return Ok(SizePolicy::Exact);
    }
    match text.strip_prefix('+') {
        Some(more) => {
            let percent = more.strip_suffix('%').and_then(|n| n.parse().ok());
            Ok(SizePolicy::PlusPercent(percent.ok_or("room for more is written like +20%")?))
        }
        None => size(text).map(SizePolicy::Fixed),
    }
}

pub(crate) fn fs_type(text: &str) -> Result<FsType, String> {
    match text {
        "ext2" => Ok(FsType::Ext2),
        "ext3" => Ok(FsType::Ext3),
        "ext4" => Ok(FsType::Ext4),
        _ => Err("ext2, ext3 or ext4".into()),
    }
}

pub(crate) fn block_size(text: &str) -> Result<BlockSize, String> {
    let bytes = u32::try_from(size(text)?).ok().and_then(BlockSize::from_bytes);
    bytes.ok_or_else(|| "a power of two from 1024 to 65536".into())
}

pub(crate) fn journal(text: &str) -> Result<JournalSize, String> {
    match text {
        "auto" => Ok(JournalSize::Auto),
        "none" => Ok(JournalSize::None),
        _ => size(text).map(JournalSize::Bytes),
    }
}

pub(crate) fn uuid(text: &str) -> Result<[u8; 16], String> {
    let wrong = || "a UUID has 32 hexadecimal digits, grouped as 8-4-4-4-12".to_string();
    let digits: Vec<u8> = text.bytes().filter(|&b| b != b'-').collect();
    if digits.len() != 32 {
        return Err(wrong());
    }
    let mut id = [0; 16];
    for (to, pair) in id.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|b| b.is_ascii_hexdigit()));
        *to = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).ok_or_else(wrong)?;
    }
    Ok(id)
}

/// A range of ids, and whether it applies to users, groups or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdRule {
    range: IdRange,
    users: bool,
    groups: bool,
}

pub(crate) fn id_rule(text: &str) -> Result<IdRule, String> {
    let (users, groups, numbers) = match text.split_once(':') {
        Some(("u", rest)) => (true, false, rest),
        Some(("g", rest)) => (false, true, rest),
        _ => (true, true, text),
    };
    let numbers: Option<Vec<u32>> = numbers.split(':').map(|n| n.parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[from, to, count]) if count > 0 => {
            Ok(IdRule { range: IdRange { from, to, count }, users, groups })
        }
        _ => Err("a rule is written like 0:100000:65536, u:1000:0:1 or g:1000:0:1".into()),
    }
}

pub(crate) fn owner_map(rules: &[IdRule]) -> OwnerMap {
    let of =
        |which: fn(&IdRule) -> bool| rules.iter().filter(|rule| which(rule)).map(|rule| rule.range).collect();
    OwnerMap { users: of(|rule| rule.users), groups: of(|rule| rule.groups) }
}

/// A feature, and whether the volume should have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feature {
    field: fn(&mut FeatureChoices) -> &mut Option<bool>,
    on: bool,
}

impl Feature {
    pub(crate) fn apply(self, choices: &mut FeatureChoices) {
        *(self.field)(choices) = Some(self.on);
    }
}

pub(crate) fn feature(text: &str) -> Result<Feature, String> {
    let (name, on) = match text.strip_prefix('^') {
        Some(name) => (name, false),
        None => (text, true),
    };
    let field: fn(&mut FeatureChoices) -> &mut Option<bool> = match name {
        "metadata_csum" => |f| &mut f.metadata_csum,
        "metadata_csum_seed" => |f| &mut f.metadata_csum_seed,
        "uninit_bg" => |f| &mut f.uninit_bg,
        "flex_bg" => |f| &mut f.flex_bg,
        "64bit" => |f| &mut f.bits64,
        "resize_inode" => |f| &mut f.resize_inode,
        "orphan_file" => |f| &mut f.orphan_file,
        "extent" | "extents" => |f| &mut f.extents,
        "dir_index" => |f| &mut f.dir_index,
        "large_dir" => |f| &mut f.large_dir,
        "ea_inode" => |f| &mut f.ea_inode,
        _ => return Err("not a feature that can be chosen; --help lists those that can".into()),
    };
    Ok(Feature { field, on })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64K"), Ok(65536));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert!(size("1.5G").is_err() && size("+5").is_err());
        assert!(size("G").is_err());
        assert!(size("99999999T").is_err());
        assert_eq!(size_policy("exact"), Ok(SizePolicy::Exact));
        assert_eq!(size_policy("+20%"), Ok(SizePolicy::PlusPercent(20)));
        assert_eq!(size_policy("1M"), Ok(SizePolicy::Fixed(1 << 20)));
        assert!(size_policy("+20").is_err());
    }

    #[test]
    fn uuids_are_hexadecimal() {
        assert_eq!(uuid("00112233-4455-6677-8899-aabbccddeeff").unwrap()[1], 0x11);
        assert!(uuid("00112233-4455-6677-8899-aabbccddee").is_err());
        assert!(uuid("+0112233-4455-6677-8899-aabbccddeeff").is_err());
    }

    #[test]
    fn id_rules_are_about_users_groups_or_both() {
        let map = owner_map(&[id_rule("u:1000:0:1").unwrap(), id_rule("5:6:7").unwrap()]);
        assert_eq!((map.users.len(), map.groups.len()), (2, 1));
        assert!(id_rule("1:2").is_err());
        assert!(id_rule("1:2:0").is_err());
    }
}
