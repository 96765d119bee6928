//! Contents of small files, read on another thread before they are added.

use crate::BuildError;
use crate::source::{Origin, Reader, Stores};
use crate::tree::{EntryId, Kind, NodeId, Tree};
use extant_format::{Timestamp, UintExt};
use extant_fs::SmallFiles;
use extant_rt::{Rt, Task};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Most files and bytes that are read at a time. While they are added, the next ones are read.
const FILES: usize = 256;
const BYTES: usize = 1 << 20;
/// Maximum number of reads in a row that held no requested file. Then nothing more is read ahead:
/// files that are already on the volume are never requested.
const MISSES: usize = 8;

/// The sources, shared with the thread that reads them.
pub(super) struct Sources {
    pub(super) tree: Tree,
    pub(super) stores: Stores,
    pub(super) clamp: Option<Timestamp>,
    pub(super) time_range: (i64, i64),
}

impl Sources {
    pub(super) fn origin(&self) -> Origin<'_> {
        Origin { tree: &self.tree, stores: &self.stores, clamp: self.clamp, time_range: self.time_range }
    }
}

/// Whether a file is all data, has nothing but what every file has, and is small.
pub(super) fn is_small(tree: &Tree, entry: EntryId) -> bool {
    let id = tree.entry_node(entry);
    let node = tree.node(id);
    node.kind == Kind::File
        && node.names == 1
        && node.size <= SmallFiles::FILE_BYTES.to_u64()
        && tree.xattrs(node.xattrs).is_empty()
        && tree.sparse_map(id).is_none()
}

/// The small files of the sources, in the order in which they are usually added.
pub(super) struct Ahead {
    rt: Rt,
    now: Batch,
    /// What is being read.
    next: Option<Task<(Batch, Walk)>>,
}

#[derive(Default)]
struct Batch {
    files: VecDeque<(EntryId, Result<Range<usize>, BuildError>)>,
    bytes: Vec<u8>,
}

impl Ahead {
    /// Begins to read.
    pub(super) fn of(rt: &Rt, sources: &Arc<Sources>) -> Self {
        let walk = Walk {
            sources: sources.clone(),
            reader: Reader::default(),
            todo: vec![NodeId::ROOT],
            files: VecDeque::new(),
        };
        Self { rt: rt.clone(), now: Batch::default(), next: Some(walk.begin(rt)) }
    }

    /// The contents of a small file, if they were read ahead.
    ///
    /// # Errors
    /// The file could not be read.
    pub(super) async fn take(&mut self, entry: EntryId) -> Result<Option<&[u8]>, BuildError> {
        for _ in 0..MISSES {
            if let Some(at) = self.now.files.iter().position(|(of, _)| *of == entry) {
                let (_, read) = self.now.files.drain(..=at).next_back().expect("it was found");
                let range = read?;
                return Ok(Some(&self.now.bytes[range]));
            }
            let Some(next) = self.next.take() else { return Ok(None) };
            let walk;
            (self.now, walk) = next.await?;
            if self.now.files.is_empty() {
                return Ok(None);
            }
            self.next = Some(walk.begin(&self.rt));
        }
        self.now = Batch::default();
        self.end().await;
        Ok(None)
    }

    /// Reads no more, and waits until nothing is being read.
    pub(super) async fn end(&mut self) {
        if let Some(next) = self.next.take() {
            // What it read, or why it could not, is of no interest any more.
            let _ = next.await;
        }
    }
}

/// Where the reader is in the tree.
struct Walk {
    sources: Arc<Sources>,
    reader: Reader,
    /// Directories whose files come later, the next one last.
    todo: Vec<NodeId>,
    /// Small files of the current directory.
    files: VecDeque<EntryId>,
}

impl Walk {
    fn begin(mut self, rt: &Rt) -> Task<(Batch, Self)> {
        rt.spawn_blocking("read", move || {
            let batch = self.read();
            (batch, self)
        })
    }

    fn read(&mut self) -> Batch {
        let mut batch = Batch::default();
        while batch.files.len() < FILES && batch.bytes.len() < BYTES {
            let Some(entry) = self.next_file() else { break };
            let origin = self.sources.origin();
            let size = origin.tree.node(origin.tree.entry_node(entry)).size.to_usize();
            let at = batch.bytes.len();
            batch.bytes.resize(at + size, 0);
            let read = match size {
                0 => Ok(()),
                _ => self.reader.read(origin, entry, 0, &mut batch.bytes[at..]),
            };
            batch.files.push_back((entry, read.map(|()| at..at + size)));
        }
        batch
    }

    fn next_file(&mut self) -> Option<EntryId> {
        let tree = &self.sources.tree;
        while self.files.is_empty() {
            let children = tree.sorted_children(self.todo.pop()?);
            let below = children.iter().rev().map(|&entry| tree.entry_node(entry));
            self.todo.extend(below.filter(|&node| tree.node(node).kind == Kind::Directory));
            self.files.extend(children.into_iter().filter(|&entry| is_small(tree, entry)));
        }
        self.files.pop_front()
    }
}
