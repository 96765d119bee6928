//! Decides which flush covers which requests.

/// Shares flushes of a volatile cache among the requests that need one.
///
/// One flush is in flight at a time. A request that arrives meanwhile waits for the next one,
/// because the first does not cover writes that ended after it was issued. All waiting requests
/// then share the next one. (Linux: block/blk-flush.c.)
#[derive(Debug)]
pub(super) struct FlushSharing<T> {
    waiting: Vec<T>,
    /// The items that the flush in flight is for.
    covered: Vec<T>,
    /// Whether a flush is in flight, or about to be issued.
    busy: bool,
}

impl<T> Default for FlushSharing<T> {
    fn default() -> Self {
        Self { waiting: Vec::new(), covered: Vec::new(), busy: false }
    }
}

impl<T> FlushSharing<T> {
    /// `item` now needs a flush. Returns `true` if the caller must issue one.
    #[must_use]
    pub(super) fn ask(&mut self, item: T) -> bool {
        self.waiting.push(item);
        !std::mem::replace(&mut self.busy, true)
    }

    /// The flush that was to be issued goes to the device now.
    pub(super) fn issued(&mut self) {
        assert!(self.busy && self.covered.is_empty(), "one flush at a time");
        std::mem::swap(&mut self.waiting, &mut self.covered);
    }

    /// The flush has ended, successfully or not. Returns the items it was for, and whether to issue
    /// another.
    #[must_use]
    pub(super) fn ended(&mut self) -> (Vec<T>, bool) {
        self.busy = !self.waiting.is_empty();
        (std::mem::take(&mut self.covered), self.busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_those_who_asked_before_it_was_issued() {
        let mut flushes = FlushSharing::default();
        assert!(flushes.ask("a"));
        assert!(!flushes.ask("b"));
        flushes.issued();
        assert!(!flushes.ask("c"));
        assert!(!flushes.ask("d"));
        assert_eq!(flushes.ended(), (vec!["a", "b"], true));
        flushes.issued();
        assert_eq!(flushes.ended(), (vec!["c", "d"], false));
        assert!(flushes.ask("e"));
    }
}
