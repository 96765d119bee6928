//! A 512-byte tar header: v7, ustar or GNU.

/// Size of an archive block in bytes.
pub(crate) const BLOCK: usize = 512;

/// A block interpreted as a header.
pub(crate) struct Header<'a>(pub(crate) &'a [u8; BLOCK]);

/// Ranges (offset, length) of a sparse file, and whether another block of ranges follows.
pub(crate) struct SparseRanges {
    pub(crate) ranges: Vec<(i64, i64)>,
    pub(crate) more: bool,
}

impl<'a> Header<'a> {
    /// Whether the stored checksum matches the sum of the bytes, taken as unsigned or, for some old
    /// writers, signed.
    pub(crate) fn checksum_holds(&self) -> bool {
        let Some(stored) = self.number(148, 8) else { return false };
        let byte = |(i, b): (usize, &u8)| if (148..156).contains(&i) { b' ' } else { *b };
        let unsigned: i64 = self.0.iter().enumerate().map(|b| i64::from(byte(b))).sum();
        let signed: i64 = self.0.iter().enumerate().map(|b| i64::from(byte(b).cast_signed())).sum();
        stored == unsigned || stored == signed
    }

    pub(crate) fn type_flag(&self) -> u8 {
        self.0[156]
    }

    pub(crate) fn name(&self) -> Vec<u8> {
        let name = self.text(0, 100);
        let prefix = if self.0[257..263] == *b"ustar\0" { self.text(345, 155) } else { b"" };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(crate) fn link_name(&self) -> &'a [u8] {
        self.text(157, 100)
    }

    pub(crate) fn mode(&self) -> Option<i64> {
        self.number(100, 8)
    }

    pub(crate) fn uid(&self) -> Option<i64> {
        self.number(108, 8)
    }

    pub(crate) fn gid(&self) -> Option<i64> {
        self.number(116, 8)
    }

    /// Names of the owner and the group; empty if the archive contains none.
    pub(crate) fn owner_names(&self) -> (&'a [u8], &'a [u8]) {
        let is_ustar = self.0[257..262] == *b"ustar";
        if is_ustar { (self.text(265, 32), self.text(297, 32)) } else { (b"", b"") }
    }

    pub(crate) fn size(&self) -> Option<i64> {
        self.number(124, 12)
    }

    pub(crate) fn mtime(&self) -> Option<i64> {
        self.number(136, 12)
    }

    /// Device major and minor.
    pub(crate) fn device(&self) -> Option<(i64, i64)> {
        Some((self.number(329, 8)?, self.number(337, 8)?))
    }

    /// Size of a file with an old GNU sparse header.
    pub(crate) fn real_size(&self) -> Option<i64> {
        self.number(483, 12)
    }

    /// The first ranges in an old GNU sparse header.
    pub(crate) fn old_sparse(&self) -> Option<SparseRanges> {
        self.sparse_ranges(386, 4, 482)
    }

    /// Ranges in a continuation block.
    pub(crate) fn more_sparse(&self) -> Option<SparseRanges> {
        self.sparse_ranges(0, 21, 504)
    }

    fn sparse_ranges(&self, at: usize, count: usize, more_at: usize) -> Option<SparseRanges> {
        let ranges = (0..count)
            .map(|i| at + i * 24)
            .take_while(|&at| self.0[at] != 0)
            .map(|at| Some((self.number(at, 12)?, self.number(at + 12, 12)?)))
            .collect::<Option<_>>()?;
        Some(SparseRanges { ranges, more: self.0[more_at] != 0 })
    }

    fn text(&self, at: usize, len: usize) -> &'a [u8] {
        let field = &self.0[at..at + len];
        &field[..field.iter().position(|b| *b == 0).unwrap_or(len)]
    }

    /// Octal digits, or base 256 if the top bit is set; an empty field is 0.
    fn number(&self, at: usize, len: usize) -> Option<i64> {
        let field = &self.0[at..at + len];
        if field[0] & 0x80 != 0 {
            let negative = field[0] & 0x40 != 0;
            let first = if negative { -1 } else { i64::from(field[0] & 0x3f) };
            return field[1..].iter().try_fold(first, |n, &b| n.checked_mul(256)?.checked_add(b.into()));
        }
        let is_blank = |b: &u8| matches!(b, b' ' | 0);
        let start = field.iter().position(|b| !is_blank(b)).unwrap_or(len);
        let digits = &field[start..];
        let end = digits.iter().position(is_blank).unwrap_or(digits.len());
        digits[..end].iter().try_fold(0i64, |n, &b| match b {
            b'0'..=b'7' => n.checked_mul(8)?.checked_add((b - b'0').into()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(field: &[u8; 12]) -> Option<i64> {
        let mut block = [0; BLOCK];
        block[124..136].copy_from_slice(field);
        Header(&block).size()
    }

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(numbers(b"00000000017\0"), Some(15));
        assert_eq!(numbers(b"   17 \0\0\0\0\0\0"), Some(15));
        assert_eq!(numbers(&[0; 12]), Some(0));
        assert_eq!(numbers(&[0x80, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0]), Some(2 << 32));
        assert_eq!(numbers(&[0xff; 12]), Some(-1));
        assert_eq!(numbers(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(numbers(b"9zzzzzzzzzzz"), None);
    }
}
