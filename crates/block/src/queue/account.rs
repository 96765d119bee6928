//! What each stream has had.

use crate::elevator::{Priority, ProgramId};
use crate::{Bio, Op, StreamId};
use extant_rt::Nanos;
use rustc_hash::FxHashMap;

/// What the elevator is told about a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamInfo {
    /// Scheduling class and level.
    pub priority: Priority,
    /// Which program it belongs to.
    pub program: ProgramId,
}

/// What a stream has asked for and got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Bios submitted.
    pub bios: u64,
    /// Of these, how many joined another's request.
    pub merged: u64,
    /// Bios that ended, failed ones included.
    pub ended: u64,
    /// Bios that ended with an error.
    pub failed: u64,
    /// Bytes read by bios that ended well.
    pub read_bytes: u64,
    /// Bytes written by bios that ended well.
    pub written_bytes: u64,
    /// Sum over ended bios of the time from submission to dispatch.
    pub waited: Nanos,
    /// Sum over ended bios of the time from dispatch to the end.
    pub served: Nanos,
}

impl StreamStats {
    /// A bio has ended that came at `at` and went to the device at `dispatched`.
    fn settle(&mut self, bio: &Bio, ok: bool, at: Nanos, dispatched: Nanos, now: Nanos) {
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
    // Looked up thrice for a bio; the hasher has no random seed.
    streams: FxHashMap<StreamId, Account>,
}

#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) info: StreamInfo,
    pub(super) stats: StreamStats,
    /// The stream has ended; its account goes with the last of its bios.
    closed: bool,
}

impl Accounts {
    pub(super) fn of(&mut self, stream: StreamId) -> &mut Account {
        self.streams.entry(stream).or_default()
    }

    /// In order of the streams' numbers.
    pub(super) fn stats(&self) -> Vec<(StreamId, StreamStats)> {
        let mut all: Vec<_> = self.streams.iter().map(|(id, account)| (*id, account.stats)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Another bio of a stream; one that was closed begins anew.
    pub(super) fn submitted(&mut self, stream: StreamId) {
        let account = self.of(stream);
        account.closed = false;
        account.stats.bios += 1;
    }

    /// Settles a bio; see [`StreamStats::settle`].
    pub(super) fn settle(&mut self, bio: &Bio, ok: bool, at: Nanos, dispatched: Nanos, now: Nanos) {
        let account = self.of(bio.stream);
        account.stats.settle(bio, ok, at, dispatched, now);
        if account.closed && account.stats.ended == account.stats.bios {
            self.streams.remove(&bio.stream);
        }
    }

    /// Forgets a stream, at once or when the last of its bios has ended; its statistics so far go to the caller.
    pub(super) fn close(&mut self, stream: StreamId) -> Option<StreamStats> {
        let account = self.streams.get_mut(&stream)?;
        let stats = account.stats;
        account.closed = true;
        if stats.ended == stats.bios {
            self.streams.remove(&stream);
        }
        Some(stats)
    }
}
