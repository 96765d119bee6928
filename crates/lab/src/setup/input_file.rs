//! Reads text files that the user names.

use std::io::{ErrorKind, Read};
use std::path::Path;

/// What a file should contain.
#[derive(Clone, Copy)]
pub(crate) enum InputKind {
    /// fio jobs.
    Jobs,
    /// An experiment.
    Experiment,
    /// The JSON report of a run.
    Result,
}

impl InputKind {
    fn name(self) -> &'static str {
        match self {
            Self::Jobs => "a job file",
            Self::Experiment => "an experiment's file",
            Self::Result => "a result",
        }
    }

    /// Size limit. A longer file is a disk image given by mistake, or endless.
    fn most_bytes(self) -> u64 {
        match self {
            Self::Jobs | Self::Experiment => 16 << 20,
            // fio's result for a thousand jobs is about 10 MiB.
            Self::Result => 256 << 20,
        }
    }
}

/// Reads a text file.
///
/// # Errors
/// Describes the problem without the file's name.
pub(crate) fn read(path: &Path, kind: InputKind) -> Result<String, String> {
    let (what, most_bytes) = (kind.name(), kind.most_bytes());
    let problem = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => "No such file; look for a slip in its name".to_owned(),
        ErrorKind::PermissionDenied => {
            "you may not read it; change its permissions or run as its owner".into()
        }
        ErrorKind::IsADirectory => format!("is a directory; name {what} in it"),
        _ => error.to_string(),
    };
    let file = std::fs::File::open(path).map_err(problem)?;
    let mut bytes = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut bytes).map_err(problem)?;
    if bytes.len() as u64 > most_bytes {
        return Err(format!("is longer than {} MiB, so not {what}; give another file", most_bytes >> 20));
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
    fn files_that_are_no_text_are_refused_in_a_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        std::fs::write(&file, b"one\ntwo\n\xff\xfe").unwrap();
        let refused = |path: &Path| read(path, InputKind::Jobs).unwrap_err();
        assert_eq!(refused(&file), "line 3 is not text, so this is not a job file; give another file");
        assert_eq!(refused(dir.path()), "is a directory; name a job file in it");
        assert_eq!(refused(&dir.path().join("g")), "No such file; look for a slip in its name");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read(&file, InputKind::Jobs).unwrap(), "text");
        // A result may be longer than hand-written files.
        std::fs::write(&file, vec![b' '; (16 << 20) + 1]).unwrap();
        assert_eq!(refused(&file), "is longer than 16 MiB, so not a job file; give another file");
        assert!(read(&file, InputKind::Result).is_ok());
    }
}
