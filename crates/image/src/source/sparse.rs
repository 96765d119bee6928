//! Maps of sparse files in archives: unifies GNU's old format and its three pax formats.

use crate::tree::DataRange;
use extant_format::UintExt;

/// More ranges are refused, because each costs memory.
const MAX_RANGES: usize = 4 << 20;

/// Collects and validates a map.
#[derive(Debug, Default)]
pub(crate) struct SparseMap {
    ranges: Vec<DataRange>,
    stored: u64,
    end: u64,
}

impl SparseMap {
    /// Adds the next data range, in order; an empty one only marks the end of the file.
    pub(crate) fn push(&mut self, offset: u64, len: u64) -> Result<(), String> {
        if offset < self.end {
            return Err("the ranges of a sparse file overlap or run backwards".into());
        }
        self.end = offset.checked_add(len).ok_or("a range of a sparse file lies beyond 2^64")?;
        if len > 0 {
            if self.ranges.len() >= MAX_RANGES {
                return Err(format!("a sparse file has more than {MAX_RANGES} ranges"));
            }
            self.ranges.push(DataRange { offset, len, stored: self.stored });
            self.stored += len;
        }
        Ok(())
    }

    /// Adds alternating offsets and lengths, as in pax records.
    pub(crate) fn push_all(&mut self, numbers: &[u64]) -> Result<(), String> {
        if !numbers.len().is_multiple_of(2) {
            return Err("the map of a sparse file has an odd number of numbers".into());
        }
        numbers.chunks_exact(2).try_for_each(|pair| self.push(pair[0], pair[1]))
    }

    /// Completes the map of a file of `size` bytes, `stored` of which are in the archive.
    pub(crate) fn finish(self, size: u64, stored: u64) -> Result<Vec<DataRange>, String> {
        if self.end > size {
            return Err("a range of a sparse file lies beyond its end".into());
        }
        if self.stored > stored {
            return Err("a sparse file's ranges need more bytes than the archive holds for it".into());
        }
        Ok(self.ranges)
    }
}

/// Parser for the text map of format 1.0: decimal numbers, one per line, starting with the number
/// of ranges. Fed one block at a time.
#[derive(Debug, Default)]
pub(crate) struct TextMap {
    expected: Option<u64>,
    pub(crate) numbers: Vec<u64>,
    digits: Option<u64>,
}

impl TextMap {
    /// Takes one 512-byte block; returns true once the map is complete.
    pub(crate) fn feed(&mut self, block: &[u8]) -> Result<bool, String> {
        for &byte in block {
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    let value = self.digits.unwrap_or(0).checked_mul(10).and_then(|n| n.checked_add(digit));
                    self.digits = Some(value.ok_or("a number in a sparse map is too large")?);
                }
                b'\n' => {
                    let number = self.digits.take().ok_or("a sparse map has an empty line")?;
                    match self.expected {
                        None if number > MAX_RANGES.to_u64() => {
                            return Err(format!("a sparse file has more than {MAX_RANGES} ranges"));
                        }
                        None => self.expected = Some(number * 2),
                        Some(_) => self.numbers.push(number),
                    }
                    if self.expected == Some(self.numbers.len().to_u64()) {
                        return Ok(true);
                    }
                }
                _ => return Err("a sparse map holds something other than numbers".into()),
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_checked() {
        let mut map = SparseMap::default();
        map.push_all(&[0, 10, 4096, 5, 10_000, 0]).unwrap();
        let ranges = map.finish(10_000, 15).unwrap();
        assert_eq!(ranges[1], DataRange { offset: 4096, len: 5, stored: 10 });
        let mut map = SparseMap::default();
        map.push(5, 5).unwrap();
        assert!(map.push(9, 1).is_err());
        assert!(SparseMap::default().push_all(&[1]).is_err());
        assert!(SparseMap::default().push(u64::MAX, 1).is_err());
    }

    #[test]
    fn text_maps_may_span_blocks() {
        let mut map = TextMap::default();
        assert!(!map.feed(b"2\n0\n5").unwrap());
        assert!(map.feed(b"12\n1024\n1\n\0\0").unwrap());
        assert_eq!(map.numbers, [0, 512, 1024, 1]);
        assert!(TextMap::default().feed(b"x").is_err());
        assert!(TextMap::default().feed(b"0\n").unwrap());
    }
}
