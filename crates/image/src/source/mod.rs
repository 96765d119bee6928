//! Filling a [`Tree`] from directories, archives and OCI layouts.

mod acl_text;
mod archive;
mod decode;
mod lay;
mod marks;
mod oci;
mod pax;
mod place;
mod reader;
mod sparse;
mod store;
mod tar;
mod walk;

pub(crate) use reader::{Origin, Reader};
pub(crate) use store::Stores;

use crate::tree::Tree;
use crate::{BuildError, Note, Source, quoted_path, settle};
use extant_rt::Rt;
use std::path::Path;

/// Options of loading.
pub(crate) struct LoadOptions<'a> {
    /// Where spool files go: the directory of the output.
    pub(crate) spool_dir: &'a Path,
    pub(crate) one_file_system: bool,
    /// An older image under the output's name, which is not to be packed into the new one.
    pub(crate) replaced: Option<FileIdentity>,
    /// Which image of an OCI layout, as `os/architecture[/variant]`.
    pub(crate) platform: Option<&'a str>,
    /// Whether archives and directories are layers, whose whiteouts are applied.
    pub(crate) layers: bool,
}

/// Major and minor number of a file's device, and its inode.
pub(crate) type FileIdentity = (u32, u32, u64);

/// The sources, laid over each other in order, and the stores of their contents.
pub(crate) fn load(
    sources: &[Source],
    options: &LoadOptions<'_>,
    rt: &Rt,
    notes: &mut Vec<Note>,
) -> Result<(Tree, Stores), BuildError> {
    let mut tree = Tree::new();
    let mut stores = Stores::new(options.spool_dir.to_path_buf());
    for source in sources {
        match resolve(source) {
            Source::Directory(path) => {
                let root = stores.add_root(&path)?;
                if options.layers {
                    let (mut layer, _) = walk::walk(Tree::new(), &stores, root, options, rt)?;
                    marks::take_marks(&mut layer, &quoted_path(&path))?;
                    layer.mark_layered();
                    lay::lay(&mut tree, layer)?;
                } else {
                    let whiteouts;
                    (tree, whiteouts) = walk::walk(tree, &stores, root, options, rt)?;
                    notes.extend(whiteouts);
                }
            }
            Source::Stdin => archive::load_stdin(&mut tree, &mut stores, options, notes)?,
            Source::Tar(path) => archive::load_file(&mut tree, &mut stores, &path, options, notes)?,
            // A layout that is packed as a tar is known by what is in it.
            Source::Oci(path) if !path.is_dir() => {
                archive::load_file(&mut tree, &mut stores, &path, options, notes)?;
            }
            Source::Oci(path) => oci::load(&mut tree, &mut stores, &path, options.platform, notes)?,
            Source::Guess(_) => unreachable!("resolved above"),
        }
    }
    settle::follow_access_lists(&mut tree);
    Ok((tree, stores))
}

fn resolve(source: &Source) -> Source {
    let Source::Guess(path) = source else { return source.clone() };
    if path.as_os_str() == "-" {
        return Source::Stdin;
    }
    if path.is_dir() {
        let oci = path.join("oci-layout").is_file() && path.join("index.json").is_file();
        return if oci { Source::Oci(path.clone()) } else { Source::Directory(path.clone()) };
    }
    Source::Tar(path.clone())
}
