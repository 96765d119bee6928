//! Files and directories that programs have open.

use crate::errno::{Errno, Result};
use crate::listing::OpenDir;
use extant_fs::{File, OpenFile};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What a handle refers to.
#[derive(Clone, Debug)]
pub(crate) enum Handle {
    /// A file of a volume open for writing. `writes`: the handle was opened for writing.
    Live(Arc<OpenFile>, Writes),
    /// A file of a volume open for reading.
    Stored(Arc<File>),
    Dir(Arc<OpenDir>),
}

/// Whether a file was opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Writes(pub(crate) bool);

impl Handle {
    /// The file, if it may be written.
    pub(crate) fn live(&self) -> Result<&Arc<OpenFile>> {
        match self {
            Self::Live(file, _) => Ok(file),
            Self::Stored(_) | Self::Dir(_) => Err(Errno::BADF.into()),
        }
    }

    pub(crate) fn dir(&self) -> Result<&Arc<OpenDir>> {
        match self {
            Self::Dir(dir) => Ok(dir),
            Self::Live(..) | Self::Stored(_) => Err(Errno::BADF.into()),
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
