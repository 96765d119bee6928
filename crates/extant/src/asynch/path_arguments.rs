//! Path resolution, name by name, with a caller's permissions.

use crate::sys::{Node, Sys};
use crate::{Error, FileType, Result};
use extant_format::FileKind;
use extant_fs::{Follow, PathNodes, quote, walk_path};

/// Longest path, including C's terminating NUL (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// A name in an existing directory; the name itself may not exist.
pub(crate) struct NameAt<'a> {
    pub(crate) dir: Node,
    pub(crate) name: &'a [u8],
    /// The path ended in a slash, so it must be a directory.
    pub(crate) wants_dir: bool,
}

fn check_length(path: &[u8]) -> Result<()> {
    match path.len() {
        0 => Err(Error::NotFound(quote(path))),
        1..PATH_MAX => Ok(()),
        _ => Err(Error::NameTooLong(quote(path))),
    }
}

impl PathNodes for Sys {
    type Node = Node;

    fn root(&self) -> Node {
        Self::root(self).clone()
    }

    async fn lookup(&self, dir: &Node, name: &[u8]) -> Result<Node> {
        Self::lookup(self, dir, name).await
    }

    fn is(&self, node: &Node, kind: FileKind) -> Result<bool> {
        Ok(node.kind()? == FileType::from(kind))
    }

    async fn read_link(&self, link: &Node) -> Result<Vec<u8>> {
        let target = Self::read_link(self, link).await?;
        check_length(&target)?;
        Ok(target)
    }
}

/// Resolves `path` from `start`; `follow` applies to a symbolic link in the last component.
pub(crate) async fn resolve(sys: &Sys, start: &Node, path: &[u8], follow: bool) -> Result<Node> {
    check_length(path)?;
    walk_path(sys, start, path, if follow { Follow::Yes } else { Follow::No }).await
}

/// The directory that contains the last name of `path`.
pub(crate) async fn place<'a>(sys: &Sys, start: &Node, path: &'a [u8]) -> Result<NameAt<'a>> {
    check_length(path)?;
    let wants_dir = path.ends_with(b"/");
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
    let trimmed = &path[..end];
    let at = trimmed.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
    let name = &trimmed[at..];
    let dir = match &path[..at] {
        b"" if name.is_empty() => sys.root().clone(),
        b"" => start.clone(),
        before => Box::pin(resolve(sys, start, before, true)).await?,
    };
    Ok(NameAt { dir, name: if name.is_empty() { b"." } else { name }, wants_dir })
}
