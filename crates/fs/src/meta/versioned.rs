//! Decoded structures with one version for each transaction that is not yet encoded.

use super::Tid;

/// A decoded structure: its live version, and, while a commit has yet to encode an older one, that one too.
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
    /// As it was read.
    pub(crate) fn new(live: T) -> Self {
        Self { live, changed: None, taken: None, frozen: None }
    }

    /// The live version.
    pub(crate) fn live(&self) -> &T {
        &self.live
    }

    /// The live version, to be changed by `tid`, and whether that is the transaction's first change of it.
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

    /// The live version, to be changed in what no transaction covers: checksums that the commit computes, and fields of
    /// the memory alone.
    pub(crate) fn live_mut(&mut self) -> &mut T {
        &mut self.live
    }

    /// The version that `tid` left. Each is taken once, in order.
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

    /// Whether a change waits to be encoded.
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
