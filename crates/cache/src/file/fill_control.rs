//! Controls a file's page fills: the ranges they are excluded from, the line of fills and
//! exclusions that wait, and changes of the map that overtake fills.

use crate::PageRange;
use extant_rt::{Nanos, Watchdog};

/// Excluded ranges of one file, and fills that have asked the backing where a range is.
#[derive(Debug, Default)]
pub(crate) struct FillControl {
    pub(crate) excluded: Vec<PageRange>,
    lookups: Vec<Pending>,
    next: u64,
    /// Fills and exclusions that had to wait, in order of arrival.
    line: Vec<Place>,
}

/// A fill that has asked the backing, or a read past the cache.
#[derive(Debug)]
struct Pending {
    id: u64,
    /// Where the answers still hold.
    pages: PageRange,
    /// Whether the bytes go to a reader. Then it matters, too, that no block is overwritten while
    /// it is read: half of a page would be old.
    is_past: bool,
}

/// What a place in the line is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// To fill the first page of a range, and perhaps more of it. The owner keeps the place until
    /// it has read or written the page, so that no exclusion can take the page away first.
    Fill,
    /// To exclude a range. The place is given up for the exclusion.
    Exclusion,
}

#[derive(Debug)]
struct Place {
    id: u64,
    pages: PageRange,
    wants: Wants,
    /// When others may go ahead of it; set once the first of them waits for it.
    due: Option<Nanos>,
    /// Whether others may go ahead of it, until its owner is polled again.
    is_overdue: bool,
    /// How often it was overdue. Each time its owner gets twice as long, so that even a slow owner
    /// gets its turn in the end.
    losses: u32,
}

/// The answer to a place's owner that asks for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is the caller's turn.
    Now,
    /// It is not. If the owners ahead do nothing, the turn comes at this time.
    Later(Option<Nanos>),
}

impl Pending {
    fn cut(&mut self, range: PageRange) {
        if self.pages.overlaps(range) {
            self.pages.end = range.start.max(self.pages.start);
        }
    }
}

impl Place {
    /// Whether a later place in the line, for the range `other`, has to wait for this one. Two
    /// fills may share pages.
    fn is_before(&self, other: PageRange, wants: Wants) -> bool {
        match (self.wants, wants) {
            _ if self.is_overdue => false,
            (Wants::Fill, Wants::Fill) => false,
            _ => self.pages.overlaps(other),
        }
    }
}

impl FillControl {
    /// Whether any page of `range` is excluded.
    fn excludes(&self, range: PageRange) -> bool {
        !self.excluded.is_empty() && self.excluded.iter().any(|excluded| excluded.overlaps(range))
    }

    /// The part of `range` before its first excluded page.
    pub(crate) fn admitted(&self, mut range: PageRange) -> PageRange {
        for excluded in &self.excluded {
            if excluded.overlaps(range) {
                range.end = excluded.start.max(range.start);
            }
        }
        range
    }

    /// Excludes a range, unless another exclusion or a place in the line is in the way.
    pub(crate) fn try_exclude(&mut self, pages: PageRange) -> bool {
        let wants = Wants::Exclusion;
        if self.excludes(pages) || self.line.iter().any(|place| place.is_before(pages, wants)) {
            return false;
        }
        self.exclude(pages);
        true
    }

    fn exclude(&mut self, pages: PageRange) {
        self.excluded.push(pages);
        self.remapped(pages);
    }

    /// Enters the line at its end.
    pub(crate) fn enter(&mut self, pages: PageRange, wants: Wants) -> u64 {
        let id = self.next;
        self.next += 1;
        self.line.push(Place { id, pages, wants, due: None, is_overdue: false, losses: 0 });
        id
    }

    /// Leaves the line; returns whether others in the line may now go on.
    pub(crate) fn leave(&mut self, id: u64) -> bool {
        let at = self.line.iter().position(|place| place.id == id);
        at.map(|at| self.line.remove(at)).is_some() && !self.line.is_empty()
    }

    /// Whether a place has its turn. Its owner calls this. If the place is for an exclusion, the
    /// exclusion begins and the place leaves the line.
    ///
    /// An owner may keep its future without polling it. So others wait for it only as long as a
    /// task may need to use its turn; then it is overdue.
    pub(crate) fn take_turn(&mut self, id: u64, now: Nanos) -> Turn {
        let at = self.line.iter().position(|place| place.id == id).expect("it was entered");
        let (ahead, rest) = self.line.split_at_mut(at);
        let own = &mut rest[0];
        if std::mem::take(&mut own.is_overdue) {
            own.due = None;
            own.losses += 1;
        }
        let wanted = match own.wants {
            Wants::Fill => PageRange::one(own.pages.start),
            Wants::Exclusion => own.pages,
        };
        let mut next: Option<Nanos> = None;
        let mut is_behind = false;
        for place in ahead.iter_mut().filter(|place| place.is_before(wanted, own.wants)) {
            let due = *place.due.get_or_insert_with(|| now.saturating_add(patience(place.losses)));
            place.is_overdue = due <= now;
            if !place.is_overdue {
                is_behind = true;
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        if is_behind || self.excludes(wanted) {
            return Turn::Later(next);
        }
        if self.line[at].wants == Wants::Exclusion {
            self.line.remove(at);
            self.exclude(wanted);
        }
        Turn::Now
    }

    /// Begins a lookup, or a read past the cache; returns its number.
    pub(crate) fn begin(&mut self, pages: PageRange, is_past: bool) -> u64 {
        let id = self.next;
        self.next += 1;
        self.lookups.push(Pending { id, pages, is_past });
        id
    }

    /// Ends what [`Self::begin`] began, once. Returns the page up to which the answers still hold.
    pub(crate) fn end(&mut self, id: u64) -> u64 {
        let at = self.lookups.iter().position(|pending| pending.id == id).expect("it was entered");
        self.lookups.swap_remove(at).pages.end
    }

    /// The backing's map changed for `range`: earlier answers are cut back to what still holds.
    pub(crate) fn remapped(&mut self, range: PageRange) {
        self.lookups.iter_mut().for_each(|pending| pending.cut(range));
    }

    /// Blocks of `range` were written where they are.
    pub(crate) fn overwritten(&mut self, range: PageRange) {
        self.lookups.iter_mut().filter(|pending| pending.is_past).for_each(|pending| pending.cut(range));
    }
}

/// How long others wait for a place that was overdue this often. Loom's models have no time.
fn patience(losses: u32) -> Nanos {
    let factor = 1_u64.checked_shl(losses).unwrap_or(u64::MAX);
    if cfg!(extant_loom) { Nanos::MAX } else { Nanos(Watchdog::PATIENCE.0.saturating_mul(factor)) }
}
