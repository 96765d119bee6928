//! Turns of the writers of one device.

use extant_rt::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// A writer's place in the queue, or its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// When the turn is due.
    pub(super) due: Nanos,
    /// 0 means none.
    ticket: u64,
}

impl Turn {
    fn key(self) -> (Nanos, u64) {
        (self.due, self.ticket)
    }
}

/// The writers that wait for a device's memory, in the order in which they are due, and the pages
/// that writers with an open turn may still dirty.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Maps due time and ticket to when the writer was last seen.
    waiting: BTreeMap<(Nanos, u64), Nanos>,
    /// Open turns, in the order they began: ticket, end time, pages.
    open: VecDeque<(u64, Nanos, u64)>,
    /// Sum of the pages of all open turns.
    open_pages: u64,
    tickets: u64,
    swept_at: Nanos,
}

impl Turns {
    /// A writer not seen for this long is gone: no pause is longer than 200 ms.
    const GONE: Nanos = Nanos::from_millis(500);
    /// An unfinished turn ends once a writer that does nothing else would have dirtied its pages,
    /// at 160 MB/s, …
    const PAGE: Nanos = Nanos::from_micros(25);
    /// … but not before a writer has usually been scheduled, …
    const LEAST_TURN: Nanos = Nanos::from_millis(20);
    /// … and in any case after this time.
    const MOST_TURN: Nanos = Nanos::from_millis(200);

    /// Ends a turn, if it had begun.
    pub(super) fn close(&mut self, turn: Turn) {
        if turn.ticket != 0 {
            self.end(|&(ticket, ..)| ticket == turn.ticket);
        }
    }

    fn end(&mut self, over: impl Fn(&(u64, Nanos, u64)) -> bool) {
        let left = &mut self.open_pages;
        self.open.retain(|turn| {
            let over = over(turn);
            *left -= if over { turn.2 } else { 0 };
            !over
        });
    }

    /// Removes a writer, whether it waits or has its turn.
    pub(super) fn leave(&mut self, turn: &mut Turn) {
        self.close(*turn);
        self.waiting.remove(&turn.key());
        turn.ticket = 0;
    }

    /// Pages that writers with an open turn may still dirty.
    pub(super) fn open_pages(&self) -> u64 {
        self.open_pages
    }

    /// Whether no writer waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Queues a writer for `turn`, unless it is already queued. Returns how many writers are due
    /// before it, counting up to `most`.
    pub(super) fn wait(&mut self, now: Nanos, turn: &mut Turn, due: Nanos, most: usize) -> u64 {
        self.sweep(now);
        if !self.waits(*turn) {
            turn.due = due;
            self.give_ticket(turn);
        }
        self.waiting.insert(turn.key(), now);
        self.waiting.range(..turn.key()).take(most).count() as u64
    }

    /// Whether a writer waits for this turn.
    pub(super) fn waits(&self, turn: Turn) -> bool {
        turn.ticket != 0 && self.waiting.contains_key(&turn.key())
    }

    /// When the first waiting writer is due.
    pub(super) fn first_due(&self) -> Nanos {
        self.waiting.first_key_value().map_or(Nanos::MAX, |(&(due, _), _)| due)
    }

    /// Starts a turn of `pages` pages.
    pub(super) fn begin(&mut self, now: Nanos, turn: Turn, pages: u64) {
        self.waiting.remove(&turn.key());
        let takes = Nanos(pages.saturating_mul(Self::PAGE.0)).clamp(Self::LEAST_TURN, Self::MOST_TURN);
        self.open.push_back((turn.ticket, now.saturating_add(takes), pages));
        self.open_pages += pages;
    }

    /// Starts a turn of `pages` pages that was not waited for.
    pub(super) fn begin_at_once(&mut self, now: Nanos, turn: &mut Turn, pages: u64) {
        self.sweep(now);
        self.give_ticket(turn);
        self.begin(now, *turn, pages);
    }

    fn give_ticket(&mut self, turn: &mut Turn) {
        self.tickets += 1;
        turn.ticket = self.tickets;
    }

    /// Ends turns not used up in time: their writers have stopped or are slow, and at worst hit the
    /// limit.
    pub(super) fn expire(&mut self, now: Nanos) {
        self.end(|&(_, until, _)| now > until);
    }

    fn sweep(&mut self, now: Nanos) {
        if now.saturating_sub(self.swept_at) >= Self::GONE {
            self.waiting.retain(|_, seen| now.saturating_sub(*seen) <= Self::GONE);
            self.swept_at = now;
        }
    }
}
