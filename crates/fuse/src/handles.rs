//! Files and directories that programs have open.

use crate::errno::{Errno, Result};
use crate::listing::OpenDir;
use extant_fs::{File, Node, OpenFile};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What a handle refers to.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    /// A file of a volume open for writing.
    Live(Arc<LiveFile>),
    /// A file of a volume open for reading.
    Stored(Arc<File>),
    Dir(Arc<OpenDir>),
}

/// A file that can be written.
#[derive(Debug)]
pub(crate) struct LiveFile {
    pub(crate) node: Node,
    pub(crate) file: OpenFile,
    /// It was opened for writing.
    pub(crate) writes: bool,
    /// Reading it changes its time of access.
    pub(crate) notes_access: bool,
}

impl LiveFile {
    /// Notes a read.
    pub(crate) async fn note_access(&self) {
        if self.notes_access {
            // The read itself has succeeded.
            let _ = self.node.note_access().await;
        }
    }
}

impl Handle {
    /// The file, if it may be written.
    pub(crate) fn live(&self) -> Result<&OpenFile> {
        match self {
            Self::Live(live) => Ok(&live.file),
            Self::Stored(_) | Self::Dir(_) => Err(Errno::BADF.into()),
        }
    }

    pub(crate) fn dir(&self) -> Result<&Arc<OpenDir>> {
        match self {
            Self::Dir(dir) => Ok(dir),
            Self::Live(_) | Self::Stored(_) => Err(Errno::BADF.into()),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Handles {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    open: FxHashMap<u64, Handle>,
    last: u64,
}

impl Handles {
    pub(crate) fn open(&self, handle: Handle) -> u64 {
        let mut table = self.table.lock();
        table.last += 1;
        let number = table.last;
        table.open.insert(number, handle);
        number
    }

    pub(crate) fn get(&self, number: u64) -> Result<Handle> {
        Ok(self.table.lock().open.get(&number).ok_or(Errno::BADF)?.clone())
    }

    /// Number of open handles.
    pub(crate) fn count(&self) -> usize {
        self.table.lock().open.len()
    }

    pub(crate) fn release(&self, number: u64) -> Option<Handle> {
        self.table.lock().open.remove(&number)
    }

    pub(crate) fn clear(&self) {
        let table = std::mem::take(&mut *self.table.lock());
        drop(table);
    }
}
