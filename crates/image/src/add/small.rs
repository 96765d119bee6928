//! Small files of the sources, made together.

use super::adder::Adder;
use super::ahead::is_small;
use crate::BuildError;
use crate::tree::EntryId;
use extant_format::UintExt;
use extant_fs::{Node, NotMade, SmallFile};

impl Adder<'_> {
    /// Adds a file whose name is free to those that are made together. Returns false if it must be
    /// made by itself.
    pub(super) async fn is_made_together(&mut self, dir: &Node, entry: EntryId) -> Result<bool, BuildError> {
        let tree = self.origin.tree;
        if !is_small(tree, entry) {
            return Ok(false);
        }
        let node = tree.node(tree.entry_node(entry));
        let size = node.size;
        if !self.small.files.has_room(size.to_usize()) {
            let made = self.small.files.make_behind().await;
            self.were_made(made)?;
        }
        let contents = match self.ahead.take(entry).await? {
            Some(contents) => contents,
            None => {
                self.chunk.resize(size.to_usize(), 0);
                if size > 0 {
                    self.reader.read(self.origin, entry, 0, &mut self.chunk)?;
                }
                &self.chunk
            }
        };
        let file = SmallFile {
            permissions: node.mode,
            uid: node.uid,
            gid: node.gid,
            accessed: node.mtime,
            modified: node.mtime,
            contents,
        };
        let added = self.small.files.add(dir, tree.entry_name(entry), &file).await;
        let Some(number) = added.map_err(|error| self.failed(&tree.entry_path(entry), error))? else {
            return Ok(false);
        };
        self.small.entries.push(entry);
        if tree.is_layered() {
            self.listed.insert(number);
        }
        self.has_done(size);
        Ok(true)
    }

    /// Makes the files that wait. Called before anything that must find them on the volume.
    pub(super) async fn make_small(&mut self) -> Result<(), BuildError> {
        let made = self.small.files.make().await;
        self.were_made(made)
    }

    /// Forgets the entries that do not wait any more.
    fn were_made(&mut self, made: Result<(), NotMade>) -> Result<(), BuildError> {
        let entries = &mut self.small.entries;
        let failed = made.map_err(|not_made| (entries[not_made.index], not_made.error));
        entries.drain(..entries.len() - self.small.files.len());
        failed.map_err(|(entry, error)| self.failed(&self.origin.tree.entry_path(entry), error))
    }

    /// Makes the files that wait, if one of them has this name.
    pub(super) async fn make_small_named(&mut self, dir: &Node, name: &[u8]) -> Result<(), BuildError> {
        match self.small.files.contains(dir, name) {
            true => self.make_small().await,
            false => Ok(()),
        }
    }
}
