//! Looking up a name by its hash.

use super::check::TreeCheck;
use super::shape::{Blocks, Shape, Stop};
use crate::map::Mapper;
use crate::view::View;
use crate::{BlockRef, Error, Result, RunState};
use extant_format::{
    CharSign, Compat, Corrupt, DxEntries, DxNode, DxRoot, FileBlock, HtreeContext, Incompat, Inode,
    InodeFlags, InodeNumber, NameHash, Place, hash_name, verify_dx_checksum,
};
use std::collections::BTreeMap;

/// One node on the path down, and which of its entries was followed.
struct Step {
    context: HtreeContext,
    block: BlockRef,
    index: usize,
}

impl Step {
    fn entries(&self) -> std::result::Result<DxEntries<'_>, Corrupt> {
        if self.context.block.0 == 0 {
            DxRoot::parse(&self.block, &self.context).map(|root| root.entries)
        } else {
            DxNode::parse(&self.block, &self.context).map(|node| node.entries)
        }
    }
}

/// Maximum number of blocks that a check keeps loaded.
const LOADED_MAX: usize = 64;

/// Blocks of a directory loaded for the next steps of a check.
#[derive(Default)]
struct Loaded(BTreeMap<FileBlock, BlockRef>);

impl Blocks for Loaded {
    type Bytes = BlockRef;

    fn get(&self, at: FileBlock) -> std::result::Result<BlockRef, Stop> {
        self.0.get(&at).cloned().ok_or(Stop::Missing(at))
    }
}

impl View {
    /// Looks up a name through the directory's hash tree. Returns `None` if there is no usable
    /// tree. The caller then reads the whole directory, which always finds the name.
    pub(crate) async fn lookup_indexed(
        &self,
        dir: &Inode,
        name: &[u8],
    ) -> Result<Option<Option<InodeNumber>>> {
        let plain =
            !dir.flags().intersects(InodeFlags::INLINE_DATA | InodeFlags::ENCRYPT | InodeFlags::CASEFOLD);
        let indexed =
            dir.flags().contains(InodeFlags::INDEX) && self.superblock().compat().contains(Compat::DIR_INDEX);
        if !indexed || !plain || name == b"." || name == b".." {
            return Ok(None);
        }
        match self.descend(dir, name).await {
            // Also if a node cannot be read: the leaf itself may be readable.
            Err(error @ (Error::Corrupt(_) | Error::Io(_))) => {
                self.note_error(error)?;
                Ok(None)
            }
            other => other,
        }
    }

    async fn descend(&self, dir: &Inode, name: &[u8]) -> Result<Option<Option<InodeNumber>>> {
        let sb = self.superblock();
        let mut mapper = Mapper::default();
        let root = self.step(&mut mapper, dir, FileBlock(0)).await?;
        let info = DxRoot::parse(&root.block, &root.context)?.info;
        if info.dir != dir.number {
            let rule = "the directory's own";
            return Err(Corrupt::field(
                Place::HtreeNode(dir.number, FileBlock(0)),
                "inode of `.`",
                info.dir.0.into(),
                rule,
            )
            .into());
        }
        let sign = if sb.unsigned_dir_hash() { CharSign::Unsigned } else { CharSign::Signed };
        let Some(hash) = hash_name(info.hash_version, sign, &sb.hash_seed(), name) else { return Ok(None) };

        let mut path = vec![root];
        let mut leaf = self.down(&mut mapper, dir, &mut path, info.levels, Some(hash)).await?;
        // Names with the same hash may fill several leaves; more leaves than the directory has
        // blocks mean a cycle.
        let blocks = sb.block_size().blocks_for(dir.size());
        for _ in 0..=blocks {
            let block = self.dir_block(&mut mapper, dir, leaf).await?;
            let items = self.parse_dir_block(dir, leaf, &block, Some(name))?;
            if let Some(item) = items.into_iter().next() {
                return Ok(Some(Some(item.inode)));
            }
            match self.next_leaf(&mut mapper, dir, &mut path, info.levels, hash).await? {
                Some(next) => leaf = next,
                None => return Ok(Some(None)),
            }
        }
        let place = Place::HtreeNode(dir.number, FileBlock(0));
        Err(Corrupt::field(place, "block", leaf.0.into(), "passed once").into())
    }

    /// Descends from the last node of `path` to a leaf, following the hash or, without one, the
    /// first entries.
    async fn down(
        &self,
        mapper: &mut Mapper,
        dir: &Inode,
        path: &mut Vec<Step>,
        levels: u8,
        hash: Option<NameHash>,
    ) -> Result<FileBlock> {
        loop {
            let step = path.last_mut().expect("the path holds the root");
            let entries = step.entries()?;
            let index = hash.map_or(step.index, |hash| entries.find(hash));
            let child = entries.get(index).expect("find gives an entry that is there").block;
            step.index = index;
            if path.len() > usize::from(levels) {
                return Ok(child);
            }
            let next = self.step(mapper, dir, child).await?;
            path.push(next);
        }
    }

    /// The next leaf, if names with this hash continue there.
    async fn next_leaf(
        &self,
        mapper: &mut Mapper,
        dir: &Inode,
        path: &mut Vec<Step>,
        levels: u8,
        hash: NameHash,
    ) -> Result<Option<FileBlock>> {
        while let Some(step) = path.last_mut() {
            match step.entries()?.get(step.index + 1) {
                Some(entry) if entry.continues(hash) => {
                    step.index += 1;
                    if path.len() > usize::from(levels) {
                        return Ok(Some(entry.block));
                    }
                    let next = self.step(mapper, dir, entry.block).await?;
                    path.push(next);
                    return self.down(mapper, dir, path, levels, None).await.map(Some);
                }
                Some(_) => return Ok(None),
                None => {
                    path.pop();
                }
            }
        }
        Ok(None)
    }

    async fn step(&self, mapper: &mut Mapper, dir: &Inode, at: FileBlock) -> Result<Step> {
        let sb = self.superblock();
        let context = HtreeContext {
            dir: dir.number,
            block: at,
            checksums: sb.has_metadata_csum(),
            large_dir: sb.incompat().contains(Incompat::LARGEDIR),
        };
        let block = self.dir_block(mapper, dir, at).await?;
        if let Some(seed) = sb.checksum_seed() {
            self.note_checksum(|| verify_dx_checksum(&block, &context, dir.checksum_seed(seed)))?;
        }
        Ok(Step { context, block, index: 0 })
    }

    /// Checks that every name of a directory with a hash tree is in the leaf its hash leads to.
    /// Does nothing for other directories.
    pub(crate) async fn check_names(&self, dir: &Inode) -> Result<()> {
        let shape = Shape::new(dir, self.superblock());
        if !shape.tree {
            return Ok(());
        }
        let (mut mapper, mut blocks, mut check) =
            (Mapper::default(), Loaded::default(), TreeCheck::default());
        loop {
            match check.step(&shape, &blocks) {
                Ok(true) if blocks.0.len() > LOADED_MAX => blocks.0.retain(|at, _| at.0 == 0),
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(Stop::Failed(error)) => return Err(error),
                Err(Stop::Missing(at)) => {
                    let block = self.dir_block(&mut mapper, dir, at).await?;
                    blocks.0.insert(at, block);
                }
            }
        }
    }

    pub(super) async fn dir_block(
        &self,
        mapper: &mut Mapper,
        dir: &Inode,
        at: FileBlock,
    ) -> Result<BlockRef> {
        let run = mapper.map(self, dir, at.0.into()).await?;
        match run.state {
            RunState::Written(block) => self.buffers().block(block).await,
            RunState::Unwritten(block) => {
                let place = Place::DirectoryBlock(dir.number, at);
                self.note(Err(Corrupt::field(place, "blocks unwritten", 1, "0")))?;
                self.buffers().block(block).await
            }
            RunState::Hole => {
                let place = Place::HtreeNode(dir.number, at);
                Err(Corrupt::field(place, "block", at.0.into(), "a mapped block of the directory").into())
            }
        }
    }
}
