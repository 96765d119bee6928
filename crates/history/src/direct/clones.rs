//! Splitting of bios at the chunks of a striped device, as in the device mapper of Linux 2.6.19
//! (`__clone_and_map`).

/// A piece of a bio: consecutive bytes on the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// First byte on the volume.
    pub start_byte: u64,
    /// Length in bytes of each section of memory.
    pub sections: Vec<u64>,
}

impl Cut {
    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.sections.iter().sum()
    }
}

/// Splits a bio that starts at `start_byte` so that each piece lies in one chunk. A memory section
/// that crosses the end of a chunk becomes a separate piece on either side of it; the whole
/// sections before it form one piece.
pub fn cut_at_chunks(start_byte: u64, sections: &[u64], chunk_bytes: u64) -> Vec<Cut> {
    let mut cuts = Vec::new();
    let (mut at, mut rest) = (start_byte, sections);
    while let Some((&first, behind)) = rest.split_first() {
        let room = chunk_bytes - at % chunk_bytes;
        let mut taken = 0;
        let whole = rest.iter().take_while(|bytes| {
            taken += **bytes;
            taken <= room
        });
        let whole = whole.count();
        if whole > 0 {
            let piece = Cut { start_byte: at, sections: rest[..whole].to_vec() };
            at += piece.bytes();
            rest = &rest[whole..];
            cuts.push(piece);
            continue;
        }
        let end = at + first;
        while at < end {
            let bytes = (chunk_bytes - at % chunk_bytes).min(end - at);
            cuts.push(Cut { start_byte: at, sections: vec![bytes] });
            at += bytes;
        }
        rest = behind;
    }
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn kib(start_kib: u64, pages: usize) -> Vec<(u64, u64)> {
        let cuts = cut_at_chunks(start_kib * KIB, &vec![16 * KIB; pages], 128 * KIB);
        cuts.iter().map(|cut| (cut.start_byte / KIB, cut.bytes() / KIB)).collect()
    }

    #[test]
    fn chunks_of_whole_pages_are_one_piece_each() {
        assert_eq!(kib(256, 16), [(256, 128), (384, 128)]);
        assert_eq!(kib(320, 8), [(320, 64), (384, 64)]);
    }

    #[test]
    fn a_page_across_the_end_of_a_chunk_is_two_pieces() {
        assert_eq!(kib(260, 8), [(260, 112), (372, 12), (384, 4)]);
        assert_eq!(kib(4, 1), [(4, 16)]);
        assert_eq!(kib(116, 1), [(116, 12), (128, 4)]);
    }

    #[test]
    fn a_part_longer_than_a_chunk_is_cut_at_each() {
        let cuts = cut_at_chunks(60 * KIB, &[200 * KIB], 64 * KIB);
        let lengths: Vec<u64> = cuts.iter().map(|cut| cut.bytes() / KIB).collect();
        assert_eq!(lengths, [4, 64, 64, 64, 4]);
    }
}
