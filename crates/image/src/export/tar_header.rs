//! Tar headers: POSIX.1-2001 ("pax Interchange Format"), with records of GNU tar and star where
//! POSIX defines none.

use extant_cache::ByteRange;
use extant_format::{Acl, DeviceNumber, Inode, InodeNumber, Timestamp, UintExt};
use extant_fs::Attribute;
use tar::{EntryType, Header};

/// Size of a record; everything in an archive is a multiple of it.
pub(super) const RECORD_BYTES: usize = 512;

/// One entry of an archive.
pub(super) struct Entry<'a> {
    pub(super) path: &'a [u8],
    pub(super) kind: EntryType,
    pub(super) inode: &'a Inode,
    /// Target of a symbolic link, or the first path of a hard-linked file.
    pub(super) link: &'a [u8],
    pub(super) xattrs: &'a [Attribute],
    pub(super) contents: Contents<'a>,
}

/// The part of an entry after its headers.
pub(super) enum Contents<'a> {
    None,
    Whole {
        bytes: u64,
    },
    /// GNU sparse format 1.0: a map before the data.
    Sparse {
        map: &'a [u8],
        data_bytes: u64,
        real_bytes: u64,
    },
}

impl Entry<'_> {
    /// The headers, as whole records.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut records = Records::default();
        let mut header = Header::new_ustar();
        header.set_entry_type(self.kind);
        header.set_mode(u32::from(self.inode.mode() & 0o7777));
        records.name(&mut header, self.path, &self.contents);
        records.link(&mut header, self.link);
        let stored = match self.contents {
            Contents::None => 0,
            Contents::Whole { bytes } => bytes,
            Contents::Sparse { map, data_bytes, .. } => map.len().to_u64() + data_bytes,
        };
        header.set_size(records.number("size", stored, 11));
        header.set_uid(records.number("uid", self.inode.uid().into(), 7));
        header.set_gid(records.number("gid", self.inode.gid().into(), 7));
        header.set_mtime(records.time("mtime", self.inode.modified()));
        if let Some(DeviceNumber { major, minor }) =
            self.inode.device().filter(|_| self.kind != EntryType::Link)
            && let Some(ustar) = header.as_ustar_mut()
        {
            ustar.set_device_major(major);
            ustar.set_device_minor(minor);
        }
        records.xattrs(self.inode.number, self.xattrs);
        header.set_cksum();
        let mut bytes = records.to_bytes(self.path);
        bytes.extend_from_slice(header.as_bytes());
        bytes
    }
}

/// Encodes a GNU sparse 1.0 map: the number of regions, then offset and length of each, one decimal
/// number per line, padded to a whole record.
pub(super) fn sparse_map(regions: &[ByteRange], size: u64) -> Vec<u8> {
    use std::io::Write;
    let mut map = Vec::new();
    // Like GNU tar, record a trailing hole as an empty region at the end.
    let ends = regions.last().is_none_or(|last| last.end < size);
    let _ = writeln!(map, "{}", regions.len() + usize::from(ends));
    for region in regions {
        let _ = writeln!(map, "{}\n{}", region.start, region.len());
    }
    if ends {
        let _ = writeln!(map, "{size}\n0");
    }
    map.resize(map.len().next_multiple_of(RECORD_BYTES), 0);
    map
}

/// Records of an extended header.
#[derive(Default)]
struct Records(Vec<u8>);

impl Records {
    /// Adds `"%d %s=%s\n"`, where the number is the length of the whole record.
    fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while len != rest + len.to_string().len() {
            len = rest + len.to_string().len();
        }
        self.0.extend_from_slice(len.to_string().as_bytes());
        self.0.extend_from_slice(&[b" ", key, b"=", value, b"\n"].concat());
    }

    fn name(&mut self, header: &mut Header, path: &[u8], contents: &Contents<'_>) {
        let field = |header: &mut Header, name: &[u8]| {
            let room = &mut header.as_old_mut().name;
            let n = name.len().min(room.len());
            room[..n].copy_from_slice(&name[..n]);
        };
        if let Contents::Sparse { real_bytes, .. } = contents {
            self.charset(path);
            self.add(b"GNU.sparse.major", b"1");
            self.add(b"GNU.sparse.minor", b"0");
            self.add(b"GNU.sparse.name", path);
            self.add(b"GNU.sparse.realsize", real_bytes.to_string().as_bytes());
            // The name under which readers without sparse support unpack it.
            return field(header, &[b"GNUSparseFile.0/", last_component(path)].concat());
        }
        if path.len() > header.as_old().name.len() {
            self.charset(path);
            self.add(b"path", path);
        }
        field(header, path);
    }

    fn link(&mut self, header: &mut Header, link: &[u8]) {
        let room = &mut header.as_old_mut().linkname;
        if link.len() > room.len() {
            self.charset(link);
            self.add(b"linkpath", link);
        }
        let n = link.len().min(room.len());
        room[..n].copy_from_slice(&link[..n]);
    }

    /// Names in extended headers are UTF-8 unless declared otherwise.
    fn charset(&mut self, name: &[u8]) {
        let record: &[u8] = b"21 hdrcharset=BINARY\n";
        if std::str::from_utf8(name).is_err() && !self.0.starts_with(record) {
            self.0.splice(0..0, record.iter().copied());
        }
    }

    /// Returns the value for a header field of `digits` octal digits; if it does not fit, returns 0
    /// and adds a record.
    fn number(&mut self, key: &str, value: u64, digits: u32) -> u64 {
        if value >> (3 * digits) == 0 {
            return value;
        }
        self.add(key.as_bytes(), value.to_string().as_bytes());
        0
    }

    fn time(&mut self, key: &str, time: Timestamp) -> u64 {
        match u64::try_from(time.seconds) {
            Ok(seconds) if time.nanos == 0 && seconds >> 33 == 0 => seconds,
            other => {
                self.add(key.as_bytes(), decimal(time).as_bytes());
                other.unwrap_or(0).min((1 << 33) - 1)
            }
        }
    }

    fn xattrs(&mut self, inode: InodeNumber, xattrs: &[Attribute]) {
        for Attribute { name, value } in xattrs {
            // Also add the text form, for readers that restore access control lists only from it.
            let text = match name.as_slice() {
                b"system.posix_acl_access" => Some("SCHILY.acl.access"),
                b"system.posix_acl_default" => Some("SCHILY.acl.default"),
                _ => None,
            };
            if let (Some(key), Ok(acl)) = (text, Acl::parse_xattr(value, inode)) {
                self.add(key.as_bytes(), acl.to_string().as_bytes());
            }
            let mut key = b"SCHILY.xattr.".to_vec();
            for &byte in name {
                // Escape `=` like GNU tar: it would end the keyword.
                match byte {
                    b'=' => key.extend_from_slice(b"%3D"),
                    b'%' => key.extend_from_slice(b"%25"),
                    byte => key.push(byte),
                }
            }
            self.add(&key, value);
        }
    }

    /// The extended header and its contents; empty if there are no records.
    fn to_bytes(&self, path: &[u8]) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_mode(0o644);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(self.0.len().to_u64());
        let name = [b"PaxHeaders/", last_component(path)].concat();
        let room = &mut header.as_old_mut().name;
        let n = name.len().min(room.len());
        room[..n].copy_from_slice(&name[..n]);
        header.set_cksum();
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(&self.0);
        let padding = bytes.len().next_multiple_of(RECORD_BYTES) - bytes.len();
        bytes.extend_from_slice(&[0; RECORD_BYTES][..padding]);
        bytes
    }
}

fn last_component(path: &[u8]) -> &[u8] {
    path.split(|&b| b == b'/').rfind(|name| !name.is_empty()).unwrap_or(b".")
}

/// Formats seconds with as few decimals as possible.
fn decimal(time: Timestamp) -> String {
    let nanos = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    let (whole, fraction) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    let sign = if nanos < 0 { "-" } else { "" };
    let text = format!("{sign}{whole}.{fraction:09}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_themselves() {
        let mut records = Records::default();
        records.add(b"path", b"x");
        // With a one-digit length the record has 9 bytes. One more byte makes 10, which needs a
        // second digit, which makes 11.
        assert_eq!(records.0, b"9 path=x\n".as_slice());
        let mut records = Records::default();
        records.add(b"path", b"xy");
        assert_eq!(records.0, b"11 path=xy\n".as_slice());
        let mut records = Records::default();
        records.charset(b"\xff");
        assert_eq!(records.0.len(), 21);
    }

    #[test]
    fn times_before_1970_are_negative_decimals() {
        let show = |seconds, nanos| decimal(Timestamp { seconds, nanos });
        assert_eq!(show(1, 500_000_000), "1.5");
        assert_eq!(show(-2, 500_000_000), "-1.5");
        assert_eq!(show(-1, 0), "-1");
        assert_eq!(show(1 << 34, 1), "17179869184.000000001");
    }

    #[test]
    fn a_sparse_map_ends_at_the_size() {
        let text = |map: Vec<u8>| String::from_utf8(map).unwrap().trim_end_matches('\0').replace('\n', " ");
        assert_eq!(text(sparse_map(&[ByteRange::new(0, 10), ByteRange::new(20, 30)], 30)), "2 0 10 20 10 ");
        assert_eq!(
            text(sparse_map(&[ByteRange::new(0, 10), ByteRange::new(12, 13)], 30)),
            "3 0 10 12 1 30 0 "
        );
        assert_eq!(text(sparse_map(&[], 30)), "1 30 0 ");
    }
}
