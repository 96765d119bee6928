//! Reads a whole volume, for tests and fuzzers.

use extant_block::MemDevice;
use extant_format::{FileKind, Group, InodeNumber};
use extant_fs::{Chunk, Dump, Follow, OpenOptions, Volume, WalkOptions};
use std::sync::Arc;

/// Reads everything readable. Errors are fine; only the amount of work is limited.
pub(crate) async fn read_all(bytes: Vec<u8>, options: OpenOptions) {
    let volume_bytes = bytes.len() as u64;
    let Ok(volume) = Volume::open(Arc::new(MemDevice::from_bytes(bytes)), options).await else { return };
    let _ = volume.dump(Dump::Superblock).await;
    let _ = volume.dump(Dump::Group(Group(0))).await;
    let _ = volume.dump(Dump::Journal).await;
    let _ = volume.resolve(b"/many/../short", Follow::Yes).await;
    let Ok(root) = volume.root().await else { return };
    let Ok(mut walk) = volume.walk(&root, WalkOptions { inodes: true, ..Default::default() }).await else {
        return;
    };
    let mut entries = 0u64;
    while let Some(entry) = walk.next().await {
        entries += 1;
        assert!(entries <= volume_bytes / 12 + 1000, "no more names than the volume has room for");
        let Ok(entry) = entry else { continue };
        let Some(inode) = entry.inode else { continue };
        let _ = volume.xattrs(&inode).await;
        match entry.kind {
            Some(FileKind::Symlink) => drop(volume.read_link(&inode).await),
            Some(FileKind::Directory) => {
                let _ = volume.lookup(&inode, b"file-with-a-longer-name-77").await;
                let _ = volume.dump(Dump::Htree(entry.number)).await;
            }
            _ => {
                let Ok(mut stream) = volume.stream(inode).await else { continue };
                let (mut data, mut errors) = (0, 0);
                while errors < 1000 {
                    match stream.next().await {
                        Ok(Some(Chunk::Data { bytes, .. })) => data += bytes.len() as u64,
                        Ok(Some(Chunk::Hole { .. })) => {}
                        Ok(None) => break,
                        Err(_) => errors += 1,
                    }
                }
                assert!(data <= volume_bytes + (1 << 20), "no more data in a file than the volume holds");
            }
        }
    }
    for number in [2, 8, 11, 12] {
        let _ = volume.dump(Dump::Map(InodeNumber(number))).await;
        let _ = volume.dump(Dump::Directory(InodeNumber(number))).await;
        let _ = volume.dump(Dump::Xattrs(InodeNumber(number))).await;
    }
}
