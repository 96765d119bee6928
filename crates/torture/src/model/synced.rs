//! The promises of a volume without a journal, after e2fsck: synced data is there, even if other
//! data is lost.
//!
//! A synced directory has all its names that were not removed since. A synced inode has its
//! contents, and is found under a name that it had at the sync or got later; its attributes are
//! those at the sync or later. An inode not changed since its sync is exactly as it was, with all
//! its names. A moved inode may be in `lost+found`, or have a name that e2fsck changed because of a
//! duplicate. e2fsck may round its size up to whole blocks.

use super::file::Limits;
use super::space::{NodeId, ROOT, Space};
use super::{Body, Model};
use crate::{Tree, split};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where e2fsck puts files without a name.
const LOST_AND_FOUND: &str = "lost+found";
const BLOCK_BYTES_MIN: usize = 1024;
const BLOCK_BYTES_MAX: usize = 4096;

impl Model {
    /// Checks that everything synced is there. Before the crash, `completed` operations had
    /// returned and `started` had begun.
    ///
    /// # Errors
    /// Everything that is missing or wrong.
    pub fn explain_synced(&self, tree: &Tree, completed: usize, started: usize) -> Result<(), Vec<String>> {
        let started = started.min(self.len());
        let mut complaints = Vec::new();
        let mut asked = BTreeSet::new();
        // Only the last sync of an inode counts.
        for sync in self.syncs.iter().rev().filter(|sync| sync.op < completed) {
            let nodes: Vec<NodeId> = match sync.node {
                Some(node) => vec![node],
                None => self.spaces[sync.op + 1].paths().into_iter().map(|(_, node)| node).collect(),
            };
            for node in nodes.into_iter().filter(|&node| asked.insert(node)) {
                let spaces = &self.spaces[sync.op + 1..=started];
                complaints.extend(self.missing(tree, node, spaces, sync.whole, completed, started));
                complaints.extend(missing_entry(tree, node, spaces));
            }
        }
        if complaints.is_empty() { Ok(()) } else { Err(complaints) }
    }

    /// Describes what is missing of an inode that was synced before the first of `spaces`; the last
    /// of them is the current state.
    fn missing(
        &self,
        tree: &Tree,
        node: NodeId,
        spaces: &[Arc<Space>],
        whole: bool,
        completed: usize,
        started: usize,
    ) -> Option<String> {
        let names = |space: &Space| -> BTreeSet<String> {
            space.paths().into_iter().filter(|&(_, id)| id == node).map(|(path, _)| path).collect()
        };
        let first = names(spaces.first()?);
        if first.is_empty() || spaces.iter().any(|space| names(space).is_empty()) {
            // The inode had no name, or may have lost its last one since.
            return None;
        }
        let kept: BTreeSet<String> =
            spaces.iter().skip(1).fold(first.clone(), |kept, space| &kept & &names(space));
        if let Some(gone) = kept.iter().find(|path| !tree.nodes.contains_key(*path)).filter(|_| whole) {
            return Some(format!("/{gone} was synced and is missing"));
        }
        let ever: BTreeSet<String> = spaces.iter().flat_map(|space| names(space)).collect();
        let mut problems = Vec::new();
        let strange = |path: &&String| {
            split(path).0 == LOST_AND_FOUND
                || (!ever.contains(*path) && ever.iter().any(|was| is_renamed(was, path)))
        };
        let found_again = tree.nodes.keys().filter(|path| kept.is_empty() && strange(path));
        for path in ever.iter().chain(found_again) {
            let Some(found) = tree.nodes.get(path) else { continue };
            // If another file had this name before or since, the next name decides.
            let as_some = spaces.iter().find_map(|space| {
                let known = space.node(node)?;
                let wrong = if whole { known.differences(path, found) } else { Vec::new() };
                wrong.is_empty().then_some(known)
            });
            let Some(known) = as_some else {
                let known = spaces[0].node(node)?;
                problems.extend(known.differences(path, found));
                continue;
            };
            if !matches!(known.body, Body::File) {
                return None;
            }
            let file = &self.files[&node];
            // Without orphans, recording the size is the last step of a truncation.
            let limits = Limits { block: None, ..self.limits };
            let lowest = started + 1 - spaces.len();
            let admits = |data: &[u8]| {
                let admitted = (lowest..=started)
                    .rev()
                    .map(|prefix| file.admits(data, prefix, completed, started, limits));
                admitted.reduce(|best, next| best.or(next)).expect("one prefix at least")
            };
            let data = &*found.data;
            let rounded = || {
                let zeroes = data.iter().rev().take(BLOCK_BYTES_MAX).take_while(|&&byte| byte == 0).count();
                (1..=zeroes).any(|cut| admits(&data[..data.len() - cut]).is_ok())
            };
            match admits(data) {
                Ok(()) => return None,
                Err(_) if data.len().is_multiple_of(BLOCK_BYTES_MIN) && rounded() => return None,
                Err(complaint) => problems.push(format!("/{path}: {complaint}")),
            }
        }
        match problems.into_iter().next() {
            Some(problem) => Some(format!("{problem}, and it was synced")),
            None => Some(format!("none of {ever:?} is there, and it was synced")),
        }
    }
}

/// Whether a path is `was` with some names changed by e2fsck to resolve duplicates: with a `~` and
/// a number appended, or replacing the last letters.
pub(super) fn is_renamed(was: &str, path: &str) -> bool {
    let is_second = |was: &str, name: &str| match name.rsplit_once('~') {
        Some((kept, number)) if number.bytes().all(|digit| digit.is_ascii_digit()) => {
            kept == was || (was.len() == name.len() && was.starts_with(kept))
        }
        _ => false,
    };
    let (was, path): (Vec<_>, Vec<_>) = (was.split('/').collect(), path.split('/').collect());
    was.len() == path.len() && was.iter().zip(&path).all(|(was, name)| was == name || is_second(was, name))
}

/// A name that a directory had in all of `spaces`, but that is missing.
fn missing_entry(tree: &Tree, dir: NodeId, spaces: &[Arc<Space>]) -> Option<String> {
    let entries = |space: &Space| -> BTreeSet<(String, NodeId)> {
        let paths = space.paths();
        let dirs: Vec<&str> = match dir {
            ROOT => vec![""],
            _ => paths.iter().filter(|&&(_, id)| id == dir).map(|(path, _)| path.as_str()).collect(),
        };
        paths.iter().filter(|(path, _)| dirs.contains(&split(path).0)).cloned().collect()
    };
    let first = entries(spaces.first()?);
    let kept = spaces.iter().skip(1).fold(first, |kept, space| &kept & &entries(space));
    let (gone, _) = kept.into_iter().find(|(path, _)| !tree.nodes.contains_key(path))?;
    Some(format!("/{gone} is missing, and its directory was synced"))
}
