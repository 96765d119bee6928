//! Reads and changes a volume's blocks in the overlay.

use super::plan::{Policy, Step};
use super::unclaimed::Lost;
use crate::context::Context;
use crate::finding::Finding;
use crate::sweeps::Survey;
use extant_block::{Buf, Deferred, Device, IoError, Sector, read, write};
use extant_format::{
    ChecksumSeed, FileKind, Group, GroupDescriptor, Inode, InodeNumber, SUPERBLOCK_BYTES, Superblock,
    VolumeBlock,
};
use extant_rt::Rt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One round of repairs: makes the changes that the findings of one check ask for.
pub(super) struct Editor<'a> {
    pub(super) rt: &'a Rt,
    pub(super) survey: &'a Survey,
    pub(super) ctx: &'a Context,
    /// The superblock, as changed so far.
    pub(super) sb: Superblock,
    pub(super) device: &'a Arc<Deferred>,
    pub(super) policy: Policy,
    pub(super) now: Option<i64>,
    pub(super) steps: &'a mut Vec<Step>,
    /// Blocks that the current repair has changed.
    touched: BTreeSet<u64>,
    /// What the current repair does and loses, if this differs from what its code says.
    action: Option<String>,
    lost: Option<String>,
    /// The first write that failed.
    pub(super) failed: Option<IoError>,
    /// Why no repair can be made, apart from remaining findings.
    pub(super) obstacle: Option<String>,
    /// Directories whose indexes were dropped.
    pub(super) unindexed: BTreeSet<InodeNumber>,
    /// Clusters in use that no inode claims.
    pub(super) unclaimed: Lost,
    /// Inodes in doubt that directories name, and of what kind an entry says that they are.
    pub(super) named: BTreeMap<u32, Option<FileKind>>,
}

impl<'a> Editor<'a> {
    pub(super) fn new(
        rt: &'a Rt,
        survey: &'a Survey,
        device: &'a Arc<Deferred>,
        policy: Policy,
        now: Option<i64>,
        steps: &'a mut Vec<Step>,
    ) -> Self {
        Self {
            rt,
            survey,
            ctx: &survey.ctx,
            sb: survey.ctx.sb.clone(),
            device,
            policy,
            now,
            steps,
            touched: BTreeSet::new(),
            action: None,
            lost: None,
            failed: None,
            obstacle: None,
            unindexed: BTreeSet::new(),
            unclaimed: Lost::default(),
            named: BTreeMap::new(),
        }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.ctx.source.block_bytes()
    }

    pub(super) fn block_len(&self) -> u64 {
        self.sb.block_size().bytes().into()
    }

    pub(super) fn seed(&self) -> Option<ChecksumSeed> {
        self.sb.checksum_seed()
    }

    /// Describes what the current repair does, and what that loses.
    pub(super) fn say(&mut self, action: impl Into<String>, lost: impl Into<String>) {
        self.action = Some(action.into());
        self.lost = Some(lost.into());
    }

    /// Ends the repair for a finding; returns whether it changed anything.
    pub(super) fn end_step(&mut self, finding: &Finding) -> bool {
        let blocks = std::mem::take(&mut self.touched);
        let action = self.action.take().unwrap_or_else(|| finding.code.repair().to_owned());
        let lost = self.lost.take().unwrap_or_else(|| finding.code.lost().to_owned());
        if blocks.is_empty() {
            return false;
        }
        self.steps.push(Step { blocks, ..Step::new(finding, action, &lost) });
        true
    }

    /// Records a finding that was repaired together with the previous one, if that changed
    /// anything.
    pub(super) fn also(&mut self, finding: &Finding) {
        let Some(last) = self.steps.last() else { return };
        if last.spot.inode == finding.spot.inode && last.spot.file_block == finding.spot.file_block {
            let step = Step { blocks: last.blocks.clone(), ..Step::new(finding, finding.code.repair(), "") };
            self.steps.push(step);
        }
    }

    /// Returns a block as changed so far; `None` if it cannot be read.
    pub(super) async fn block(&self, at: u64) -> Option<Vec<u8>> {
        let start = at.checked_mul(self.block_len())?;
        let end = start.checked_add(self.block_len())?;
        if end > self.device.limits().capacity_bytes {
            return None;
        }
        let bytes = read(&**self.device, Sector::containing(start), self.block_bytes()).await;
        bytes.ok().map(|bytes| bytes.to_vec())
    }

    /// Changes a block.
    pub(super) async fn set_block(&mut self, at: u64, bytes: &[u8]) {
        if self.block(at).await.as_deref() == Some(bytes) {
            return;
        }
        self.touched.insert(at);
        let start = Sector::containing(at * self.block_len());
        if let Err(error) = write(&**self.device, start, Buf::from_slice(bytes)).await {
            self.failed.get_or_insert(error);
        }
    }

    /// Records that a block was changed by other means.
    pub(super) fn mark(&mut self, at: u64) {
        self.touched.insert(at);
    }

    pub(super) async fn superblock_bytes(&self) -> Option<[u8; SUPERBLOCK_BYTES]> {
        let bytes = read(&**self.device, Sector(2), SUPERBLOCK_BYTES).await.ok()?;
        bytes[..].try_into().ok()
    }

    /// Writes the superblock as it is in memory.
    pub(super) async fn write_superblock(&mut self) {
        self.sb.raw_mut().s_block_group_nr = 0.into();
        self.sb.update_checksum();
        let bytes: Vec<u8> = self.sb.as_bytes().to_vec();
        self.write_superblock_bytes(&bytes).await;
    }

    pub(super) async fn write_superblock_bytes(&mut self, bytes: &[u8]) {
        if self.superblock_bytes().await.is_some_and(|now| now == bytes) {
            return;
        }
        self.touched.insert(1024 / self.block_len());
        if let Err(error) = write(&**self.device, Sector(2), Buf::from_slice(bytes)).await {
            self.failed.get_or_insert(error);
        }
    }

    /// An inode's bytes.
    pub(super) async fn inode_bytes(&self, number: InodeNumber) -> Option<Vec<u8>> {
        let (block, at) = self.ctx.inode_place(number)?;
        let bytes = self.block(block).await?;
        Some(bytes[at..at + usize::from(self.sb.inode_size())].to_vec())
    }

    /// Returns an inode, whatever its checksum. If its extra fields make no sense, the inode is
    /// returned without them.
    pub(super) async fn inode(&self, number: InodeNumber) -> Option<Inode> {
        let mut bytes = self.inode_bytes(number).await?;
        if let Ok(inode) = Inode::parse_unchecked(&bytes, &self.sb, number) {
            return Some(inode);
        }
        bytes.get_mut(128..130)?.fill(0);
        let inode = Inode::parse_unchecked(&bytes, &self.sb, number).ok()?;
        Some(Inode { tail: Box::default(), ..inode })
    }

    pub(super) async fn set_inode_bytes(&mut self, number: InodeNumber, bytes: &[u8]) {
        let Some((block, at)) = self.ctx.inode_place(number) else { return };
        let Some(mut all) = self.block(block).await else { return };
        all[at..at + bytes.len()].copy_from_slice(bytes);
        self.set_block(block, &all).await;
    }

    /// Writes an inode with its checksum.
    pub(super) async fn set_inode(&mut self, inode: &Inode) {
        let mut bytes = vec![0; usize::from(self.sb.inode_size())];
        inode.write_to(&mut bytes, &self.sb);
        self.set_inode_bytes(inode.number, &bytes).await;
    }

    /// Changes an inode.
    pub(super) async fn with_inode(
        &mut self,
        number: InodeNumber,
        change: impl FnOnce(&mut Inode, &Superblock),
    ) {
        if let Some(mut inode) = self.inode(number).await {
            change(&mut inode, &self.sb);
            self.set_inode(&inode).await;
        }
    }

    /// Writes the primary descriptor of a group.
    pub(super) async fn set_descriptor(&mut self, group: Group, gd: &GroupDescriptor) {
        let per_block = self.sb.descriptors_per_block();
        let at = self.sb.descriptor_block(group.0 / per_block).0;
        let Some(mut block) = self.block(at).await else { return };
        let size = self.sb.descriptor_size();
        let slot = usize::try_from(group.0 % per_block).unwrap_or(0) * size;
        gd.write_to(&mut block[slot..slot + size], &self.sb, group);
        self.set_block(at, &block).await;
    }

    pub(super) async fn descriptor(&self, group: Group) -> Option<GroupDescriptor> {
        let per_block = self.sb.descriptors_per_block();
        let block = self.block(self.sb.descriptor_block(group.0 / per_block).0).await?;
        let slot = usize::try_from(group.0 % per_block).unwrap_or(0) * self.sb.descriptor_size();
        GroupDescriptor::decode(&block[slot..], &self.sb, group).ok()
    }

    /// Whether a block has several owners. Other repairs do not write to such a block before its
    /// owners have been separated.
    pub(super) fn is_contested(&self, at: u64) -> bool {
        self.ctx.claims.is_shared(at, 1).0
    }

    /// The first cluster at or after this one that is neither claimed nor lost.
    fn unused(&self, from: u64) -> Option<u64> {
        let mut at = from;
        loop {
            let free = self.ctx.claims.first_free(at)?;
            match self.unclaimed.end_of(free) {
                Some(end) => at = end,
                None => return Some(free),
            }
        }
    }

    /// Takes a free block near `goal`; with bigalloc, the first block of a free cluster. Lost
    /// clusters are taken last, because a file may get them back.
    pub(super) fn allocate(&mut self, goal: u64) -> Option<u64> {
        let claims = &self.ctx.claims;
        let end = self.ctx.source.device_blocks().min(self.sb.blocks_count());
        let from = claims.cluster(VolumeBlock(goal));
        let unused = self.unused(from).or_else(|| self.unused(0));
        let free = unused.or_else(|| claims.first_free(0))?;
        let block = claims.block(free);
        if block + u64::from(self.sb.blocks_per_cluster()) > end {
            return None;
        }
        claims.claim(free, 1);
        self.unclaimed.take(free, free + 1);
        Some(block)
    }
}
