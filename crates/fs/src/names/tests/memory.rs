//! Memory outside frames is charged to the page cache, and given back under pressure.

use super::*;
use extant_cache::accounts::Shrink;

const BLOCK: u64 = 1024;

#[test]
fn indexes_and_maps_are_charged_given_back_and_built_again() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext2 -b 1024 -O ^dir_index 16M");
    within(&image, async |bed, root| {
        let caller = &Caller::root();
        let namespace = bed.volume.namespace().unwrap().clone();
        let name = |n: u32| format!("a-name-of-some-length-{n}").into_bytes();
        for n in 0..400 {
            root.create(caller, &name(n), 0o644).await.unwrap();
        }
        // The file's blocks are not adjacent, so each is an extent of its own.
        let node = root.lookup(caller, &name(0)).await.unwrap();
        let file = node.open(caller, crate::FileOptions::default()).unwrap();
        for n in 0..64 {
            file.write(2 * n * BLOCK, &[n as u8 + 1; BLOCK as usize]).await.unwrap();
        }
        bed.volume.sync().await.unwrap();

        let indexed = namespace.indexes.charged_bytes();
        assert!(indexed >= 400 * 8, "{indexed} bytes for 400 names");
        let mapped = namespace.files.charged_bytes();
        // A map in use stays.
        namespace.files.shrink(u64::MAX);
        assert_eq!(namespace.files.charged_bytes(), mapped);
        // The window of a growing file is kept while it is open.
        drop(node);
        drop(file);
        assert!(namespace.files.shrink(u64::MAX) >= 64 * 64);
        assert!(namespace.files.charged_bytes() <= mapped - 64 * 64);
        // An index that was used recently is spared once.
        namespace.indexes.shrink(u64::MAX);
        assert_eq!(namespace.indexes.shrink(u64::MAX), indexed);
        assert_eq!(namespace.indexes.charged_bytes(), 0);
        let groups = namespace.writer.alloc.clone();
        assert!(groups.indexes_bytes() > 0);
        groups.shrink(u64::MAX);
        assert_eq!(groups.indexes_bytes(), 0, "nothing is allocated and not logged");

        let missing = root.lookup(caller, b"missing").await;
        assert!(matches!(missing, Err(Error::NotFound(_))), "{missing:?}");
        assert!(namespace.indexes.charged_bytes() > 0);
        root.create(caller, b"one more", 0o644).await.unwrap();
        root.unlink(caller, &name(399)).await.unwrap();
        let node = root.lookup(caller, &name(0)).await.unwrap();
        let file = node.open(caller, crate::FileOptions::default()).unwrap();
        let mut bytes = vec![0; 2 * BLOCK as usize];
        for n in 0..63 {
            assert_eq!(file.read(2 * n * BLOCK, &mut bytes).await.unwrap(), bytes.len());
            let (written, hole) = bytes.split_at(BLOCK as usize);
            assert!(written.iter().all(|byte| *byte == n as u8 + 1) && hole.iter().all(|byte| *byte == 0));
        }
    });
    check_is_silent(&image, "after memory was given back");
}
