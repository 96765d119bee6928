//! Parts of disks in messages.

use extant::{Part, Partition};
use extant_fs::quote;
use std::path::Path;

/// Names an image in messages, with the part of it that contains the volume.
pub(crate) fn described(image: &Path, part: &Part) -> String {
    let image = quote(image.as_os_str().as_encoded_bytes());
    match part {
        Part::Whole => image,
        Part::Bytes { offset_bytes, .. } => format!("{image} from byte {offset_bytes} on"),
        Part::Partition(name) => format!("{image}, partition {}", quote(name.as_bytes())),
    }
}

/// What to add to the command line to open a volume on this disk, if one of the partitions contains
/// ext.
pub(crate) fn advice(there: &[Partition]) -> Option<String> {
    let ext: Vec<_> =
        there.iter().filter(|partition| partition.is_ext).map(|partition| partition.number).collect();
    match ext[..] {
        [] => None,
        [only] => Some(format!("partition {only} is an ext volume: add --partition {only}")),
        ref several => {
            let numbers = several.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
            Some(format!("partitions {numbers} are ext volumes: add --partition and one of these"))
        }
    }
}
