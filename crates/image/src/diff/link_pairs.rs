//! Files with several names, on both sides.

use std::collections::BTreeMap;

/// Device and inode number of a file; the device is 0 for a volume.
pub(super) type Identity = (u64, u64);

/// Memory limit for remembered paths, in bytes; further names are compared like separate files.
const MEMORY_BYTES: usize = 48 << 20;

/// Pairs of files met under the same path.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    /// For each side, the partner and the first path of each file.
    sides: [BTreeMap<Identity, (Identity, Vec<u8>)>; 2],
    memory_bytes: usize,
}

/// Whether the files of a pair were met before.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// Neither file was met before.
    First,
    /// Both were met before, under the same path.
    Again,
    /// One was met before, or both were under different paths: the first path of each.
    Apart(Option<Vec<u8>>, Option<Vec<u8>>),
}

impl Pairs {
    /// Records two files met under the same path.
    pub(super) fn meet(&mut self, a: Identity, b: Identity, path: &[u8]) -> Met {
        let (known_a, known_b) = (self.sides[0].get(&a), self.sides[1].get(&b));
        let met = match (known_a, known_b) {
            (None, None) => Met::First,
            (Some((partner, _)), Some(_)) if *partner == b => return Met::Again,
            (a, b) => Met::Apart(a.map(|(_, path)| path.clone()), b.map(|(_, path)| path.clone())),
        };
        for (side, (file, partner)) in [(a, b), (b, a)].into_iter().enumerate() {
            if self.memory_bytes + path.len() <= MEMORY_BYTES && !self.sides[side].contains_key(&file) {
                self.memory_bytes += path.len();
                self.sides[side].insert(file, (partner, path.to_vec()));
            }
        }
        met
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_file_are_met_again_where_both_sides_agree() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.meet((0, 1), (0, 7), b"a"), Met::First);
        assert_eq!(pairs.meet((0, 1), (0, 7), b"b"), Met::Again);
        assert_eq!(pairs.meet((0, 1), (0, 8), b"c"), Met::Apart(Some(b"a".to_vec()), None));
        assert_eq!(pairs.meet((0, 2), (0, 7), b"d"), Met::Apart(None, Some(b"a".to_vec())));
    }
}
