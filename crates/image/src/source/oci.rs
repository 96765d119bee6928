//! OCI image layouts (opencontainers/image-spec, image-layout.md): index, manifest, layers in order.

use super::decode::{self, Compression};
use super::lay::lay;
use super::tar::{self, Input};
use super::{Stores, place};
use crate::tree::{Kind, NodeId, Payload, Tree};
use crate::{BuildError, Note, quoted_path};
use parking_lot::Mutex;
use serde::Deserialize;
use sha2::{Digest, Sha256, Sha512};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Longest index or manifest that is read.
const MAX_JSON: u64 = 16 << 20;
/// Indexes within indexes.
const MAX_DEPTH: u32 = 4;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
    variant: Option<String>,
}

impl Platform {
    fn name(&self) -> String {
        let variant = self.variant.as_deref().map(|v| format!("/{v}")).unwrap_or_default();
        format!("{}/{}{variant}", self.os, self.architecture)
    }
}

/// Whether a tree read from an archive is an OCI layout.
pub(crate) fn is_layout(tree: &Tree) -> bool {
    [&b"oci-layout"[..], b"index.json", b"blobs"].iter().all(|name| tree.lookup(NodeId::ROOT, name).is_some())
}

/// Adds the image in a layout directory.
pub(crate) fn load(
    tree: &mut Tree,
    stores: &mut Stores,
    path: &Path,
    platform: Option<&str>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let root = LayoutRoot::Directory(path.to_path_buf());
    Layout { name: quoted_path(path), root, stores, notes }.load(tree, platform)
}

/// Adds the image in a layout that came as an archive.
pub(crate) fn load_archived(
    tree: &mut Tree,
    stores: &mut Stores,
    layout: Tree,
    name: String,
    platform: Option<&str>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    Layout { name, root: LayoutRoot::Archive(Box::new(layout)), stores, notes }.load(tree, platform)
}

struct Layout<'a> {
    name: String,
    root: LayoutRoot,
    stores: &'a mut Stores,
    notes: &'a mut Vec<Note>,
}

enum LayoutRoot {
    Directory(PathBuf),
    Archive(Box<Tree>),
}

/// A file of the layout.
struct Blob {
    file: Arc<File>,
    /// Where it begins in `file`.
    start: u64,
    len: u64,
    /// Where `file` is known to the stores, if it is.
    archive: Option<u16>,
}

impl Layout<'_> {
    fn load(&mut self, tree: &mut Tree, platform: Option<&str>) -> Result<(), BuildError> {
        let index = self.file("index.json")?;
        let index: Index = self.json(&index, "index.json")?;
        let mut candidates = index.manifests;
        for _ in 0..MAX_DEPTH {
            let chosen = self.choose(candidates, platform)?;
            let manifest: Manifest = self.verified_json(&chosen)?;
            if manifest.manifests.is_empty() {
                return manifest.layers.iter().try_for_each(|layer| self.layer(tree, layer));
            }
            candidates = manifest.manifests;
        }
        Err(self.bad("its indexes are nested too deep"))
    }

    fn choose(&self, all: Vec<Descriptor>, wanted: Option<&str>) -> Result<Descriptor, BuildError> {
        // Attestations travel as manifests for a platform "unknown".
        let is_image = |d: &Descriptor| d.platform.as_ref().is_none_or(|p| p.os != "unknown");
        let mut images: Vec<_> = all.into_iter().filter(is_image).collect();
        let names: Vec<_> = images
            .iter()
            .map(|d| d.platform.as_ref().map_or_else(|| d.digest.clone(), Platform::name))
            .collect();
        // A manifest that is alone need not say what it is for; one that does is not taken for another.
        if let Some(wanted) = wanted
            && images.iter().any(|image| image.platform.is_some())
        {
            let matches = |name: &String| name == wanted || name.starts_with(&format!("{wanted}/"));
            return match names.iter().position(matches) {
                Some(at) => Ok(images.swap_remove(at)),
                None => Err(self.bad(format!("it has no image for {wanted}; it has {}", names.join(", ")))),
            };
        }
        match images.len() {
            0 => Err(self.bad("its index lists no image")),
            1 => Ok(images.swap_remove(0)),
            _ => {
                Err(self.bad(format!("it holds several images ({}); name one as platform", names.join(", "))))
            }
        }
    }

    fn layer(&mut self, tree: &mut Tree, layer: &Descriptor) -> Result<(), BuildError> {
        let is_tar = layer.media_type.contains(".layer.")
            || layer.media_type.contains(".rootfs.diff.")
            || layer.media_type.contains(".rootfs.foreign.diff.");
        if !is_tar || layer.media_type.ends_with("+encrypted") {
            return Err(self.bad(format!("layers of type {:?} are not read", layer.media_type)));
        }
        let blob = self.blob(layer)?;
        let name = format!("layer {} of {}", layer.digest, self.name);
        let unreadable = |error| BuildError::Source { action: "read", path: name.clone(), error };
        let mut start = [0; 16];
        let n = blob.file.read_at(&mut start, blob.start).map_err(unreadable)?.min(blob.len as usize);
        let mut upper = Tree::new();
        if Compression::of(&start[..n]).map_err(unreadable)? == Compression::Plain {
            self.verify(&blob, layer)?;
            let archive = match blob.archive {
                Some(archive) => archive,
                None => self.stores.add_archive(blob.file.clone(), name.clone())?,
            };
            let mut input = Input::file(blob.file, archive, blob.start, blob.len, name);
            tar::read(&mut upper, Some(tree), self.stores, &mut input)?;
            self.notes.extend(input.finish(true)?);
            return lay(tree, upper);
        }
        let hash = Arc::new(Mutex::new(Hash::of(&layer.digest).ok_or_else(|| self.unknown_digest(layer))?));
        let reader = Hashing { inner: blob.reader(), hash: hash.clone() };
        let mut input = Input::stream(decode::decoded(reader).map_err(unreadable)?, name.clone());
        tar::read(&mut upper, Some(tree), self.stores, &mut input)?;
        self.notes.extend(input.finish(true)?);
        drop(input);
        self.stores.finish()?;
        let hash = hash.lock().finish();
        self.compare(layer, &hash)?;
        lay(tree, upper)
    }

    fn verified_json<T: for<'de> Deserialize<'de>>(&self, of: &Descriptor) -> Result<T, BuildError> {
        let blob = self.blob(of)?;
        self.verify(&blob, of)?;
        self.json(&blob, &of.digest)
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, blob: &Blob, what: &str) -> Result<T, BuildError> {
        if blob.len > MAX_JSON {
            return Err(self.bad(format!("{what} has {} bytes; at most {MAX_JSON} are read", blob.len)));
        }
        let mut text = Vec::new();
        blob.reader().read_to_end(&mut text).map_err(|e| self.bad(format!("cannot read {what}: {e}")))?;
        serde_json::from_slice(&text).map_err(|e| self.bad(format!("{what} is not as it should be: {e}")))
    }

    fn blob(&self, of: &Descriptor) -> Result<Blob, BuildError> {
        let Some((algorithm, hex)) = of.digest.split_once(':').filter(|(algorithm, hex)| {
            let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
            plain(algorithm) && plain(hex)
        }) else {
            return Err(self.bad(format!("{:?} is not a digest", of.digest)));
        };
        let blob = self.file(&format!("blobs/{algorithm}/{hex}"))?;
        if blob.len != of.size {
            let problem =
                format!("blob {} has {} bytes, its descriptor says {}", of.digest, blob.len, of.size);
            return Err(self.bad(problem));
        }
        Ok(blob)
    }

    fn file(&self, path: &str) -> Result<Blob, BuildError> {
        match &self.root {
            LayoutRoot::Directory(dir) => {
                let open = || {
                    // A layout may be hostile: opening a FIFO must not wait for a writer.
                    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
                    let file = OpenOptions::new().read(true).custom_flags(flags).open(dir.join(path))?;
                    let meta = file.metadata()?;
                    if !meta.is_file() {
                        return Err(io::Error::other("it is not a regular file"));
                    }
                    let len = meta.len();
                    Ok::<_, io::Error>(Blob { file: Arc::new(file), start: 0, len, archive: None })
                };
                open().map_err(|e| self.bad(format!("cannot open {path}: {e}")))
            }
            LayoutRoot::Archive(layout) => self.archived(layout, path),
        }
    }

    fn archived(&self, layout: &Tree, path: &str) -> Result<Blob, BuildError> {
        let missing = || self.bad(format!("it has no {path}"));
        let node = layout.node(place::find(layout, path.as_bytes())?.ok_or_else(missing)?);
        match node.payload {
            Payload::Stored { archive, offset } if node.kind == Kind::File => {
                let file = self.stores.archives[usize::from(archive)].file.clone();
                Ok(Blob { file, start: offset, len: node.size, archive: Some(archive) })
            }
            _ => Err(missing()),
        }
    }

    fn verify(&self, blob: &Blob, of: &Descriptor) -> Result<(), BuildError> {
        let mut hash = Hash::of(&of.digest).ok_or_else(|| self.unknown_digest(of))?;
        let mut reader = blob.reader();
        let mut buf = vec![0; 256 << 10];
        loop {
            match reader.read(&mut buf) {
                Ok(0) => break,
                Ok(n) => hash.update(&buf[..n]),
                Err(e) => return Err(self.bad(format!("cannot read blob {}: {e}", of.digest))),
            }
        }
        self.compare(of, &hash.finish())
    }

    fn compare(&self, of: &Descriptor, found: &str) -> Result<(), BuildError> {
        if of.digest == found {
            return Ok(());
        }
        Err(self.bad(format!("blob {} is damaged: its digest is {found}", of.digest)))
    }

    fn unknown_digest(&self, of: &Descriptor) -> BuildError {
        self.bad(format!("digests like {:?} are not known; sha256 and sha512 are", of.digest))
    }

    fn bad(&self, problem: impl Into<String>) -> BuildError {
        BuildError::Oci { layout: self.name.clone(), problem: problem.into() }
    }
}

impl Blob {
    fn reader(&self) -> BlobReader {
        BlobReader { file: self.file.clone(), at: self.start, end: self.start + self.len }
    }
}

struct BlobReader {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for BlobReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = (self.end - self.at).min(buf.len() as u64) as usize;
        let n = self.file.read_at(&mut buf[..want], self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

enum Hash {
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hash {
    fn of(digest: &str) -> Option<Self> {
        match digest.split_once(':')?.0 {
            "sha256" => Some(Self::Sha256(Sha256::new())),
            "sha512" => Some(Self::Sha512(Sha512::new())),
            _ => None,
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    fn finish(&self) -> String {
        use std::fmt::Write;
        let (name, bytes) = match self {
            Self::Sha256(hash) => ("sha256", hash.clone().finalize().to_vec()),
            Self::Sha512(hash) => ("sha512", hash.clone().finalize().to_vec()),
        };
        bytes.iter().fold(format!("{name}:"), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }
}

/// Hashes what passes through.
struct Hashing<R> {
    inner: R,
    hash: Arc<Mutex<Hash>>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hash.lock().update(&buf[..n]);
        Ok(n)
    }
}
