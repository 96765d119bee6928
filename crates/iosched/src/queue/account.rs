//! Per-stream accounting.

use crate::elevator::{Priority, ProgramId};
use extant_block::{Bio, Op, StreamId};
use extant_rt::Nanos;
use rustc_hash::FxHashMap;

/// A stream's properties, as passed to the elevator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamInfo {
    /// Scheduling class and level.
    pub priority: Priority,
    /// The program it belongs to.
    pub program: ProgramId,
}

/// Counts of a stream's requests and service so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bios submitted.
    pub bios: u64,
    /// How many of these joined another request.
    pub merged: u64,
    /// Bios that ended, including failed ones.
    pub ended: u64,
    /// Bios that ended with an error.
    pub failed: u64,
    /// Bytes read by successful bios.
    pub read_bytes: u64,
    /// Bytes written by successful bios.
    pub written_bytes: u64,
    /// Sum of the times from submission to dispatch, over ended bios.
    pub waited: Nanos,
    /// Sum of the times from dispatch to completion, over ended bios.
    pub served: Nanos,
}

impl StreamStats {
    /// A bio has ended that was submitted at `at` and dispatched at `dispatched`.
    pub(super) fn settle(&mut self, bio: &Bio, ok: bool, at: Nanos, dispatched: Nanos, now: Nanos) {
        self.ended += 1;
        self.waited += dispatched.saturating_sub(at);
        self.served += now.saturating_sub(dispatched);
        match bio.op {
            _ if !ok => self.failed += 1,
            Op::Read => self.read_bytes += bio.bytes,
            Op::Write => self.written_bytes += bio.bytes,
            Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Accounts {
    // Looked up three times per bio; the hasher has no random seed.
    streams: FxHashMap<StreamId, Account>,
}

#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) info: StreamInfo,
    pub(super) stats: StreamStats,
    /// The stream has ended, but some of its bios have not.
    leaving: bool,
}

impl Account {
    /// A bio has arrived.
    pub(super) fn comes(&mut self) {
        self.stats.bios += 1;
        self.leaving = false;
    }
}

impl Accounts {
    pub(super) fn of(&mut self, stream: StreamId) -> &mut Account {
        self.streams.entry(stream).or_default()
    }

    /// All streams' counts, ordered by stream number.
    pub(super) fn stats(&self) -> Vec<(StreamId, StreamStats)> {
        let mut all: Vec<_> = self.streams.iter().map(|(id, account)| (*id, account.stats)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// The stream has ended. Its account is removed now, or when its last bio ends.
    pub(super) fn leave(&mut self, stream: StreamId) -> Option<StreamStats> {
        let account = self.streams.get_mut(&stream)?;
        account.leaving = true;
        let stats = account.stats;
        self.close_if_left(stream);
        Some(stats)
    }

    /// Removes the account of a stream that has ended if its last bio has too; returns whether it
    /// did.
    pub(super) fn close_if_left(&mut self, stream: StreamId) -> bool {
        let left = |account: &Account| account.leaving && account.stats.ended == account.stats.bios;
        self.streams.get(&stream).is_some_and(left) && self.streams.remove(&stream).is_some()
    }
}
