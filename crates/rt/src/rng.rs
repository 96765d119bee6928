//! Reproducible randomness.

/// A pseudo-random generator: SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", 2014).
///
/// Our own, because a seed printed by an experiment must give the same run after any dependency
/// upgrade. Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The stream for this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The stream for a seed and a label, independent of other labels' streams.
    pub fn labelled(seed: u64, label: &str) -> Self {
        // FNV-1a, then one step to mix the bits.
        let hash = label
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
        Self(Self(seed ^ hash).next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, uniformly distributed (to within 2^-64 · bound). Panics if `bound`
    /// is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_is_the_published_one() {
        // First outputs of the reference implementation for seed 1234567
        // (prng.di.unimi.it/splitmix64.c).
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn labels_have_streams_of_their_own() {
        let first = |label| Rng::labelled(7, label).next_u64();
        assert_eq!(first("disk"), first("disk"));
        assert_ne!(first("disk"), first("tape"));
    }
}
