//! Removes from a tree what a layer above it hides.

use crate::tree::{Hidden, Kind, NodeId, Step, Tree};
use extant_fs::SYMLINKS_MAX;
use std::collections::VecDeque;

/// Removes from `tree` what `upper` hides, and records it for whatever lies below `tree`.
pub(super) fn hide(tree: &mut Tree, upper: &Tree, hidden: Hidden) {
    let mut todo: VecDeque<Vec<u8>> = hidden.dir.into_iter().map(|step| step.name).collect();
    let mut dir: Vec<Step> = Vec::new();
    // Where the path has led so far, in the upper and lower tree, and all directories above.
    let mut here = (Some(NodeId::ROOT), Some(NodeId::ROOT));
    let mut above = Vec::new();
    let mut links = 0;
    while let Some(name) = todo.pop_front() {
        match &name[..] {
            b"" | b"." => continue,
            b".." => {
                here = above.pop().unwrap_or(here);
                dir.pop();
                continue;
            }
            _ => {}
        }
        let find = |tree: &Tree, dir: Option<NodeId>| Some(tree.entry_node(tree.lookup(dir?, &name)?));
        let (over, under) = (find(upper, here.0), find(tree, here.1));
        // If this is not a directory in the upper tree, it replaces all of the lower one anyway.
        if over.is_some_and(|node| upper.node(node).kind != Kind::Directory) {
            return;
        }
        let mut listed = over.is_some_and(|node| !upper.node(node).implied);
        match under.map(|node| (node, tree.node(node))) {
            None => {}
            Some((_, node)) if node.kind == Kind::Directory => listed |= !node.implied,
            Some((node, below)) if below.kind == Kind::Symlink && !listed && links < SYMLINKS_MAX => {
                links += 1;
                let target = tree.symlink_target(node);
                if target.first() == Some(&b'/') {
                    here = (Some(NodeId::ROOT), Some(NodeId::ROOT));
                    above.clear();
                    dir.clear();
                }
                for part in target.split(|b| *b == b'/').rev() {
                    todo.push_front(part.to_vec());
                }
                continue;
            }
            Some(_) => return,
        }
        above.push(std::mem::replace(&mut here, (over, under)));
        dir.push(Step { name, listed });
    }
    match (&hidden.name, here.1) {
        (Some(name), Some(under)) => drop(tree.remove(under, name)),
        (None, Some(under)) => tree.clear(under),
        (_, None) => {}
    }
    tree.add_hidden(Hidden { dir, name: hidden.name });
}
