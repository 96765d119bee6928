//! `docker save` archives from before Docker 25, and the same format as written by podman, skopeo,
//! crane and others: `manifest.json` lists images, each with a configuration and its layers (moby,
//! image/tarexport).

use super::{Image, Layer, LayerDigest, MAX_JSON, Platform};
use crate::BuildError;
use crate::source::LoadOptions;
use crate::source::layer_name::is_layer_name;
use serde::Deserialize;
use std::collections::BTreeSet;

const MANIFEST: &str = "manifest.json";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Listed {
    config: String,
    repo_tags: Option<Vec<String>>,
    layers: Option<Vec<String>>,
}

impl Listed {
    fn is_called(&self, name: &str) -> bool {
        self.config == name || self.repo_tags.iter().flatten().any(|tag| tag == name)
    }

    /// Names the image can be selected by, for messages.
    fn name(&self) -> String {
        let tags: Vec<_> = self.repo_tags.iter().flatten().map(|tag| format!("{tag:?}")).collect();
        if tags.is_empty() { format!("{:?}", self.config) } else { tags.join(" or ") }
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(flatten)]
    platform: Option<Platform>,
    rootfs: Rootfs,
}

#[derive(Deserialize)]
struct Rootfs {
    #[serde(default)]
    diff_ids: Vec<String>,
}

/// Whether the files are such an archive. Archives from Docker before 1.10, which have no list of
/// images, are refused.
pub(super) fn is_archive(image: &Image<'_>) -> Result<bool, BuildError> {
    if !image.files.has(MANIFEST) {
        if image.files.has("repositories") && has_layers(image) {
            return Err(image.bad(
                "it looks like an archive of Docker before 1.10, which has no manifest.json; load it with docker and save it \
                 again",
            ));
        }
        return Ok(false);
    }
    let problem = match image.file(MANIFEST) {
        Ok(blob) if blob.len <= MAX_JSON => match flaw(&image.text(&blob, MANIFEST)?) {
            None => return Ok(true),
            Some(flaw) => image.bad(format!(
                "it looks like an archive of docker save, but {MANIFEST} is not as it should be: {flaw}"
            )),
        },
        Ok(blob) => image.too_long(&blob, MANIFEST),
        Err(error) => error,
    };
    // Next to an archive's other files this must be its list. Anywhere else it is just a file.
    if has_layers(image) { Err(problem) } else { Ok(false) }
}

/// Returns what is wrong with a list of images; `None` if it is valid.
fn flaw(text: &[u8]) -> Option<String> {
    let list: serde_json::Value = match serde_json::from_slice(text) {
        Ok(list) => list,
        Err(error) => return Some(error.to_string()),
    };
    match list.get(0) {
        None => Some("it lists no image".into()),
        Some(first) if first.get("Layers").is_none() => Some("its first image has no Layers".into()),
        Some(_) => None,
    }
}

/// Whether any file is named like a layer of such an archive.
fn has_layers(image: &Image<'_>) -> bool {
    let is_layer = |name: &String| is_layer_name(name) || image.files.has(&format!("{name}/layer.tar"));
    image.files.names().iter().any(is_layer)
}

/// Layers of the selected image, lowest first.
pub(super) fn layers(image: &Image<'_>, options: &LoadOptions<'_>) -> Result<Vec<Layer>, BuildError> {
    let mut images: Vec<Listed> = image.json(&image.file(MANIFEST)?, MANIFEST)?;
    let names = |images: &[Listed]| images.iter().map(Listed::name).collect::<Vec<_>>().join(", ");
    let missing = |images: &[Listed], wanted: &str| {
        image.bad(format!("it has no image {wanted}; it has {}", names(images)))
    };
    if let Some(wanted) = options.image {
        let called = images.iter().any(|image| image.is_called(wanted));
        if !called {
            return Err(missing(&images, &format!("{wanted:?}")));
        }
        images.retain(|image| image.is_called(wanted));
    }
    let config =
        |of: &Listed| -> Result<Config, BuildError> { image.json(&image.file(&of.config)?, &of.config) };
    if let Some(wanted) = options.platform {
        let mut fit = Vec::new();
        for of in &images {
            // A configuration that states no platform may be for any.
            fit.push(config(of)?.platform.is_none_or(|has| has.is(wanted)));
        }
        if !fit.contains(&true) {
            return Err(missing(&images, &format!("for {wanted}")));
        }
        let mut fit = fit.into_iter();
        images.retain(|_| fit.next() == Some(true));
    }
    let mut seen = BTreeSet::new();
    images.retain(|image| seen.insert(image.config.clone()));
    let chosen = image.only(images, Listed::name, |of| format!("{:?}", of.config))?;
    let digests = config(&chosen)?.rootfs.diff_ids;
    let layers = chosen.layers.unwrap_or_default();
    if digests.len() != layers.len() {
        let problem = format!(
            "{MANIFEST} lists {} layers of {}, and {} has digests of {}",
            layers.len(),
            chosen.config,
            chosen.config,
            digests.len()
        );
        return Err(image.bad(problem));
    }
    let found = layers.into_iter().zip(digests).map(|(path, digest)| {
        let blob = image.file(&path)?;
        let name = format!("layer {} of {}", crate::quoted(path.as_bytes()), image.name);
        Ok(Layer { blob, name, digest: LayerDigest::Plain(digest) })
    });
    found.collect()
}
