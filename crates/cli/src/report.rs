//! Progress and losses of an export.

use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::progress::Progress;
use crate::session::Session;
use extant_fs::{Error, WalkError, quote};
use extant_image::export::{ExportError, Loss, Watch};
use std::io::ErrorKind;

/// Prints losses as they occur.
pub(crate) struct Reporter<'a> {
    pub(crate) session: &'a mut Session,
    pub(crate) place: &'a ImagePath,
    pub(crate) progress: Progress,
}

impl Watch for Reporter<'_> {
    fn advanced(&mut self, bytes: u64) {
        self.progress.advance(bytes);
    }

    fn unreadable(&mut self, path: &[u8], error: Error) {
        self.progress
            .suspend(|| self.session.fail_walk(self.place, WalkError { path: path.to_vec(), error }));
    }

    fn not_kept(&mut self, path: &[u8], loss: Loss) {
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
