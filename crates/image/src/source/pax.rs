//! Extended headers of POSIX.1-2001 archives ("pax Interchange Format"), including vendors'
//! records.
//!
//! Records are split by their length, not at newlines: binary attribute values may contain any
//! byte.

use super::named_acls::{ACCESS_TEXT, DEFAULT_TEXT};
use crate::base64::base64_decoded;
use crate::tree::Xattr;
use extant_format::{Timestamp, UintExt};

/// Values from extended headers for the next entry; `None` or empty if not given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pax {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) link_path: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) user_name: Option<Vec<u8>>,
    pub(crate) group_name: Option<Vec<u8>>,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) dev_major: Option<u64>,
    pub(crate) dev_minor: Option<u64>,
    /// File flags in text, separated by commas.
    pub(crate) flags: Option<Vec<u8>>,
    pub(crate) xattrs: Vec<Xattr>,
    pub(crate) sparse: SparsePax,
}

/// Records of GNU tar's sparse formats 0.0, 0.1 and 1.0.
#[derive(Clone, Debug, Default)]
pub(crate) struct SparsePax {
    pub(crate) major: Option<u64>,
    pub(crate) real_size: Option<u64>,
    pub(crate) name: Option<Vec<u8>>,
    /// The map's numbers: alternating offset and length.
    pub(crate) map: Vec<u64>,
    pub(crate) listed: bool,
}

impl Pax {
    /// Adds the records of one extended header to those of earlier ones.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        while !bytes.is_empty() && bytes[0] != 0 {
            let (key, value, rest) = record(bytes).ok_or("malformed record in an extended header")?;
            self.take(key, value)?;
            bytes = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        // An empty value cancels the one from a global header.
        let text = |value: &[u8]| (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = text(value),
            b"linkpath" => self.link_path = text(value),
            b"size" => self.size = number(key, value)?,
            b"uid" => self.uid = number(key, value)?,
            b"gid" => self.gid = number(key, value)?,
            b"uname" => self.user_name = text(value),
            b"gname" => self.group_name = text(value),
            b"mtime" => self.mtime = time(value)?,
            b"SCHILY.devmajor" => self.dev_major = number(key, value)?,
            b"SCHILY.devminor" => self.dev_minor = number(key, value)?,
            b"SCHILY.fflags" => self.flags = text(value),
            b"GNU.sparse.major" => self.sparse.major = number(key, value)?,
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.sparse.real_size = number(key, value)?,
            b"GNU.sparse.name" => self.sparse.name = text(value),
            b"GNU.sparse.numblocks" => self.sparse.listed = true,
            b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => {
                self.sparse.map.extend(number(key, value)?);
                self.sparse.listed = true;
            }
            b"GNU.sparse.map" => {
                self.sparse.listed = true;
                for part in value.split(|b| *b == b',').filter(|part| !part.is_empty()) {
                    self.sparse.map.extend(number(key, part)?);
                }
            }
            _ => self.take_xattr(key, value)?,
        }
        Ok(())
    }

    fn take_xattr(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let (name, value) = if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            (signs_decoded(name), value.to_vec())
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            let digits: Vec<u8> =
                value.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect();
            let value = base64_decoded(&digits).ok_or("attribute value is not base64")?;
            (percent_decoded(name), value)
        } else if key == ACCESS_TEXT || key == DEFAULT_TEXT {
            // Keep this as text until all sources have been read, because it may name users and
            // groups.
            (key.to_vec(), value.to_vec())
        } else if key == b"RHT.security.selinux" {
            // The archive omits the trailing zero byte that the kernel stores.
            (b"security.selinux".to_vec(), [value, b"\0"].concat())
        } else {
            return Ok(());
        };
        self.xattrs.push(Xattr { name: name.into(), value: value.into() });
        Ok(())
    }
}

/// Splits off one record, `"%d %s=%s\n"`; the length includes itself and the newline.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|b| *b == b' ')?;
    let len: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    if len <= space + 1 || len > bytes.len() {
        return None;
    }
    let (body, line_end) = bytes[space + 1..len].split_at(len - space - 2);
    let equals = body.iter().position(|b| *b == b'=')?;
    (line_end == b"\n").then_some((&body[..equals], &body[equals + 1..], &bytes[len..]))
}

fn number(key: &[u8], value: &[u8]) -> Result<Option<u64>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let parsed = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
    parsed.map(Some).ok_or_else(|| format!("{} is not a number", extant_fs::quote(key)))
}

/// Parses seconds with an optional fraction, possibly negative.
fn time(value: &[u8]) -> Result<Option<Timestamp>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let parse = || {
        let text = std::str::from_utf8(value).ok()?;
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let seconds: i64 = if whole == "-" { 0 } else { whole.parse().ok()? };
        let digits: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        let nanos: u32 = digits.parse().ok()?;
        Some(if whole.starts_with('-') && nanos > 0 {
            Timestamp { seconds: seconds.checked_sub(1)?, nanos: 1_000_000_000 - nanos }
        } else {
            Timestamp { seconds, nanos }
        })
    };
    parse().map(Some).ok_or_else(|| "mtime is not a time".into())
}

/// Decodes a name as escaped by GNU tar: `%3D` for `=`, which would end the keyword, and `%25` for
/// the escape sign `%` (tar 1.34, `xattr_encode_keyword`). Other percent signs are kept.
fn signs_decoded(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((&first, after)) = rest.split_first() {
        (rest, _) = match rest {
            [b'%', b'3', b'D', after @ ..] => (after, out.push(b'=')),
            [b'%', b'2', b'5', after @ ..] => (after, out.push(b'%')),
            _ => (after, out.push(first)),
        };
    }
    out
}

fn percent_decoded(name: &[u8]) -> Vec<u8> {
    let hex = |b: u8| (b as char).to_digit(16);
    let mut out = Vec::with_capacity(name.len());
    let mut at = 0;
    while at < name.len() {
        if let [b'%', a, b, ..] = name[at..]
            && let (Some(a), Some(b)) = (hex(a), hex(b))
        {
            out.push((a * 16 + b).fit_u8());
            at += 3;
        } else {
            out.push(name[at]);
            at += 1;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_hold_any_byte() {
        let mut pax = Pax::default();
        pax.read(b"38 SCHILY.xattr.security.capability=\n\n").unwrap();
        assert_eq!(&*pax.xattrs[0].name, b"security.capability");
        assert_eq!(&*pax.xattrs[0].value, b"\n");
        assert!(Pax::default().read(b"99 path=x\n").is_err());
        assert!(Pax::default().read(b"0 path=x\n").is_err());
    }

    #[test]
    fn times_before_1970_keep_their_fraction() {
        let at = |seconds, nanos| Ok(Some(Timestamp { seconds, nanos }));
        assert_eq!(time(b"-1.25"), at(-2, 750_000_000));
        assert_eq!(time(b"-0.5"), at(-1, 500_000_000));
        assert_eq!(time(b"1700000000.123456789123"), at(1_700_000_000, 123_456_789));
        assert!(time(b"soon").is_err());
    }

    #[test]
    fn libarchive_attributes_are_decoded() {
        let mut pax = Pax::default();
        pax.read(b"42 LIBARCHIVE.xattr.user.a%20b=aGVsbG8K/w\n").unwrap();
        assert_eq!(&*pax.xattrs[0].name, b"user.a b");
        assert_eq!(&*pax.xattrs[0].value, b"hello\n\xff");
    }
}
