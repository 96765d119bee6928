//! A writer between two requests to its controller.

use crate::dirty::control_interface::{Asking, WriterId};

/// A writer as the cache sees it: what it may still dirty, and what it must report.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) id: WriterId,
    /// Pages it may dirty before it asks; a new writer asks at once.
    pub(crate) allowed_pages: u64,
    dirtied_pages: u64,
    pub(crate) written_pages: u64,
    pub(crate) has_asked: bool,
}

impl Writer {
    pub(crate) fn new(id: WriterId) -> Self {
        Self { id, allowed_pages: 0, dirtied_pages: 0, written_pages: 0, has_asked: false }
    }

    /// Pages dirtied since it last asked.
    pub(crate) fn dirtied_pages(&self) -> u64 {
        self.dirtied_pages
    }

    /// Pages it may dirty at once.
    pub(crate) fn allowance(&self) -> u64 {
        self.allowed_pages.saturating_sub(self.dirtied_pages).max(1)
    }

    /// Counts pages it dirtied; returns whether it must ask.
    pub(crate) fn dirtied(&mut self, pages: u64) -> bool {
        self.dirtied_pages += pages;
        self.is_to_ask()
    }

    /// Whether it has used up its allowance.
    pub(crate) fn is_to_ask(&self) -> bool {
        self.dirtied_pages >= self.allowed_pages
    }

    /// The request to the controller.
    pub(crate) fn ask(&mut self) -> Asking {
        self.has_asked = true;
        self.allowed_pages = 0;
        Asking {
            writer: self.id,
            dirtied_pages: std::mem::take(&mut self.dirtied_pages),
            written_pages: std::mem::take(&mut self.written_pages),
        }
    }
}
