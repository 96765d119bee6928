//! Writers of one device that take turns.

use crate::dirty::control::Writer;
use extant_rt::Nanos;
use std::collections::{BTreeMap, VecDeque};

/// Writers that wait for a device's memory, in the order in which they are due, and the pages that those whose turn it is may
/// still dirty.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// By due time and ticket: when it was last seen.
    waiting: BTreeMap<(Nanos, u64), Nanos>,
    /// Turns that began: ticket, when, and how many pages.
    open: VecDeque<(u64, Nanos, u64)>,
    /// The pages of all of them.
    open_pages: u64,
    tickets: u64,
    swept_at: Nanos,
}

impl Turns {
    /// A writer not seen for so long has gone away: no pause is longer than 200 ms.
    const GONE: Nanos = Nanos::from_millis(500);
    /// A turn not used up by then is over.
    const TURN: Nanos = Nanos::from_millis(200);

    /// `writer` asks: its turn, if it had one, is over.
    pub(super) fn close(&mut self, writer: &Writer) {
        if writer.ticket != 0 {
            self.end(|&(ticket, ..)| ticket == writer.ticket);
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

    /// `writer` leaves, whether it waits or has its turn.
    pub(super) fn leave(&mut self, writer: &mut Writer) {
        self.close(writer);
        self.waiting.remove(&(writer.due, writer.ticket));
        writer.ticket = 0;
    }

    /// Pages that those whose turn it is may still dirty.
    pub(super) fn open_pages(&self) -> u64 {
        self.open_pages
    }

    /// Whether anybody waits.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Has `writer` wait, if it does not already, and says how many are due before it; counts up to `most` of them.
    pub(super) fn wait(&mut self, now: Nanos, writer: &mut Writer, due: Nanos, most: usize) -> u64 {
        self.sweep(now);
        if !self.waits(writer) {
            writer.due = due;
            self.give_ticket(writer);
        }
        let key = (writer.due, writer.ticket);
        self.waiting.insert(key, now);
        self.waiting.range(..key).take(most).count() as u64
    }

    /// Whether `writer` waits.
    pub(super) fn waits(&self, writer: &Writer) -> bool {
        writer.ticket != 0 && self.waiting.contains_key(&(writer.due, writer.ticket))
    }

    /// When the first of those that wait is due.
    pub(super) fn first_due(&self) -> Nanos {
        self.waiting.first_key_value().map_or(Nanos::MAX, |(&(due, _), _)| due)
    }

    /// It is `writer`'s turn, for `pages` pages.
    pub(super) fn begin(&mut self, now: Nanos, writer: &Writer, pages: u64) {
        self.waiting.remove(&(writer.due, writer.ticket));
        self.open.push_back((writer.ticket, now, pages));
        self.open_pages += pages;
    }

    /// `writer` goes on without having waited, for `pages` pages.
    pub(super) fn begin_at_once(&mut self, now: Nanos, writer: &mut Writer, pages: u64) {
        self.sweep(now);
        self.give_ticket(writer);
        self.begin(now, writer, pages);
    }

    fn give_ticket(&mut self, writer: &mut Writer) {
        self.tickets += 1;
        writer.ticket = self.tickets;
    }

    fn sweep(&mut self, now: Nanos) {
        self.end(|&(_, at, _)| now.saturating_sub(at) > Self::TURN);
        if now.saturating_sub(self.swept_at) >= Self::GONE {
            self.waiting.retain(|_, seen| now.saturating_sub(*seen) <= Self::GONE);
            self.swept_at = now;
        }
    }
}
