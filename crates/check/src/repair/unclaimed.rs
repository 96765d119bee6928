//! Clusters that are marked as used, and that nothing claims.

/// All of them that are known.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// Runs (first, end), in order.
    pub(super) runs: Vec<(u64, u64)>,
    /// What is in them, once it was looked for.
    pub(super) read: Option<Candidates>,
}

/// Blocks that look like leaves of extent trees, and like blocks of directories.
#[derive(Clone, Debug, Default)]
pub(super) struct Candidates {
    pub(super) leaves: Vec<u64>,
    pub(super) dirs: Vec<u64>,
}

impl Lost {
    /// The end of the run that a cluster is in.
    pub(super) fn end_of(&self, cluster: u64) -> Option<u64> {
        let n = self.runs.partition_point(|run| run.1 <= cluster);
        self.runs.get(n).filter(|run| run.0 <= cluster).map(|run| run.1)
    }

    /// Whether all of these clusters are lost.
    pub(super) fn has(&self, first: u64, end: u64) -> bool {
        self.end_of(first).is_some_and(|run_end| end <= run_end)
    }
}
