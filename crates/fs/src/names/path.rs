//! Paths within a volume.

use crate::{Error, Result, Volume};
use extant_format::{FileKind, Inode, InodeNumber};

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// The link's target is meant.
    Yes,
    /// The link itself is meant.
    No,
}

/// Links that a path may lead through, as in Linux.
const LINKS_MAX: u32 = 40;

/// Makes bytes from a volume safe to print: valid UTF-8 without control characters stays, everything else, and the
/// backslash, is escaped. Names may hold terminal escapes.
pub fn quote(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            // Beside the C0 and C1 controls: marks that reorder or hide text.
            let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
            if c == '\\' || c.is_control() || hidden {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

impl Volume {
    /// The inode that an absolute path names; empty components and `.` are skipped, `..` goes up, never above the root.
    pub async fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        // Innermost last: the directories passed through, so that `..` needs no entry on disk.
        let mut parents: Vec<InodeNumber> = Vec::new();
        let mut current = self.root().await?;
        let mut rest: Vec<Vec<u8>> = components(path);
        let mut links = 0;
        while let Some(name) = rest.pop() {
            if name == b".." {
                if let Some(parent) = parents.pop() {
                    current = self.inode(parent).await?;
                }
                continue;
            }
            if current.kind() != Some(FileKind::Directory) {
                return Err(Error::NotADirectory(quote(path)));
            }
            let Some(number) = self.lookup(&current, &name).await? else {
                return Err(Error::NotFound(quote(path)));
            };
            let next = self.inode(number).await?;
            let last = rest.is_empty();
            if next.kind() == Some(FileKind::Symlink) && (!last || follow == Follow::Yes) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Error::Loop(quote(path)));
                }
                let target = self.read_link(&next).await?;
                if target.first() == Some(&b'/') {
                    parents.clear();
                    current = self.root().await?;
                }
                rest.extend(components(&target));
                continue;
            }
            parents.push(current.number);
            current = next;
        }
        Ok(current)
    }
}

/// The components in reverse, so that the next one is at the end.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|&b| b == b'/').filter(|c| !c.is_empty() && *c != b".").rev().map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_steer_a_terminal_is_escaped() {
        assert_eq!(quote("grün".as_bytes()), "grün");
        assert_eq!(quote(b"a\x1b[31mred\n"), "a\\u{1b}[31mred\\n");
        assert_eq!(quote(b"\xff\\x"), "\\xff\\\\x");
        assert_eq!(quote("a\u{202e}b".as_bytes()), "a\\u{202e}b");
    }
}
