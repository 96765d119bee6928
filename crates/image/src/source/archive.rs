//! Archive sources: a plain tar, a layer of an image, or a whole image packed as a tar.

use super::merge_trees::lay;
use super::tar::{self, Input};
use super::{LoadOptions, Stores, decode, images};
use crate::tree::Tree;
use crate::{BuildError, Note, quoted_path};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Adds a tar file, or the image inside it.
pub(crate) fn load_file(
    tree: &mut Tree,
    stores: &mut Stores,
    path: &Path,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let name = quoted_path(path);
    let fail = |action, error| BuildError::Source { action, path: quoted_path(path), error };
    let file = File::open(path).map_err(|e| fail("open", e))?;
    let is_regular = file.metadata().map_err(|e| fail("read", e))?.is_file();
    let mut start = [0; 16];
    let n = if is_regular { file.read_at(&mut start, 0).map_err(|e| fail("read", e))? } else { 0 };
    let plain = is_regular
        && decode::Compression::of(&start[..n]).map_err(|e| fail("read", e))? == decode::Compression::Plain;
    let input = if plain {
        let len = file.metadata().map_err(|e| fail("read", e))?.len();
        let file = Arc::new(file);
        let archive = stores.add_archive(file.clone(), name.clone())?;
        Input::file(file, archive, 0, len, name)
    } else {
        Input::stream(decode::decoded(file).map_err(|e| fail("read", e))?, name)
    };
    load(tree, stores, input, options, notes)
}

/// Adds an archive from standard input.
pub(crate) fn load_stdin(
    tree: &mut Tree,
    stores: &mut Stores,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let stream = decode::decoded(std::io::stdin()).map_err(|error| BuildError::Source {
        action: "read",
        path: "standard input".into(),
        error,
    })?;
    load(tree, stores, Input::stream(stream, "standard input".into()), options, notes)
}

fn load(
    tree: &mut Tree,
    stores: &mut Stores,
    mut input: Input,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let name = input.name.clone();
    let mut fresh = Tree::new();
    stores.begin_tree(true);
    tar::read(&mut fresh, options.layers.then_some(&*tree), stores, &mut input)?;
    notes.extend(input.finish(false)?);
    stores.finish()?;
    if let Some(format) = images::of_archive(&fresh, stores, &name)? {
        return images::load_archive(tree, stores, &fresh, name, format, options, notes);
    }
    notes.extend(input.whiteouts());
    lay(tree, fresh, &name, options, notes)
}
