//! Progress and losses of an export.

use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json::{self, Bytes};
use crate::progress::Progress;
use crate::session::Session;
use extant_fs::{Error, WalkError, quote};
use extant_image::export::{ExportError, Exported, Loss, Watch};
use serde::{Serialize, Serializer};
use std::io::ErrorKind;

/// Prints lost parts as they are found.
pub(crate) struct Reporter<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) place: &'a ImagePath,
    pub(crate) progress: Progress,
    /// All lost parts, for `--json`.
    lost: Option<Vec<JsonLoss>>,
}

impl<'a> Reporter<'a> {
    pub(crate) fn new(
        session: &'a mut Session,
        place: &'a ImagePath,
        progress: Progress,
        as_json: bool,
    ) -> Self {
        Self { session, place, progress, lost: as_json.then(Vec::new) }
    }

    /// Ends the progress. Returns what was lost, for [`print()`].
    pub(crate) fn finish(self) -> Vec<JsonLoss> {
        self.progress.finish();
        self.lost.unwrap_or_default()
    }

    fn lose(&mut self, path: &[u8], error: String, range: Option<(u64, u64)>) {
        let path = self.place.below(path);
        let (offset, bytes) = range.unzip();
        if let Some(all) = &mut self.lost {
            all.push(JsonLoss { path, error, offset, bytes });
        }
    }
}

/// Prints what was copied to `output`, or, as JSON, this and what was lost.
pub(crate) fn print(
    session: &mut Session,
    output: &str,
    done: &Exported,
    lost: Option<Vec<JsonLoss>>,
) -> Result<(), Failure> {
    let Some(lost) = lost else {
        session.summary(&match output {
            "" => done.to_string(),
            output => format!("{output}: {done}"),
        });
        return Ok(());
    };
    let &Exported { directories, others, bytes } = done;
    json::print(&mut session.out, &JsonExported { directories, others, bytes, lost })
}

#[derive(Serialize)]
struct JsonExported {
    directories: u64,
    others: u64,
    bytes: u64,
    lost: Vec<JsonLoss>,
}

/// Something that is missing from the copy, or differs from the volume.
#[derive(Serialize)]
pub(crate) struct JsonLoss {
    #[serde(serialize_with = "as_bytes")]
    path: Vec<u8>,
    error: String,
    /// For contents: start of the unreadable part.
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

fn as_bytes<S: Serializer>(path: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    Bytes(path).serialize(serializer)
}

impl Watch for Reporter<'_> {
    fn advanced(&mut self, bytes: u64) {
        self.progress.advance(bytes);
    }

    fn unreadable(&mut self, path: &[u8], error: Error) {
        let range = match &error {
            Error::Lost(lost) => Some((lost.offset, lost.bytes)),
            _ => None,
        };
        self.lose(path, error.to_string(), range);
        self.progress
            .suspend(|| self.session.fail_walk(self.place, WalkError { path: path.to_vec(), error }));
    }

    fn not_kept(&mut self, path: &[u8], loss: Loss) {
        self.lose(path, loss.to_string(), None);
        let path = quote(&self.place.below(path));
        let place = format!("{}:{path}", self.place.image_quoted());
        self.progress.suspend(|| match loss.is_expected() {
            true => self.session.summary(&format!("{place} {loss}")),
            false => self.session.fail(Failure::NotKept { place, loss }),
        });
    }
}

/// The failure for an export to `output` that ended early.
pub(crate) fn failure(place: &ImagePath, output: &str, error: ExportError) -> Failure {
    match error {
        ExportError::Output(error) if error.kind() == ErrorKind::BrokenPipe => Failure::Closed,
        ExportError::Output(error) => Failure::Host { path: output.to_string(), error },
        ExportError::Volume(error) => Failure::at(place, error),
        other => Failure::Host { path: output.to_string(), error: std::io::Error::other(other) },
    }
}
