//! Parsers for option values.

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use extant_format::BlockSize;
use extant_image::{
    FeatureChoices, FsType, IdRange, JournalSize, NamePattern, OwnerMap, SizePolicy, random_uuid,
};
use extant_rt::Rt;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// The name of an image to write.
pub(crate) fn image_output() -> ValueParser {
    let parse = |path: OsString| match path.as_bytes() {
        b"-" => {
            Err("an image cannot be written to standard output; for a file of that name write ./-".into())
        }
        _ if extant::is_address(path.as_ref()) => Ok(PathBuf::from(path)),
        name => match other_format(name) {
            Some(format) => Err(format!(
                "images are written raw, and the name says {format}; name it .img, then convert or compress that"
            )),
            None => Ok(PathBuf::from(path)),
        },
    };
    OsStringValueParser::new().try_map(parse).into()
}

/// The format that a file name suggests, unless it is raw bytes.
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

/// Bytes, optionally with a unit: `64K` and `64KiB` are powers of 1024, `64kB` of 1000.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        "T" | "TIB" => 1 << 40,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => {
            return Err(
                "a size is a number of bytes, or one with K, M, G or T (powers of 1024) or KB, MB, GB or TB \
                        (powers of 1000) behind it"
                    .into(),
            );
        }
    };
    if digits.starts_with('+') {
        return Err("a size is absolute: leave out the sign".into());
    }
    let number: u64 = digits.parse().map_err(|_| "a size begins with a whole number".to_string())?;
    number.checked_mul(unit).ok_or_else(|| "too large".into())
}

/// A size in powers of 1024 and at most four characters, as in 1.5M.
pub(crate) fn human(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["K", "M", "G", "T", "P", "E"];
    if bytes < 1024 {
        return bytes.to_string();
    }
    // Round up, as ls and du do, so that the size shown is always enough.
    let mut unit = 0;
    let tenths = |unit: usize| (u128::from(bytes) * 10).div_ceil(1 << (10 * (unit + 1)));
    while unit + 1 < UNITS.len() && tenths(unit).div_ceil(10) >= 1024 {
        unit += 1;
    }
    match tenths(unit) {
        tenths if tenths < 100 => format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit]),
        tenths => format!("{}{}", tenths.div_ceil(10), UNITS[unit]),
    }
}

/// A pattern for names, as in the shell.
pub(crate) fn pattern(text: &str) -> Result<glob::Pattern, String> {
    glob::Pattern::new(text).map_err(|error| error.to_string())
}

pub(crate) fn name_pattern(text: &str) -> Result<NamePattern, String> {
    text.parse().map_err(|error: glob::PatternError| error.to_string())
}

pub(crate) fn size_policy(text: &str) -> Result<SizePolicy, String> {
    if text == "exact" {
        return Ok(SizePolicy::Exact);
    }
    match text.strip_prefix('+') {
        Some(more) => match more.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.parse().map_err(|_| "room for more is written like +20% or +64M")?;
                Ok(SizePolicy::PlusPercent(percent))
            }
            None => size(more).map(SizePolicy::PlusBytes),
        },
        None if text.ends_with('%') => Err(format!("room for more has a sign: +{text}")),
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
        // As mke2fs takes it: in MiB, unless there is a unit.
        _ => match text.strip_prefix("size=") {
            Some(mib) if mib.bytes().all(|digit| digit.is_ascii_digit()) => size(&format!("{mib}M")),
            Some(text) => size(text),
            None => size(text),
        }
        .map(JournalSize::Bytes),
    }
}

/// A percentage up to 50, in thousandths of a percent.
pub(crate) fn milli_percent(text: &str) -> Result<u32, String> {
    let wrong = || "a percentage from 0 to 50, with at most three decimals, such as 0.5".to_string();
    let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = |digits: &str| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    if !is_number(whole) || !is_number(decimals) || decimals.len() > 3 {
        return Err(wrong());
    }
    let whole: u32 = whole.parse().map_err(|_| wrong())?;
    let thousandths: u32 = format!("{decimals:0<3}").parse().map_err(|_| wrong())?;
    whole.checked_mul(1000).map(|most| most + thousandths).filter(|&sum| sum <= 50_000).ok_or_else(wrong)
}

/// The UUID of a new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Uuid {
    Given([u8; 16]),
    Random,
}

impl Uuid {
    /// The bytes.
    pub(crate) fn bytes(self, rt: &Rt) -> [u8; 16] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Random => random_uuid(&mut rt.rng("uuid")),
        }
    }
}

pub(crate) fn uuid_choice(text: &str) -> Result<Uuid, String> {
    match text {
        "random" => Ok(Uuid::Random),
        _ => uuid(text).map(Uuid::Given),
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
    fields: &'static [fn(&mut FeatureChoices) -> &mut Option<bool>],
    on: bool,
}

impl Feature {
    pub(crate) fn apply(self, choices: &mut FeatureChoices) {
        self.fields.iter().for_each(|field| *field(choices) = Some(self.on));
    }
}

pub(crate) fn feature(text: &str) -> Result<Feature, String> {
    let (name, on) = match text.strip_prefix('^') {
        Some(name) => (name, false),
        None => (text, true),
    };
    let fields: &'static [fn(&mut FeatureChoices) -> &mut Option<bool>] = match name {
        "newest" => &[|f| &mut f.metadata_csum_seed, |f| &mut f.orphan_file],
        "metadata_csum" => &[|f| &mut f.metadata_csum],
        "metadata_csum_seed" => &[|f| &mut f.metadata_csum_seed],
        "uninit_bg" => &[|f| &mut f.uninit_bg],
        "flex_bg" => &[|f| &mut f.flex_bg],
        "64bit" => &[|f| &mut f.bits64],
        "resize_inode" => &[|f| &mut f.resize_inode],
        "orphan_file" => &[|f| &mut f.orphan_file],
        "extent" | "extents" => &[|f| &mut f.extents],
        "dir_index" => &[|f| &mut f.dir_index],
        "large_dir" => &[|f| &mut f.large_dir],
        "ea_inode" => &[|f| &mut f.ea_inode],
        "has_journal" => return Err("a journal is chosen with --journal: -J none leaves it out".into()),
        _ => return Err("not a feature that can be chosen; --help lists those that can".into()),
    };
    Ok(Feature { fields, on })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024_and_with_a_b_of_1000() {
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("64K"), Ok(65536));
        assert_eq!(size("2GiB"), Ok(2 << 30));
        assert_eq!((size("600MB"), size("64kB")), (Ok(600_000_000), Ok(64_000)));
        assert!(size("1.5G").is_err() && size("+5").is_err());
        assert!(size("G").is_err());
        assert!(size("99999999T").is_err());
        assert_eq!(size_policy("exact"), Ok(SizePolicy::Exact));
        assert_eq!(size_policy("+20%"), Ok(SizePolicy::PlusPercent(20)));
        assert_eq!(size_policy("1M"), Ok(SizePolicy::Fixed(1 << 20)));
        assert_eq!(size_policy("+64M"), Ok(SizePolicy::PlusBytes(64 << 20)));
        assert!(size_policy("+20x%").is_err() && size_policy("++1").is_err());
    }

    #[test]
    fn sizes_for_people_are_those_of_ls() {
        let shown = [
            0,
            1023,
            1024,
            1025,
            10 << 10,
            (10 << 10) + 1,
            1023 << 10,
            (1 << 20) - 1,
            1 << 20,
            900 << 10,
            3 << 29,
        ];
        let told = shown.map(human);
        assert_eq!(
            told,
            ["0", "1023", "1.0K", "1.1K", "10K", "11K", "1023K", "1.0M", "1.0M", "900K", "1.5G"]
        );
        assert_eq!(human(u64::MAX), "16E");
    }

    #[test]
    fn a_journal_is_sized_as_here_or_as_for_mke2fs() {
        let four = Ok(JournalSize::Bytes(4 << 20));
        assert_eq!(["4M", "size=4", "size=4M"].map(journal), [four.clone(), four.clone(), four]);
        assert!(journal("size=").is_err() && journal("device=/dev/sdb").is_err());
        assert!(size_policy("10%").is_err_and(|told| told.contains("+10%")));
    }

    #[test]
    fn percentages_have_decimals() {
        let read = ["0", "5", "0.5", "0.125", "50"].map(milli_percent);
        assert_eq!(read, [Ok(0), Ok(5000), Ok(500), Ok(125), Ok(50_000)]);
        for text in ["50.001", "51", "-1", ".5", "5.", "0.1234", "1e1", ""] {
            assert!(milli_percent(text).is_err(), "{text}");
        }
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
