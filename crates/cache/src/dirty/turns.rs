//! Writers of one device that take turns.

use extant_rt::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// A writer's place among those that wait, or its turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Turn {
    /// When the turn is due.
    pub(super) due: Nanos,
    /// 0 is none.
    ticket: u64,
}

impl Turn {
    fn key(self) -> (Nanos, u64) {
        (self.due, self.ticket)
    }
}

/// Writers that wait for a device's memory, in the order in which they are due, and the pages that those whose turn it is may
/// still dirty.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By due time and ticket: when it was last seen.
    waiting: BTreeMap<(Nanos, u64), Nanos>,
    /// Turns that began, in that order: ticket, when they are over, and how many pages.
    open: VecDeque<(u64, Nanos, u64)>,
    /// The pages of all of them.
    open_pages: u64,
    tickets: u64,
    swept_at: Nanos,
}

impl Turns {
    /// A writer not seen for so long has gone away: no pause is longer than 200 ms.
    const GONE: Nanos = Nanos::from_millis(500);
    /// A turn that is not used up is over when a writer that does nothing else would have dirtied its pages, at 160 MB/s, …
    const PAGE: Nanos = Nanos::from_micros(25);
    /// … but not before a writer has had a processor, as a rule …
    const LEAST_TURN: Nanos = Nanos::from_millis(20);
    /// … and after this in any case.
    const MOST_TURN: Nanos = Nanos::from_millis(200);

    /// A turn is over, if it had begun.
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

    /// A writer leaves, whether it waits or has its turn.
    pub(super) fn leave(&mut self, turn: &mut Turn) {
        self.close(*turn);
        self.waiting.remove(&turn.key());
        turn.ticket = 0;
    }

    /// Pages that those whose turn it is may still dirty.
    pub(super) fn open_pages(&self) -> u64 {
        self.open_pages
    }

    /// Whether no writer waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has a writer wait for `turn` from now on, if it does not already, and says how many are due before it; counts up to
    /// `most` of them.
    pub(super) fn wait(&mut self, now: Nanos, turn: &mut Turn, due: Nanos, most: usize) -> u64 {
        self.sweep(now);
        if !self.waits(*turn) {
            turn.due = due;
            self.give_ticket(turn);
        }
        self.waiting.insert(turn.key(), now);
        self.waiting.range(..turn.key()).take(most).count() as u64
    }

    /// Whether a turn is waited for.
    pub(super) fn waits(&self, turn: Turn) -> bool {
        turn.ticket != 0 && self.waiting.contains_key(&turn.key())
    }

    /// When the first of those that wait is due.
    pub(super) fn first_due(&self) -> Nanos {
        self.waiting.first_key_value().map_or(Nanos::MAX, |(&(due, _), _)| due)
    }

    /// A turn begins, of `pages` pages.
    pub(super) fn begin(&mut self, now: Nanos, turn: Turn, pages: u64) {
        self.waiting.remove(&turn.key());
        let takes = Nanos(pages.saturating_mul(Self::PAGE.0)).clamp(Self::LEAST_TURN, Self::MOST_TURN);
        self.open.push_back((turn.ticket, now.saturating_add(takes), pages));
        self.open_pages += pages;
    }

    /// A turn that was not waited for begins, of `pages` pages.
    pub(super) fn begin_at_once(&mut self, now: Nanos, turn: &mut Turn, pages: u64) {
        self.sweep(now);
        self.give_ticket(turn);
        self.begin(now, *turn, pages);
    }

    fn give_ticket(&mut self, turn: &mut Turn) {
        self.tickets += 1;
        turn.ticket = self.tickets;
    }

    /// Turns that were not used up in time are over: their writers have stopped, or are slow, and meet the limit at worst.
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
