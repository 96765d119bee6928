//! The log on the device: where its blocks are, and how a transaction is laid out in it.

use super::Tid;
use super::flushes::FlushedDisk;
use super::state::LogLimits;
use crate::meta::MetaBlock;
use crate::{Error, Result};
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment};
use extant_cache::blocks::{Durable, Frozen, durable_write};
use extant_format::jbd2::{
    DescriptorWriter, JournalChecksums, JournalCommit, JournalLayout, JournalSuperblock, RevokeWriter,
    crc32_be, needs_escape,
};
use extant_format::{Corrupt, Place, UintExt, VolumeBlock};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The error number Linux records in the superblock of an aborted journal
/// (asm-generic/errno-base.h).
const EIO: i32 = 5;
/// Longest bio, in bytes.
const BIO_BYTES: u64 = 1 << 20;

/// Maps the journal's blocks to blocks of the volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogMap {
    /// First block in the journal, first block of the volume, length; in order.
    runs: Vec<(u64, VolumeBlock, u64)>,
}

impl LogMap {
    /// Creates a map from the extents of the journal's file: first block in the file, first block
    /// of the volume, length; in order.
    pub(crate) fn new(runs: Vec<(u64, VolumeBlock, u64)>) -> Self {
        Self { runs }
    }

    /// Returns the location of block `n` of the journal.
    ///
    /// # Errors
    /// The journal has no such block.
    pub(crate) fn home(&self, n: u32) -> Result<VolumeBlock> {
        let n = u64::from(n);
        let at = self.runs.partition_point(|run| run.0 <= n).checked_sub(1).map(|at| self.runs[at]);
        match at {
            Some((logical, first, len)) if n < logical + len => Ok(VolumeBlock(first.0 + n - logical)),
            _ => Err(Corrupt::field(Place::JournalBlock(n.fit_u32()), "block", n, "mapped").into()),
        }
    }

    /// Returns the location of block `n` of the journal, and how many blocks are contiguous from
    /// there, at most `blocks`.
    ///
    /// # Errors
    /// The journal has no such block.
    pub(crate) fn run(&self, n: u32, blocks: u32) -> Result<(VolumeBlock, u32)> {
        let place = self.home(n)?;
        let at = self.runs.partition_point(|run| run.0 <= u64::from(n)) - 1;
        let (logical, _, len) = self.runs[at];
        Ok((place, u64::from(blocks).min(logical + len - u64::from(n)).fit_u32()))
    }

    /// Whether a block of the volume belongs to the journal.
    pub(crate) fn contains(&self, n: VolumeBlock) -> bool {
        self.runs.iter().any(|&(_, first, len)| (first.0..first.0 + len).contains(&n.0))
    }
}

/// A volume's journal, on the same device as the volume.
#[derive(Debug)]
pub(crate) struct LogDevice {
    pub(super) device: Arc<dyn Device>,
    pub(super) map: LogMap,
    pub(super) superblock: Mutex<LogSuperblock>,
    pub(super) layout: JournalLayout,
    block_bytes: usize,
}

/// The journal's superblock as it will next be written.
#[derive(Debug)]
pub(super) struct LogSuperblock {
    pub(super) superblock: JournalSuperblock,
    /// The block it is in; its other bytes stay as they were read.
    pub(super) block: Vec<u8>,
    /// The log on disk is not empty: its superblock says where the log starts.
    pub(super) started: bool,
    /// Time of the last commit, in seconds since 1970. Never decreases.
    pub(super) seconds: i64,
}

/// A transaction as laid out in the log.
pub(super) struct Image {
    /// Every block before the commit block, in order.
    pub(super) blocks: Vec<Arc<Buf>>,
    /// For [`JournalChecksums::Commit`].
    crc: u32,
    sequence: u32,
}

impl LogDevice {
    /// Creates a journal with an empty log. `block` is its first block, which holds `superblock`.
    ///
    /// # Errors
    /// Part of the log is not mapped.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        map: LogMap,
        superblock: JournalSuperblock,
        block: Vec<u8>,
    ) -> Result<Self> {
        map.home(0)?;
        superblock.log().try_for_each(|n| map.home(n).map(drop))?;
        let (layout, block_bytes) = (superblock.layout(), superblock.block_size().byte_len());
        let superblock = Mutex::new(LogSuperblock { superblock, block, started: false, seconds: 0 });
        Ok(Self { device, map, superblock, layout, block_bytes })
    }

    pub(super) fn limits(&self, block_bytes: usize) -> LogLimits {
        let superblock = &self.superblock.lock().superblock;
        let head = Some(superblock.raw().s_head.get()).filter(|&head| head != 0);
        LogLimits { log: superblock.log(), head, layout: self.layout, block_bytes }
    }

    /// Lays out a transaction: revokes first, then each descriptor with its blocks.
    pub(super) fn image(
        &self,
        sequence: u32,
        revokes: &BTreeSet<u64>,
        versions: &[(MetaBlock, Frozen)],
    ) -> Image {
        let mut image = Image { blocks: Vec::with_capacity(versions.len() + 4), crc: !0, sequence };
        let mut rest = revokes.iter().map(|&n| VolumeBlock(n)).peekable();
        while rest.peek().is_some() {
            let mut block = Buf::zeroed(self.block_bytes);
            let mut writer = RevokeWriter::new(&mut block, &self.layout, sequence);
            while rest.peek().is_some_and(|&n| writer.push(n)) {
                rest.next();
            }
            writer.finish();
            image.blocks.push(Arc::new(block));
        }
        let mut rest =
            versions.iter().map(|(block, version)| (block.number(), escape(version.bytes()))).peekable();
        while rest.peek().is_some() {
            let mut descriptor = Buf::zeroed(self.block_bytes);
            let mut writer = DescriptorWriter::new(&mut descriptor, &self.layout, sequence);
            let mut copies = Vec::new();
            while rest.peek().is_some_and(|(home, (copy, escaped))| writer.push(*home, *escaped, copy)) {
                copies.extend(rest.next().map(|(_, (copy, _))| copy));
            }
            writer.finish();
            let at = image.blocks.len();
            image.blocks.push(Arc::new(descriptor));
            image.blocks.append(&mut copies);
            if self.layout.checksums == JournalChecksums::Commit {
                image.crc = image.blocks[at..].iter().fold(image.crc, |crc, block| crc32_be(crc, block));
            }
        }
        image
    }

    /// Builds the commit block of a transaction. Its time is `now`, or the last commit's if the
    /// clock went back.
    pub(super) fn commit_block(&self, image: &Image, now: i64) -> Buf {
        let seconds = {
            let mut superblock = self.superblock.lock();
            superblock.seconds = superblock.seconds.max(now);
            superblock.seconds
        };
        let commit = JournalCommit {
            sequence: image.sequence,
            seconds: seconds.max(0).unsigned_abs(),
            nanoseconds: 0,
            transaction_crc: Some(image.crc),
        };
        let mut block = Buf::zeroed(self.block_bytes);
        commit.write_to(&mut block, &self.layout);
        block
    }

    /// Writes blocks to the log; block `i` goes to `place(i)`. Not durable.
    pub(super) async fn write(&self, blocks: &[Arc<Buf>], place: impl Fn(usize) -> u32) -> Result<()> {
        let homes = (0..blocks.len()).map(|i| self.map.home(place(i)));
        let homes: Vec<VolumeBlock> = homes.collect::<Result<_>>()?;
        let list = homes.iter().map(|home| home.0).zip(blocks.iter().cloned()).collect();
        write_blocks(&*self.device, self.block_bytes, list).await
    }

    /// Writes the commit block of `tid` to block `at` of the log, after a flush and with FUA.
    pub(super) async fn write_commit(
        &self,
        disk: &FlushedDisk,
        tid: Tid,
        block: Buf,
        at: u32,
    ) -> Result<Durable> {
        let start = sector(self.map.home(at)?.0, self.block_bytes);
        disk.write_commit(tid, start, block).await
    }

    /// Writes the journal's superblock: the log starts at `start` with transaction `sequence`, or
    /// is empty. If `durable_on` is given, the write follows a flush of that disk and is durable.
    pub(super) async fn write_superblock(
        &self,
        start: Option<u32>,
        sequence: u32,
        head: Option<u32>,
        durable_on: Option<&FlushedDisk>,
    ) -> Result<()> {
        let (block, errno) = {
            let mut superblock = self.superblock.lock();
            let log = superblock.superblock.log();
            debug_assert!(start.is_none_or(|start| log.contains(&start)), "{start:?} is outside {log:?}");
            superblock.superblock.set_position(start, sequence);
            superblock.superblock.set_head(head);
            superblock.started = start.is_some();
            let LogSuperblock { superblock, block, .. } = &mut *superblock;
            superblock.write_to(block);
            (Buf::from_slice(block), superblock.errno())
        };
        let home = self.map.home(0)?;
        let written = match durable_on {
            // Through the page cache's disk, which serialises flushes.
            Some(disk) => {
                let start = sector(home.0, self.block_bytes);
                disk.write_behind_flush(durable_write(start, block)).await
            }
            None => write_blocks(&*self.device, self.block_bytes, vec![(home.0, Arc::new(block))]).await,
        };
        // The journal was aborted meanwhile, and this write may have overwritten the record of
        // that.
        if self.superblock.lock().superblock.errno() != errno {
            self.record_failure().await?;
        }
        written
    }

    /// Records in the journal's superblock that the journal was aborted (`s_errno`). The next
    /// recovery marks the volume as having errors. All other fields keep their on-disk values,
    /// because the superblock in memory may be ahead of what is durable.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) async fn record_failure(&self) -> Result<()> {
        // For any later write of the superblock.
        self.superblock.lock().superblock.set_errno(EIO);
        let home = self.map.home(0)?;
        let start = sector(home.0, self.block_bytes);
        let mut block = extant_block::read(&*self.device, start, self.block_bytes).await?;
        let mut superblock = JournalSuperblock::parse(&block)?;
        superblock.set_errno(EIO);
        superblock.write_to(&mut block);
        let mut bio = Bio::new(Op::Write, start, vec![Segment::from(block)]);
        bio.flags = BioFlags::FUA | BioFlags::SYNC | BioFlags::META;
        extant_block::execute(&*self.device, bio).await.1.map_err(Error::from)
    }
}

/// Returns a block as it goes into the log, and whether its first four bytes were zeroed because
/// they match the journal's magic number.
fn escape(version: &Arc<Buf>) -> (Arc<Buf>, bool) {
    if !needs_escape(version) {
        return (version.clone(), false);
    }
    let mut copy = Buf::from_slice(version);
    copy[..4].fill(0);
    (Arc::new(copy), true)
}

/// The first sector of block `n`.
pub(super) fn sector(n: u64, block_bytes: usize) -> Sector {
    Sector(n * (block_bytes.to_u64() / Sector::BYTES))
}

/// Like [`write_segments`], for whole buffers.
///
/// # Errors
/// See there.
pub(super) async fn write_blocks(
    device: &dyn Device,
    block_bytes: usize,
    blocks: Vec<(u64, Arc<Buf>)>,
) -> Result<()> {
    let segments = blocks.into_iter().map(|(n, block)| (n, Segment::shared(block, 0, block_bytes)));
    write_segments(device, block_bytes, segments).await
}

/// Writes blocks to their places, merging adjacent ones into one bio. Not durable.
///
/// # Errors
/// The first error of a bio, after all have completed.
pub(crate) async fn write_segments(
    device: &dyn Device,
    block_bytes: usize,
    blocks: impl Iterator<Item = (u64, Segment)>,
) -> Result<()> {
    let limits = device.limits();
    let bytes_max = BIO_BYTES.min(limits.max_bytes).max(block_bytes.to_u64()).to_usize();
    let longest = (bytes_max / block_bytes).min(limits.max_segments.to_usize()).max(1);
    let mut pending = Vec::new();
    let mut submit = |first: u64, segments: Vec<Segment>| {
        let mut bio = Bio::new(Op::Write, sector(first, block_bytes), segments);
        bio.flags = BioFlags::SYNC | BioFlags::META;
        pending.push(extant_block::execute(device, bio));
    };
    let mut run: Option<(u64, Vec<Segment>)> = None;
    for (n, segment) in blocks {
        match &mut run {
            Some((first, segments)) if *first + segments.len().to_u64() == n && segments.len() < longest => {
                segments.push(segment);
            }
            _ => {
                if let Some((first, segments)) = run.replace((n, vec![segment])) {
                    submit(first, segments);
                }
            }
        }
    }
    if let Some((first, segments)) = run {
        submit(first, segments);
    }
    let mut result = Ok(());
    for ended in pending {
        let outcome = ended.await.1;
        result = result.and(outcome);
    }
    result.map_err(Error::from)
}
