//! Paths within a volume.

use crate::view::View;
use crate::{Error, Result, quote};
use extant_format::{FileKind, Inode, InodeNumber};

/// Whether to follow a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Use the link's target.
    Yes,
    /// Use the link itself.
    No,
}

/// Most symbolic links followed in one path, as in Linux.
const LINKS_MAX: u32 = 40;

impl View {
    /// Resolves an absolute path as `path_resolution(7)` describes. `..` never goes above the root.
    /// Every component but the last must be a directory, and so must the last before a trailing
    /// slash.
    pub(crate) async fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        // The directories passed through, innermost last, so that `..` needs no entry on disk.
        let mut parents: Vec<InodeNumber> = Vec::new();
        let mut current = self.root().await?;
        let mut rest: Vec<Vec<u8>> = components(path);
        let mut wants_dir = path.ends_with(b"/");
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if current.kind() != Some(FileKind::Directory) {
                return Err(Error::NotADirectory(quote(path)));
            }
            if name == b"." {
                continue;
            }
            if name == b".." {
                if let Some(parent) = parents.pop() {
                    current = self.inode(parent).await?;
                }
                continue;
            }
            let Some(number) = self.lookup(&current, &name).await? else {
                return Err(Error::NotFound(quote(path)));
            };
            let next = self.inode(number).await?;
            let last = rest.is_empty();
            if next.kind() == Some(FileKind::Symlink) && (!last || wants_dir || follow == Follow::Yes) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::Loop(quote(path)));
                }
                let target = self.read_link(&next).await?;
                if target.first() == Some(&b'/') {
                    parents.clear();
                    current = self.root().await?;
                }
                wants_dir |= last && target.ends_with(b"/");
                rest.extend(components(&target));
                continue;
            }
            parents.push(current.number);
            current = next;
        }
        if wants_dir && current.kind() != Some(FileKind::Directory) {
            return Err(Error::NotADirectory(quote(path)));
        }
        Ok(current)
    }
}

/// The components in reverse order: the next one is at the end.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|c| !c.is_empty()).rev().map(<[u8]>::to_vec).collect()
}
