//! Quotas in unusual situations: full lists of owners, owners without an entry, inodes deleted long
//! ago.

use super::*;
use crate::names::SetAttributes;

const QUOTAS: &str = "quotatype=usrquota:grpquota";

fn image(dir: &Path, args: &str) -> PathBuf {
    make(dir, &format!("-t ext4 -b 4096 -O quota -E {QUOTAS} {args}"))
}

fn chown(uid: u32) -> SetAttributes {
    SetAttributes { uid: Some(uid), ..Default::default() }
}

/// An id whose entry shares no tree node with any other's.
fn scattered(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b1)
}

fn debugfs(image: &Path, command: &str) {
    run("debugfs", &["-w", "-R", command, image.to_str().unwrap()]);
}

#[test]
fn the_last_owner_of_a_number_is_charged_nothing_for_the_next() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "16M");
    let root = Caller::root();
    let mut number = InodeNumber(0);
    within(&image, async |_, top| {
        for name in [b"kept", b"gone"] {
            let node = top.create(&root, name, 0o644).await.unwrap();
            node.set_attributes(&root, &chown(7)).await.unwrap();
            number = node.inode();
        }
        top.unlink(&root, b"gone").await.unwrap();
    });
    check_is_silent(&image, "deleted");
    // A deletion time as a kernel without a clock writes it.
    debugfs(&image, &format!("set_inode_field <{number}> dtime @100"));
    within(&image, async |_, top| {
        let node = top.create(&root, b"next", 0o644).await.unwrap();
        assert_eq!(node.inode(), number);
    });
    check_is_silent(&image, "the number is in use again");
}

#[test]
fn many_owners_take_no_more_transactions_than_few() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "-J size=4 -N 4096 64M");
    let root = Caller::root();
    within(&image, async |bed, top| {
        let journal = &bed.writer().journal;
        let node = top.create(&root, b"file", 0o644).await.unwrap();
        for n in 0..240 {
            let all = SetAttributes { gid: Some(scattered(n)), ..chown(scattered(n)) };
            node.set_attributes(&root, &all).await.unwrap();
        }
        bed.volume.sync().await.unwrap();
        let before = journal.committed();
        for n in 0..200u32 {
            let caller = Caller { uid: scattered(n % 20), ..Caller::root() };
            top.create(&caller, format!("f{n}").as_bytes(), 0o644).await.unwrap();
        }
        let commits = journal.committed().0 - before.0;
        assert!(commits <= 2, "{commits} transactions for 200 files of 20 owners");
    });
    check_is_silent(&image, "files of many owners");
}

#[test]
fn owners_that_come_and_go_within_a_transaction_leave_no_room_behind() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "16M");
    let root = Caller::root();
    within(&image, async |bed, top| {
        let node = top.create(&root, b"file", 0o644).await.unwrap();
        bed.volume.sync().await.unwrap();
        // As many owners as would fill the list if each kept room for nodes of its own.
        for n in 1000..1300 {
            node.set_attributes(&root, &chown(n)).await.unwrap();
            node.set_attributes(&root, &chown(0)).await.unwrap();
            bed.volume.sync().await.unwrap();
        }
    });
    check_is_silent(&image, "owners came and went");
}

#[test]
fn a_list_of_owners_is_full_before_it_is_too_long_to_be_opened() {
    if !have_tools() || !is_root() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "-N 4096 64M");
    let root = Caller::root();
    let capability = [&[1, 0, 0, 2, 0, 32, 0, 0][..], &[0; 12]].concat();
    within(&image, async |bed, top| {
        // Failed operations keep no room for the owners they would have added.
        top.create(&root, b"name", 0o644).await.unwrap();
        top.mkdir(&root, b"sticky", 0o700).await.unwrap();
        for n in 5000..5400 {
            let caller = Caller::user(scattered(n), scattered(n), vec![]);
            assert_eq!(top.create(&caller, b"name", 0o644).await.unwrap_err().errno(), 17);
        }
        let node = top.create(&root, b"file", 0o755).await.unwrap();
        let mut owners = 0;
        let full = loop {
            match node.set_attributes(&root, &chown(scattered(owners))).await {
                Ok(()) => owners += 1,
                Err(error) => break error,
            }
            assert!(owners < 2000, "the list has no end");
            if owners % 50 == 0 {
                bed.volume.sync().await.unwrap();
            }
        };
        assert_eq!(full.errno(), 122, "{full}");
        assert!(owners > 200, "{owners} owners");
        // A failed operation changes nothing.
        node.set_xattr(&root, b"security.capability", &capability, SetMode::Any).await.unwrap();
        let both = SetAttributes { permissions: Some(0o700), ..chown(scattered(owners)) };
        assert_eq!(node.set_attributes(&root, &both).await.unwrap_err().errno(), 122);
        assert_eq!(node.xattr(&root, b"security.capability").await.unwrap(), capability);
        // Owners that already have an entry are still accepted.
        node.set_attributes(&root, &chown(scattered(3))).await.unwrap();
    });
    check_is_silent(&image, "as many owners as there may be");
    within(&image, async |_, top| {
        let node = top.lookup(&root, b"file").await.unwrap();
        node.set_attributes(&root, &chown(scattered(4))).await.unwrap();
    });
    check_is_silent(&image, "opened again");
}

#[test]
fn owners_that_are_new_in_a_transaction_count_until_its_commit() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let quotas = "-E quotatype=usrquota:grpquota:prjquota";
    let image = make(dir.path(), &format!("-t ext4 -b 4096 -O quota,project {quotas} 16M"));
    let root = Caller::root();
    within(&image, async |_, top| {
        // No commit happens in between.
        let first = Caller { uid: scattered(1), gid: scattered(2), ..Caller::root() };
        let node = top.create(&first, b"file", 0o644).await.unwrap();
        node.set_project(&root, scattered(3)).await.unwrap();
        let both = SetAttributes { gid: Some(scattered(4)), ..chown(scattered(5)) };
        node.set_attributes(&root, &both).await.unwrap();
    });
    check_is_silent(&image, "owners that come and go in one transaction");
}

#[test]
fn an_owner_without_an_entry_is_a_problem_of_the_volume() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "16M");
    let root = Caller::root();
    let mut number = InodeNumber(0);
    within(&image, async |_, top| {
        number = top.create(&root, b"file", 0o644).await.unwrap().inode();
    });
    debugfs(&image, &format!("set_inode_field <{number}> uid 77"));
    within(&image, async |bed, top| {
        let file = top.lookup(&root, b"file").await.unwrap().open(&root, Default::default()).unwrap();
        file.write(0, &[1; 9000]).await.unwrap();
        drop(file);
        bed.volume.sync().await.unwrap();
        let problems = bed.volume.problems();
        assert!(problems.iter().any(|problem| problem.to_string().contains("77")), "{problems:?}");
    });
}

#[test]
fn a_whiteout_is_charged_to_its_maker() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "16M");
    let maker = Caller { uid: 4242, gid: 4243, ..Caller::root() };
    within(&image, async |_, top| {
        top.create(&Caller::root(), b"old", 0o644).await.unwrap();
        top.rename(&maker, b"old", top, b"new", RenameMode::Whiteout).await.unwrap();
    });
    check_is_silent(&image, "a whiteout");
}
