//! Filling a [`Tree`] from directories, archives and OCI layouts.

mod acl_text;
mod decode;
mod oci;
mod pax;
mod place;
mod sparse;
mod store;
mod tar;
mod walk;

pub(crate) use store::Stores;

use crate::tree::Tree;
use crate::{BuildError, Source};
use extant_rt::Rt;
use std::path::Path;

/// What loading needs to know.
pub(crate) struct LoadOptions<'a> {
    /// Where spool files go: the directory of the output.
    pub(crate) spool_dir: &'a Path,
    pub(crate) one_file_system: bool,
    /// An older image under the output's name, which is not to be packed into the new one.
    pub(crate) replaced: Option<FileIdentity>,
    /// Which image of an OCI layout, as `os/architecture[/variant]`.
    pub(crate) platform: Option<&'a str>,
}

/// Major and minor number of a file's device, and its inode.
pub(crate) type FileIdentity = (u32, u32, u64);

/// The sources, laid over each other in order, and what their contents are read from.
pub(crate) fn load(
    sources: &[Source],
    options: &LoadOptions<'_>,
    rt: &Rt,
) -> Result<(Tree, Stores), BuildError> {
    let mut tree = Tree::new();
    let mut stores = Stores::new(options.spool_dir.to_path_buf());
    for source in sources {
        match resolve(source) {
            Source::Directory(path) => {
                let root = stores.add_root(&path)?;
                tree = walk::walk(tree, &stores, root, options, rt)?;
            }
            Source::Tar(path) => tar::load_file(&mut tree, &mut stores, &path, options.platform)?,
            Source::Stdin => tar::load_stdin(&mut tree, &mut stores, options.platform)?,
            Source::Oci(path) => oci::load(&mut tree, &mut stores, &path, options.platform)?,
            Source::Guess(_) => unreachable!("resolved above"),
        }
    }
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

/// Whether ext has a place for an attribute of this name; others (`com.apple.…`) stay behind.
fn is_kept_xattr(name: &[u8]) -> bool {
    let prefixes: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    prefixes.iter().any(|p| name.len() > p.len() && name.starts_with(p))
        || name == b"system.posix_acl_access"
        || name == b"system.posix_acl_default"
}
