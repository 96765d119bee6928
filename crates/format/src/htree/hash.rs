//! Name hashes.
//!
//! The functions are named in the kernel's *Hash Tree Directories*. The transforms are half of MD4
//! (RFC 1320: 24 of its 48 steps) and TEA (Wheeler and Needham, *TEA, a Tiny Encryption Algorithm*,
//! 1994), applied to the name eight or four words at a time.

use crate::{CharSign, UintExt};
use std::fmt;

/// `hash_version`: how a directory hashes its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The original hash: one multiplication per byte.
    Legacy,
    /// Half of MD4; the default.
    HalfMd4,
    /// The Tiny Encryption Algorithm.
    Tea,
    /// SipHash, keyed by an encrypted directory's key; entries there store the hash after the name.
    SipHash,
}

impl HashVersion {
    /// From the on-disk number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Legacy,
            1 => Self::HalfMd4,
            2 => Self::Tea,
            6 => Self::SipHash,
            _ => return None,
        })
    }

    /// The on-disk number.
    pub const fn number(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::SipHash => 6,
        }
    }
}

impl fmt::Display for HashVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Legacy => "legacy",
            Self::HalfMd4 => "half_md4",
            Self::Tea => "tea",
            Self::SipHash => "siphash",
        })
    }
}

/// The hash of a name. The tree is ordered by the major part; the minor part orders names that
/// share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// Always even: in the tree, the lowest bit marks names with the same hash that continue in the
    /// next block.
    pub major: u32,
    /// 0 for the legacy hash.
    pub minor: u32,
}

/// Hashes `name` for a volume whose `s_hash_seed` is `seed`. `None` for SipHash, whose key is not
/// stored on the volume.
pub fn hash_name(version: HashVersion, sign: CharSign, seed: &[u32; 4], name: &[u8]) -> Option<NameHash> {
    let mut state = initial(seed);
    let (major, minor) = match version {
        HashVersion::Legacy => (legacy(name, sign), 0),
        HashVersion::HalfMd4 => {
            for (chunk, left) in chunks(name, 32) {
                half_md4(&mut state, &words::<8>(chunk, left, sign));
            }
            (state[1], state[2])
        }
        HashVersion::Tea => {
            for (chunk, left) in chunks(name, 16) {
                tea(&mut state, &words::<4>(chunk, left, sign));
            }
            (state[0], state[1])
        }
        HashVersion::SipHash => return None,
    };
    Some(finished(major, minor))
}

/// Number of names that [`hash_names`] hashes.
pub const HASH_LANES: usize = 8;

/// Like [`hash_name`], for several names. Takes not much longer than for one of them: the steps of
/// the default hash wait for each other, and a processor makes those of eight names together.
pub fn hash_names(
    version: HashVersion,
    sign: CharSign,
    seed: &[u32; 4],
    names: [&[u8]; HASH_LANES],
) -> Option<[NameHash; HASH_LANES]> {
    if version != HashVersion::HalfMd4 {
        let hashes = names.map(|name| hash_name(version, sign, seed, name));
        return hashes[0].map(|first| hashes.map(|hash| hash.unwrap_or(first)));
    }
    let mut state = initial(seed).map(|word| [word; HASH_LANES]);
    let longest = names.iter().map(|name| name.len()).max().unwrap_or(0);
    for at in (0..longest).step_by(32) {
        let mut input = [[0; HASH_LANES]; 8];
        let mut goes_on = [false; HASH_LANES];
        for (lane, name) in names.iter().enumerate() {
            let Some(rest) = name.get(at..).filter(|rest| !rest.is_empty()) else { continue };
            goes_on[lane] = true;
            let words = words::<8>(&rest[..rest.len().min(32)], rest.len(), sign);
            for (lanes, word) in input.iter_mut().zip(words) {
                lanes[lane] = word;
            }
        }
        let mut next = state;
        half_md4_of_lanes(&mut next, &input);
        for (word, next) in state.iter_mut().zip(next) {
            for lane in (0..HASH_LANES).filter(|&lane| goes_on[lane]) {
                word[lane] = next[lane];
            }
        }
    }
    let [_, major, minor, _] = state;
    Some(std::array::from_fn(|lane| finished(major[lane], minor[lane])))
}

/// The same word of several names.
type Lanes = [u32; HASH_LANES];

fn initial(seed: &[u32; 4]) -> [u32; 4] {
    match seed {
        [0, 0, 0, 0] => [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476],
        seed => *seed,
    }
}

fn finished(major: u32, minor: u32) -> NameHash {
    // The highest even number marks the end of a directory for readers.
    let major = match major & !1 {
        0xffff_fffe => 0xffff_fffc,
        major => major,
    };
    NameHash { major, minor }
}

/// Pieces of `len` bytes, each with the number of bytes remaining from its start.
fn chunks(name: &[u8], len: usize) -> impl Iterator<Item = (&[u8], usize)> {
    name.chunks(len).enumerate().map(move |(i, chunk)| (chunk, name.len() - i * len))
}

/// Packs bytes into words, first byte highest. Missing bytes are padded with the number of
/// remaining bytes.
fn words<const N: usize>(chunk: &[u8], left: usize, sign: CharSign) -> [u32; N] {
    let pad = u32::from(left.low_u8()) * 0x0101_0101;
    let mut words = [pad; N];
    for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
        *word = match bytes {
            // The four push the padding out, and in ASCII the sign does not matter.
            &[a, b, c, d] if (a | b | c | d).is_ascii() => u32::from_be_bytes([a, b, c, d]),
            _ => bytes.iter().fold(pad, |word, &byte| sign.extend(byte).wrapping_add(word << 8)),
        };
    }
    words
}

fn legacy(name: &[u8], sign: CharSign) -> u32 {
    let (mut hash, mut before) = (0x12a3_fe2du32, 0x37ab_e8f9u32);
    for &byte in name {
        let mut next = before.wrapping_add(hash ^ sign.extend(byte).wrapping_mul(7_152_373));
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        (before, hash) = (hash, next);
    }
    hash << 1
}

#[inline(always)]
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    let mut mixed = *state;
    let order = [0, 1, 2, 3, 4, 5, 6, 7];
    round(&mut mixed, input, 0, order, [3, 7, 11, 19], |x, y, z| z ^ (x & (y ^ z)));
    let order = [1, 3, 5, 7, 0, 2, 4, 6];
    round(&mut mixed, input, 0x5a82_7999, order, [3, 5, 9, 13], |x, y, z| (x & y) | (x & z) | (y & z));
    let order = [3, 7, 2, 6, 1, 5, 0, 4];
    round(&mut mixed, input, 0x6ed9_eba1, order, [3, 9, 11, 15], |x, y, z| x ^ y ^ z);
    for (word, add) in state.iter_mut().zip(mixed) {
        *word = word.wrapping_add(add);
    }
}

/// [`half_md4`] of each lane.
///
/// The compiler makes vector instructions of this loop, because its body has no branches and takes
/// neighbouring words in neighbouring turns. It does not if the words are gathered with `map`.
#[inline(never)]
fn half_md4_of_lanes([a, b, c, d]: &mut [Lanes; 4], [s, t, u, v, w, x, y, z]: &[Lanes; 8]) {
    for n in 0..HASH_LANES {
        let mut state = [a[n], b[n], c[n], d[n]];
        half_md4(&mut state, &[s[n], t[n], u[n], v[n], w[n], x[n], y[n], z[n]]);
        [a[n], b[n], c[n], d[n]] = state;
    }
}

/// Eight steps of MD4 with one function, which is compiled into each of its rounds: a check hashes
/// every name of a volume.
#[inline(always)]
fn round(
    state: &mut [u32; 4],
    input: &[u32; 8],
    constant: u32,
    order: [usize; 8],
    shifts: [u32; 4],
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for (step, word) in order.into_iter().enumerate() {
        let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
        (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
    }
    *state = [a, b, c, d];
}

fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let [mut x, mut y, ..] = *state;
    let mut sum = 0u32;
    let mix = |v: u32, sum: u32, low: u32, high: u32| {
        (v << 4).wrapping_add(low) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(high)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        x = x.wrapping_add(mix(y, sum, key[0], key[1]));
        y = y.wrapping_add(mix(x, sum, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use std::io::Write;
    use std::process::{Command, Stdio};

    const SEED_UUID: &str = "11111111-2222-3333-4444-555555555555";
    const SEED: [u32; 4] = [0x1111_1111, 0x3333_2222, 0x5555_4444, 0x5555_5555];

    fn hash(version: HashVersion, sign: CharSign, seed: [u32; 4], name: &[u8]) -> (u32, u32) {
        let NameHash { major, minor } = hash_name(version, sign, &seed, name).unwrap();
        (major, minor)
    }

    /// Hashes as printed by `dx_hash` of debugfs 1.47.0.
    #[test]
    fn known_hashes() {
        let high = b"he\xe9llo";
        assert_eq!(hash(HashVersion::HalfMd4, CharSign::Signed, SEED, b"hello"), (0xe4a9_77aa, 0xb8f2_ce63));
        let no_seed = [0; 4];
        assert_eq!(hash(HashVersion::Tea, CharSign::Signed, no_seed, high), (0x9ad6_a7fe, 0xa091_99fa));
        assert_eq!(hash(HashVersion::Legacy, CharSign::Signed, no_seed, high), (0x1143_017e, 0));
        assert_eq!(hash(HashVersion::HalfMd4, CharSign::Signed, no_seed, high), (0xdd9a_f778, 0x9e72_33cb));
        assert_eq!(
            hash(HashVersion::HalfMd4, CharSign::Unsigned, no_seed, b"h\xe9"),
            (0x5ab6_261c, 0x15e3_85f8)
        );
        assert_eq!(hash_name(HashVersion::SipHash, CharSign::Signed, &SEED, high), None);
    }

    /// Names of every length, made of bytes that debugfs's command parser does not interpret, with
    /// every version and sign.
    #[test]
    fn debugfs_agrees_on_random_names() {
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let byte = prop_oneof![b'a'..=b'z', 0x80..=0xffu8, Just(b'.')];
        let mut cases = Vec::new();
        let mut script = Vec::new();
        for len in 1..=255 {
            let name = prop::collection::vec(byte.clone(), len).new_tree(&mut runner).unwrap().current();
            let (version, number) =
                [(HashVersion::Legacy, 0), (HashVersion::HalfMd4, 1), (HashVersion::Tea, 2)][len % 3];
            let (sign, number) = [(CharSign::Signed, number), (CharSign::Unsigned, number + 3)][len / 3 % 2];
            let (seed, option) =
                [([0; 4], String::new()), (SEED, format!("-s {SEED_UUID} "))][len / 6 % 2].clone();
            script.extend(format!("dx_hash -h {number} {option}").bytes());
            script.extend(&name);
            script.push(b'\n');
            cases.push((version, sign, seed, name));
        }
        // Use a command file: a command line would go through an editor that treats high bytes
        // differently.
        let Ok(mut debugfs) = Command::new("debugfs")
            .args(["-f", "/dev/stdin"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
        else {
            eprintln!("skipped: debugfs (e2fsprogs) is not installed");
            return;
        };
        let mut stdin = debugfs.stdin.take().unwrap();
        let output = std::thread::scope(|scope| {
            scope.spawn(move || stdin.write_all(&script).unwrap());
            debugfs.wait_with_output().unwrap().stdout
        });
        let answers: Vec<(u32, u32)> = output
            .split(|&byte| byte == b'\n')
            .filter(|line| line.starts_with(b"Hash of "))
            .map(|line| {
                let line = String::from_utf8_lossy(line);
                let mut words = line.rsplit(" 0x");
                let mut number = |end: &str| {
                    let word = words.next().unwrap().trim_end_matches(end);
                    u32::from_str_radix(word, 16).unwrap()
                };
                let minor = number(")");
                (number(" (minor"), minor)
            })
            .collect();
        assert_eq!(answers.len(), cases.len());
        for ((version, sign, seed, name), answer) in cases.into_iter().zip(answers) {
            assert_eq!(
                hash(version, sign, seed, &name),
                answer,
                "{version} {sign:?} {}",
                name.escape_ascii()
            );
        }
    }

    /// Names of lengths that differ, so that some need more steps than others.
    #[test]
    fn names_hash_together_as_they_do_alone() {
        let bytes: Vec<u8> = (0..255).map(|n: u32| (n * 37 % 251 + 1) as u8).collect();
        for first in (0..256).step_by(13) {
            let names: [&[u8]; HASH_LANES] = std::array::from_fn(|n| &bytes[..(first + n * 29) % 256]);
            for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
                for sign in [CharSign::Signed, CharSign::Unsigned] {
                    let alone = names.map(|name| hash_name(version, sign, &SEED, name).unwrap());
                    assert_eq!(
                        hash_names(version, sign, &SEED, names),
                        Some(alone),
                        "{version} from {first}"
                    );
                }
            }
        }
        assert_eq!(hash_names(HashVersion::SipHash, CharSign::Signed, &SEED, [b"a"; HASH_LANES]), None);
    }

    #[test]
    fn major_hash_is_even_and_never_the_end_mark() {
        for i in 0..200_000u32 {
            let (major, _) = hash(HashVersion::Legacy, CharSign::Signed, SEED, &i.to_le_bytes());
            assert!(major & 1 == 0 && major != 0xffff_fffe);
        }
    }
}
