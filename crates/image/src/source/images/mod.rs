//! Container images: OCI layouts and `docker save` archives, as directories or packed as tars.
//!
//! In both, names of layer files come from the image itself and are untrusted: a file is opened
//! only if it is within the image and is a regular file.

mod digest;
mod docker;
mod files;
mod oci;

use super::decode::{self, Compression};
use super::merge_trees::lay;
use super::tar::{self, Input};
use super::{LoadOptions, Stores};
use crate::tree::Tree;
use crate::{BuildError, Note, quoted_path};
use digest::{Hash, Hashing};
use extant_format::UintExt;
use files::{Blob, Files};
use parking_lot::Mutex;
use serde::Deserialize;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Maximum size of a JSON file to read, in bytes.
const MAX_JSON: u64 = 16 << 20;

/// Some editors put this before UTF-8 text. RFC 8259 allows parsers to ignore it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// How an image is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// An OCI image layout.
    Oci,
    /// An archive of `docker save`.
    Docker,
}

/// Detects whether a host directory is an image, and its format.
pub(crate) fn of_directory(path: &Path) -> Result<Option<Format>, BuildError> {
    let stores = Stores::new(PathBuf::new(), None);
    Image { name: quoted_path(path), files: Files::of_directory(path)?, stores: &stores }.format()
}

/// Like [`of_directory`], for a tree read from an archive.
pub(crate) fn of_archive(tree: &Tree, stores: &Stores, name: &str) -> Result<Option<Format>, BuildError> {
    Image { name: name.to_owned(), files: Files::Archive(tree), stores }.format()
}

/// Adds the image in a directory.
pub(crate) fn load_directory(
    tree: &mut Tree,
    stores: &mut Stores,
    path: &Path,
    format: Format,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    load(tree, stores, Files::of_directory(path)?, quoted_path(path), format, options, notes)
}

/// Adds the image in an archive that has been read into the tree `archive`.
pub(crate) fn load_archive(
    tree: &mut Tree,
    stores: &mut Stores,
    archive: &Tree,
    name: String,
    format: Format,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    load(tree, stores, Files::Archive(archive), name, format, options, notes)
}

fn load(
    tree: &mut Tree,
    stores: &mut Stores,
    files: Files<'_>,
    name: String,
    format: Format,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let image = Image { name, files, stores: &*stores };
    let layers = match format {
        Format::Oci => oci::layers(&image, options)?,
        Format::Docker => docker::layers(&image, options)?,
    };
    let name = image.name;
    let last = layers.len().saturating_sub(1);
    for (n, layer) in layers.into_iter().enumerate() {
        stores.begin_tree(n == last);
        add_layer(tree, stores, layer, &name, options, notes)?;
    }
    Ok(())
}

/// An image being examined.
struct Image<'a> {
    /// The image's name, for messages.
    name: String,
    files: Files<'a>,
    stores: &'a Stores,
}

/// A layer, and the digest that verifies it.
struct Layer {
    blob: Blob,
    /// The layer's name, for messages.
    name: String,
    digest: LayerDigest,
}

enum LayerDigest {
    /// The digest of the bytes as stored.
    Stored(String),
    /// The digest of the decompressed archive.
    Plain(String),
}

impl LayerDigest {
    fn text(&self) -> &str {
        match self {
            Self::Stored(text) | Self::Plain(text) => text,
        }
    }
}

fn add_layer(
    tree: &mut Tree,
    stores: &mut Stores,
    layer: Layer,
    image: &str,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let Layer { blob, name, digest } = layer;
    let unreadable = |error| BuildError::Source { action: "read", path: name.clone(), error };
    let bad = |problem| BuildError::Oci { layout: image.to_owned(), problem };
    let mut start = [0; 16];
    let n = blob.file.read_at(&mut start, blob.start).map_err(unreadable)?.min(blob.len.to_usize());
    let mut upper = Tree::new();
    if Compression::of(&start[..n]).map_err(unreadable)? == Compression::Plain {
        digest::verify(&blob, digest.text()).map_err(bad)?;
        let archive = match blob.archive {
            Some(archive) => archive,
            None => stores.add_archive(blob.file.clone(), name.clone())?,
        };
        let mut input = Input::file(blob.file, archive, blob.start, blob.len, name.clone());
        tar::read(&mut upper, Some(tree), stores, &mut input)?;
        notes.extend(input.finish(true)?);
        return lay(tree, upper, &name, options, notes);
    }
    let hash = Arc::new(Mutex::new(Hash::of(digest.text()).map_err(bad)?));
    let stream: decode::Stream = match &digest {
        LayerDigest::Stored(_) => {
            decode::decoded(Hashing::new(blob.reader(), hash.clone())).map_err(unreadable)?
        }
        LayerDigest::Plain(_) => {
            let plain = decode::decoded(blob.reader()).map_err(unreadable)?;
            Box::new(Hashing::new(plain, hash.clone()))
        }
    };
    let mut input = Input::stream(stream, name.clone());
    tar::read(&mut upper, Some(tree), stores, &mut input)?;
    notes.extend(input.finish(true)?);
    drop(input);
    stores.finish()?;
    let found = hash.lock().finish();
    digest::compare(digest.text(), &found).map_err(bad)?;
    lay(tree, upper, &name, options, notes)
}

/// `os/architecture[/variant]`, as in manifests and configurations.
#[derive(Clone, Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    fn name(&self) -> String {
        let variant = self.variant.as_deref().filter(|v| !v.is_empty());
        let variant = variant.map(|v| format!("/{v}")).unwrap_or_default();
        format!("{}/{}{variant}", self.os, self.architecture)
    }

    /// Whether it matches the wanted platform in every part that was given.
    fn is(&self, wanted: &str) -> bool {
        let name = self.name();
        name == wanted || name.strip_prefix(wanted).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl Image<'_> {
    fn format(&self) -> Result<Option<Format>, BuildError> {
        if self.files.has("oci-layout") && (self.files.has("index.json") || self.files.has("blobs")) {
            return Ok(Some(Format::Oci));
        }
        docker::is_archive(self).map(|is_archive| is_archive.then_some(Format::Docker))
    }

    fn file(&self, path: &str) -> Result<Blob, BuildError> {
        self.files.open(path, self.stores).map_err(|problem| self.bad(problem))
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, blob: &Blob, what: &str) -> Result<T, BuildError> {
        let text = self.text(blob, what)?;
        serde_json::from_slice(&text).map_err(|e| self.bad(format!("{what} is not as it should be: {e}")))
    }

    fn text(&self, blob: &Blob, what: &str) -> Result<Vec<u8>, BuildError> {
        if blob.len > MAX_JSON {
            return Err(self.too_long(blob, what));
        }
        let mut text = Vec::new();
        blob.reader().read_to_end(&mut text).map_err(|e| self.bad(format!("cannot read {what}: {e}")))?;
        if text.starts_with(BYTE_ORDER_MARK) {
            text.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(text)
    }

    fn too_long(&self, blob: &Blob, what: &str) -> BuildError {
        self.bad(format!("{what} has {} bytes; at most {MAX_JSON} are read", blob.len))
    }

    fn bad(&self, problem: impl Into<String>) -> BuildError {
        BuildError::Oci { layout: self.name.clone(), problem: problem.into() }
    }

    /// Returns the only one of these images; `name` is what each is called in messages, and `id`
    /// distinguishes those with the same name.
    fn only<T>(
        &self,
        mut images: Vec<T>,
        name: impl Fn(&T) -> String,
        id: impl Fn(&T) -> String,
    ) -> Result<T, BuildError> {
        match images.len() {
            0 => Err(self.bad("its index lists no image")),
            1 => Ok(images.swap_remove(0)),
            _ => {
                let names: Vec<_> = images.iter().map(name).collect();
                let is_unique = |name: &String| names.iter().filter(|other| *other == name).count() == 1;
                let told = names.iter().zip(&images).map(|(name, image)| match is_unique(name) {
                    true => name.clone(),
                    false => format!("{name} as {}", id(image)),
                });
                let images = told.collect::<Vec<_>>().join(", ");
                Err(BuildError::SeveralImages { image: self.name.clone(), images })
            }
        }
    }
}
