//! Files and directories that programs have open.

use crate::errno::{Errno, Result};
use crate::listing::OpenDir;
use crate::object::nodeid;
use extant_fs::{File, Node, OpenFile};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};

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
    behind_cache: OnceLock<OpenFile>,
}

impl LiveFile {
    pub(crate) fn new(node: Node, file: OpenFile, writes: bool, notes_access: bool) -> Self {
        Self { node, file, writes, notes_access, behind_cache: OnceLock::new() }
    }

    /// The same file, for pages that the kernel writes back.
    pub(crate) fn behind_cache(&self) -> &OpenFile {
        self.behind_cache.get_or_init(|| self.file.behind_cache())
    }

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

    /// The protocol's numbers of the files that are open for writing, some repeatedly.
    pub(crate) fn writers(&self) -> Vec<u64> {
        let table = self.table.lock();
        let writer = |handle: &Handle| match handle {
            Handle::Live(live) if live.writes => Some(nodeid(live.node.inode())),
            _ => None,
        };
        table.open.values().filter_map(writer).collect()
    }

    pub(crate) fn release(&self, number: u64) -> Option<Handle> {
        self.table.lock().open.remove(&number)
    }

    pub(crate) fn clear(&self) {
        let table = std::mem::take(&mut *self.table.lock());
        drop(table);
    }
}
