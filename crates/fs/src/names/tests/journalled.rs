//! Volumes that default to data=journal, used in turns with the kernel, which also uses that
//! default.

use super::kernel::in_kernel;
use super::*;
use crate::FileOptions;

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 7) as u8 ^ seed).collect()
}

#[test]
fn the_kernel_replays_what_a_crash_left_and_leaves_what_is_replayed() {
    if !have_tools() || !can_mount() {
        return;
    }
    for args in ["-t ext4 -b 1024 -J size=1 16M", "-t ext4 -b 4096 -O quota 32M", "-t ext3 -b 1024 16M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        run("tune2fs", &["-o", "journal_data", image.to_str().unwrap()]);
        if !Mount::is_supported(&image) {
            continue;
        }
        let admin = &Caller::root();
        let (first, second, third) = (pattern(1, 90_000), pattern(2, 30_000), pattern(3, 50_000));
        let rt = Rt::real(Default::default());
        rt.block_on(async {
            let bed = Bed::open(&rt, device(&image)).await;
            let root = bed.volume.root_node().await.unwrap();
            let file = root.create(admin, b"f", 0o644).await.unwrap();
            let open = file.open(admin, FileOptions::default()).unwrap();
            open.write(0, &first).await.unwrap();
            open.sync().await.unwrap();
            open.write(10_000, &second).await.unwrap();
            open.sync().await.unwrap();
            // The volume is not closed, as after a power cut.
        })
        .unwrap();
        let mut expected = first.clone();
        expected[10_000..40_000].copy_from_slice(&second);
        let left = dir.path().join("left");
        in_kernel(&image, |at| {
            assert!(std::fs::read(at.join("f")).unwrap() == expected, "{args}: as the kernel replays it");
            std::fs::write(at.join("g"), &third).unwrap();
            std::fs::write(at.join("f"), &third).unwrap();
            rustix::fs::sync();
            std::fs::copy(&image, &left).unwrap();
        });
        check_is_silent(&image, args);
        // A copy taken while the kernel had the volume mounted.
        within(&left, async |_, root| {
            for name in [b"f", b"g"] {
                let file = root.lookup(admin, name).await.unwrap();
                let open = file.open(admin, FileOptions::default()).unwrap();
                let mut found = vec![0; third.len() + 1];
                assert_eq!(open.read(0, &mut found).await.unwrap(), third.len(), "{args}");
                assert!(found[..third.len()] == third, "{args}");
                open.write(20_000, &second).await.unwrap();
                open.sync().await.unwrap();
            }
            root.unlink(admin, b"g").await.unwrap();
        });
        check_is_silent(&left, args);
        expected = third.clone();
        expected[20_000..].copy_from_slice(&second);
        in_kernel(&left, |at| {
            assert!(std::fs::read(at.join("f")).unwrap() == expected, "{args}: at the end")
        });
    }
}

#[test]
fn the_flag_is_for_those_with_the_capability_and_is_handed_down() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 16M");
    let admin = &Caller::root();
    within(&image, async |_, root| {
        let user = &Caller::user(1000, 1000, vec![]);
        let home = root.mkdir(admin, b"home", 0o777).await.unwrap();
        let file = home.create(user, b"file", 0o644).await.unwrap();
        let flagged = file.attributes().unwrap().flags | InodeFlags::JOURNAL_DATA;
        assert_eq!(errno(file.set_flags(user, flagged).await), 1);
        file.set_flags(admin, flagged).await.unwrap();
        home.set_flags(admin, home.attributes().unwrap().flags | InodeFlags::JOURNAL_DATA).await.unwrap();
        let made = home.create(user, b"made", 0o644).await.unwrap();
        for node in [file, made] {
            assert!(node.attributes().unwrap().flags.contains(InodeFlags::JOURNAL_DATA));
            let open = node.open(user, FileOptions::default()).unwrap();
            open.write(0, &pattern(1, 5000)).await.unwrap();
            open.sync().await.unwrap();
        }
    });
    check_is_silent(&image, "flags");
}
