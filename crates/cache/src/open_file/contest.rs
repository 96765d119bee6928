//! A reader or writer competing for a page with repeated exclusions.

use crate::pages::exclude::InLine;

/// A reader's or writer's attempts to get a page that is excluded again and again.
#[derive(Default)]
pub(super) struct Contest<'a> {
    /// Whether the page has been loaded since the last byte was copied. If it is then missing
    /// again, an exclusion has removed it, or memory is short.
    pub(super) was_loaded: bool,
    pub(super) place: Option<InLine<'a>>,
}

impl Contest<'_> {
    /// Counts copied bytes; with any, the attempts start over.
    pub(super) fn moved(&mut self, bytes: usize) {
        if bytes > 0 {
            *self = Self::default();
        }
    }
}
