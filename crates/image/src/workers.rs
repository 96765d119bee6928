//! Runs the same work on several threads.

use crate::BuildError;
use extant_rt::Rt;
use std::sync::Arc;

/// Number of threads that read sources concurrently: enough to keep a second core busy while one
/// waits for the disk.
pub(crate) const WORKERS: usize = 2;

/// Runs `work` on [`WORKERS`] threads, including the caller's, until all have returned. Once `work`
/// fails on one thread, it must return early on all others.
pub(crate) fn run<S: Send + Sync + 'static>(
    rt: &Rt,
    name: &'static str,
    shared: &Arc<S>,
    work: fn(&S, usize),
) -> Result<(), BuildError> {
    let tasks: Vec<_> = (1..WORKERS)
        .map(|i| {
            let shared = shared.clone();
            rt.spawn_blocking(name, move || work(&shared, i))
        })
        .collect();
    work(shared, 0);
    tasks.into_iter().try_for_each(|task| Ok(rt.block_on(task)??))
}
