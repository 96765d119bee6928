//! Runs of write-back that have ended, until their backing has been notified.

use crate::page::FileId;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// The ended runs of a device. Its completion task goes over their files in the order in which the
/// runs ended; a caller that waits for a file takes that file's runs first.
#[derive(Debug)]
pub(crate) struct CompletionQueue<R>(Mutex<Ended<R>>);

#[derive(Debug)]
struct Ended<R> {
    /// The runs of each file, in the order in which they ended. No file is without one.
    runs: BTreeMap<FileId, VecDeque<R>>,
    /// A file for each run that ended. Some of the runs may have been taken since.
    files: VecDeque<FileId>,
    /// Whether the completion task is running, or a caller [holds](CompletionQueue::hold) its
    /// place.
    is_running: bool,
}

impl<R> Default for CompletionQueue<R> {
    fn default() -> Self {
        Self(Mutex::new(Ended { runs: BTreeMap::new(), files: VecDeque::new(), is_running: false }))
    }
}

impl<R> CompletionQueue<R> {
    /// Queues a run of `file`. Returns whether the caller is to start the completion task.
    #[must_use]
    pub(crate) fn push(&self, file: FileId, run: R) -> bool {
        let mut ended = self.0.lock();
        ended.runs.entry(file).or_default().push_back(run);
        ended.files.push_back(file);
        !std::mem::replace(&mut ended.is_running, true)
    }

    /// The next run of a file.
    pub(crate) fn pop(&self, file: FileId) -> Option<R> {
        let runs = &mut self.0.lock().runs;
        let of_file = runs.get_mut(&file)?;
        let run = of_file.pop_front();
        if of_file.is_empty() {
            runs.remove(&file);
        }
        run
    }

    /// Number of a file's runs.
    pub(crate) fn count(&self, file: FileId) -> usize {
        self.0.lock().runs.get(&file).map_or(0, VecDeque::len)
    }

    /// The file that the completion task turns to next. If there is none, the task is over.
    pub(crate) fn next_file(&self) -> Option<FileId> {
        let mut ended = self.0.lock();
        let file = ended.files.pop_front();
        ended.is_running = file.is_some();
        file
    }

    /// Takes the completion task's place, so that runs which end until [`Self::release`] start
    /// none. Returns false if the place is taken.
    #[must_use]
    pub(crate) fn hold(&self) -> bool {
        !std::mem::replace(&mut self.0.lock().is_running, true)
    }

    /// Gives up the place of the completion task. Returns whether the caller is to start the task,
    /// for runs that are left.
    #[must_use]
    pub(crate) fn release(&self) -> bool {
        let mut ended = self.0.lock();
        ended.is_running = !ended.runs.is_empty();
        if !ended.is_running {
            ended.files.clear();
        }
        ended.is_running
    }

    /// Records that the completion task has ended early. The next run starts another one.
    pub(crate) fn forget_task(&self) {
        self.0.lock().is_running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_files_runs_end_in_order_whoever_takes_them() {
        let (queue, a, b) = (CompletionQueue::default(), FileId(1), FileId(2));
        assert!(queue.push(a, 1), "no completion task is running");
        assert!(!queue.push(b, 2) && !queue.push(a, 3));
        assert_eq!((queue.count(a), queue.pop(a)), (2, Some(1)));
        assert_eq!((queue.next_file(), queue.pop(a), queue.pop(a)), (Some(a), Some(3), None));
        assert_eq!((queue.next_file(), queue.pop(b)), (Some(b), Some(2)));
        assert_eq!((queue.next_file(), queue.pop(a)), (Some(a), None), "a waiter was first");
        assert_eq!(queue.next_file(), None);
        assert!(queue.push(a, 4));
    }

    #[test]
    fn a_holder_starts_the_task_for_the_runs_that_it_leaves() {
        let (queue, a, b) = (CompletionQueue::default(), FileId(1), FileId(2));
        assert!(queue.hold());
        assert!(!queue.push(a, 1) && !queue.hold());
        assert_eq!((queue.pop(a), queue.release()), (Some(1), false));
        assert!(queue.hold());
        assert!(!queue.push(a, 2) && !queue.push(b, 3));
        assert_eq!((queue.pop(a), queue.release()), (Some(2), true));
        assert!(!queue.hold(), "the task runs");
        assert_eq!((queue.next_file(), queue.next_file(), queue.pop(b)), (Some(a), Some(b), Some(3)));
        assert_eq!((queue.next_file(), queue.hold()), (None, true));
    }
}
