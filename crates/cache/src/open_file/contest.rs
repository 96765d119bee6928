//! A reader or writer of a page that others exclude again and again.

use crate::pages::exclude::InLine;

/// A reader's or writer's contest for a page with those that exclude it again and again.
#[derive(Default)]
pub(super) struct Contest<'a> {
    /// The page was loaded since the last byte was copied. If it is missing again, an exclusion has
    /// taken it away, or memory is short.
    pub(super) was_loaded: bool,
    pub(super) place: Option<InLine<'a>>,
}

impl Contest<'_> {
    /// So many bytes have been copied.
    pub(super) fn moved(&mut self, bytes: usize) {
        if bytes > 0 {
            *self = Self::default();
        }
    }
}
