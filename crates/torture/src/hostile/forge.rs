//! Damage that checksums do not reveal: changes structures like a buggy program would, and updates
//! their checksums.

use extant_format::{
    DirEntries, Extent, ExtentContext, ExtentNode, FileBlock, FileKind, Group, GroupDescriptor, GroupFlags,
    Inode, InodeFlags, InodeNumber, SUPERBLOCK_BYTES, Superblock, VolumeBlock, bit, block_bitmap_checksum,
    clear_bits, has_dirent_tail, inode_bitmap_checksum, inode_offset, is_dx_block, set_bits,
    write_dirent_tail, write_dx_checksum,
};
use extant_rt::Rng;

const SUPERBLOCK: usize = 1024;

/// Changes structures of a volume at random from the seed, and updates checksums; returns a line
/// per change.
///
/// # Panics
/// If the volume is not sound.
pub fn forge(bytes: &mut [u8], seed: u64) -> Vec<String> {
    let sb = Superblock::parse(&bytes[SUPERBLOCK..]).expect("a sound volume");
    let mut forge = Forge { bytes, sb, rng: Rng::labelled(seed, "forgery") };
    (0..1 + forge.below(3)).map(|_| forge.change()).collect()
}

struct Forge<'a> {
    bytes: &'a mut [u8],
    sb: Superblock,
    rng: Rng,
}

impl Forge<'_> {
    fn below(&mut self, n: usize) -> usize {
        self.rng.below(n.max(1) as u64) as usize
    }

    fn any<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let n = self.below(of.len());
        of.get(n).copied()
    }

    fn block(&mut self, at: VolumeBlock) -> Option<&mut [u8]> {
        let len = self.sb.block_size().byte_len();
        let start = usize::try_from(at.0).ok()?.checked_mul(len)?;
        self.bytes.get_mut(start..start + len)
    }

    fn descriptor_at(&self, group: Group) -> usize {
        let per_block = self.sb.descriptors_per_block();
        let block = self.sb.descriptor_block(group.0 / per_block);
        block.0 as usize * self.sb.block_size().byte_len()
            + (group.0 % per_block) as usize * self.sb.descriptor_size()
    }

    fn descriptor(&self, group: Group) -> GroupDescriptor {
        let at = self.descriptor_at(group);
        GroupDescriptor::parse_unchecked(&self.bytes[at..], &self.sb, group).expect("a sound descriptor")
    }

    fn inode_at(&self, number: InodeNumber) -> usize {
        let (group, offset) = inode_offset(&self.sb, number).expect("an inode of the volume");
        self.descriptor(group).inode_table.0 as usize * self.sb.block_size().byte_len() + offset as usize
    }

    fn inode(&self, number: InodeNumber) -> Inode {
        let at = self.inode_at(number);
        Inode::parse_unchecked(&self.bytes[at..], &self.sb, number).expect("an inode parses")
    }

    fn put_inode(&mut self, inode: &Inode) {
        let (at, size) = (self.inode_at(inode.number), usize::from(self.sb.inode_size()));
        inode.write_to(&mut self.bytes[at..at + size], &self.sb);
    }

    /// Inodes with links: the root, and those after the reserved ones.
    fn inodes(&self) -> Vec<InodeNumber> {
        let last = self.sb.inodes_count().min(200);
        let numbers = std::iter::once(2).chain(self.sb.first_inode().0..=last).map(InodeNumber);
        numbers.filter(|&number| self.inode(number).links() > 0 && self.was_used(number)).collect()
    }

    fn was_used(&self, number: InodeNumber) -> bool {
        let Some((group, index)) = self.sb.locate_inode(number) else { return false };
        let descriptor = self.descriptor(group);
        !self.sb.has_group_csum()
            || (!descriptor.flags.contains(GroupFlags::INODE_UNINIT)
                && index < self.sb.inodes_per_group() - descriptor.unused_inodes)
    }

    fn of_kind(&self, is_dir: bool) -> Vec<InodeNumber> {
        let mut numbers = self.inodes();
        numbers.retain(|&number| (self.inode(number).kind() == Some(FileKind::Directory)) == is_dir);
        numbers
    }

    /// The first blocks of a file: those that its inode lists.
    fn blocks(&self, inode: &Inode) -> Vec<VolumeBlock> {
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            return Vec::new();
        }
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            return (0..12).map(|n| inode.block_pointer(n)).filter(|at| at.0 > 0).collect();
        }
        match ExtentNode::parse(inode.map(), &ExtentContext::root(&self.sb, inode.number)) {
            Ok(ExtentNode::Leaf(extents)) => extents
                .iter()
                .flat_map(|extent| (0..u64::from(extent.blocks)).map(|n| VolumeBlock(extent.physical.0 + n)))
                .take(64)
                .collect(),
            _ => Vec::new(),
        }
    }

    fn change(&mut self) -> String {
        match self.below(12) {
            0..4 => self.entry(),
            4..7 => self.field(),
            7 | 8 => self.map(),
            9 | 10 => self.bitmap(),
            _ => self.superblock(),
        }
    }

    /// A block of a directory, and the directory.
    fn directory_block(&mut self) -> Option<(Inode, FileBlock, VolumeBlock)> {
        let dirs = self.of_kind(true);
        let dir = self.any(&dirs).map(|number| self.inode(number))?;
        let blocks = self.blocks(&dir);
        let n = self.below(blocks.len());
        Some((dir, FileBlock(n as u32), *blocks.get(n)?))
    }

    fn seal_directory(&mut self, dir: &Inode, at: VolumeBlock) {
        let Some(seed) = self.sb.checksum_seed() else { return };
        let seed = dir.checksum_seed(seed);
        let Some(block) = self.block(at) else { return };
        if has_dirent_tail(block) && !is_dx_block(block) {
            write_dirent_tail(block, seed);
        } else {
            write_dx_checksum(block, seed);
        }
    }

    fn entry(&mut self) -> String {
        let Some((dir, index, at)) = self.directory_block() else { return "no directory".into() };
        let number = dir.number;
        let inodes = self.inodes();
        let some = self.any(&inodes).map_or(2, |number| number.0);
        let values = [some, some, 0, 1, 2, 8, 11, self.sb.inodes_count(), u32::MAX];
        let (value, which) = (self.any(&values).unwrap_or(0), self.below(6));
        let (byte, place) = (self.rng.next_u64() as u8, self.rng.next_u64() as usize);
        let (filetype, last) = (true, self.sb.inodes_count());
        let Some(block) = self.block(at) else { return "a block beyond the volume".into() };
        if is_dx_block(block) && which < 3 {
            // A hash or block number in a node, or its count and limit.
            let from = if index.0 == 0 { 0x18 } else { 8 };
            let to = from + place % 40;
            block[to] = byte;
            self.seal_directory(&dir, at);
            return format!("directory {number}: byte {to} of node {index} became {byte:#x}");
        }
        let entries: Vec<(usize, usize)> = DirEntries::new(block, filetype, last, number, index)
            .map_while(Result::ok)
            .map(|entry| (entry.offset, entry.name.len()))
            .collect();
        if entries.is_empty() {
            return "no entry".into();
        }
        let (offset, name_len) = entries[place % entries.len()];
        let told = match which {
            0..3 => {
                block[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
                format!("inode {value}")
            }
            3 if name_len > 0 => {
                let letter = b'a' + byte % 26;
                block[offset + 8 + place % name_len] = letter;
                format!("letter {} {}", place % name_len, letter as char)
            }
            4 => {
                let field = 4 + place % 4;
                block[offset + field] = byte;
                format!("byte {field} {byte:#x}")
            }
            _ => {
                block[offset + 7] = byte % 9;
                format!("file_type {}", byte % 9)
            }
        };
        self.seal_directory(&dir, at);
        format!("directory {number}: the entry at {offset} of block {index} got {told}")
    }

    fn field(&mut self) -> String {
        let inodes = self.inodes();
        let Some(number) = self.any(&inodes) else { return "no inode".into() };
        let mut inode = self.inode(number);
        let block = u64::from(self.sb.block_size().bytes());
        let told = match self.below(7) {
            0 | 1 => {
                let sizes = [0, 1, block - 1, block, 2 * block, inode.size() + block, 1 << 20, 1 << 40];
                let size = self.any(&sizes).unwrap_or(0);
                inode.set_size(size);
                format!("i_size {size}")
            }
            2 => {
                let links = self.any(&[0, 1, 2, 3, 7, 65_000]).unwrap_or(0);
                inode.raw.i_links_count = links.into();
                format!("i_links_count {links}")
            }
            3 => {
                let modes = [0o040_755, 0o100_644, 0o120_777, 0o020_600, 0, 0o170_000];
                let mode = self.any(&modes).unwrap_or(0);
                inode.raw.i_mode = mode.into();
                format!("i_mode {mode:o}")
            }
            4 => {
                let flag = 1 << self.rng.below(31);
                inode.raw.i_flags = (inode.raw.i_flags.get() ^ flag).into();
                format!("i_flags ^ {flag:#x}")
            }
            5 => {
                let times = [0, 1, 11, 12, 1_700_000_000];
                let time = self.any(&times).unwrap_or(0);
                inode.raw.i_dtime = time.into();
                format!("i_dtime {time}")
            }
            _ => {
                let blocks = self.any(&[0, 2, 1 << 20]).unwrap_or(0);
                inode.raw.i_blocks_lo = blocks.into();
                format!("i_blocks {blocks}")
            }
        };
        self.put_inode(&inode);
        format!("inode {number}: {told}")
    }

    /// Maps blocks of another file, of the volume's own structures, or of nothing to a file.
    fn map(&mut self) -> String {
        let inodes = self.inodes();
        let Some(number) = self.any(&inodes) else { return "no inode".into() };
        let mut inode = self.inode(number);
        let mut places: Vec<u64> = vec![1, 2, 3, 4, 5, self.rng.below(self.sb.blocks_count())];
        places.push(self.sb.blocks_count() - 1);
        for other in [InodeNumber::ROOT, InodeNumber::RESIZE, InodeNumber::JOURNAL] {
            places.extend(self.blocks(&self.inode(other)).first().map(|at| at.0));
        }
        for _ in 0..6 {
            let other = self.any(&inodes).map_or(Vec::new(), |other| self.blocks(&self.inode(other)));
            places.extend(self.any(&other).map(|at| at.0));
        }
        let to = self.any(&places).unwrap_or(1);
        if inode.flags().contains(InodeFlags::EXTENTS) {
            let parsed = ExtentNode::parse(inode.map(), &ExtentContext::root(&self.sb, number));
            let Ok(ExtentNode::Leaf(mut extents)) = parsed else { return "no leaf".into() };
            let n = self.below(extents.len());
            let Some(extent) = extents.get_mut(n) else { return "no extent".into() };
            *extent = Extent { physical: VolumeBlock(to), ..*extent };
            ExtentNode::Leaf(extents).write_to(&mut inode.raw.i_block);
        } else {
            let n = self.below(14);
            inode.raw.i_block[n * 4..n * 4 + 4].copy_from_slice(&(to as u32).to_le_bytes());
        }
        self.put_inode(&inode);
        format!("inode {number}: a block became {to}")
    }

    /// Flips a bit in a bitmap, and adjusts the count.
    fn bitmap(&mut self) -> String {
        let group = Group(self.below(self.sb.group_count() as usize) as u32);
        let mut descriptor = self.descriptor(group);
        let is_of_blocks = self.below(2) == 0;
        let unwritten = if is_of_blocks { GroupFlags::BLOCK_UNINIT } else { GroupFlags::INODE_UNINIT };
        if self.sb.has_group_csum() && descriptor.flags.contains(unwritten) {
            return "an unwritten bitmap".into();
        }
        let (at, bits) = match is_of_blocks {
            true => (descriptor.block_bitmap, self.sb.group_clusters(group)),
            false => (descriptor.inode_bitmap, self.sb.inodes_per_group()),
        };
        // Most bits belong to unused objects.
        let n = match self.below(3) {
            0 => self.below(bits as usize) as u32,
            _ => self.below(bits.min(if is_of_blocks { 900 } else { 60 }) as usize) as u32,
        };
        let Some(bitmap) = self.block(at) else { return "no bitmap".into() };
        let was = bit(bitmap, n);
        if was {
            clear_bits(bitmap, n, n + 1)
        } else {
            set_bits(bitmap, n, n + 1)
        }
        let bitmap = bitmap.to_vec();
        let count = if is_of_blocks { &mut descriptor.free_blocks } else { &mut descriptor.free_inodes };
        *count = if was { *count + 1 } else { count.saturating_sub(1) };
        if let Some(seed) = self.sb.checksum_seed() {
            match is_of_blocks {
                true => descriptor.block_bitmap_csum = block_bitmap_checksum(seed, &bitmap, &self.sb),
                false => descriptor.inode_bitmap_csum = inode_bitmap_checksum(seed, &bitmap, &self.sb),
            }
        }
        let (from, size) = (self.descriptor_at(group), self.sb.descriptor_size());
        descriptor.write_to(&mut self.bytes[from..from + size], &self.sb, group);
        let what = if is_of_blocks { "block" } else { "inode" };
        format!("group {group}: bit {n} of the {what} bitmap was {was}")
    }

    fn superblock(&mut self) -> String {
        let told = match self.below(3) {
            0 => {
                let value = self.rng.next_u64() as u32;
                self.sb.raw_mut().s_hash_seed[0] = value.into();
                format!("s_hash_seed {value:#x}")
            }
            1 => {
                let version = self.below(8) as u8;
                self.sb.raw_mut().s_def_hash_version = version;
                format!("s_def_hash_version {version}")
            }
            _ => {
                let number = self.below(self.sb.inodes_count().min(60) as usize) as u32;
                self.sb.raw_mut().s_last_orphan = number.into();
                format!("s_last_orphan {number}")
            }
        };
        self.sb.update_checksum();
        self.bytes[SUPERBLOCK..SUPERBLOCK + SUPERBLOCK_BYTES].copy_from_slice(self.sb.as_bytes());
        format!("superblock: {told}")
    }
}
