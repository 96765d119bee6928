//! Names that share an inode.

use extant_format::{Inode, InodeNumber};
use std::collections::BTreeMap;

/// Memory limit for remembered paths of files with several names, in bytes; beyond it, further
/// names become separate files.
const MEMORY_BYTES: usize = 48 << 20;

/// First exported path of each file with several names.
#[derive(Debug, Default)]
pub(super) struct Links {
    first: BTreeMap<InodeNumber, (Vec<u8>, u16)>,
    memory_bytes: usize,
}

impl Links {
    /// The path under which the file was already exported, if it was.
    pub(super) fn earlier(&mut self, inode: &Inode) -> Option<Vec<u8>> {
        if inode.links() < 2 {
            return None;
        }
        let (path, names_left) = self.first.get_mut(&inode.number)?;
        let path = path.clone();
        *names_left -= 1;
        if *names_left == 0 {
            self.first.remove(&inode.number);
            self.memory_bytes -= path.len();
        }
        Some(path)
    }

    /// Records that the file has been exported at `path`.
    pub(super) fn came(&mut self, inode: &Inode, path: &[u8]) {
        if inode.links() < 2 || self.memory_bytes + path.len() > MEMORY_BYTES {
            return;
        }
        self.memory_bytes += path.len();
        self.first.insert(inode.number, (path.to_vec(), inode.links() - 1));
    }
}
