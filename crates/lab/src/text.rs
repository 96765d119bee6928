//! Files that people give us.

use std::io::Read;
use std::path::Path;

/// What is longer is no job file, or has no end.
pub(crate) const MOST_JOB_FILE_BYTES: u64 = 16 << 20;
/// The same for results: fio's of a thousand jobs have some 10 MiB.
pub(crate) const MOST_RESULT_BYTES: u64 = 256 << 20;

/// A file's text, if it is no longer than `most_bytes`.
pub(crate) fn read(path: &Path, most_bytes: u64) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(most_bytes + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most_bytes {
        return Err(std::io::Error::other(format!("more than {most_bytes} bytes are too many")));
    }
    Ok(text)
}
