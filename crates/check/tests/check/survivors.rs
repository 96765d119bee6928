//! The files that can be reached by path on a volume.

use crate::repairs::rt;
use extant_block::MemDevice;
use extant_format::{FileKind, Inode, InodeNumber, crc32c};
use extant_fs::{OpenOptions, Volume};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A file that can be reached by path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    inode: InodeNumber,
    kind: Option<FileKind>,
    /// Checksum of the contents of a file, or of the target of a link.
    contents: u32,
}

/// Files by their paths.
pub(crate) type Tree = BTreeMap<Vec<u8>, Reached>;

/// Maximum number of bytes to read of a file.
const MOST_BYTES: u64 = 1 << 20;

/// Everything that can be read on a volume, by path.
pub(crate) fn tree(bytes: Vec<u8>) -> Tree {
    let mut found = Tree::new();
    let walk = async {
        let device = Arc::new(MemDevice::from_bytes(bytes));
        let volume = Volume::open(device, OpenOptions::default()).await?;
        let mut todo = vec![(Vec::new(), volume.root().await?)];
        while let Some((path, dir)) = todo.pop() {
            for item in volume.list(&dir).await.unwrap_or_default() {
                let Ok(inode) = volume.inode(item.inode).await else { continue };
                let path = [&path[..], b"/", &item.name].concat();
                let Some(contents) = contents(&volume, &inode).await else { continue };
                let reached = Reached { inode: item.inode, kind: inode.kind(), contents };
                if inode.kind() == Some(FileKind::Directory) && path.len() < 1000 {
                    todo.push((path.clone(), inode));
                }
                found.insert(path, reached);
            }
        }
        Ok::<_, extant_fs::Error>(())
    };
    let _ = rt().block_on(walk).unwrap();
    found
}

async fn contents(volume: &Volume, inode: &Inode) -> Option<u32> {
    match inode.kind() {
        Some(FileKind::Regular) => {
            let mut bytes = vec![0; inode.size().min(MOST_BYTES) as usize];
            let file = volume.open_file(inode.clone()).await.ok()?;
            let mut at = 0;
            while at < bytes.len() {
                match file.read_at(at as u64, &mut bytes[at..]).await.ok()? {
                    0 => break,
                    n => at += n,
                }
            }
            Some(crc32c(inode.size() as u32, &bytes))
        }
        Some(FileKind::Symlink) => Some(crc32c(0, &volume.read_link(inode).await.ok()?)),
        _ => Some(0),
    }
}
