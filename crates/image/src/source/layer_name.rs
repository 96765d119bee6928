//! File names of layers in image archives.

use super::tree_paths;

/// Whether an archive's entry may be a layer. Such an archive's size says little about the size of
/// the image, because layers are compressed and hide parts of each other.
pub(super) fn may_be_layer(path: &[u8]) -> bool {
    match tree_paths::parts(path)[..] {
        [b"blobs", _, _] | [_, b"layer.tar"] => true,
        [name] => std::str::from_utf8(name).is_ok_and(is_layer_name),
        _ => false,
    }
}

/// Whether this may be the name of a `docker save` layer at the top of an archive: its digest.
pub(super) fn is_layer_name(name: &str) -> bool {
    let hex = name.strip_suffix(".tar").or(name.strip_suffix(".tar.gz"));
    hex.is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()))
}
