//! Sibling modules do not import each other in circles. A module and its own submodules may,
//! because they form one unit.

use crate::modules::{ModulePath, Modules};
use crate::tree::{allowance, crates, root, shrink};
use std::collections::{BTreeMap, BTreeSet};

/// Imports between siblings, by their parent.
type Levels = BTreeMap<ModulePath, BTreeSet<(String, String)>>;

/// For each parent, the pairs of children of which the first refers to something in the second.
fn levels(edges: &BTreeSet<(ModulePath, ModulePath)>) -> Levels {
    let mut levels = Levels::new();
    for (from, to) in edges {
        let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
            levels.entry(from[..common].to_vec()).or_default().insert((a.clone(), b.clone()));
        }
    }
    levels
}

/// Groups of modules in which each module reaches all others.
fn circles(arrows: &BTreeSet<(String, String)>) -> Vec<BTreeSet<String>> {
    let reach = |from: &str| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from.to_owned()];
        while let Some(name) = open.pop() {
            for (_, to) in arrows.iter().filter(|(from, _)| *from == name) {
                if reached.insert(to.clone()) {
                    open.push(to.clone());
                }
            }
        }
        reached
    };
    let names: BTreeSet<&String> = arrows.iter().flat_map(|(from, to)| [from, to]).collect();
    let reached: BTreeMap<&String, BTreeSet<String>> =
        names.iter().map(|name| (*name, reach(name))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for name in &names {
        let group: BTreeSet<String> =
            reached[name].iter().filter(|other| reached[other].contains(*name)).cloned().collect();
        if !group.is_empty() && !found.contains(&group) {
            found.push(group);
        }
    }
    found
}

#[test]
fn modules_do_not_import_each_other_in_circles() {
    let mut wrong = Vec::new();
    for name in crates() {
        let levels = levels(&Modules::read(&root().join("crates").join(&name).join("src")).edges());
        let allowed = allowance(&name).circles;
        let mut left = BTreeMap::new();
        for (parent, arrows) in &levels {
            let place = parent.iter().fold("crate".to_owned(), |path, part| path + "::" + part);
            let group: BTreeSet<String> = circles(arrows).into_iter().flatten().collect();
            let known: BTreeSet<String> = allowed.get(&place).into_iter().flatten().cloned().collect();
            if !group.is_subset(&known) {
                let inside = |(from, to): &&(String, String)| group.contains(from) && group.contains(to);
                let arrows: Vec<String> =
                    arrows.iter().filter(inside).map(|(from, to)| format!("{from} -> {to}")).collect();
                wrong.push(format!("crates/{name}, {place}: {}", arrows.join(", ")));
            }
            if !group.is_empty() {
                left.insert(place, group.into_iter().collect::<Vec<_>>());
            }
        }
        shrink(&name, |allowance| allowance.circles = left);
    }
    assert!(wrong.is_empty(), "modules import each other:\n{}", wrong.join("\n"));
}

#[test]
fn a_circle_is_seen_and_a_chain_is_not() {
    let arrows =
        |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    assert!(circles(&arrows(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    let found = circles(&arrows(&[("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")]));
    assert_eq!(found, [["a", "b", "c"].map(str::to_owned).into()]);
}
