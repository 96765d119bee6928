//! Names by which archives of images have their layers.

/// Whether a layer of `docker save` may have this name at the top of an archive: that of its digest.
pub(super) fn is_layer_name(name: &str) -> bool {
    let hex = name.strip_suffix(".tar").or(name.strip_suffix(".tar.gz"));
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}
