//! Decoded structures with a version for each transaction not yet encoded.

use super::Tid;

/// A decoded structure: its live version and, until a commit has encoded it, an older one.
#[derive(Clone, Debug)]
pub(crate) struct Versioned<T> {
    live: T,
    /// The transaction of the last change.
    changed: Option<Tid>,
    /// The newest transaction whose version was taken.
    taken: Option<Tid>,
    frozen: Option<(Tid, T)>,
}

impl<T: Clone> Versioned<T> {
    /// Creates a value as read from disk.
    pub(crate) fn new(live: T) -> Self {
        Self { live, changed: None, taken: None, frozen: None }
    }

    /// The live version.
    pub(crate) fn live(&self) -> &T {
        &self.live
    }

    /// Begins an edit of the live version by `tid`. Also returns whether it is the transaction's
    /// first edit of it.
    pub(crate) fn edit(&mut self, tid: Tid) -> (&mut T, bool) {
        let first = self.changed != Some(tid);
        if first {
            assert!(self.changed < Some(tid), "changes come in the order of transactions");
            if let Some(changed) = self.changed.filter(|_| self.changed > self.taken) {
                let older = self.frozen.replace((changed, self.live.clone()));
                assert!(older.is_none(), "one transaction at a time waits to be encoded");
            }
            self.changed = Some(tid);
        }
        (&mut self.live, first)
    }

    /// The live version, for edits that no transaction covers: checksums computed by the commit,
    /// and fields that exist only in memory.
    pub(crate) fn live_mut(&mut self) -> &mut T {
        &mut self.live
    }

    /// Takes the version that `tid` left. Each is taken once, in order.
    pub(crate) fn take(&mut self, tid: Tid) -> T {
        assert!(self.taken < Some(tid), "a version is taken once");
        self.taken = Some(tid);
        match self.frozen.take() {
            Some((left, version)) => {
                assert!(left == tid, "the oldest version is taken first");
                version
            }
            None => {
                assert!(self.changed == Some(tid), "the transaction changed it");
                self.live.clone()
            }
        }
    }

    /// The transaction of the last change.
    pub(crate) fn changed_by(&self) -> Option<Tid> {
        self.changed
    }

    /// Whether a change has yet to be encoded.
    pub(crate) fn is_dirty(&self) -> bool {
        self.changed > self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_takes_what_its_transaction_left() {
        let (a, b) = (Tid::first(1), Tid::first(1).next());
        let mut value = Versioned::new(0);
        assert!(value.edit(a).1);
        *value.edit(a).0 = 1;
        assert!(!value.edit(a).1);
        let (live, first) = value.edit(b);
        assert!(first);
        *live = 2;
        assert_eq!((value.take(a), *value.live()), (1, 2));
        assert!(value.is_dirty());
        assert_eq!(value.take(b), 2);
        assert!(!value.is_dirty());
    }
}
