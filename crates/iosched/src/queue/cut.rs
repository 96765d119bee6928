//! Splits bios that are longer than the device accepts.

use extant_block::Piece;
use extant_block::{Bio, IoErrorKind, Limits, Op, Sector};

/// How to split `bio` so that every piece is within the limits; `None` if it already is.
pub(super) fn cut(bio: &Bio, limits: &Limits) -> Result<Option<Vec<Piece>>, IoErrorKind> {
    // Ranges without memory carry no data: only `max_bytes` limits them.
    let fits = bio.bytes <= limits.max_bytes && bio.segments.len() <= limits.max_segments as usize;
    if fits {
        return Ok(None);
    }
    let block = u64::from(limits.block_bytes);
    let longest = limits.max_bytes - limits.max_bytes % block;
    assert!(longest > 0, "a device takes a block at a time at least");
    let mut pieces = Vec::new();
    let mut at = bio.start;
    let mut segments = Segments { bio, index: 0, offset: 0 };
    let mut left = bio.bytes;
    while left > 0 {
        let most = left.min(longest);
        let bytes = match bio.op {
            Op::Read | Op::Write => segments.reach(limits.max_segments as usize, most),
            Op::Flush | Op::Discard | Op::WriteZeroes => most,
        };
        let bytes = if bytes == left { bytes } else { bytes - bytes % block };
        if bytes == 0 {
            // The segments are so small that a single block consists of more of them than the
            // device accepts.
            return Err(IoErrorKind::Misaligned);
        }
        segments.advance(bytes);
        pieces.push(Piece { start: at, bytes });
        at = Sector(at.0 + bytes / Sector::BYTES);
        left -= bytes;
    }
    Ok(Some(pieces))
}

/// A position in a bio's memory.
struct Segments<'a> {
    bio: &'a Bio,
    index: usize,
    offset: u64,
}

impl Segments<'_> {
    /// How many bytes the next `count` segments hold, at most `most`.
    fn reach(&self, count: usize, most: u64) -> u64 {
        let all: u64 = self.bio.segments.iter().skip(self.index).take(count).map(|s| s.len() as u64).sum();
        (all - self.offset).min(most)
    }

    fn advance(&mut self, bytes: u64) {
        self.offset += bytes;
        while let Some(segment) = self.bio.segments.get(self.index)
            && self.offset >= segment.len() as u64
        {
            self.offset -= segment.len() as u64;
            self.index += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::Buf;

    fn lengths(segments: &[usize], max_bytes: u64, max_segments: u32) -> Result<Vec<u64>, IoErrorKind> {
        let memory = segments.iter().map(|&n| Buf::zeroed(n).into()).collect();
        let bio = Bio::new(Op::Write, Sector(8), memory);
        let limits = Limits { max_bytes, max_segments, ..Limits::new("d", 1 << 30) };
        let pieces = cut(&bio, &limits)?;
        Ok(pieces.map_or(vec![bio.bytes], |pieces| pieces.iter().map(|p| p.bytes).collect()))
    }

    #[test]
    fn a_bio_is_cut_at_the_longest_command() {
        assert_eq!(lengths(&[10 * 512], 4 * 512, 8), Ok(vec![4 * 512, 4 * 512, 2 * 512]));
        assert_eq!(lengths(&[4 * 512], 4 * 512, 8), Ok(vec![4 * 512]));
    }

    #[test]
    fn a_bio_is_cut_at_the_most_segments_on_a_block() {
        assert_eq!(lengths(&[512; 5], 1 << 20, 2), Ok(vec![1024, 1024, 512]));
        assert_eq!(lengths(&[500, 524, 512], 1 << 20, 2), Ok(vec![1024, 512]));
        assert_eq!(lengths(&[700, 836, 512], 1 << 20, 2), Ok(vec![1536, 512]));
        assert_eq!(lengths(&[700, 400, 436], 1 << 20, 2), Ok(vec![1024, 512]));
    }

    #[test]
    fn crumbs_are_refused() {
        assert_eq!(lengths(&[100, 100, 100, 212], 1 << 20, 2), Err(IoErrorKind::Misaligned));
    }
}
