//! Files of one `put` or of several in a script, made together.

use super::{Counts, Edit};
use crate::failure::Failure;
use crate::image_path::ImagePath;
use extant::{Error, SmallFile, SmallFiles};
use std::cell::RefCell;

/// Files that wait to be made. Until then no other command may look at the volume.
#[derive(Default)]
pub(super) struct Together {
    /// Made when it is first needed.
    files: RefCell<Option<SmallFiles>>,
    waiting: RefCell<Vec<Waiting>>,
}

struct Waiting {
    target: ImagePath,
    line: Option<Line>,
}

/// A line of a script.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) number: usize,
    /// How many commands came before it.
    pub(super) done: usize,
    /// What they have put.
    pub(super) put: Counts,
}

impl Edit<'_> {
    /// Adds a file, to be made with others. Returns false if it must be made by itself.
    pub(super) fn is_added(&self, target: &ImagePath, file: &SmallFile<'_>) -> Result<bool, Failure> {
        let failed = |error| Failure::at(target, error);
        if self.together.files.borrow().as_ref().is_some_and(|files| !files.has_room(file.contents.len())) {
            self.make_waiting()?;
        }
        let mut files = self.together.files.borrow_mut();
        let files = match &mut *files {
            Some(files) => files,
            none => none.insert(self.volume.small_files().map_err(failed)?),
        };
        let is_added = match files.add(&self.root, &target.path, file) {
            // A file that waits may be in the path. Made by itself, after those that wait, this one
            // gets the error that is true.
            Err(Error::NotFound(_)) if self.has_waiting() => false,
            added => added.map_err(failed)?,
        };
        if is_added {
            let waiting = Waiting { target: target.clone(), line: self.line };
            self.together.waiting.borrow_mut().push(waiting);
        }
        Ok(is_added)
    }

    /// Whether files wait to be made.
    pub(super) fn has_waiting(&self) -> bool {
        !self.together.waiting.borrow().is_empty()
    }

    /// Whether a file waits to be made at this path.
    pub(super) fn is_waiting(&self, path: &[u8]) -> bool {
        let files = self.together.files.borrow();
        self.has_waiting() && files.as_ref().is_some_and(|files| files.contains(&self.root, path))
    }

    /// Makes the files that wait. A failure is that of the line that put the file.
    pub(super) fn make_waiting(&self) -> Result<(), Failure> {
        let waiting = self.together.waiting.take();
        match self.together.files.borrow_mut().as_mut().filter(|_| !waiting.is_empty()) {
            None => Ok(()),
            Some(files) => files.make().map_err(|not_made| {
                let Waiting { target, line } = &waiting[not_made.index];
                self.failed_line.set(*line);
                Failure::at(target, not_made.error)
            }),
        }
    }
}
