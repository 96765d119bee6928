//! Entries of an archive that a later entry of the same archive removes.

use crate::tree::{Kind, NodeId, Tree};
use crate::{Note, quoted};

/// The first path lost, and the number of entries.
#[derive(Default)]
pub(crate) struct Lost(Option<(Vec<u8>, u64)>);

impl Lost {
    /// Counts one entry; `path` is only called for the first one.
    pub(crate) fn count(&mut self, path: impl FnOnce() -> Vec<u8>) {
        self.0.get_or_insert_with(|| (path(), 0)).1 += 1;
    }

    /// Counts the entries below a directory whose index is at least `from`; earlier entries belong
    /// to other sources.
    pub(crate) fn count_below(&mut self, tree: &Tree, dir: NodeId, from: NodeId) {
        let mut pending = vec![dir];
        while let Some(dir) = pending.pop() {
            let mut dirs = Vec::new();
            for entry in tree.sorted_children(dir) {
                let id = tree.entry_node(entry);
                let node = tree.node(id);
                if id >= from && !node.implied {
                    self.count(|| tree.entry_path(entry));
                }
                if node.kind == Kind::Directory {
                    dirs.push(id);
                }
            }
            pending.extend(dirs.into_iter().rev());
        }
    }

    /// Makes a note about these entries.
    pub(crate) fn note(&self, archive: &str) -> Option<Note> {
        let (path, entries) = self.0.as_ref()?;
        Some(Note::Replaced { archive: archive.to_owned(), path: quoted(path), entries: *entries })
    }
}
