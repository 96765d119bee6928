//! The same work on several threads at once.

use crate::BuildError;
use extant_rt::Rt;
use std::sync::Arc;
use std::sync::mpsc;

/// Threads that read sources, beside each other: enough to keep a second core busy while one waits for the disk.
pub(crate) const WORKERS: usize = 2;

/// Runs `work` on [`WORKERS`] threads, the caller's among them, until all have returned. `work` must return early on
/// all threads once it has failed on one.
pub(crate) fn run<S: Send + Sync + 'static>(
    rt: &Rt,
    name: &'static str,
    shared: &Arc<S>,
    work: fn(&S, usize),
) -> Result<(), BuildError> {
    let (done, ended) = mpsc::channel::<()>();
    let tasks: Vec<_> = (1..WORKERS)
        .map(|i| {
            let (shared, done) = (shared.clone(), done.clone());
            rt.spawn_blocking(name, move || {
                work(&shared, i);
                drop(shared);
                drop(done);
            })
        })
        .collect();
    work(shared, 0);
    drop(done);
    // Every worker drops its sender when it ends, by returning or by unwinding.
    let _ = ended.recv();
    drop(tasks);
    Ok(())
}
