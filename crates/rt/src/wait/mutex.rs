//! A value owned by one task at a time, across waits.

use super::rwlock::{RwLock, WriteGuard};
use super::table::WaitTable;
use parking_lot::Mutex;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A value under an [`RwLock`] that is only taken for writing.
pub struct TaskMutex<T> {
    turn: RwLock,
    /// Moved out while a task has it; locked only for that move.
    value: Mutex<Option<T>>,
}

impl<T> TaskMutex<T> {
    /// An unlocked mutex, whose waiters use `table`.
    pub fn new(table: &Arc<WaitTable>, value: T) -> Self {
        Self { turn: RwLock::new(table), value: Mutex::new(Some(value)) }
    }

    /// Waits for the value, in order of arrival.
    pub async fn lock(&self) -> TaskMutexGuard<'_, T> {
        let turn = self.turn.write().await;
        self.take(turn)
    }

    /// Takes the value, if no task has it or waits for it.
    pub fn try_lock(&self) -> Option<TaskMutexGuard<'_, T>> {
        self.turn.try_write().map(|turn| self.take(turn))
    }

    fn take<'a>(&'a self, turn: WriteGuard<'a>) -> TaskMutexGuard<'a, T> {
        let value = self.value.lock().take();
        TaskMutexGuard { mutex: self, value, _turn: turn }
    }
}

impl<T> fmt::Debug for TaskMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskMutex").field(&self.turn).finish()
    }
}

/// Exclusive access to the value, until this is dropped.
#[must_use = "the value is given back when this is dropped"]
pub struct TaskMutexGuard<'a, T> {
    mutex: &'a TaskMutex<T>,
    value: Option<T>,
    /// Released after the value is put back.
    _turn: WriteGuard<'a>,
}

impl<T> Drop for TaskMutexGuard<'_, T> {
    fn drop(&mut self) {
        *self.mutex.value.lock() = self.value.take();
    }
}

impl<T> Deref for TaskMutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.value.as_ref().expect("its owner's until it is dropped")
    }
}

impl<T> DerefMut for TaskMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("its owner's until it is dropped")
    }
}

impl<T: fmt::Debug> fmt::Debug for TaskMutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}
