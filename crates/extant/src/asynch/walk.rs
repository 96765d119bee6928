//! Everything below a directory.

use super::path::resolve;
use crate::sys::{Node, Sys};
use crate::{Metadata, Result};

/// A walk over everything below a directory: directories before their contents, the names of each in the order of their
/// bytes, symbolic links not followed. Names that come or go meanwhile may or may not be met.
#[derive(Debug)]
pub struct Walk {
    sys: Sys,
    top: Node,
    /// Directories and files still to be met, the next one last.
    todo: Vec<Vec<u8>>,
    started: bool,
}

impl Walk {
    pub(super) fn new(sys: Sys, top: Node) -> Self {
        Self { sys, top, todo: Vec::new(), started: false }
    }

    /// The next path, relative to the directory that the walk began in, with its attributes; `None` at the end. After an
    /// error the walk goes on with what does not lie below the path that failed.
    ///
    /// # Errors
    /// A directory that may not be read, or damage.
    pub async fn next(&mut self) -> Option<Result<(Vec<u8>, Metadata)>> {
        if !std::mem::replace(&mut self.started, true)
            && let Err(error) = self.enter(&self.top.clone(), b"").await
        {
            return Some(Err(error));
        }
        let path = self.todo.pop()?;
        Some(self.meet(path).await)
    }

    async fn meet(&mut self, path: Vec<u8>) -> Result<(Vec<u8>, Metadata)> {
        let node = resolve(&self.sys, &self.top, &path, false).await?;
        let metadata = self.sys.metadata(&node).await?;
        if metadata.is_dir() {
            self.enter(&node, &path).await?;
        }
        Ok((path, metadata))
    }

    async fn enter(&mut self, dir: &Node, path: &[u8]) -> Result<()> {
        let mut entries = self.sys.read_dir(dir).await?;
        entries.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        self.todo.extend(entries.into_iter().map(|entry| match path {
            b"" => entry.name,
            path => [path, b"/", &entry.name].concat(),
        }));
        Ok(())
    }
}
