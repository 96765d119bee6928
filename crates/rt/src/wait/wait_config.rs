//! Rules for which waiters a wake-up examines and wakes: ours, and older ones for comparison.

/// Which waiters a wake-up touches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discipline {
    /// Waiters of the same key are linked together: a wake-up visits only these. Locks are handed
    /// over in order.
    #[default]
    Keyed,
    /// A wake-up examines every waiter of the bucket and wakes those of the same key; lock waiters
    /// compete for the lock (`wake_up_filtered`, in the patches of "[0/2] filtered wakeups",
    /// linux-kernel, 2 May 2004).
    Filtered,
    /// A wake-up wakes every waiter of the bucket, and each checks for itself (Linux 2.6.6).
    WholeBucket,
}

/// How a key is mapped to its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hash {
    /// Multiplication by 2^64 over the golden ratio (Knuth, The Art of Computer Programming 3,
    /// 6.4).
    #[default]
    Golden,
    /// The hash of Linux 2.6 on 64 bits: the address of the page's structure in an array, times
    /// 0x9e37fffffffc0001; the key is the page's index. With a structure of 64 bytes, most buckets
    /// are never used.
    Linux26 {
        /// Address of the first structure (`mem_map`).
        base: u64,
        /// Size of a structure (`struct page`), in bytes.
        stride_bytes: u64,
    },
}

impl Hash {
    /// The bucket among `2^bits` that a key belongs to; `bits` is 1 to 32.
    pub fn bucket(self, key: u64, bits: u32) -> usize {
        let spread = match self {
            Self::Golden => key.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            Self::Linux26 { base, stride_bytes } => {
                key.wrapping_mul(stride_bytes).wrapping_add(base).wrapping_mul(0x9e37_ffff_fffc_0001)
            }
        };
        (spread >> (64 - bits)) as usize
    }
}

/// Settings of a wait table.
#[derive(Clone, Copy, Debug)]
pub struct WaitConfig {
    /// The table's name in errors and traces.
    pub name: &'static str,
    /// Binary logarithm of the number of buckets, 1 to 16.
    pub bucket_bits: u32,
    /// Which waiters a wake-up examines.
    pub discipline: Discipline,
    /// How keys are mapped to buckets.
    pub hash: Hash,
}

impl WaitConfig {
    /// Our settings: 256 buckets, keyed.
    pub fn new(name: &'static str) -> Self {
        Self { name, bucket_bits: 8, discipline: Discipline::Keyed, hash: Hash::Golden }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn usable(hash: Hash, bits: u32) -> usize {
        // All 8 KiB pages of a memory of 3.5 GiB.
        (0..490_172_u64).map(|page| hash.bucket(page, bits)).collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn the_old_hash_uses_128_of_2048_buckets_for_a_page_structure_of_64_bytes() {
        // Addresses in a 64-bit kernel's direct mapping.
        for base in [0xffff_f800_0040_0000, 0xffff_f800_1234_5640, 0xffff_8100_0100_0000] {
            assert_eq!(usable(Hash::Linux26 { base, stride_bytes: 64 }, 11), 128);
            assert_eq!(usable(Hash::Linux26 { base, stride_bytes: 56 }, 11), 1024);
            assert_eq!(usable(Hash::Linux26 { base, stride_bytes: 80 }, 11), 512);
        }
    }

    #[test]
    fn the_golden_hash_uses_all_buckets() {
        assert!(usable(Hash::Golden, 11) >= 2_046);
    }

    #[test]
    fn the_multiplication_is_the_sequence_of_shifts_that_linux_used() {
        // hash_long() of include/linux/hash.h, 2.6.6: adds and subtracts the products of shifts by
        // 18, 33, 3, 3, 4, 2.
        let by_shifts = |key: u64| {
            let (mut hash, mut n) = (key, key);
            for (shift, add) in [(18, false), (33, false), (3, true), (3, false), (4, true), (2, true)] {
                n <<= shift;
                hash = if add { hash.wrapping_add(n) } else { hash.wrapping_sub(n) };
            }
            hash
        };
        for key in [1, 64, 0x1234_5678, u64::MAX / 3] {
            assert_eq!(by_shifts(key), key.wrapping_mul(0x9e37_ffff_fffc_0001), "{key:#x}");
        }
    }
}
