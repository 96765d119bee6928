//! Directory indexes: that each block is reached once, and that names are where a look-up expects
//! them.

use crate::Code;
use crate::finding::{Report, Spot};
use crate::found::Dir;
use crate::listing::{Directories, DirsFound, Leaf, Node, Root};
use extant_format::UintExt;
use std::collections::BTreeSet;

/// Checks all indexes.
pub(crate) fn check(all: &Directories, found: &mut DirsFound) {
    found.leaves.sort_unstable();
    found.nodes.sort_unstable();
    let mut dirs: Vec<u32> = all.roots.keys().copied().collect();
    dirs.sort_unstable();
    let (mut leaves, mut nodes) = (&found.leaves[..], &found.nodes[..]);
    for index in dirs {
        let dir = &all.dirs[index.to_usize()];
        leaves = &leaves[leaves.partition_point(|leaf| leaf.dir < index)..];
        nodes = &nodes[nodes.partition_point(|node| node.dir < index)..];
        let own_leaves = &leaves[..leaves.partition_point(|leaf| leaf.dir == index)];
        let own_nodes = &nodes[..nodes.partition_point(|node| node.dir == index)];
        if !dir.damaged {
            Tree { dir, root: &all.roots[&index], leaves: own_leaves, nodes: own_nodes }
                .check(&mut found.report);
        }
    }
}

struct Tree<'a> {
    dir: &'a Dir,
    root: &'a Root,
    leaves: &'a [Leaf],
    nodes: &'a [Node],
}

impl Tree<'_> {
    fn check(&self, report: &mut Report) {
        let mut reached = BTreeSet::from([0]);
        // To do: entries, their levels above the leaves, and the hash range of the whole node.
        let mut todo = vec![(&self.root.entries, self.root.levels, 0, None)];
        while let Some((entries, levels, low, high)) = todo.pop() {
            for (n, &(hash, block)) in entries.iter().enumerate() {
                let low = if n == 0 { low } else { hash };
                let high = entries.get(n + 1).map(|next| next.0).or(high);
                let spot = Spot::inode(self.dir.number).at_file_block(block.into());
                if block >= self.dir.blocks {
                    let text = format!("an entry for block {block}");
                    let expected = format!("one of {} blocks", self.dir.blocks);
                    report.add(Code::HtreeReference, spot, text, expected);
                    continue;
                }
                if !reached.insert(block) {
                    report.add(Code::HtreeReference, spot, "reached more than once", "once");
                    continue;
                }
                if levels > 0 {
                    match self.nodes.binary_search_by_key(&block, |node| node.logical) {
                        Ok(n) => todo.push((&self.nodes[n].entries, levels - 1, low, high)),
                        Err(_) => {
                            report.add(Code::HtreeNode, spot, "no node of the index", "one, by its parent");
                        }
                    }
                    continue;
                }
                match self.leaves.binary_search_by_key(&block, |leaf| leaf.logical) {
                    Ok(n) => {
                        let inside = |(lowest, highest): (u32, u32)| {
                            lowest >= low & !1 && high.is_none_or(|high| highest < high)
                        };
                        if let Some(range) = self.leaves[n].range
                            && !inside(range)
                        {
                            let text = format!("hashes {:#010x} to {:#010x}", range.0, range.1);
                            let end = high.map_or("the end".to_owned(), |high| format!("{high:#010x}"));
                            report.add(Code::HtreeRange, spot, text, format!("{:#010x} to {end}", low & !1));
                        }
                    }
                    Err(_) if self.nodes.binary_search_by_key(&block, |node| node.logical).is_ok() => {
                        report.add(Code::HtreeNode, spot, "a node of the index", "a block with names");
                    }
                    // The block could not be read, or is a hole.
                    Err(_) => {}
                }
            }
        }
        let known = self.leaves.iter().map(|leaf| leaf.logical);
        for block in known.chain(self.nodes.iter().map(|node| node.logical)) {
            if !reached.contains(&block) {
                let spot = Spot::inode(self.dir.number).at_file_block(block.into());
                report.add(Code::HtreeReference, spot, "not reached through the index", "reached once");
            }
        }
    }
}
