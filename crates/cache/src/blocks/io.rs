//! Reads blocks: one bio per run, with separate memory for each block.

use super::block::{Block, BlockRef, ReadFailed};
use super::{BlockStore, SHARDS};
use extant_block::{Bio, BioFlags, Buf, IoError, IoErrorKind, Op, Sector, Segment};
use std::future::poll_fn;
use std::sync::Arc;

impl BlockStore {
    /// Block `n`. If it is not in memory, it is read together with missing neighbours, up to
    /// `around` blocks.
    pub(super) async fn load(self: &Arc<Self>, n: u64, around: u64) -> Result<BlockRef, ReadFailed> {
        let block = self.claim(n, around)?;
        poll_fn(|cx| block.poll_loaded(cx.waker())).await?;
        Ok(BlockRef::of(block).expect("a block that has been read stays so"))
    }

    /// The block's entry in memory; starts a read if there is none.
    fn claim(self: &Arc<Self>, n: u64, around: u64) -> Result<Arc<Block>, ReadFailed> {
        if n >= self.blocks {
            return Err(ReadFailed { error: self.out_of_range(n), others: false });
        }
        let (block, run) = {
            let mut shard = self.shard(n).lock();
            if let Some(block) = shard.map.get(&n) {
                return Ok(block.clone());
            }
            let first = n / around * around;
            let absent = |at: &u64| !shard.map.contains_key(at);
            let from = (first..n).rev().take_while(absent).last().unwrap_or(n);
            let end = (n..(first + around).min(self.blocks)).take_while(absent).last().unwrap_or(n) + 1;
            let run: Vec<_> = (from..end).map(|at| Arc::new(Block::reading(at))).collect();
            for block in &run {
                self.put(&mut shard, block.clone());
            }
            (run[(n - from) as usize].clone(), run)
        };
        let longest = self.longest_run();
        self.device.submit_all(&mut run.chunks(longest).map(|run| self.read_bio(run.to_vec())));
        self.settle();
        Ok(block)
    }

    /// Reads missing blocks; `wanted` is in ascending order.
    pub(super) async fn prefetch(self: &Arc<Self>, wanted: &[u64]) {
        let longest = self.longest_run();
        let mut runs: Vec<Vec<Arc<Block>>> = Vec::new();
        for &n in wanted.iter().filter(|&&n| n < self.blocks) {
            let mut shard = self.shard(n).lock();
            if shard.map.contains_key(&n) {
                continue;
            }
            let block = Arc::new(Block::reading(n));
            self.put(&mut shard, block.clone());
            match runs.last_mut() {
                Some(run) if run.len() < longest && run.last().is_some_and(|b| b.number + 1 == n) => {
                    run.push(block);
                }
                _ => runs.push(vec![block]),
            }
        }
        let all: Vec<_> = runs.iter().flatten().cloned().collect();
        self.device.submit_all(&mut runs.into_iter().map(|run| self.read_bio(run)));
        self.settle();
        for block in all {
            // A reader that asks for the block gets its error.
            let _ = poll_fn(|cx| block.poll_loaded(cx.waker())).await;
        }
    }

    /// Maximum number of blocks in one bio.
    fn longest_run(&self) -> usize {
        let limits = self.device.limits();
        let bytes = (limits.max_bytes.min(1 << 20) / self.block_bytes as u64) as usize;
        bytes.min(limits.max_segments as usize).max(1)
    }

    fn read_bio(self: &Arc<Self>, run: Vec<Arc<Block>>) -> Bio {
        let start = self.sector(run[0].number);
        let buf = || Buf::stale(self.block_bytes).counted_in(&self.version_bytes);
        let memory = run.iter().map(|_| Segment::from(buf())).collect();
        let mut bio = Bio::new(Op::Read, start, memory);
        bio.flags |= BioFlags::META | BioFlags::SYNC;
        let this = self.clone();
        bio.on_end(Box::new(move |mut bio, result| {
            let others = run.len() > 1;
            let mut memory = std::mem::take(&mut bio.segments).into_iter().map(Segment::into_buf);
            for block in &run {
                let bytes = match &result {
                    Ok(()) => memory.next().flatten().ok_or_else(|| this.memory_is_gone(block.number)),
                    Err(error) => Err(error.clone()),
                };
                block.loaded(bytes.map_err(|error| {
                    this.remove(block);
                    ReadFailed { error, others }
                }));
            }
        }));
        bio
    }

    fn sector(&self, n: u64) -> Sector {
        Sector(n.saturating_mul(self.block_bytes as u64 / Sector::BYTES))
    }

    fn out_of_range(&self, n: u64) -> IoError {
        self.error(n, IoErrorKind::OutOfRange)
    }

    /// The device did not return this block's memory. The other blocks of the bio are still read.
    fn memory_is_gone(&self, n: u64) -> IoError {
        self.error(n, IoErrorKind::Gone("the bio came back without its memory".into()))
    }

    fn error(&self, n: u64, kind: IoErrorKind) -> IoError {
        IoError {
            device: self.device.limits().name.clone(),
            op: Op::Read,
            start: self.sector(n),
            bytes: self.block_bytes as u64,
            kind,
        }
    }
}

const _: () = assert!(SHARDS.is_power_of_two());
