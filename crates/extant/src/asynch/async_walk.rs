//! Everything below a directory.

use super::Visited;
use crate::sys::{Node, Sys};
use crate::{Metadata, Result};

/// Iterates over everything below a directory.
///
/// Directories come before their contents, the names in each in byte order; symbolic links are not
/// followed. Names added or removed during the walk may or may not be seen.
#[derive(Debug)]
pub struct Walk {
    sys: Sys,
    /// Directories on the way to the next path, innermost last. Paths are never resolved, so they
    /// may be of any length.
    levels: Vec<Level>,
    /// Where the walk begins; `None` once it has begun.
    top: Option<Node>,
    /// On a damaged volume directories may form a cycle.
    visited: Visited,
}

#[derive(Debug)]
struct Level {
    dir: Node,
    path: Vec<u8>,
    /// Names not yet visited, the next one last.
    names: Vec<Vec<u8>>,
}

impl Walk {
    pub(super) fn new(sys: Sys, top: Node) -> Self {
        Self { sys, levels: Vec::new(), top: Some(top), visited: Visited::default() }
    }

    /// Returns the next path, relative to the starting directory, and its attributes; `None` at the
    /// end. After an error the walk continues with everything that is not below the failed path.
    ///
    /// # Errors
    /// A directory may not be read, or is damaged.
    pub async fn next(&mut self) -> Option<Result<(Vec<u8>, Metadata)>> {
        if let Some(top) = self.top.take()
            && let Err(error) = self.enter(top, Vec::new()).await
        {
            return Some(Err(error));
        }
        loop {
            let level = self.levels.last_mut()?;
            match level.names.pop() {
                Some(name) => return Some(self.meet(name).await),
                None => drop(self.levels.pop()),
            }
        }
    }

    async fn meet(&mut self, name: Vec<u8>) -> Result<(Vec<u8>, Metadata)> {
        let level = self.levels.last().expect("a name is met in a directory");
        let node = self.sys.lookup(&level.dir, &name).await?;
        let path = if level.path.is_empty() { name } else { [&level.path, &b"/"[..], &name].concat() };
        let metadata = self.sys.metadata(&node).await?;
        if metadata.is_dir() {
            self.enter(node, path.clone()).await?;
        }
        Ok((path, metadata))
    }

    async fn enter(&mut self, dir: Node, path: Vec<u8>) -> Result<()> {
        self.visited.enter(dir.inode())?;
        let entries = self.sys.read_dir(&dir).await?;
        let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
        names.sort_unstable_by(|a, b| b.cmp(a));
        self.levels.push(Level { dir, path, names });
        Ok(())
    }
}
