//! Random changes to a volume's bytes, aimed at its structures.

use extant_rt::Rng;

/// Changes a volume at random from the seed; returns a line per change.
pub fn mutate(bytes: &mut [u8], seed: u64) -> Vec<String> {
    let mut rng = Rng::labelled(seed, "mutation");
    let places = Places::of(bytes);
    (0..1 + rng.below(6)).map(|_| places.change(bytes, &mut rng)).collect()
}

/// Locations of a volume's structures, judged by the contents of blocks.
struct Places {
    block_bytes: usize,
    /// Blocks that start a directory, an extent node, an attribute block, or a journal block.
    known: [Vec<usize>; 4],
    descriptors: usize,
    inodes: usize,
    inode_bytes: usize,
    inode_table: usize,
    bitmaps: [usize; 2],
}

const SUPERBLOCK: usize = 1024;
const NAMES: [&str; 4] = ["directory", "extent node", "attributes", "journal"];

fn word(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize)
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(to) = bytes.get_mut(at..at + 4) {
        to.copy_from_slice(&value.to_le_bytes());
    }
}

impl Places {
    fn of(bytes: &[u8]) -> Self {
        let sb = |at: usize| word(bytes, SUPERBLOCK + at);
        let block_bytes = 1024 << sb(0x18).min(6);
        let mut known = [const { Vec::new() }; 4];
        for (n, block) in bytes.chunks_exact(block_bytes).enumerate() {
            let is = [
                block[4..8] == [12, 0, 1, 2] || block[4..8] == [12, 0, 1, 0],
                block[..2] == [0x0a, 0xf3],
                block[..4] == [0, 0, 2, 0xea],
                block[..4] == [0xc0, 0x3b, 0x39, 0x98],
            ];
            for (known, is) in known.iter_mut().zip(is) {
                if is {
                    known.push(n * block_bytes);
                }
            }
        }
        let descriptors = (SUPERBLOCK / block_bytes + 1) * block_bytes;
        let block = |at: usize| word(bytes, descriptors + at).saturating_mul(block_bytes);
        Self {
            block_bytes,
            known,
            descriptors,
            inodes: sb(0x00).clamp(1, 1 << 16),
            inode_bytes: (sb(0x58) & 0xffff).clamp(128, block_bytes),
            inode_table: block(8),
            bitmaps: [block(0), block(4)],
        }
    }

    fn change(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let below = |rng: &mut Rng, n: usize| rng.below(n.max(1) as u64) as usize;
        match rng.below(10) {
            0 => self.spoil(bytes, rng, "superblock", SUPERBLOCK, 0x180),
            1 => self.spoil(bytes, rng, "descriptor", self.descriptors, 64),
            2 => {
                let which = below(rng, 2);
                let len = self.block_bytes.min(512);
                self.spoil(bytes, rng, ["block bitmap", "inode bitmap"][which], self.bitmaps[which], len)
            }
            3 => {
                let inode = below(rng, self.inodes.min(64));
                self.spoil(bytes, rng, "inode", self.inode_table + inode * self.inode_bytes, 160)
            }
            4 => {
                // The extent tree or block map in an inode.
                let inode = below(rng, self.inodes.min(64));
                self.spoil(bytes, rng, "map", self.inode_table + inode * self.inode_bytes + 40, 60)
            }
            5 => self.orphans(bytes, rng),
            6 => {
                let span = bytes.len();
                self.spoil(bytes, rng, "byte", 0, span)
            }
            _ => {
                let which = below(rng, 4);
                let Some(&at) = self.known[which].get(below(rng, self.known[which].len())) else {
                    return self.spoil(bytes, rng, "inode table", self.inode_table, 8 << 10);
                };
                let len = if rng.below(2) == 0 { 48 } else { self.block_bytes };
                self.spoil(bytes, rng, NAMES[which], at, len)
            }
        }
    }

    fn spoil(&self, bytes: &mut [u8], rng: &mut Rng, what: &str, from: usize, len: usize) -> String {
        let at = from + rng.below(len as u64) as usize;
        if rng.below(3) == 0 {
            // A number that has a meaning elsewhere on the volume.
            let blocks = (bytes.len() / self.block_bytes) as u64;
            let values = [0, 1, 2, 8, 11, 12, u64::from(u32::MAX), blocks - 1, blocks, rng.below(blocks)];
            let value = values[rng.below(values.len() as u64) as usize] as u32;
            let at = at & !3;
            put(bytes, at, value);
            return format!("{what}: {value} at byte {at}");
        }
        let Some(byte) = bytes.get_mut(at) else { return format!("{what}: beyond the image") };
        let old = *byte;
        *byte = match rng.below(4) {
            0 => 0,
            1 => 0xff,
            2 => old ^ (1 << rng.below(8)),
            _ => rng.next_u64() as u8,
        };
        format!("{what}: {old:#04x} became {byte:#04x} at byte {at}")
    }

    /// Puts inodes on the orphan list that may be in use, out of range, or linked in a cycle.
    fn orphans(&self, bytes: &mut [u8], rng: &mut Rng) -> String {
        let inode = |rng: &mut Rng| rng.below(self.inodes.min(40) as u64 + 3) as u32;
        let first = inode(rng);
        put(bytes, SUPERBLOCK + 0xe8, first);
        let mut at = first;
        let mut list = vec![first];
        for _ in 0..rng.below(4) {
            let next = inode(rng);
            if at > 0 {
                // i_dtime links the list.
                put(bytes, self.inode_table + (at as usize - 1) * self.inode_bytes + 0x14, next);
            }
            list.push(next);
            at = next;
        }
        format!("orphans: {list:?}")
    }
}
