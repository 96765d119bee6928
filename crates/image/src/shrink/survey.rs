//! Collects everything in use on the volume being shrunk.

use super::renumber::value_inodes;
use extant_block::Sector;
use extant_format::jbd2::JournalSuperblock;
use extant_format::{
    Compat, Corrupt, FileBlock, FileKind, Group, GroupFlags, Inode, InodeFlags, InodeNumber, Place,
    Superblock, UintExt, VolumeBlock, XattrBlock, bit, verify_inode_bitmap, verify_xattr_block,
};
use extant_fs::{Error, RunState, Volume};
use std::collections::BTreeMap;

/// Inodes read ahead at a time.
const AHEAD: usize = 1024;

/// The inodes in use and their blocks.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Inodes in use, in order of their numbers.
    pub(super) inodes: Vec<Found>,
    /// Runs of all inodes, one inode after another.
    pub(super) runs: Vec<SourceRun>,
    /// Attribute blocks.
    pub(super) attrs: Vec<AttrBlock>,
    /// Number of attribute blocks and of the blocks in all runs.
    pub(super) blocks: u64,
    /// The journal's superblock.
    pub(super) journal: Option<JournalSuperblock>,
}

/// An inode in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) number: InodeNumber,
    pub(super) role: Role,
    /// Whether its map is an extent tree.
    pub(super) has_extents: bool,
    first_run: u32,
    runs: u32,
}

/// How to treat an inode's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The inode has no blocks; `i_block` is kept as it is.
    Unmapped,
    /// An inline directory.
    InlineDirectory,
    /// The blocks of a directory.
    Directory,
    /// The block of a symbolic link.
    Symlink,
    /// Any other blocks, which are copied as they are.
    Data,
    /// The journal, which is created anew.
    Journal,
    /// The orphan file, which is created anew.
    OrphanFile,
    /// The resize inode, which is created anew.
    Resize,
}

impl Found {
    /// Whether the inode will have the surveyed blocks on the new volume.
    pub(super) fn is_mapped(&self) -> bool {
        self.runs > 0
    }
}

impl Role {
    pub(super) fn is_directory(self) -> bool {
        matches!(self, Self::Directory | Self::InlineDirectory)
    }

    /// Whether a walk over names reads the inode's blocks.
    pub(super) fn is_name(self) -> bool {
        matches!(self, Self::Directory | Self::Symlink)
    }
}

/// File blocks stored contiguously on the volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourceRun {
    pub(super) logical: FileBlock,
    pub(super) physical: VolumeBlock,
    pub(super) blocks: u32,
    pub(super) unwritten: bool,
}

/// An attribute block.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttrBlock {
    pub(super) number: VolumeBlock,
    /// Blocks of values in separate inodes; they are charged to every owner.
    pub(super) value_blocks: u64,
}

impl Survey {
    /// Reads all inodes in use, their maps and their attribute blocks.
    ///
    /// # Errors
    /// Damage; inodes in use without a link; a list of bad blocks.
    pub(super) async fn of(volume: &Volume) -> Result<Self, Error> {
        let mut survey = Self::default();
        let mut attrs = BTreeMap::new();
        let numbers = in_use(volume).await?;
        for numbers in numbers.chunks(AHEAD) {
            volume.prefetch_inodes(numbers).await;
            for &number in numbers {
                let inode = volume.inode(number).await?;
                survey.add(volume, &inode, &mut attrs).await?;
            }
        }
        survey.blocks += attrs.len().to_u64();
        survey.attrs = attrs.into_values().collect();
        Ok(survey)
    }

    async fn add(
        &mut self,
        volume: &Volume,
        inode: &Inode,
        attrs: &mut BTreeMap<VolumeBlock, AttrBlock>,
    ) -> Result<(), Error> {
        let sb = volume.superblock();
        let role = role_of(inode, sb)?;
        check_value(volume, inode).await?;
        let mut found = Found {
            number: inode.number,
            role,
            has_extents: inode.flags().contains(InodeFlags::EXTENTS),
            first_run: self.runs.len().fit_u32(),
            runs: 0,
        };
        match role {
            Role::Journal => {
                let first = volume.mapped_runs(inode).next().await?;
                let Some(RunState::Written(at)) = first.map(|run| run.state) else {
                    let rule = "a map of the journal's first block";
                    return Err(Corrupt::field(Place::Inode(inode.number), "i_block", 0, rule).into());
                };
                let block = read_blocks(volume, at, 1).await?;
                let journal = JournalSuperblock::parse(&block)?;
                journal.verify_checksum()?;
                self.journal = Some(journal);
            }
            Role::Directory | Role::Symlink | Role::Data => {
                let mut runs = volume.mapped_runs(inode);
                while let Some(run) = runs.next().await? {
                    let (physical, unwritten) = match run.state {
                        RunState::Hole => continue,
                        RunState::Written(at) => (at, false),
                        RunState::Unwritten(at) => (at, true),
                    };
                    let (logical, blocks) = (FileBlock(run.logical.fit_u32()), run.blocks.fit_u32());
                    self.runs.push(SourceRun { logical, physical, blocks, unwritten });
                    self.blocks += run.blocks;
                    if self.blocks > sb.blocks_count() {
                        let rule = "at most the volume's blocks: some are mapped twice";
                        let place = Place::Inode(inode.number);
                        return Err(Corrupt::field(place, "mapped blocks", self.blocks, rule).into());
                    }
                }
                found.runs = self.runs.len().fit_u32() - found.first_run;
            }
            _ => {}
        }
        if let Some(number) = inode.xattr_block()
            && !attrs.contains_key(&number)
        {
            attrs.insert(number, attr_block(volume, inode.number, number).await?);
        }
        self.inodes.push(found);
        Ok(())
    }

    /// An inode's runs.
    pub(super) fn runs_of(&self, found: &Found) -> &[SourceRun] {
        &self.runs[found.first_run.to_usize()..][..found.runs.to_usize()]
    }

    /// Index of an inode in use.
    pub(super) fn index_of(&self, number: InodeNumber) -> Option<usize> {
        self.inodes.binary_search_by_key(&number, |found| found.number).ok()
    }

    /// Index of an attribute block.
    pub(super) fn attr_index(&self, number: VolumeBlock) -> Option<usize> {
        self.attrs.binary_search_by_key(&number, |attr| attr.number).ok()
    }
}

/// Reads blocks of the volume, whose journal is empty.
pub(super) async fn read_blocks(
    volume: &Volume,
    start: VolumeBlock,
    blocks: u64,
) -> Result<Box<[u8]>, Error> {
    // Read whole aligned units, as a device that bypasses the host's cache requires.
    const UNIT: u64 = 4096;
    let log = volume.superblock().block_size().log2();
    let (from, to) = (start.0 << log, (start.0 + blocks) << log);
    let aligned = from / UNIT * UNIT;
    let end = to.next_multiple_of(UNIT).min(volume.device().limits().capacity_bytes).max(to);
    let bytes =
        extant_block::read(&**volume.device(), Sector::containing(aligned), (end - aligned).to_usize())
            .await?;
    Ok(bytes[(from - aligned).to_usize()..][..(to - from).to_usize()].into())
}

/// Inodes marked in use by the bitmaps, except reserved ones that were never written.
async fn in_use(volume: &Volume) -> Result<Vec<InodeNumber>, Error> {
    let sb = volume.superblock();
    let per_group = sb.inodes_per_group();
    let mut numbers = Vec::new();
    for group in (0..sb.group_count()).map(Group) {
        let descriptor = volume.group(group).await?;
        if sb.has_group_csum() && descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            continue;
        }
        let bitmap = read_blocks(volume, descriptor.inode_bitmap, 1).await?;
        verify_inode_bitmap(&bitmap, sb, group, &descriptor)?;
        let first = group.0 * per_group + 1;
        numbers.extend((0..per_group).filter(|&n| bit(&bitmap, n)).map(|n| InodeNumber(first + n)));
    }
    Ok(numbers)
}

fn role_of(inode: &Inode, sb: &Superblock) -> Result<Role, Error> {
    let bad = |field, value: u64, rule| {
        Err(Error::from(Corrupt::field(Place::Inode(inode.number), field, value, rule)))
    };
    let is_own = inode.number < sb.first_inode() && inode.number != InodeNumber::ROOT;
    if inode.number == InodeNumber::BAD_BLOCKS {
        if inode.raw.i_block != [0; 60] {
            let feature = "a list of bad blocks".into();
            return Err(Error::Unsupported { feature, hint: " where a volume is made smaller" });
        }
        return Ok(Role::Unmapped);
    }
    if inode.number == InodeNumber::RESIZE && sb.compat().contains(Compat::RESIZE_INODE) {
        return Ok(Role::Resize);
    }
    if sb.journal_inode() == Some(inode.number) {
        return Ok(Role::Journal);
    }
    if sb.compat().contains(Compat::ORPHAN_FILE) && sb.raw().s_orphan_file_inum.get() == inode.number.0 {
        return Ok(Role::OrphanFile);
    }
    if !is_own && inode.links() == 0 {
        return bad("i_links_count", 0, "at least 1, for the inode is in use");
    }
    let is_inline = inode.flags().contains(InodeFlags::INLINE_DATA);
    Ok(match inode.kind() {
        Some(FileKind::Directory) if is_inline => Role::InlineDirectory,
        Some(FileKind::Directory) => Role::Directory,
        Some(FileKind::Symlink) if !is_inline && !inode.is_fast_symlink(sb) => Role::Symlink,
        Some(FileKind::Regular) if !is_inline => Role::Data,
        None if !is_own => return bad("i_mode", inode.mode().into(), "the mode of a kind of file"),
        _ => Role::Unmapped,
    })
}

/// Fails for an attribute value that refers to its only holder: `i_mtime` is the holder's number,
/// and both have the same generation (`EXT4_XATTR_INODE_GET_PARENT`; written by Lustre). The
/// value's blocks are not charged to the holder.
async fn check_value(volume: &Volume, inode: &Inode) -> Result<(), Error> {
    let holder = InodeNumber(inode.raw.i_mtime.get());
    let is_value = inode.flags().contains(InodeFlags::EA_INODE);
    if is_value && (1..=volume.superblock().inodes_count()).contains(&holder.0) {
        let holder = volume.inode(holder).await?;
        if holder.kind().is_some() && holder.raw.i_generation == inode.raw.i_generation {
            let feature = "values of attributes that Lustre wrote (i_mtime)".into();
            return Err(Error::Unsupported { feature, hint: " where a volume is made smaller" });
        }
    }
    Ok(())
}

async fn attr_block(volume: &Volume, inode: InodeNumber, number: VolumeBlock) -> Result<AttrBlock, Error> {
    let sb = volume.superblock();
    if !sb.is_valid_block(number) {
        let rule = "0 or a block of the volume";
        return Err(Corrupt::field(Place::Inode(inode), "i_file_acl", number.0, rule).into());
    }
    let block = read_blocks(volume, number, 1).await?;
    if let Some(seed) = sb.checksum_seed() {
        verify_xattr_block(&block, inode, number, seed)?;
    }
    let parsed = XattrBlock::parse(&block, inode, number)?;
    let sizes = value_inodes(parsed.xattrs).map(|(_, size)| sb.block_size().blocks_for(size.into()));
    Ok(AttrBlock { number, value_blocks: sizes.sum() })
}
