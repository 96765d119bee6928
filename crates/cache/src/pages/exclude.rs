//! Keeping page fills out of a range (Linux: `mapping->invalidate_lock`), first come, first served.

use crate::PageRange;
use crate::file::fill_control::{Turn, Wants};
use crate::file::page_table::LockedPages;
use crate::file::{CachedFile, excluded};
use extant_rt::Nanos;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;

/// The exclusive right to fill a range of a mapping; see [`crate::Mapping::exclude`]. Dropping it
/// readmits others.
#[must_use = "dropping it ends the exclusion"]
#[derive(Debug)]
pub struct Exclusion {
    file: Arc<CachedFile>,
    pages: PageRange,
}

/// A fill that has asked the backing but has not entered its pages yet.
pub(crate) struct Lookup<'a> {
    file: &'a CachedFile,
    id: Option<u64>,
}

impl CachedFile {
    /// Begins a fill of `range`; `None` if its first page is excluded. The range is cut before the
    /// first excluded page.
    pub(crate) fn begin_lookup(
        &self,
        mut range: PageRange,
        in_exclusion: bool,
    ) -> Option<(Lookup<'_>, PageRange)> {
        let mut pages = self.lock_pages();
        let fills = pages.fills();
        if !in_exclusion {
            range = fills.admitted(range);
            if range.is_empty() {
                return None;
            }
        }
        Some((Lookup { file: self, id: Some(fills.begin(range, false)) }, range))
    }

    /// Begins a read past the cache of the first pages of `range`, none of which has a frame or is
    /// excluded; `None` if there are none.
    pub(crate) fn begin_past(&self, range: PageRange) -> Option<(Lookup<'_>, PageRange)> {
        let mut pages = self.lock_pages();
        let admitted = pages.fills().admitted(range);
        let range = PageRange { start: range.start, end: pages.missing_until(admitted) };
        if range.is_empty() {
            return None;
        }
        Some((Lookup { file: self, id: Some(pages.fills().begin(range, true)) }, range))
    }

    /// Enters the line to wait for exclusions to end, in order to fill these pages.
    pub(crate) fn enter_to_fill(&self, pages: PageRange) -> InLine<'_> {
        InLine { file: self, id: self.lock_pages().fills().enter(pages, Wants::Fill) }
    }

    /// Waits for the turn to fill `range`, after entering the line if `place` is not set yet.
    /// Afterwards the range's first page is not excluded, and no page of the range will be until
    /// the fill leaves the line, unless it stays there for too long.
    pub(crate) async fn wait_admitted<'a>(&'a self, range: PageRange, place: &mut Option<InLine<'a>>) {
        place.get_or_insert_with(|| self.enter_to_fill(range)).wait_for_turn().await;
    }

    pub(crate) async fn exclude(self: &Arc<Self>, pages: PageRange) -> Exclusion {
        let place = {
            let mut locked = self.lock_pages();
            let (fills, wants) = (locked.fills(), Wants::Exclusion);
            (!fills.try_exclude(pages)).then(|| InLine { file: self, id: fills.enter(pages, wants) })
        };
        if let Some(place) = place {
            place.wait_for_turn().await;
        }
        Exclusion { file: self.clone(), pages }
    }
}

/// A place in the line of fills and exclusions that wait; see [`Wants`].
#[derive(Debug)]
pub(crate) struct InLine<'a> {
    file: &'a CachedFile,
    id: u64,
}

impl InLine<'_> {
    async fn wait_for_turn(&self) {
        let core = &self.file.core;
        let due = AtomicU64::new(u64::MAX);
        let is_turn = || {
            let turn = self.file.lock_pages().fills().take_turn(self.id, core.rt.now());
            if let Turn::Later(at) = turn {
                due.store(at.unwrap_or(Nanos::MAX).0, Relaxed);
            }
            turn == Turn::Now
        };
        loop {
            let mut wait = pin!(core.pages.wait_until(excluded(self.file.number), is_turn));
            let mut alarm = None;
            let is_over = poll_fn(|cx| {
                if wait.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(true);
                }
                let at = Nanos(due.load(Relaxed));
                if at <= core.rt.now() {
                    return Poll::Ready(false);
                }
                alarm = (at < Nanos::MAX).then(|| core.rt.alarm(at, cx.waker()));
                Poll::Pending
            });
            if is_over.await {
                return;
            }
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let has_others = self.file.lock_pages().fills().leave(self.id);
        if has_others {
            self.file.core.pages.wake(excluded(self.file.number));
        }
    }
}

impl Lookup<'_> {
    /// Ends the lookup, under the file's lock. Returns the page up to which the backing's answer
    /// is still valid.
    pub(crate) fn end(mut self, pages: &mut LockedPages<'_>) -> u64 {
        pages.fills().end(self.id.take().expect("it ends once"))
    }
}

impl Drop for Lookup<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.file.lock_pages().fills().end(id);
        }
    }
}

impl Exclusion {
    /// The excluded pages.
    pub fn pages(&self) -> PageRange {
        self.pages
    }
}

impl Drop for Exclusion {
    fn drop(&mut self) {
        {
            let mut pages = self.file.lock_pages();
            let excluded = &mut pages.fills().excluded;
            let at = excluded.iter().position(|other| *other == self.pages).expect("it was entered");
            excluded.swap_remove(at);
        }
        self.file.core.pages.wake(excluded(self.file.number));
    }
}
