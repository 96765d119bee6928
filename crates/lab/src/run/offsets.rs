//! Chooses the offset of the next I/O.

use extant_rt::Rng;

/// Block numbers below a bound in random order; none repeats before all have been returned.
///
/// A permutation without memory: a Feistel network over the next power of four, walked until the
/// result is below the bound (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA
/// 2002).
#[derive(Debug)]
pub(super) struct Permutation {
    count: u64,
    half_bits: u32,
    keys: [u64; 4],
    next: u64,
}

impl Permutation {
    pub(super) fn new(count: u64, rng: &mut Rng) -> Self {
        let bits = (64 - (count - 1).leading_zeros()).max(2);
        Self { count, half_bits: bits.div_ceil(2), keys: std::array::from_fn(|_| rng.next_u64()), next: 0 }
    }

    /// Returns the next block; after the last, starts a new order.
    pub(super) fn next(&mut self, rng: &mut Rng) -> u64 {
        if self.next == self.count {
            *self = Self::new(self.count, rng);
        }
        let mut at = self.next;
        self.next += 1;
        loop {
            at = self.once(at);
            if at < self.count {
                return at;
            }
        }
    }

    fn once(&self, at: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (at >> self.half_bits, at & mask);
        for key in self.keys {
            let mixed = Rng::new(key ^ right).next_u64() & mask;
            (left, right) = (right, left ^ mixed);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_comes_once_a_round() {
        let mut rng = Rng::new(4);
        for count in [1, 2, 3, 5, 64, 1000, 1025] {
            let mut order = Permutation::new(count, &mut rng);
            for _ in 0..3 {
                let mut seen: Vec<u64> = (0..count).map(|_| order.next(&mut rng)).collect();
                assert!(count < 64 || !seen.is_sorted());
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..count));
            }
        }
    }
}
