//! Files in the `/etc` of sources.

use super::{Origin, Reader, Stores, tree_paths};
use crate::BuildError;
use crate::tree::{Kind, Tree};
use extant_format::UintExt;

/// Maximum number of bytes to read of `/etc/passwd` or `/etc/group`; the rest is ignored.
pub(super) const MOST_BYTES: u64 = 16 << 20;

/// The contents of a regular file in the tree's `/etc`.
pub(super) fn file_in_etc(tree: &Tree, stores: &Stores, name: &[u8]) -> Result<Option<Vec<u8>>, BuildError> {
    let Some(etc) = tree_paths::directory(tree, b"etc")? else { return Ok(None) };
    let Some(entry) = tree.lookup(etc, name) else { return Ok(None) };
    let node = tree.node(tree.entry_node(entry));
    if node.kind != Kind::File {
        return Ok(None);
    }
    let mut bytes = vec![0; node.size.min(MOST_BYTES).to_usize()];
    let from = Origin { tree, stores, clamp: None, time_range: (i64::MIN, i64::MAX) };
    Reader::default().read(from, entry, 0, &mut bytes)?;
    Ok(Some(bytes))
}
