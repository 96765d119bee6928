//! Checkpoints: writing committed blocks home and moving the log's tail. `state.rs` decides when
//! one begins.

use super::log::write_blocks;
use super::relay::EVERY_END;
use super::{Inner, LatchOnPanic, Tid};
use crate::{Error, Result};
use std::sync::Arc;

impl Inner {
    /// Writes everything committed so far home. Callers that arrive meanwhile share the checkpoint.
    pub(super) async fn checkpoint_all(self: Arc<Self>) -> Result<()> {
        {
            let state = self.lock();
            state.check_alive()?;
            if state.closing {
                return Err(Error::ReadOnly);
            }
            if self.checkpoints.is_idle() {
                self.checkpoints.start(run(self.clone(), false));
            }
        }
        self.checkpoints.join(EVERY_END).await;
        self.lock().check_alive()
    }

    /// Writes versions home without a flush, then releases blocks that were freed meanwhile.
    async fn write_home(self: &Arc<Self>) -> Result<Vec<(u64, Tid)>> {
        let homes = {
            let mut state = self.lock();
            state.check_alive()?;
            state.begin_home_writes()
        };
        let (device, block_bytes) = (self.store.blocks().device(), self.store.blocks().block_bytes());
        let written = homes.iter().map(|&(n, tid, _)| (n, tid)).collect();
        let list = homes.into_iter().map(|(n, _, bytes)| (n, bytes)).collect();
        let result = write_blocks(&**device, block_bytes, list).await;
        let released = self.lock().home_writes_ended();
        for (tid, freed) in released {
            self.release(tid, freed);
        }
        result?;
        Ok(written)
    }

    async fn checkpoint_once(self: &Arc<Self>) -> Result<()> {
        let written = self.write_home().await?;
        let Some(log) = &self.log else { return Ok(()) };
        if written.is_empty() && self.lock().tail_is_known() {
            return Ok(());
        }
        self.flush().await?;
        let (start, tid) = {
            let mut state = self.lock();
            state.check_alive()?;
            state.homes_durable(&written);
            state.tail()
        };
        self.behind_flush(log.write_superblock(Some(start), tid.sequence(), None, Some(&self.disk))).await?;
        self.lock().tail_moved(start, tid);
        self.store.blocks().settle_charge();
        Ok(())
    }

    /// Writes everything home and marks the log empty. Waits for a checkpoint under way; none
    /// begins afterwards.
    pub(super) async fn empty_log(self: Arc<Self>) -> Result<()> {
        loop {
            let started = {
                let state = self.lock();
                state.check_alive()?;
                assert!(state.closing, "the log is emptied once no operation may join");
                let idle = self.checkpoints.is_idle();
                if idle {
                    self.checkpoints.start(run(self.clone(), true));
                }
                idle
            };
            self.checkpoints.join(EVERY_END).await;
            if started {
                return self.lock().check_alive();
            }
        }
    }

    async fn write_home_and_empty(self: &Arc<Self>) -> Result<()> {
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
        // This write's preflush makes the home writes durable before the log becomes empty.
        self.behind_flush(log.write_superblock(None, next.sequence(), Some(head), Some(&self.disk))).await?;
        let mut state = self.lock();
        state.homes_durable(&written);
        state.tail_moved(head, next);
        Ok(())
    }
}

/// Runs one checkpoint, or the last one. Driven by its waiters.
async fn run(inner: Arc<Inner>, last: bool) {
    let _latch = LatchOnPanic(inner.clone());
    let outcome = if last { inner.write_home_and_empty().await } else { inner.checkpoint_once().await };
    if let Err(cause) = outcome {
        inner.give_up(cause).await;
    }
    inner.notify();
}
