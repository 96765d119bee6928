//! A volume's structures as they are now: superblock, group descriptors and inodes, with the
//! journal applied, or as last changed on a volume open for writing.
//!
//! Everything that reads a volume does so through a [`View`]: recovery, below the journal's copies,
//! and the public [`Volume`](crate::Volume), above them.

mod backups;
mod features;
mod mapped_blocks;
mod own_structures;
mod pieces;
mod problems;

use crate::meta::{Buffers, Journaled};
use crate::{BlockRef, Error, Result};
use backups::Backups;
pub use backups::DescriptorSource;
use extant_block::{Device, Sector};
use extant_format::{
    Corrupt, FileKind, Group, GroupDescriptor, Inode, InodeNumber, Place, SUPERBLOCK_BYTES, Superblock,
    UintExt, VolumeBlock, inode_offset,
};
pub(crate) use features::{check_readable, check_writable, journals_data};
pub(crate) use own_structures::{OwnStructures, maps_structure};
use parking_lot::Mutex;
pub(crate) use problems::Problems;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// How to treat a damaged structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Damage {
    /// The operation that finds it fails.
    #[default]
    Fail,
    /// The problem is recorded for [`Volume::problems`](crate::Volume::problems), and what is
    /// readable around it is read: contents with a wrong checksum as far as they make sense, and
    /// directories without their broken blocks.
    Report,
}

/// Offset of the primary superblock in bytes.
const PRIMARY_OFFSET: u64 = 1024;

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// How to treat damaged structures.
    pub damage: Damage,
    /// Offset of the superblock in bytes; by default that of the primary one, 1,024.
    pub superblock_offset: Option<u64>,
    /// Do not read the journal, even if it is dirty.
    pub ignore_journal: bool,
}

/// In-memory state newer than the blocks of a volume open for writing.
pub(crate) trait Live: fmt::Debug + Send + Sync {
    /// The descriptor of a group of the volume.
    fn group(&self, group: Group) -> GroupDescriptor;

    /// An inode in use, if it is in memory.
    fn inode(&self, number: InodeNumber) -> Option<Inode>;
}

/// A volume's structures as they are now. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct View {
    inner: Arc<Inner>,
    problems: Arc<Mutex<Problems>>,
}

#[derive(Debug)]
struct Inner {
    sb: Superblock,
    /// The block that the superblock was read from.
    superblock_at: VolumeBlock,
    /// The byte that it was read from.
    superblock_bytes_at: u64,
    buffers: Buffers,
    damage: Damage,
    /// Copies of descriptors that replace damaged ones.
    backups: Option<Backups>,
    own_structures: own_structures::Known,
    /// Set on a volume open for writing.
    live: Option<Arc<dyn Live>>,
}

impl View {
    /// A view of the blocks at their home locations, ignoring the journal.
    ///
    /// # Errors
    /// Names an unsupported INCOMPAT feature, or the field of an invalid superblock.
    pub(crate) async fn open(device: Arc<dyn Device>, options: OpenOptions) -> Result<Self> {
        let offset = options.superblock_offset.unwrap_or(PRIMARY_OFFSET);
        let sb = read_superblock(&*device, offset).await?;
        Self::with_superblock(device, options, sb, offset, Problems::default())
    }

    /// Like [`Self::open`], but for reading only. With [`Damage::Report`], backups replace a
    /// damaged superblock, unless the caller chose one, and damaged group descriptors; the problems
    /// mention it.
    ///
    /// # Errors
    /// As [`Self::open`], if no backup is usable either.
    pub(crate) async fn open_to_read(device: Arc<dyn Device>, options: OpenOptions) -> Result<Self> {
        let mut view = match Self::open(device.clone(), options).await {
            Err(damage @ (Error::Corrupt(_) | Error::Io(_)))
                if options.damage == Damage::Report && options.superblock_offset.is_none() =>
            {
                backups::open(&device, options, damage).await?
            }
            opened => opened?,
        };
        if options.damage == Damage::Report {
            let inner = Arc::get_mut(&mut view.inner).expect("no other handle has been made");
            inner.backups = Some(Backups::default());
        }
        Ok(view)
    }

    /// Like [`Self::open_to_read`] with [`Damage::Report`], but for repairs: uses the first
    /// superblock only if nothing is wrong with it. A wrong checksum counts as damage.
    ///
    /// # Errors
    /// As [`Self::open`], if no backup is usable either.
    pub(crate) async fn open_sound(device: Arc<dyn Device>, options: OpenOptions) -> Result<Self> {
        let view = Self::open_to_read(device.clone(), options).await?;
        match view.superblock().verify_checksum() {
            Err(corrupt) if !view.is_backup() => {
                let mut view = backups::open(&device, options, corrupt.into()).await?;
                let inner = Arc::get_mut(&mut view.inner).expect("no other handle has been made");
                inner.backups = Some(Backups::default());
                Ok(view)
            }
            _ => Ok(view),
        }
    }

    /// Opens the volume whose superblock was read at byte `offset`.
    fn with_superblock(
        device: Arc<dyn Device>,
        options: OpenOptions,
        sb: Superblock,
        offset: u64,
        mut problems: Problems,
    ) -> Result<Self> {
        if let Err(corrupt) = sb.verify_checksum() {
            match options.damage {
                Damage::Fail => return Err(corrupt.into()),
                Damage::Report => problems.add(corrupt.into()),
            }
        }
        check_readable(&sb)?;
        if let Err(corrupt) = check_whole(&*device, &sb) {
            match options.damage {
                Damage::Fail => return Err(corrupt.into()),
                Damage::Report => problems.add(corrupt.into()),
            }
        }
        let superblock_at = VolumeBlock(offset >> sb.block_size().log2());
        let buffers = Buffers::new(device, sb.block_size());
        let damage = options.damage;
        let inner = Inner {
            sb,
            superblock_at,
            superblock_bytes_at: offset,
            buffers,
            damage,
            backups: None,
            own_structures: Mutex::default(),
            live: None,
        };
        Ok(Self { inner: Arc::new(inner), problems: Arc::new(Mutex::new(problems)) })
    }

    /// The same volume with the journal's copies replacing blocks at home, including the
    /// superblock.
    ///
    /// # Errors
    /// As [`Self::open`], for the superblock in the journal; also if it changes the size of blocks
    /// or inodes.
    ///
    /// # Panics
    /// If the view was cloned.
    pub(crate) async fn through(self, overlay: BTreeMap<VolumeBlock, Journaled>) -> Result<Self> {
        let keeps_superblock = self.is_backup() && !overlay.contains_key(&self.primary_block());
        let home = self.primary_block();
        let mut inner = Arc::into_inner(self.inner).expect("no other handle has been made");
        inner.buffers.set_overlay(overlay);
        inner.own_structures = Mutex::default();
        if let Some(backups) = &mut inner.backups {
            backups.forget();
        }
        if keeps_superblock {
            return Ok(Self { inner: Arc::new(inner), ..self });
        }
        let block = inner.buffers.block(home).await?;
        let at = PRIMARY_OFFSET.to_usize() % inner.sb.block_size().byte_len();
        let newer = Superblock::parse(&block[at..])?;
        let same = newer.block_size() == inner.sb.block_size() && newer.inode_size() == inner.sb.inode_size();
        if !same {
            let value = newer.block_size().bytes().into();
            let rule = "kept by the journal";
            return Err(Corrupt::field(Place::Superblock, "s_log_block_size", value, rule).into());
        }
        check_readable(&newer)?;
        let older = std::mem::replace(&mut inner.sb, newer);
        inner.sb.keep_errors_of(&older);
        Ok(Self { inner: Arc::new(inner), ..self })
    }

    /// The same volume once it is open for writing, with its blocks in `buffers`.
    ///
    /// # Panics
    /// If the view was cloned.
    pub(crate) fn over(self, buffers: Buffers, live: Arc<dyn Live>) -> Self {
        let mut inner = Arc::into_inner(self.inner).expect("no other handle has been made");
        (inner.buffers, inner.live) = (buffers, Some(live));
        Self { inner: Arc::new(inner), ..self }
    }

    /// Whether the superblock is a backup, which does not say whether the journal is dirty.
    pub(crate) fn is_backup(&self) -> bool {
        self.inner.superblock_at != self.primary_block()
    }

    /// The byte of the device that the superblock was read from.
    pub(crate) fn superblock_bytes_at(&self) -> u64 {
        self.inner.superblock_bytes_at
    }

    /// The block that contains the primary superblock.
    fn primary_block(&self) -> VolumeBlock {
        VolumeBlock(PRIMARY_OFFSET >> self.superblock().block_size().log2())
    }

    /// Whether the volume is open for writing.
    pub(crate) fn is_live(&self) -> bool {
        self.inner.live.is_some()
    }

    /// The superblock, with the journal applied.
    pub(crate) fn superblock(&self) -> &Superblock {
        &self.inner.sb
    }

    /// The device that holds the volume.
    pub(crate) fn device(&self) -> &Arc<dyn Device> {
        self.inner.buffers.device()
    }

    pub(crate) fn buffers(&self) -> &Buffers {
        &self.inner.buffers
    }

    /// Problems found so far that did not fail an operation, without duplicates.
    pub(crate) fn problems(&self) -> Problems {
        self.problems.lock().clone()
    }

    /// The same volume, with a separate list of problems.
    pub(crate) fn noting_apart(&self) -> Self {
        Self { inner: self.inner.clone(), problems: Arc::default() }
    }

    /// Takes the problems off the list. Those that are found again are not noted again.
    pub(crate) fn take_problems(&self) -> Vec<Error> {
        self.problems.lock().take()
    }

    /// Notes a problem that was found elsewhere.
    pub(crate) fn add_problem(&self, problem: Error) {
        self.problems.lock().add(problem);
    }

    /// Fails, or records the problem, according to [`OpenOptions::damage`].
    pub(crate) fn note(&self, check: std::result::Result<(), Corrupt>) -> Result<()> {
        check.or_else(|corrupt| self.note_error(corrupt.into()))
    }

    /// Like [`Self::note`], but for a problem of any kind.
    pub(crate) fn note_error(&self, error: Error) -> Result<()> {
        match self.inner.damage {
            Damage::Fail => Err(error),
            Damage::Report => {
                self.add_problem(error);
                Ok(())
            }
        }
    }

    /// Whether problems are recorded and what is readable around them is read.
    pub(crate) fn reports_damage(&self) -> bool {
        self.inner.damage == Damage::Report
    }

    /// Like [`Self::note`], but for the checksum of a block. Not checked on a volume open for
    /// writing: a changed block gets its checksum at commit, so the one in memory means nothing.
    pub(crate) fn note_checksum(
        &self,
        check: impl FnOnce() -> std::result::Result<(), Corrupt>,
    ) -> Result<()> {
        if self.is_live() { Ok(()) } else { self.note(check()) }
    }

    /// The descriptor of a group.
    pub(crate) async fn group(&self, group: Group) -> Result<GroupDescriptor> {
        let sb = self.superblock();
        if group.0 >= sb.group_count() {
            return Err(Corrupt::field(
                Place::GroupDescriptor(group),
                "group",
                group.0.into(),
                "a group of the volume",
            )
            .into());
        }
        if let Some(live) = &self.inner.live {
            return Ok(live.group(group));
        }
        if let Some(backups) = &self.inner.backups {
            return self.group_from_copies(group, backups).await;
        }
        let (block, at) = self.descriptor(self.table_block_of(group), group).await?;
        match GroupDescriptor::parse(&block[at..], sb, group) {
            Err(corrupt) if matches!(corrupt.problem, extant_format::Problem::Checksum { .. }) => {
                self.note(Err(corrupt))?;
                Ok(GroupDescriptor::parse_unchecked(&block[at..], sb, group)?)
            }
            other => Ok(other?),
        }
    }

    /// The block that contains a group's descriptor.
    fn table_block_of(&self, group: Group) -> VolumeBlock {
        self.table_block(group.0 / self.superblock().descriptors_per_block())
    }

    /// The block that a group's descriptor is read from first, and its byte offset in it.
    pub(crate) fn descriptor_place(&self, group: Group) -> (VolumeBlock, usize) {
        (self.table_block_of(group), self.descriptor_offset(group))
    }

    fn descriptor_offset(&self, group: Group) -> usize {
        let sb = self.superblock();
        (group.0 % sb.descriptors_per_block()).to_usize() * sb.descriptor_size()
    }

    /// Reads a block of descriptors, and returns it with a group's byte offset in it.
    async fn descriptor(&self, at: VolumeBlock, group: Group) -> Result<(BlockRef, usize)> {
        Ok((self.buffers().block(at).await?, self.descriptor_offset(group)))
    }

    /// The block that contains an inode, and the inode's offset in it.
    pub(crate) async fn locate(&self, number: InodeNumber) -> Result<(VolumeBlock, usize)> {
        let sb = self.superblock();
        let Some((group, offset)) = inode_offset(sb, number) else {
            let rule = "an inode of the volume";
            return Err(Corrupt::field(Place::Inode(number), "inode number", number.0.into(), rule).into());
        };
        let table = match self.group(group).await {
            Ok(descriptor) => descriptor.inode_table,
            // Reading needs only the table.
            Err(Error::Corrupt(corrupt)) => {
                self.note(Err(corrupt))?;
                let (block, at) = self.descriptor(self.table_block_of(group), group).await?;
                GroupDescriptor::parse_inode_table(&block[at..], sb, group)?
            }
            Err(other) => return Err(other),
        };
        let block = VolumeBlock(table.0 + (offset >> sb.block_size().log2()));
        Ok((block, (offset & u64::from(sb.block_size().bytes() - 1)).to_usize()))
    }

    /// Reads an inode. On a volume open for writing, an inode in use is returned as last changed. A
    /// free inode is decoded from the bytes on disk.
    pub(crate) async fn inode(&self, number: InodeNumber) -> Result<Inode> {
        if let Some(inode) = self.inner.live.as_ref().and_then(|live| live.inode(number)) {
            return Ok(inode);
        }
        let (block, at) = self.locate(number).await?;
        let bytes = self.buffers().block(block).await?;
        let sb = self.superblock();
        match Inode::parse(&bytes[at..], sb, number) {
            Err(corrupt) if matches!(corrupt.problem, extant_format::Problem::Checksum { .. }) => {
                self.note(Err(corrupt))?;
                Ok(Inode::parse_unchecked(&bytes[at..], sb, number)?)
            }
            other => Ok(other?),
        }
    }

    /// Reads an inode without checking its checksum.
    pub(crate) async fn inode_quietly(&self, number: InodeNumber) -> Result<Inode> {
        let (block, at) = self.locate(number).await?;
        let bytes = self.buffers().block(block).await?;
        Ok(Inode::parse_unchecked(&bytes[at..], self.superblock(), number)?)
    }

    /// Reads the root directory.
    ///
    /// # Errors
    /// Damage of its inode. Without it, everything below would be missing silently.
    pub(crate) async fn root(&self) -> Result<Inode> {
        let root = self.inode(InodeNumber::ROOT).await?;
        let bad = |field, value, rule| Corrupt::field(Place::Inode(InodeNumber::ROOT), field, value, rule);
        if root.kind() != Some(FileKind::Directory) {
            let rule = "that of a directory, for it is the root";
            return Err(bad("i_mode", root.mode().into(), rule).into());
        }
        if root.links() == 0 {
            self.note(Err(bad("i_links_count", 0, "at least 1, for it is the root directory")))?;
        }
        if root.size() == 0 {
            self.note(Err(bad("i_size", 0, "at least one block, for it is the root directory")))?;
        }
        Ok(root)
    }

    /// Reads the blocks of these inodes into the cache, many at a time.
    pub(crate) async fn prefetch_inodes(&self, numbers: &[InodeNumber]) {
        let mut blocks = Vec::with_capacity(numbers.len());
        for &number in numbers {
            if let Ok((block, _)) = self.locate(number).await {
                blocks.push(block);
            }
        }
        self.buffers().prefetch(blocks.into_iter()).await;
    }
}

/// Checks that the device holds the whole volume; a partial copy of an image does not.
pub(crate) fn check_whole(device: &dyn Device, sb: &Superblock) -> std::result::Result<(), Corrupt> {
    let device_bytes = device.limits().capacity_bytes;
    if sb.blocks_count() <= device_bytes >> sb.block_size().log2() {
        return Ok(());
    }
    let volume_bytes = sb.blocks_count().saturating_mul(sb.block_size().bytes().into());
    Err(Corrupt::cut_off(volume_bytes, device_bytes))
}

/// Reads and checks the superblock at byte `offset` of a device, regardless of its features. The
/// primary one is at 1,024.
///
/// # Errors
/// It cannot be read, is corrupt, or lies behind the device's end.
pub async fn read_superblock(device: &dyn Device, offset: u64) -> Result<Superblock> {
    let limits = device.limits();
    if limits.capacity_bytes < offset.saturating_add(SUPERBLOCK_BYTES.to_u64()) {
        let have = limits.capacity_bytes.saturating_sub(offset).to_usize();
        return Err(Corrupt::truncated(Place::Superblock, SUPERBLOCK_BYTES, have).into());
    }
    // Read whole aligned blocks, so that it also works on a device that bypasses the host's cache.
    let start = offset / 4096 * 4096;
    let len = (offset + SUPERBLOCK_BYTES.to_u64() - start).next_multiple_of(4096);
    let len = len.min((limits.capacity_bytes - start).next_multiple_of(Sector::BYTES));
    let bytes = extant_block::read(device, Sector::containing(start), len.to_usize()).await?;
    let bytes = &bytes[(offset - start).to_usize()..];
    if Superblock::is_journal_device(bytes) {
        return Err(features::journal_device());
    }
    Ok(Superblock::parse(bytes)?)
}
