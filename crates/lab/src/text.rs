//! Files that users name.

use std::io::{ErrorKind, Read};
use std::path::Path;

/// No job, experiment or result is longer: what is larger is a disk image given by mistake.
const MOST_BYTES: u64 = 64 << 20;

/// Reads a file of text; `what` is what it should have been, such as "a job file".
///
/// # Errors
/// Says what is wrong with it, without its name.
pub(crate) fn read(path: &Path, what: &str) -> Result<String, String> {
    let problem = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "No such file; look for a slip in its name".to_owned(),
        ErrorKind::PermissionDenied => {
            "may not be read by you; change its permissions or run as its owner".into()
        }
        ErrorKind::IsADirectory => format!("is a directory; name {what} in it"),
        _ => error.to_string(),
    };
    let file = std::fs::File::open(path).map_err(problem)?;
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(problem)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("is longer than {} MiB, so not {what}; give another file", MOST_BYTES >> 20));
    }
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        format!("line {line} is not text, so this is not {what}; give another file")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_is_refused_in_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, b"one\ntwo\n\xff\xfe").unwrap();
        let refused = |path: &Path| read(path, "a job file").unwrap_err();
        assert_eq!(refused(&file), "line 3 is not text, so this is not a job file; give another file");
        assert_eq!(refused(dir.path()), "is a directory; name a job file in it");
        assert_eq!(refused(&dir.path().join("g")), "No such file; look for a slip in its name");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read(&file, "a job file").unwrap(), "text");
    }
}
