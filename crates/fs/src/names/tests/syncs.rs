//! What a sync of a directory makes durable, and what it leaves for later.

use super::*;

#[test]
fn a_sync_of_a_directory_commits_its_last_change_and_waits_for_no_later_one() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let caller = Caller::root();
    within(&image, async |bed, root| {
        let [first, other] = [b"first", b"other"].map(|name| root.mkdir(&caller, name, 0o755));
        let (first, other) = (first.await.unwrap(), other.await.unwrap());
        let committed = || bed.writer().journal.committed();
        let before = committed();
        other.create(&caller, b"name", 0o644).await.unwrap();
        first.sync().await.unwrap();
        let with_both = committed();
        assert!(with_both > before, "to make it is a change");
        other.unlink(&caller, b"name").await.unwrap();
        for synced in [&first, root] {
            synced.sync().await.unwrap();
            assert_eq!(committed(), with_both, "only the other directory has changed");
        }
        other.sync().await.unwrap();
        let with_removal = committed();
        assert!(with_removal > with_both);
        root.rename(&caller, b"first", &other, b"moved", RenameMode::Replace).await.unwrap();
        first.sync().await.unwrap();
        assert!(committed() > with_removal, "its name has changed");
    });
    check_is_silent(&image, "after syncs of directories");
}
