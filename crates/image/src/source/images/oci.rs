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
    /// Only indexes have this list.
    #[serde(default, deserialize_with = "present")]
    manifests: Option<Vec<Descriptor>>,
    /// Only manifests of schema 1 have this list.
    fs_layers: Option<IgnoredAny>,
}

/// Parses a list that is present; `null`, which Go programs write, is an empty one.
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

/// The part of a manifest that refers to its configuration.
#[derive(Deserialize)]
struct Configured {
    config: Option<Descriptor>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Option<Platform>,
}

impl Descriptor {
    fn is_called(&self, name: &str) -> bool {
        self.digest == name
            || NAMES.iter().any(|key| self.annotations.get(*key).is_some_and(|has| has == name))
    }

    /// Whether the descriptor's type is that of an index.
    fn is_index(&self) -> bool {
        self.media_type.contains(".index.") || self.media_type.contains(".manifest.list.")
    }

    /// The name by which the image can be selected, for messages.
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
    // The contents are not needed, but without this file the directory is not a layout.
    image.file("oci-layout")?;
    let index = image.file("index.json")?;
    let index: Index = image.json(&index, "index.json")?;
    let mut candidates = images_of(index.manifests);
    let mut wanted = options.image;
    let missing = wanted.map(|wanted| missing(image, &candidates, &format!("{wanted:?}")));
    for _ in 0..MAX_DEPTH {
        if let Some(name) = wanted {
            if candidates.iter().any(|image| image.is_called(name)) {
                candidates.retain(|image| image.is_called(name));
                wanted = None;
            } else {
                candidates = nested(image, &candidates)?;
                if candidates.is_empty() {
                    break;
                }
                continue;
            }
        }
        let chosen = choose(image, candidates, options.platform)?;
        let manifest: Manifest = json(image, &chosen)?;
        let what = match (manifest.layers, manifest.manifests) {
            (Some(layers), None) => return layers.iter().map(|of| layer(image, of)).collect(),
            (None, Some(manifests)) if !manifests.is_empty() => {
                candidates = images_of(manifests);
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
    match (wanted, missing) {
        (Some(_), Some(missing)) => Err(missing),
        _ => Err(image.bad("its indexes are nested too deep")),
    }
}

fn missing(image: &Image<'_>, images: &[Descriptor], wanted: &str) -> BuildError {
    let names = images.iter().map(Descriptor::name).collect::<Vec<_>>().join(", ");
    image.bad(format!("it has no image {wanted}; it has {names}"))
}

/// Descriptors of images; attestations are stored as manifests for the platform "unknown".
fn images_of(mut all: Vec<Descriptor>) -> Vec<Descriptor> {
    all.retain(|of| of.platform.as_ref().is_none_or(|platform| platform.os != "unknown"));
    all
}

/// Images in the indexes among the given descriptors.
fn nested(image: &Image<'_>, images: &[Descriptor]) -> Result<Vec<Descriptor>, BuildError> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for index in images.iter().filter(|of| of.is_index()) {
        if seen.insert(&index.digest) {
            let index: Index = json(image, index)?;
            found.extend(images_of(index.manifests));
        }
    }
    Ok(found)
}

/// Reads and verifies a JSON blob.
fn json<T: for<'de> Deserialize<'de>>(image: &Image<'_>, of: &Descriptor) -> Result<T, BuildError> {
    let blob = blob(image, of)?;
    digest::verify(&blob, &of.digest).map_err(|problem| image.bad(problem))?;
    image.json(&blob, &of.digest)
}

/// The platform in the configuration of a manifest; `None` if it has none.
fn configured(image: &Image<'_>, of: &Descriptor) -> Result<Option<Platform>, BuildError> {
    if of.is_index() {
        return Ok(None);
    }
    let Configured { config } = json(image, of)?;
    // Configurations of other types need not be JSON.
    let is_image =
        |config: &Descriptor| config.media_type.contains(".image.") || config.media_type.is_empty();
    let Some(config) = config.filter(is_image) else { return Ok(None) };
    let Config { platform } = json(image, &config)?;
    Ok(platform.filter(|platform| !platform.os.is_empty() && !platform.architecture.is_empty()))
}

fn choose(
    image: &Image<'_>,
    mut images: Vec<Descriptor>,
    platform: Option<&str>,
) -> Result<Descriptor, BuildError> {
    if let Some(wanted) = platform
        && !images.is_empty()
    {
        for of in images.iter_mut().filter(|of| of.platform.is_none()) {
            of.platform = configured(image, of)?;
        }
        let platform_of = |image: &Descriptor| image.platform.as_ref().map(Platform::name);
        let fits = images.iter().find(|image| image.platform.as_ref().is_some_and(|has| has.is(wanted)));
        // An image without a platform may be for any.
        let found = fits.and_then(platform_of);
        if !images.iter().any(|image| platform_of(image) == found) {
            return Err(missing(image, &images, &format!("for {wanted}")));
        }
        images.retain(|image| platform_of(image) == found);
    }
    // One image may have several names.
    let mut seen = BTreeSet::new();
    images.retain(|image| seen.insert(image.digest.clone()));
    image.only(images, Descriptor::name, |of| of.digest.clone())
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
