//! Writing home what is committed, and moving the log's tail.

use super::log::write_blocks;
use super::{Inner, Tid};
use crate::Result;
use std::sync::Arc;

impl Inner {
    /// Writes home all that is committed now. Callers that come meanwhile share it.
    pub(super) async fn checkpoint_all(self: Arc<Self>) -> Result<()> {
        let began = {
            let mut state = self.lock();
            state.check_alive()?;
            let idle = !state.checkpointing;
            state.checkpointing = true;
            idle
        };
        if began {
            self.checkpoints.start(run(self.clone()));
        }
        self.checkpoints.join().await;
        self.lock().check_alive()
    }

    /// Home writes, not flushed. Blocks that were freed meanwhile are released at the end.
    async fn write_home(&self) -> Result<Vec<(u64, Tid)>> {
        let homes = self.lock().begin_home_writes();
        let (device, block_bytes) = (self.store.blocks().device(), self.store.blocks().block_bytes());
        let list = homes.iter().map(|(n, home)| (*n, home.version.bytes().clone())).collect();
        let result = write_blocks(&**device, block_bytes, list).await;
        let released = self.lock().home_writes_ended();
        for (tid, freed) in released {
            self.release(tid, &freed);
        }
        result?;
        Ok(homes.into_iter().map(|(n, home)| (n, home.tid)).collect())
    }

    async fn checkpoint_once(&self) -> Result<()> {
        let written = self.write_home().await?;
        let Some(log) = &self.log else { return Ok(()) };
        if written.is_empty() && self.lock().tail_is_known() {
            return Ok(());
        }
        self.flush().await?;
        let (start, tid) = {
            let mut state = self.lock();
            state.homes_durable(&written);
            state.tail()
        };
        self.behind_flush(log.write_superblock(Some(start), tid.sequence(), None, true)).await?;
        self.lock().tail_moved(start, tid);
        Ok(())
    }

    /// Writes everything home and marks the log empty. Nothing runs beside it.
    pub(super) async fn empty_log(self: Arc<Self>) -> Result<()> {
        // A checkpoint that is under way ends first.
        self.checkpoints.join().await;
        let outcome = self.write_home_and_empty().await;
        if let Err(cause) = &outcome {
            self.latch(cause.clone());
        }
        outcome
    }

    async fn write_home_and_empty(&self) -> Result<()> {
        self.lock().check_alive()?;
        let written = self.write_home().await?;
        let Some(log) = &self.log else { return Ok(()) };
        if !log.superblock.lock().started {
            return Ok(());
        }
        let (head, next) = {
            let state = self.lock();
            let log = state.log.as_ref().expect("a volume with a journal");
            (log.ring.head(), state.running.tid)
        };
        // The write's flush makes the home writes durable before the log is empty.
        self.behind_flush(log.write_superblock(None, next.sequence(), Some(head), true)).await?;
        let mut state = self.lock();
        state.homes_durable(&written);
        state.tail_moved(head, next);
        Ok(())
    }
}

/// One checkpoint. Driven by those who wait for it.
async fn run(inner: Arc<Inner>) {
    let outcome = inner.checkpoint_once().await;
    {
        let mut state = inner.lock();
        state.checkpointing = false;
        if let Err(cause) = outcome {
            state.latch(cause);
        }
    }
    inner.notify();
}
