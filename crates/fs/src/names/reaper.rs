//! Deleting inodes that have no name once nothing holds them: by the reaper, which is a task, or by
//! operations when it is behind.

use super::Namespace;
use super::delete_inode::delete;
use crate::Error;
use crate::alloc::GivesBack;
use crate::meta::InodeCell;
use extant_rt::{Class, Nanos};
use futures_util::future::BoxFuture;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};

/// Callers help the deleting task if more inodes than this wait for it. Each takes up to a kilobyte
/// of memory.
pub(super) const LAG_MAX: usize = 1024;

/// How long the deleting task waits for more inodes before it deletes them. Waking its thread for
/// each inode costs more than the deletion.
const GATHER: Nanos = Nanos::from_millis(1);

impl Namespace {
    /// Deletes an inode that lost its last name, unless something holds it.
    ///
    /// If that fails, the inode stays an orphan, to be deleted when the volume is next opened: the
    /// operation that removed the last name has succeeded. Damage is recorded as a problem of the
    /// volume.
    pub(crate) fn delete_unused<'a>(&'a self, cell: &'a Arc<InodeCell>) -> BoxFuture<'a, ()> {
        Box::pin(async { Doomed::of(self).delete(cell.clone()).await })
    }

    /// Starts the task that deletes unnamed inodes once their last node is dropped. It ends when
    /// the volume is closed.
    pub(crate) fn start_reaper(self: &Arc<Self>) {
        let (signals, weak) = (self.writer.reaper.begin(), Arc::downgrade(self));
        let rt = self.writer.rt.clone();
        let task = async move {
            while signals.next().await {
                rt.sleep(GATHER).await;
                let Some(namespace) = weak.upgrade() else { break };
                let works = namespace.writer.reaper.works.write().await;
                // The volume may have been closed while this task waited for the lock.
                if !namespace.writer.reaper.is_on() {
                    break;
                }
                namespace.delete_doomed().await;
                drop(works);
            }
        };
        drop(self.writer.rt.spawn("reaper", Class::Normal, task));
    }

    /// Deletes unnamed inodes now if no task does it, or if that task is far behind.
    pub(super) async fn tidy(&self) {
        if !self.writer.reaper.is_on() || self.writer.unused.lock().len() > LAG_MAX {
            self.delete_doomed().await;
        }
    }

    /// See [`Volume::finish_deletions`](crate::Volume::finish_deletions).
    pub(crate) async fn finish_deletions(&self) {
        drop(self.writer.reaper.works.write().await);
        self.delete_doomed().await;
    }

    /// Deletes unnamed inodes whose last node was dropped since the last call.
    pub(crate) async fn delete_doomed(&self) {
        if !self.writer.unused.lock().is_empty() {
            Doomed::of(self).delete_all().await;
        }
    }

    /// Like [`Self::delete_doomed`], before the volume is closed: failing to delete an inode is
    /// recorded as a problem.
    pub(crate) async fn delete_doomed_at_last(&self) {
        self.writer.reaper.end().await;
        let mut doomed = Doomed::of(self);
        doomed.is_last = true;
        doomed.delete_all().await;
    }
}

/// Inodes still to be deleted. Dropping this queues them for the next attempt.
struct Doomed<'n> {
    namespace: &'n Namespace,
    cells: Vec<Arc<InodeCell>>,
    /// An inode is being deleted.
    is_at_work: bool,
    /// There will be no next attempt.
    is_last: bool,
}

impl<'n> Doomed<'n> {
    fn of(namespace: &'n Namespace) -> Self {
        Self { namespace, cells: Vec::new(), is_at_work: false, is_last: false }
    }

    fn delete_all(mut self) -> BoxFuture<'n, ()> {
        Box::pin(async move {
            loop {
                let Some(cell) = self.namespace.writer.unused.lock().pop() else { return };
                self.delete(cell).await;
            }
        })
    }

    /// Deletes an inode unless something holds it.
    async fn delete(&mut self, cell: Arc<InodeCell>) {
        if cell.openers() > 0 || cell.is_live() {
            return;
        }
        // Kept here in case the caller is dropped meanwhile.
        self.cells.push(cell.clone());
        self.is_at_work = true;
        let failed = delete(self.namespace, &cell).await.err();
        self.is_at_work = false;
        if let Some(error @ Error::Corrupt(_)) = &failed {
            self.namespace.writer.errors.note(error);
        }
        // These errors may be temporary: try again later.
        let is_tried_again = matches!(failed, Some(Error::Io(_) | Error::NoSpace));
        if !is_tried_again {
            self.cells.pop();
        }
        if let Some(failed) = failed.filter(|_| self.is_last || !is_tried_again) {
            self.namespace.writer.keep_problem(failed);
        }
    }
}

impl Drop for Doomed<'_> {
    fn drop(&mut self) {
        self.namespace.writer.unused.lock().append(&mut self.cells);
        // The deletion was dropped in the middle. Have the task finish it.
        if self.is_at_work {
            self.namespace.writer.reaper.call();
        }
    }
}

/// Frees blocks by deleting inodes that nothing holds any more.
#[derive(Debug)]
pub(super) struct DeletionGiver(pub(super) Weak<Namespace>);

impl GivesBack for DeletionGiver {
    fn give_back(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async {
            if let Some(namespace) = self.0.upgrade() {
                namespace.delete_doomed().await;
            }
        })
    }
}
