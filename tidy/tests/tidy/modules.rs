//! A crate's modules and their imports, read from the source.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::visit::Visit;

/// A module's path below the crate's root, such as `queue::flush`.
pub(crate) type ModulePath = Vec<String>;

/// One module.
#[derive(Debug, Default)]
struct Module {
    /// Imported names, with the path that each stands for.
    imports: BTreeMap<String, Vec<String>>,
    /// Paths imported with `*`.
    globs: Vec<Vec<String>>,
    /// Every path that its code uses; those that begin with `crate`, `self` or `super` are written
    /// out from the crate's root.
    paths: Vec<Vec<String>>,
}

/// The modules of a crate, without tests.
#[derive(Debug, Default)]
pub(crate) struct Modules(BTreeMap<ModulePath, Module>);

impl Modules {
    /// Reads a crate from its `src` folder.
    pub(crate) fn read(src: &Path) -> Self {
        let mut modules = Self::default();
        let root = ["lib.rs", "main.rs"].map(|name| src.join(name)).into_iter().find(|file| file.exists());
        modules.read_file(&root.expect("lib.rs or main.rs"), src, &[]);
        modules
    }

    fn read_file(&mut self, file: &Path, folder: &Path, at: &[String]) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.read_items(&parsed.items, folder, at);
    }

    fn read_items(&mut self, items: &[syn::Item], folder: &Path, at: &[String]) {
        let mut collector = Collector { at: at.to_vec(), module: Module::default() };
        for item in items {
            if is_test(item) {
                continue;
            }
            let syn::Item::Mod(module) = item else {
                collector.visit_item(item);
                continue;
            };
            let name = module.ident.to_string();
            let below: Vec<String> = at.iter().cloned().chain([name.clone()]).collect();
            if let Some((_, items)) = &module.content {
                self.read_items(items, &folder.join(&name), &below);
                continue;
            }
            let [flat, nested] = [folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs")];
            let file = if flat.exists() { flat } else { nested };
            self.read_file(&file, &folder.join(&name), &below);
        }
        self.0.insert(at.to_vec(), collector.module);
    }

    /// Pairs of modules; the first refers to something that the second declares.
    pub(crate) fn edges(&self) -> BTreeSet<(ModulePath, ModulePath)> {
        let mut edges = BTreeSet::new();
        for (at, module) in &self.0 {
            for path in module.paths.iter().chain(&module.globs) {
                if let Some(to) = self.declares(at, path, 0)
                    && to != *at
                {
                    edges.insert((at.clone(), to));
                }
            }
        }
        edges
    }

    /// The module that declares `path` as seen from `from`, following re-exports.
    fn declares(&self, from: &[String], path: &[String], depth: usize) -> Option<ModulePath> {
        let (mut at, mut rest): (Vec<String>, &[String]) = match path.first()?.as_str() {
            "crate" => (Vec::new(), &path[1..]),
            name => {
                // A child, or a name imported here; anything else is from another crate, the
                // prelude or local.
                let child: Vec<String> = from.iter().cloned().chain([name.to_owned()]).collect();
                if self.0.contains_key(&child) {
                    (child, &path[1..])
                } else {
                    let import = self.0.get(from)?.imports.get(name)?;
                    if depth > 8 || import.first() == path.first() {
                        return None;
                    }
                    return self.declares(
                        from,
                        &import.iter().chain(&path[1..]).cloned().collect::<Vec<_>>(),
                        depth + 1,
                    );
                }
            }
        };
        loop {
            let Some(name) = rest.first() else { return Some(at) };
            let child: Vec<String> = at.iter().cloned().chain([name.clone()]).collect();
            if self.0.contains_key(&child) {
                (at, rest) = (child, &rest[1..]);
                continue;
            }
            let module = self.0.get(&at)?;
            if depth < 8 {
                if let Some(import) = module.imports.get(name) {
                    let whole: Vec<String> = import.iter().chain(&rest[1..]).cloned().collect();
                    return self.declares(&at, &whole, depth + 1);
                }
                for glob in &module.globs {
                    let whole: Vec<String> = glob.iter().chain(rest).cloned().collect();
                    if let Some(to) = self.declares(&at, &whole, depth + 1)
                        && to != at
                    {
                        return Some(to);
                    }
                }
            }
            return Some(at);
        }
    }
}

/// Whether an item is compiled only for tests.
fn is_test(item: &syn::Item) -> bool {
    let attributes = match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let tokens = list.tokens.to_string();
            tokens == "test" || tokens.starts_with("all (test")
        }
        _ => false,
    })
}

struct Collector {
    at: ModulePath,
    module: Module,
}

impl Collector {
    /// Resolves `self` and `super` in a path; a leading `crate` marks paths known to be in this
    /// crate.
    fn whole(&self, segments: Vec<String>) -> Vec<String> {
        let mut base = self.at.clone();
        let mut rest = segments.as_slice();
        match rest.first().map(String::as_str) {
            Some("self" | "super") => {}
            _ => return segments,
        }
        while let Some(name) = rest.first() {
            match name.as_str() {
                "self" => {}
                "super" => drop(base.pop()),
                _ => break,
            }
            rest = &rest[1..];
        }
        std::iter::once("crate".to_owned()).chain(base).chain(rest.iter().cloned()).collect()
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &[String]) {
        let with = |name: &syn::Ident| before.iter().cloned().chain([name.to_string()]).collect::<Vec<_>>();
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident)),
            syn::UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, before)),
            syn::UseTree::Glob(_) => {
                let whole = self.whole(before.to_vec());
                self.module.globs.push(whole);
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.import(before.last().cloned(), before.to_vec())
            }
            syn::UseTree::Name(name) => self.import(Some(name.ident.to_string()), with(&name.ident)),
            syn::UseTree::Rename(rename) => self.import(Some(rename.rename.to_string()), with(&rename.ident)),
        }
    }

    fn import(&mut self, name: Option<String>, path: Vec<String>) {
        let whole = self.whole(path);
        self.module.paths.push(whole.clone());
        if let Some(name) = name {
            self.module.imports.insert(name, whole);
        }
    }
}

impl Visit<'_> for Collector {
    fn visit_item_use(&mut self, item: &syn::ItemUse) {
        self.tree(&item.tree, &[]);
    }

    fn visit_item_mod(&mut self, _: &syn::ItemMod) {}

    fn visit_path(&mut self, path: &syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if segments.len() > 1 {
            let whole = self.whole(segments);
            self.module.paths.push(whole);
        }
        syn::visit::visit_path(self, path);
    }
}
