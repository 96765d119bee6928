//! Path resolution, name by name, with a caller's permissions.

use crate::sys::{Node, Sys};
use crate::{Error, FileType, Result};
use extant_fs::quote;

/// Symbolic links followed per path (Linux: `MAXSYMLINKS`).
pub(super) const LINKS_MAX: u32 = 40;
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

/// Resolves `path` from `start`; `follow` applies to a symbolic link in the last component.
pub(crate) async fn resolve(sys: &Sys, start: &Node, path: &[u8], follow: bool) -> Result<Node> {
    check_length(path)?;
    let mut here = if path[0] == b'/' { sys.root().clone() } else { start.clone() };
    let mut rest = names(path).peekable();
    // Names from the targets of symbolic links, which come before `rest`; the next one is last.
    let mut todo: Vec<Vec<u8>> = Vec::new();
    let mut wants_dir = path.ends_with(b"/");
    let mut links = 0;
    loop {
        let next = match todo.pop() {
            Some(name) => sys.lookup(&here, &name).await?,
            None => match rest.next() {
                Some(name) => sys.lookup(&here, name).await?,
                None => break,
            },
        };
        let last = todo.is_empty() && rest.peek().is_none();
        if next.kind()? == FileType::Symlink && (!last || follow || wants_dir) {
            links += 1;
            if links > LINKS_MAX {
                return Err(Error::Loop(quote(path)));
            }
            let target = sys.read_link(&next).await?;
            check_length(&target)?;
            if target[0] == b'/' {
                here = sys.root().clone();
            }
            wants_dir |= last && target.ends_with(b"/");
            todo.extend(names(&target).rev().map(<[u8]>::to_vec));
        } else {
            here = next;
        }
    }
    if wants_dir && here.kind()? != FileType::Dir {
        return Err(Error::NotADirectory(quote(path)));
    }
    Ok(here)
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

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}
