//! An ext2 volume: inodes, data blocks and pointer blocks of files (kernel: fs/ext2/inode.c,
//! ialloc.c).

use crate::ext2_of_2004::{Ext2Layout, ext2_of_2004};
use crate::page_cache::{NONE, RunSizes};
use extant_history::alloc::{BlockAllocator, Ext2, FileId, FreeSpace, Request, Work};

/// Blocks that the inode points to directly, and pointers per block (kernel: `EXT2_NDIR_BLOCKS`,
/// `EXT2_ADDR_PER_BLOCK`).
const DIRECT: u64 = 12;
const POINTERS: u64 = 1024;

/// Inode number of the root directory, which holds all files (kernel: `EXT2_ROOT_INO`).
const ROOT: u64 = 2;

#[derive(Clone, Debug, Default)]
struct Ext2File {
    /// First block of the inode's group, where the search for the file's first block starts.
    group_first: u64,
    /// Block of the inode table that holds the inode.
    inode_block: u64,
    /// Pointer blocks: the indirect one, the double-indirect one, and those that it points to.
    pointers: Vec<u32>,
    /// Pointer blocks dirtied since the last fsync, in order (kernel: `private_list`).
    associated: Vec<u64>,
}

/// The files of the volume.
pub(crate) struct Ext2Volume {
    shape: RunSizes,
    layout: Ext2Layout,
    allocator: Ext2,
    files: Vec<Ext2File>,
    /// Inodes in use, by group.
    inodes: Vec<u64>,
    /// Location of each block of each file.
    places: Vec<u32>,
}

/// What a new block of a file changes.
#[derive(Debug, Default)]
pub(crate) struct GrownBlock {
    pub(crate) place: u64,
    /// Block bitmaps, which are read and dirtied.
    pub(crate) bitmaps: Vec<u64>,
    /// New pointer blocks.
    pub(crate) pointers: Vec<u64>,
}

/// Indices of the pointer blocks on the path to a block (kernel: `ext2_block_to_path`).
fn path(block: u64) -> impl Iterator<Item = usize> {
    let path = match block {
        0..DIRECT => [None, None],
        block if block < DIRECT + POINTERS => [Some(0), None],
        block => [Some(1), Some(2 + (block - DIRECT - POINTERS) / POINTERS)],
    };
    path.into_iter().flatten().map(|index| index as usize)
}

/// Whether the next block needs another pointer block (kernel: `BH_Boundary`).
pub(crate) fn is_boundary(block: u64) -> bool {
    block + 1 >= DIRECT && (block + 1 - DIRECT).is_multiple_of(POINTERS)
}

impl Ext2Volume {
    pub(crate) fn new(shape: RunSizes, bytes: u64) -> Result<Self, String> {
        let layout = ext2_of_2004(bytes)?;
        let Ext2Layout { geometry, ref free, .. } = layout;
        let space = FreeSpace { geometry, free: free.clone(), stripe_blocks: 0 };
        let mut inodes = vec![0; geometry.groups as usize];
        inodes[0] = layout.reserved_inodes;
        let pointers = path(shape.file_blocks() - 1).last().map_or(0, |last| last + 1);
        let file = Ext2File { pointers: vec![NONE; pointers], ..Ext2File::default() };
        Ok(Self {
            allocator: Ext2::new(&space),
            files: vec![file; shape.files as usize],
            inodes,
            places: vec![NONE; (shape.files * shape.file_blocks()) as usize],
            shape,
            layout,
        })
    }

    /// Allocates a file's inode and returns the inode bitmap, which is read and dirtied.
    ///
    /// It goes in the directory's group or, if that is full, in a group found by hashing the
    /// directory's number (kernel: `find_group_other`).
    pub(crate) fn create(&mut self, file: u32) -> u64 {
        let groups = self.layout.geometry.groups;
        let has_room = |group: &u64| {
            self.inodes[*group as usize] < self.layout.group_inodes
                && self.allocator.free_of_group(*group) > 0
        };
        let steps = (0..).map(|n| 1_u64 << n).take_while(|step| *step < groups);
        let hashed = steps.scan(ROOT % groups, |group, step| {
            *group = (*group + step) % groups;
            Some(*group)
        });
        let group = std::iter::once(0).chain(hashed).chain(0..groups).find(has_room);
        let group = group.expect("checked by fault()");
        let [_, bitmap, table] = self.layout.groups[group as usize];
        let number = self.inodes[group as usize];
        self.inodes[group as usize] += 1;
        let inode = &mut self.files[file as usize];
        inode.group_first = self.layout.geometry.first_block + group * self.layout.geometry.group_blocks;
        inode.inode_block = table + number / self.layout.block_inodes;
        bitmap
    }

    pub(crate) fn inode_block(&self, file: u32) -> u64 {
        self.files[file as usize].inode_block
    }

    fn at(&self, file: u32, block: u64) -> usize {
        (u64::from(file) * self.shape.file_blocks() + block) as usize
    }

    /// A block's location on the volume.
    pub(crate) fn place(&self, file: u32, block: u64) -> Option<u64> {
        Some(self.places[self.at(file, block)]).filter(|place| *place != NONE).map(u64::from)
    }

    /// Locations of the existing pointer blocks on the path to a block (kernel: `ext2_get_branch`).
    pub(crate) fn branch(&self, file: u32, block: u64) -> Vec<u64> {
        let pointers = &self.files[file as usize].pointers;
        path(block).map(|index| pointers[index]).take_while(|place| *place != NONE).map(u64::from).collect()
    }

    /// Allocates a block, after the missing pointer blocks on its path (kernel:
    /// `ext2_alloc_branch`).
    pub(crate) fn grow(&mut self, file: u32, block: u64) -> GrownBlock {
        let mut grown = GrownBlock::default();
        // The allocator sees a pointer block as a file block that precedes the first one it points
        // to.
        let before = path(block).last().map_or(0, |last| last as u64 + 1);
        let missing: Vec<usize> =
            path(block).filter(|index| self.files[file as usize].pointers[*index] == NONE).collect();
        let first = block + before - missing.len() as u64;
        for (n, index) in missing.into_iter().enumerate() {
            let place = self.allocate(file, first + n as u64, &mut grown);
            self.files[file as usize].pointers[index] = place as u32;
            grown.pointers.push(place);
        }
        grown.place = self.allocate(file, block + before, &mut grown);
        let at = self.at(file, block);
        self.places[at] = grown.place as u32;
        grown
    }

    fn allocate(&mut self, file: u32, number: u64, grown: &mut GrownBlock) -> u64 {
        let geometry = self.layout.geometry;
        // Consecutive threads' files start in different sixteenths of the group (kernel:
        // `ext2_find_near`).
        let colour = u64::from(file) % 16 * (geometry.group_blocks / 16);
        let goal = self.files[file as usize].group_first + colour;
        let request = Request::append(FileId(file.into()), number, goal);
        let (found, work) = self.allocator.allocate(request).expect("checked by fault()");
        if work != Work::default() {
            let group = (found.start - geometry.first_block) / geometry.group_blocks;
            grown.bitmaps.push(self.layout.groups[group as usize][0]);
        }
        found.start
    }

    /// Records that a file's pointer block was dirtied (kernel: `mark_buffer_dirty_inode`).
    pub(crate) fn associate(&mut self, file: u32, block: u64) {
        let associated = &mut self.files[file as usize].associated;
        if !associated.contains(&block) {
            associated.push(block);
        }
    }

    pub(crate) fn take_associated(&mut self, file: u32) -> Vec<u64> {
        std::mem::take(&mut self.files[file as usize].associated)
    }

    /// Called when the last writer closes the file (kernel: `ext2_release_file`).
    pub(crate) fn close(&mut self, file: u32) {
        self.allocator.close(FileId(file.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Tiobench;

    #[test]
    fn blocks_of_pointers_lie_before_the_first_block_that_they_point_to() {
        let options = Tiobench { threads: 2, mib_per_thread: 16, random_ops: 0, waiters: 0 };
        let mut volume = Ext2Volume::new(RunSizes::new(options, 8192), 1 << 30).unwrap();
        let bitmap = volume.create(0);
        assert_eq!(
            (volume.create(1), volume.inode_block(0)),
            (bitmap, volume.inode_block(1)),
            "32 in a block"
        );
        // The other file starts a sixteenth of a group further on.
        assert_eq!(volume.grow(1, 0).place, 2048);
        let mut pointers = Vec::new();
        for block in 0..4096 {
            let branch = volume.branch(0, block);
            let grown = volume.grow(0, block);
            assert_eq!(volume.place(0, block), Some(grown.place));
            let all: Vec<u64> = branch.into_iter().chain(grown.pointers.iter().copied()).collect();
            assert_eq!(all, volume.branch(0, block));
            if let Some(last) = grown.pointers.last() {
                pointers.push((block, grown.pointers.len()));
                assert_eq!(last + 1, grown.place);
                assert!(block == 0 || is_boundary(block - 1));
            }
        }
        // The indirect block; the double-indirect one with its first child; then each further
        // child.
        assert_eq!(pointers, [(12, 1), (1036, 2), (2060, 1), (3084, 1)]);
        assert!(volume.place(0, 0).unwrap() < 2048);
    }
}
