//! OCI image layouts (opencontainers/image-spec, image-layout.md): an index, manifests, ordered
//! layers.

use super::digest;
use super::files::Blob;
use super::{Image, Layer, LayerDigest, Platform};
use crate::BuildError;
use crate::source::LoadOptions;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum nesting of indexes.
const MAX_DEPTH: u32 = 4;

/// Annotations that name an image: the specification's, and containerd's, which includes the
/// repository.
const NAMES: [&str; 2] = ["org.opencontainers.image.ref.name", "io.containerd.image.name"];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default, deserialize_with = "present")]
    layers: Option<Vec<Descriptor>>,
    /// Only indexes have these.
    #[serde(default, deserialize_with = "present")]
    manifests: Option<Vec<Descriptor>>,
    /// Only manifests of schema 1 have these.
    fs_layers: Option<IgnoredAny>,
}

/// A list that is there; `null` is an empty one, as written by Go programs.
fn present<'de, D: Deserializer<'de>>(list: D) -> Result<Option<Vec<Descriptor>>, D::Error> {
    Option::deserialize(list).map(|list| Some(list.unwrap_or_default()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    platform: Option<Platform>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    fn is_called(&self, name: &str) -> bool {
        self.digest == name
            || NAMES.iter().any(|key| self.annotations.get(*key).is_some_and(|has| has == name))
    }

    /// Name the image can be selected by, for messages.
    fn name(&self) -> String {
        let name = NAMES.iter().find_map(|key| self.annotations.get(*key));
        match (name, &self.platform) {
            (None, Some(platform)) => platform.name(),
            (None, None) => self.digest.clone(),
            (Some(name), Some(platform)) => format!("{name:?} for {}", platform.name()),
            (Some(name), None) => format!("{name:?}"),
        }
    }
}

/// Layers of the selected image, lowest first.
pub(super) fn layers(image: &Image<'_>, options: &LoadOptions<'_>) -> Result<Vec<Layer>, BuildError> {
    // Its contents are not needed, but without this file it is not a layout.
    image.file("oci-layout")?;
    let index = image.file("index.json")?;
    let index: Index = image.json(&index, "index.json")?;
    let mut candidates = index.manifests;
    let mut wanted = options.image;
    for _ in 0..MAX_DEPTH {
        let chosen = choose(image, candidates, wanted.take(), options.platform)?;
        let blob = blob(image, &chosen)?;
        digest::verify(&blob, &chosen.digest).map_err(|problem| image.bad(problem))?;
        let manifest: Manifest = image.json(&blob, &chosen.digest)?;
        let what = match (manifest.layers, manifest.manifests) {
            (Some(layers), None) => return layers.iter().map(|of| layer(image, of)).collect(),
            (None, Some(manifests)) if !manifests.is_empty() => {
                candidates = manifests;
                continue;
            }
            (None, Some(_)) => "an index that lists no image",
            (Some(_), Some(_)) => "both a manifest and an index",
            (None, None) if manifest.fs_layers.is_some() => {
                "a manifest of Docker's schema 1, which is not read; pull or copy the image again with a newer tool"
            }
            (None, None) => "neither a manifest nor an index: it lists neither layers nor manifests",
        };
        return Err(image.bad(format!("{} is {what}", chosen.digest)));
    }
    Err(image.bad("its indexes are nested too deep"))
}

fn choose(
    image: &Image<'_>,
    all: Vec<Descriptor>,
    wanted: Option<&str>,
    platform: Option<&str>,
) -> Result<Descriptor, BuildError> {
    // Attestations are stored as manifests for the platform "unknown".
    let is_image = |d: &Descriptor| d.platform.as_ref().is_none_or(|p| p.os != "unknown");
    let mut images: Vec<_> = all.into_iter().filter(is_image).collect();
    let names = |images: &[Descriptor]| images.iter().map(Descriptor::name).collect::<Vec<_>>().join(", ");
    let missing = |images: &[Descriptor], wanted: &str| {
        image.bad(format!("it has no image {wanted}; it has {}", names(images)))
    };
    if let Some(wanted) = wanted {
        let called = images.iter().any(|image| image.is_called(wanted));
        if !called {
            return Err(missing(&images, &format!("{wanted:?}")));
        }
        images.retain(|image| image.is_called(wanted));
    }
    // A single manifest need not state its platform; if it does, the platform must match.
    if let Some(wanted) = platform
        && images.iter().any(|image| image.platform.is_some())
    {
        let platform_of = |image: &Descriptor| image.platform.as_ref().map(Platform::name);
        let found = images.iter().find(|image| image.platform.as_ref().is_some_and(|has| has.is(wanted)));
        let Some(found) = found.map(platform_of) else {
            return Err(missing(&images, &format!("for {wanted}")));
        };
        images.retain(|image| platform_of(image) == found);
    }
    // One image may have several names.
    let mut seen = BTreeSet::new();
    images.retain(|image| seen.insert(image.digest.clone()));
    image.only(images, Descriptor::name)
}

fn layer(image: &Image<'_>, of: &Descriptor) -> Result<Layer, BuildError> {
    let is_tar = of.media_type.contains(".layer.")
        || of.media_type.contains(".rootfs.diff.")
        || of.media_type.contains(".rootfs.foreign.diff.");
    if !is_tar || of.media_type.ends_with("+encrypted") {
        return Err(image.bad(format!("layers of type {:?} are not read", of.media_type)));
    }
    let name = format!("layer {} of {}", of.digest, image.name);
    Ok(Layer { blob: blob(image, of)?, name, digest: LayerDigest::Stored(of.digest.clone()) })
}

fn blob(image: &Image<'_>, of: &Descriptor) -> Result<Blob, BuildError> {
    let Some((algorithm, hex)) = of.digest.split_once(':').filter(|(algorithm, hex)| {
        let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric());
        plain(algorithm) && plain(hex)
    }) else {
        return Err(image.bad(format!("{:?} is not a digest", of.digest)));
    };
    let blob = image.file(&format!("blobs/{algorithm}/{hex}"))?;
    if blob.len != of.size {
        let problem = format!("blob {} has {} bytes, its descriptor says {}", of.digest, blob.len, of.size);
        return Err(image.bad(problem));
    }
    Ok(blob)
}
