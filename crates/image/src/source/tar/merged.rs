//! Paths of hard links in a layer, resolved through the layer and the tree below it.
//!
//! A directory that a layer does not list may be a symbolic link below. The layer's files in that
//! directory then belong to the link's target.

use crate::BuildError;
use crate::source::tree_paths::{self, too_many_links};
use crate::tree::{Kind, NodeId, Payload, Tree};
use extant_format::UintExt;
use extant_fs::SYMLINKS_MAX;
use std::collections::{BTreeMap, VecDeque};

/// Maximum number of names in a path that Linux accepts. Longer paths are not resolved here.
const MAX_NAMES: usize = 2048;

/// Names on the way from the root to a directory, none of which is a symbolic link.
type Place = Vec<Vec<u8>>;

/// A layer's unlisted directories that are symbolic links below, by the directories that these
/// links lead to.
#[derive(Default)]
pub(super) struct Aliases(BTreeMap<Place, Vec<NodeId>>);

/// The file that a path leads to.
pub(super) enum Found {
    /// A node of the layer.
    Upper(NodeId),
    /// A node of the tree below.
    Below(NodeId),
}

impl Aliases {
    /// Adds the directories that an entry has implied (the nodes from `first` on), if they are
    /// links below.
    pub(super) fn add(&mut self, upper: &Tree, below: &Tree, first: usize) {
        for dir in (first.fit_u32()..upper.node_slots().fit_u32()).map(NodeId) {
            let path = upper.path(dir);
            let is_link = |node| below.node(node).kind == Kind::Symlink;
            // Links in a cycle matter only if something leads through them.
            if tree_paths::find(below, &path).is_ok_and(|found| found.is_some_and(is_link))
                && let Ok(Some(way)) = (Merged { upper, below, aliases: self }).go(&path)
            {
                self.0.entry(way.names).or_default().push(dir);
            }
        }
    }

    /// Resolves the path of a hard link. Symbolic links are followed, except in the last component.
    pub(super) fn find(&self, upper: &Tree, below: &Tree, path: &[u8]) -> Result<Option<Found>, BuildError> {
        let Some((parent, name)) = tree_paths::split(path) else { return Ok(None) };
        let merged = Merged { upper, below, aliases: self };
        Ok(merged.go(&parent)?.and_then(|way| merged.look(way.here(), &name)))
    }
}

/// A layer over the tree below it.
struct Merged<'a> {
    upper: &'a Tree,
    below: &'a Tree,
    aliases: &'a Aliases,
}

/// A directory, and all directories above it.
struct Way {
    names: Place,
    /// The directories, one more than there are names: the root comes first.
    dirs: Vec<Dir>,
}

/// One directory in both trees.
struct Dir {
    /// The directory in the layer: under its own path, and through links below.
    upper: Vec<NodeId>,
    below: Option<NodeId>,
}

impl Way {
    fn here(&self) -> &Dir {
        self.dirs.last().expect("the root stays")
    }

    fn up(&mut self, names: usize) {
        self.names.truncate(names);
        self.dirs.truncate(names + 1);
    }
}

impl Merged<'_> {
    /// Follows a path to its end, including its last component. Names that do not exist are taken
    /// for directories. Returns `None` if the path is too long.
    fn go(&self, path: &[u8]) -> Result<Option<Way>, BuildError> {
        let names = |path: &[u8]| path.split(|b| *b == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut root = Dir { upper: vec![NodeId::ROOT], below: Some(NodeId::ROOT) };
        root.upper.extend(self.through_links(&[]));
        let mut way = Way { names: Place::new(), dirs: vec![root] };
        let mut todo = VecDeque::from(names(path));
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            match &name[..] {
                b"" | b"." => continue,
                b".." => {
                    way.up(way.names.len().saturating_sub(1));
                    continue;
                }
                _ if way.names.len() == MAX_NAMES => return Ok(None),
                _ => {}
            }
            let Some(target) = self.link_target(way.here(), &name) else {
                self.enter(&mut way, name);
                continue;
            };
            links += 1;
            if links > SYMLINKS_MAX {
                return Err(too_many_links(path));
            }
            if target.first() == Some(&b'/') {
                way.up(0);
            }
            for name in names(target).into_iter().rev() {
                todo.push_front(name);
            }
        }
        Ok(Some(way))
    }

    fn enter(&self, way: &mut Way, name: Vec<u8>) {
        let inner = |tree: &Tree, dir| {
            let node = tree.entry_node(tree.lookup(dir, &name)?);
            (tree.node(node).kind == Kind::Directory).then_some(node)
        };
        let here = way.here();
        let below = here.below.and_then(|dir| inner(self.below, dir));
        let mut upper: Vec<_> = here.upper.iter().filter_map(|&dir| inner(self.upper, dir)).collect();
        way.names.push(name);
        upper.extend(self.through_links(&way.names));
        way.dirs.push(Dir { upper, below });
    }

    /// Directories of the layer that are links below and lead to this place.
    fn through_links(&self, place: &[Vec<u8>]) -> impl Iterator<Item = NodeId> {
        let is_alias = |id: &NodeId| {
            let node = self.upper.node(*id);
            node.implied && node.names > 0
        };
        self.aliases.0.get(place).into_iter().flatten().copied().filter(is_alias)
    }

    /// The target of a symbolic link; `None` if the name is something else.
    fn link_target(&self, dir: &Dir, name: &[u8]) -> Option<&[u8]> {
        let target = match self.look(dir, name)? {
            Found::Below(node) => self.below.symlink_target(node),
            Found::Upper(node) => match self.upper.node(node).payload {
                // A hard link to something below, which may be a symbolic link.
                Payload::Below { node } => self.below.symlink_target(node),
                _ => self.upper.symlink_target(node),
            },
        };
        (!target.is_empty()).then_some(target)
    }

    fn look(&self, dir: &Dir, name: &[u8]) -> Option<Found> {
        let below = dir.below.and_then(|dir| self.below.lookup(dir, name));
        let below = below.map(|entry| self.below.entry_node(entry));
        // If there are several entries, the last one counts.
        let upper = dir.upper.iter().filter_map(|&dir| self.upper.lookup(dir, name)).max();
        let upper = upper.map(|entry| self.upper.entry_node(entry));
        match (upper, below) {
            (Some(upper), Some(below))
                if self.upper.node(upper).implied && self.below.node(below).kind == Kind::Symlink =>
            {
                Some(Found::Below(below))
            }
            (Some(upper), _) => Some(Found::Upper(upper)),
            (None, below) => below.map(Found::Below),
        }
    }
}
