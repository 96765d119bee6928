//! Keeping page fills out of a range (Linux: `mapping->invalidate_lock`).

use crate::PageRange;
use crate::state::{Inner, Pages, excluded};
use std::sync::Arc;

/// The exclusive right to fill a range of a mapping; see [`crate::Mapping::exclude`]. Dropping it
/// readmits others.
#[must_use = "dropping it ends the exclusion"]
#[derive(Debug)]
pub struct Exclusion {
    inner: Arc<Inner>,
    pages: PageRange,
}

/// A fill that has asked the backing but has not entered its pages yet.
pub(crate) struct Lookup<'a> {
    inner: &'a Inner,
    id: Option<u64>,
}

impl Inner {
    /// Begins a fill of `range`; `None` if its first page is excluded. The range is cut before the
    /// first excluded page.
    pub(crate) fn begin_lookup(
        &self,
        mut range: PageRange,
        in_exclusion: bool,
    ) -> Option<(Lookup<'_>, PageRange)> {
        let fills = &mut self.pages.lock().fills;
        if !in_exclusion {
            range = fills.admitted(range);
            if range.is_empty() {
                return None;
            }
        }
        let id = fills.next;
        fills.next += 1;
        fills.lookups.push((id, range));
        Some((Lookup { inner: self, id: Some(id) }, range))
    }

    /// Waits until no page of `range` is excluded.
    pub(crate) async fn wait_admitted(&self, range: PageRange) {
        let is_over = || !self.pages.lock().fills.excludes(range);
        self.shared.pages.wait_until(excluded(self.file), is_over).await;
    }

    pub(crate) async fn exclude(self: &Arc<Self>, pages: PageRange) -> Exclusion {
        let try_exclude = || {
            let fills = &mut self.pages.lock().fills;
            let is_free = !fills.excludes(pages);
            if is_free {
                fills.excluded.push(pages);
                fills.remapped(pages);
            }
            is_free
        };
        self.shared.pages.wait_until(excluded(self.file), try_exclude).await;
        Exclusion { inner: self.clone(), pages }
    }
}

impl Lookup<'_> {
    /// Ends the lookup, under the mapping's lock. Returns the page up to which the backing's answer
    /// is still valid.
    pub(crate) fn end(mut self, pages: &mut Pages) -> u64 {
        let id = self.id.take().expect("it ends once");
        let lookups = &mut pages.fills.lookups;
        let at = lookups.iter().position(|(other, _)| *other == id).expect("it was entered");
        lookups.swap_remove(at).1.end
    }
}

impl Drop for Lookup<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.inner.pages.lock().fills.lookups.retain(|(other, _)| *other != id);
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
            let excluded = &mut self.inner.pages.lock().fills.excluded;
            let at = excluded.iter().position(|pages| *pages == self.pages).expect("it was entered");
            excluded.swap_remove(at);
        }
        self.inner.shared.pages.wake(excluded(self.inner.file));
    }
}
