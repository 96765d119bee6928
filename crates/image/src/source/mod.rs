//! Fills a [`Tree`] from directories, archives and container images.

mod acl_text;
mod apply_whiteouts;
mod archive;
mod decode;
mod etc_files;
mod images;
mod known_owners;
mod layer_name;
mod lost;
mod merge_trees;
mod mtree;
mod named_acls;
mod override_stat;
mod owners;
mod pax;
mod reader;
mod sparse;
mod store;
mod strip;
mod tar;
mod tree_paths;
mod volume_links;
mod walk;
mod whiteout_marks;

pub(crate) use acl_text::NameOf;
pub(crate) use known_owners::KnownOwners;
pub(crate) use lost::Lost;
pub(crate) use reader::{Origin, Reader};
pub(crate) use store::Stores;
pub(crate) use tree_paths::find_followed;
pub(crate) use volume_links::Below;

use crate::tree::Tree;
use crate::{BuildError, Note, Selection, Source, quoted_path, settle};
use extant_rt::Rt;
use std::path::{Path, PathBuf};

/// Options for loading sources.
pub(crate) struct LoadOptions<'a> {
    /// Directory for spool files: the directory of the output.
    pub(crate) spool_dir: &'a Path,
    pub(crate) one_file_system: bool,
    /// Names to leave out.
    pub(crate) selection: &'a Selection,
    /// An existing image under the output's name, which must not be packed into the new one.
    pub(crate) replaced: Option<FileIdentity>,
    /// Selects one of several images, as `os/architecture[/variant]`.
    pub(crate) platform: Option<&'a str>,
    /// Selects one of several images, by name or digest.
    pub(crate) image: Option<&'a str>,
    /// Largest possible volume in bytes, if limited.
    pub(crate) volume_bytes: Option<u64>,
    /// Whether archives and directories are layers, so that whiteouts apply.
    pub(crate) layers: bool,
    /// Whether to leave out access lists, and all other attributes.
    pub(crate) no_acls: bool,
    pub(crate) no_xattrs: bool,
    /// The volume that the sources are added to.
    pub(crate) below: Option<Below<'a>>,
}

/// Device major, device minor and inode number of a file.
pub(crate) type FileIdentity = (u32, u32, u64);

/// Loads the sources, merged over each other in order, and the stores of their contents.
pub(crate) fn load(
    sources: &[Source],
    options: &LoadOptions<'_>,
    rt: &Rt,
    notes: &mut Vec<Note>,
) -> Result<(Tree, Stores), BuildError> {
    let mut tree = Tree::new();
    let mut stores = Stores::new(options.spool_dir.to_path_buf(), options.volume_bytes);
    for (n, source) in (1..).zip(sources) {
        stores.begin_source(n == sources.len());
        match resolve(source)? {
            Resolved::Directory(path) => {
                let root = stores.add_root(&path)?;
                if options.layers {
                    let (mut layer, _) = walk::walk(Tree::new(), &stores, root, options, rt)?;
                    whiteout_marks::take_marks(&mut layer, &quoted_path(&path))?;
                    layer.mark_layered();
                    merge_trees::lay(&mut tree, layer, &quoted_path(&path), options, notes)?;
                } else if tree.is_blank() && options.below.is_none() {
                    let whiteouts;
                    (tree, whiteouts) = walk::walk(tree, &stores, root, options, rt)?;
                    notes.extend(whiteouts);
                } else {
                    let (upper, whiteouts) = walk::walk(Tree::new(), &stores, root, options, rt)?;
                    notes.extend(whiteouts);
                    merge_trees::lay(&mut tree, upper, &quoted_path(&path), options, notes)?;
                }
            }
            Resolved::Stdin => archive::load_stdin(&mut tree, &mut stores, options, notes)?,
            Resolved::Manifest(path) => mtree::load(&mut tree, &mut stores, &path, options, notes)?,
            Resolved::Archive(path) => archive::load_file(&mut tree, &mut stores, &path, options, notes)?,
            Resolved::Image(path, format) => {
                images::load_directory(&mut tree, &mut stores, &path, format, options, notes)?;
            }
        }
    }
    options.selection.prune(&mut tree);
    override_stat::apply(&mut tree);
    strip::strip(&mut tree, options.no_acls, options.no_xattrs);
    named_acls::resolve(&mut tree, &mut stores, options, notes)?;
    settle::follow_access_lists(&mut tree);
    Ok((tree, stores))
}

enum Resolved {
    Directory(PathBuf),
    Stdin,
    /// A tar, whatever it contains.
    Archive(PathBuf),
    Manifest(PathBuf),
    Image(PathBuf, images::Format),
}

fn resolve(source: &Source) -> Result<Resolved, BuildError> {
    Ok(match source {
        Source::Guess(path) if path.as_os_str() == "-" => Resolved::Stdin,
        Source::Guess(path) if path.is_dir() => match images::of_directory(path)? {
            Some(format) => Resolved::Image(path.clone(), format),
            None => Resolved::Directory(path.clone()),
        },
        Source::Oci(path) if path.is_dir() => {
            let format = images::of_directory(path)?.unwrap_or(images::Format::Oci);
            Resolved::Image(path.clone(), format)
        }
        Source::Guess(path) if mtree::is_manifest(path) => Resolved::Manifest(path.clone()),
        Source::Directory(path) => Resolved::Directory(path.clone()),
        Source::Manifest(path) => Resolved::Manifest(path.clone()),
        Source::Stdin => Resolved::Stdin,
        Source::Tar(path) | Source::Oci(path) | Source::Guess(path) => Resolved::Archive(path.clone()),
    })
}
