//! The library as programs use it, on volumes created by this project and checked by e2fsck where
//! installed.

mod bed;

use bed::{fsck, image, writable};
use extant::{
    AclKind, Caller, Error, FileOptions, FileType, InodeFlags, OpenOptions, RenameMode, Special, Time,
    Volume, XattrMode, asynch,
};
use extant_rt::Rt;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

#[test]
fn everything_may_be_used_from_any_thread() {
    fn shared<T: Send + Sync + 'static>() {}
    fn sent<T: Send>(_: &T) {}
    shared::<Volume>();
    shared::<extant::Dir>();
    shared::<extant::File>();
    shared::<extant::Walk>();
    shared::<asynch::Volume>();
    shared::<asynch::Dir>();
    shared::<asynch::File>();
    shared::<asynch::Walk>();
    shared::<Error>();
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.asynch().root();
    sent(&root.open("x"));
    sent(&root.create_dir_all("x/y"));
    sent(&root.rename("x", "y"));
    sent(&root.remove_dir_all("x"));
    sent(&root.walk().next());
    sent(&volume.asynch().sync());
    let (rt, memory) = (Rt::real(Default::default()), Arc::new(extant_block::MemDevice::new(4096)));
    sent(&asynch::Volume::open_device(&rt, memory.clone(), &OpenOptions::new()));
    sent(&asynch::Volume::open_device(&rt, memory, &OpenOptions::new().write(true)));
    sent(&volume.asynch().clone().close());
    volume.root().write("shared", [0; 80_000]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let (root, volume) = (volume.root(), volume.clone());
            scope.spawn(move || {
                let mine = format!("dir {thread}");
                root.create_dir(&mine).unwrap();
                let shared = root.open_with("shared", FileOptions::new().write(true)).unwrap();
                for n in 0..40 {
                    let name = format!("{mine}/{n}");
                    root.write(&name, vec![thread; 3000 + n]).unwrap();
                    root.rename(&name, format!("{mine}/renamed {n}")).unwrap();
                }
                shared.write_all_at(u64::from(thread) * 10_000, &[thread; 10_000]).unwrap();
                volume.sync().unwrap();
            });
        }
    });
    let text = volume.root().read("shared").unwrap();
    assert!((0..80_000).all(|at| text[at] == (at / 10_000) as u8));
    volume.close().unwrap();
    fsck(&path);
    let still = Volume::open(&path, &OpenOptions::new()).unwrap();
    assert_eq!(still.root().walk().filter(|met| met.as_ref().unwrap().1.is_file()).count(), 8 * 40 + 1);
}

#[test]
fn errors_are_those_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let kind = |error: Error| (error.errno(), std::io::Error::from(error).kind());
    let none = Volume::open(dir.path().join("none"), &OpenOptions::new()).unwrap_err();
    assert_eq!(kind(none), (2, ErrorKind::NotFound));
    let volume = writable(&path);
    let second = Volume::open(&path, &OpenOptions::new().write(true)).unwrap_err();
    assert!(second.to_string().contains("disk.img"), "refused by name: {second}");
    assert_eq!(kind(second), (16, ErrorKind::ResourceBusy));
    let root = volume.root();
    root.create_dir_all("a/b").unwrap();
    root.write("f", "text").unwrap();
    let user = volume.as_caller(Caller::user(1000, 1000, vec![])).root();
    for (error, expected) in [
        (root.open("none").unwrap_err(), (2, ErrorKind::NotFound)),
        (root.create_dir("a").unwrap_err(), (17, ErrorKind::AlreadyExists)),
        (root.remove_dir("a").unwrap_err(), (39, ErrorKind::DirectoryNotEmpty)),
        (root.open("a").unwrap_err(), (21, ErrorKind::IsADirectory)),
        (root.open("f/x").unwrap_err(), (20, ErrorKind::NotADirectory)),
        (root.create("x".repeat(256)).unwrap_err(), (36, ErrorKind::InvalidFilename)),
        (user.create("mine").unwrap_err(), (13, ErrorKind::PermissionDenied)),
        (user.set_mode("f", 0o777).unwrap_err(), (1, ErrorKind::PermissionDenied)),
        (root.xattr("f", "user.none").unwrap_err(), (61, std::io::Error::from_raw_os_error(61).kind())),
        (
            root.open("f").unwrap().write_at(0, b"x").unwrap_err(),
            (9, std::io::Error::from_raw_os_error(9).kind()),
        ),
        (
            root.open_with("f", FileOptions::new().write(true).create_new(true)).unwrap_err(),
            (17, ErrorKind::AlreadyExists),
        ),
    ] {
        let told = error.to_string();
        assert_eq!(kind(error), expected, "{told}");
    }
    volume.close().unwrap();
    let still = Volume::open(&path, &OpenOptions::new()).unwrap();
    assert_eq!(kind(still.root().create_dir("x").unwrap_err()), (30, ErrorKind::ReadOnlyFilesystem));
    assert_eq!(still.root().read("f").unwrap(), b"text");
}

#[test]
fn names_go_where_they_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    root.create_dir("d").unwrap();
    root.write("a", "a").unwrap();
    root.write("b", "b").unwrap();
    root.rename_with("a", "b", RenameMode::Exchange).unwrap();
    assert_eq!((root.read("a").unwrap(), root.read("b").unwrap()), (b"b".to_vec(), b"a".to_vec()));
    assert_eq!(root.rename_with("a", "b", RenameMode::NoReplace).unwrap_err().errno(), 17);
    root.rename_with("a", "d/a", RenameMode::Whiteout).unwrap();
    let whiteout = root.symlink_metadata("a").unwrap();
    assert_eq!((whiteout.file_type(), whiteout.device()), (FileType::CharDevice, Some((0, 0))));
    root.hard_link("b", "d/b").unwrap();
    assert_eq!(root.metadata("b").unwrap().links(), 2);
    root.symlink("d", "link").unwrap();
    root.create_special("link/pipe", Special::Fifo, 0o600).unwrap();
    let temporary = root.tempfile(0o640).unwrap();
    temporary.write_all_at(0, b"complete").unwrap();
    root.link_file(&temporary, "d/appears").unwrap();
    drop(temporary);
    let met: Vec<_> = root.walk().map(|met| String::from_utf8(met.unwrap().0).unwrap()).collect();
    assert_eq!(met, ["a", "b", "d", "d/a", "d/appears", "d/b", "d/pipe", "link", "lost+found"]);
    root.remove_dir_all("link").unwrap();
    assert!(root.try_exists("d/appears").unwrap(), "the link goes, not what it leads to");
    root.remove_dir_all("d").unwrap();
    volume.close().unwrap();
    fsck(&path);
}

#[test]
fn files_behave_as_those_of_std() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    let mut file = root.open_with("f", FileOptions::new().read(true).write(true).create(true)).unwrap();
    file.seek(SeekFrom::Start(10_000)).unwrap();
    file.write_all(b"end").unwrap();
    file.seek(SeekFrom::End(-3)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "end");
    assert_eq!(file.seek(SeekFrom::Current(-20_000)).unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut log = root.open_with("f", FileOptions::new().append(true)).unwrap();
    log.write_all(b" and more").unwrap();
    assert_eq!((file.len(), log.metadata().unwrap().len()), (10_012, 10_012));
    file.set_len(4).unwrap();
    assert_eq!(root.read("f").unwrap(), [0; 4]);
    root.set_len("f", 6).unwrap();
    file.sync_data().unwrap();
    file.set_mode(0o640).unwrap();
    file.set_owner(Some(7), None).unwrap();
    file.set_times(None, Some(Time { seconds: 1, nanos: 2 })).unwrap();
    let seen = file.metadata().unwrap();
    assert_eq!((seen.mode(), seen.uid(), seen.modified()), (0o640, 7, Time { seconds: 1, nanos: 2 }));
    root.create("f").unwrap();
    assert!(file.is_empty(), "emptied by another open file");
    drop((file, log));
    volume.close().unwrap();
    fsck(&path);
}

#[test]
fn attributes_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    root.write("f", "x").unwrap();
    root.create_dir("d").unwrap();
    let time = Time { seconds: 3_000_000_000, nanos: 123_456_789 };
    root.set_owner("f", Some(12), Some(70_000)).unwrap();
    root.set_mode("f", 0o4750).unwrap();
    root.set_times("f", None, Some(time)).unwrap();
    root.set_flags("f", InodeFlags::NODUMP).unwrap();
    root.set_xattr("f", "user.a", "v", XattrMode::Create).unwrap();
    assert_eq!(root.set_xattr("f", "user.a", "w", XattrMode::Create).unwrap_err().errno(), 17);
    assert_eq!(root.set_project("f", 1).unwrap_err().errno(), 95, "no such feature here");
    let list = [
        &2_u32.to_le_bytes()[..],
        &[1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff],
        &[2, 0, 4, 0, 0xe8, 3, 0, 0],
        &[4, 0, 4, 0, 0xff, 0xff, 0xff, 0xff],
        &[0x10, 0, 4, 0, 0xff, 0xff, 0xff, 0xff],
        &[0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    root.set_xattr("d", "system.posix_acl_default", &list, XattrMode::Any).unwrap();
    let list = root.acl("d", AclKind::Default).unwrap().unwrap();
    assert_eq!(list.entries().len(), 5);
    root.set_acl("f", AclKind::Access, Some(&list)).unwrap();
    assert_eq!(root.acl("f", AclKind::Access).unwrap().as_ref(), Some(&list));
    root.write("d/heir", "").unwrap();
    assert!(root.acl("d/heir", AclKind::Access).unwrap().is_some());
    root.set_acl("d", AclKind::Default, None).unwrap();
    assert_eq!(root.acl("d", AclKind::Default).unwrap(), None);
    let free = volume.statfs();
    assert!(free.blocks_free < free.blocks && free.inodes_free < free.inodes);
    volume.close().unwrap();
    fsck(&path);
    let still = Volume::open(&path, &OpenOptions::new()).unwrap();
    let seen = still.root().metadata("f").unwrap();
    assert_eq!((seen.uid(), seen.gid(), seen.mode() & 0o7700), (12, 70_000, 0o4600));
    assert_eq!((seen.modified(), seen.flags().contains(InodeFlags::NODUMP)), (time, true));
    assert_eq!(still.root().xattr("f", "user.a").unwrap(), b"v");
    let told = still.statfs();
    assert_eq!(
        (told.blocks, told.blocks_free, told.inodes_free),
        (free.blocks, free.blocks_free, free.inodes_free)
    );
}

#[test]
fn a_volume_that_is_dropped_is_as_after_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    root.write("synced", "kept").unwrap();
    root.write("emptied", vec![1; 20_000]).unwrap();
    root.open("synced").unwrap().sync_all().unwrap();
    // Linux has lost these names: a file created, or truncated, by the same open that then writes
    // durably.
    for name in ["new", "emptied"] {
        let options = *FileOptions::new().write(true).create(true).truncate(true).sync(true);
        root.open_with(name, &options).unwrap().write_all_at(0, b"durable").unwrap();
    }
    root.create("lost").unwrap();
    drop((root, volume));
    let volume = writable(&path);
    let root = volume.root();
    assert_eq!(root.read("synced").unwrap(), b"kept");
    assert_eq!(
        (root.read("new").unwrap(), root.read("emptied").unwrap()),
        (b"durable".into(), b"durable".into())
    );
    assert!(!root.try_exists("lost").unwrap(), "nothing made it durable");
    drop(root);
    volume.close().unwrap();
    fsck(&path);
}

#[test]
fn a_closed_volume_is_opened_again_while_handles_of_it_live() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    root.write("a", "1").unwrap();
    let file = root.open_with("a", FileOptions::new().write(true)).unwrap();
    volume.close().unwrap();
    let again = writable(&path);
    assert_eq!(root.write("b", "2").unwrap_err().errno(), 30);
    assert_eq!(file.write_at(0, b"2").unwrap_err().errno(), 30);
    again.root().write("c", "3").unwrap();
    again.close().unwrap();
    drop((root, file));
    fsck(&path);
    let still = Volume::open(&path, &OpenOptions::new()).unwrap();
    assert_eq!(still.root().read("a").unwrap(), b"1");
    assert!(!still.root().try_exists("b").unwrap());
}

#[test]
fn a_volume_that_is_open_for_reading_checks_permissions_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    for (name, mode) in [("public", 0o644), ("secret", 0o600), ("listed", 0o640)] {
        root.write(name, "text").unwrap();
        root.set_mode(name, mode).unwrap();
    }
    root.create_dir("closed").unwrap();
    root.write("closed/file", "text").unwrap();
    root.set_mode("closed", 0o700).unwrap();
    root.create_dir("searched").unwrap();
    root.write("searched/file", "text").unwrap();
    root.set_mode("searched", 0o711).unwrap();
    root.set_xattr("public", "trusted.a", "1", XattrMode::Create).unwrap();
    root.set_xattr("secret", "user.a", "1", XattrMode::Create).unwrap();
    let list = [
        &2_u32.to_le_bytes()[..],
        &[1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff],
        &[2, 0, 4, 0, 0xe8, 3, 0, 0],
        &[4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
        &[0x10, 0, 4, 0, 0xff, 0xff, 0xff, 0xff],
        &[0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff],
    ]
    .concat();
    root.set_xattr("listed", "system.posix_acl_access", &list, XattrMode::Any).unwrap();
    drop(root);
    volume.close().unwrap();
    let errno = |error: Error| error.errno();
    let seen = |caller: Option<u32>, write: bool| {
        let options = OpenOptions::new().write(write);
        let options = match caller {
            Some(uid) => options.caller(Caller::user(uid, uid, vec![])),
            None => options,
        };
        let volume = Volume::open(&path, &options).unwrap();
        let root = volume.root();
        let found = [
            root.read("public").map(drop).map_err(errno),
            root.read("secret").map(drop).map_err(errno),
            root.read("listed").map(drop).map_err(errno),
            root.read("closed/file").map(drop).map_err(errno),
            root.metadata("closed/file").map(drop).map_err(errno),
            root.read("searched/file").map(drop).map_err(errno),
            root.open_dir("searched").and_then(|dir| dir.entries()).map(drop).map_err(errno),
            root.open_dir("closed").and_then(|dir| dir.entries()).map(drop).map_err(errno),
            root.xattr("public", "trusted.a").map(drop).map_err(errno),
            root.xattr("secret", "user.a").map(drop).map_err(errno),
            root.read("public/x").map(drop).map_err(errno),
        ];
        let names = root.xattrs("public").unwrap();
        drop(root);
        volume.close().unwrap();
        (found.map(|found| found.err().unwrap_or(0)), names)
    };
    let unchecked = ([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 20], vec![b"trusted.a".to_vec()]);
    let granted = ([0, 13, 0, 13, 13, 0, 13, 13, 61, 13, 20], vec![]);
    let others = ([0, 13, 13, 13, 13, 0, 13, 13, 61, 13, 20], vec![]);
    for write in [true, false] {
        assert_eq!(seen(None, write), unchecked, "open for writing: {write}");
        assert_eq!(seen(Some(1000), write), granted, "open for writing: {write}");
        assert_eq!(seen(Some(1001), write), others, "open for writing: {write}");
    }
}

#[test]
fn a_target_that_no_link_keeps_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    assert_eq!(root.symlink(b"a\0b", "cut").unwrap_err().errno(), 22);
    root.symlink("a", "whole").unwrap();
    drop(root);
    volume.close().unwrap();
    fsck(&path);
}

#[test]
fn a_file_is_created_where_a_link_leads_however_long_the_whole_way_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    let way = vec!["d".repeat(255); 15].join("/");
    root.create_dir_all(&way).unwrap();
    // Together longer than PATH_MAX.
    root.symlink(format!("{}new", "./".repeat(150)), format!("{way}/link")).unwrap();
    drop(root.create(format!("{way}/link")).unwrap());
    assert!(root.try_exists(format!("{way}/new")).unwrap());
    drop(root);
    volume.close().unwrap();
    fsck(&path);
}

#[test]
fn names_with_a_slash_at_the_end_are_removed_as_unlink_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    root.write("file", "1").unwrap();
    root.create_dir("dir").unwrap();
    root.symlink("dir", "link").unwrap();
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("file"), "1").unwrap();
    std::fs::create_dir(host.path().join("dir")).unwrap();
    std::os::unix::fs::symlink("dir", host.path().join("link")).unwrap();
    for name in ["file/", "dir/", "link/", "none/", "dir"] {
        let theirs = std::fs::remove_file(host.path().join(name)).unwrap_err().raw_os_error();
        assert_eq!(Some(root.remove_file(name).unwrap_err().errno()), theirs, "{name}");
    }
    drop(root);
    volume.close().unwrap();
}

#[test]
fn an_image_that_the_host_cannot_open_has_the_hosts_errno() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("loop");
    std::os::unix::fs::symlink("loop", &path).unwrap();
    let theirs = std::fs::File::open(&path).unwrap_err().raw_os_error();
    let ours = Volume::open(&path, &OpenOptions::new()).unwrap_err();
    assert_eq!(Some(ours.errno()), theirs, "{ours}");
}

#[test]
fn a_device_in_memory_has_one_writer() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
    let device = std::sync::Arc::new(extant_block::MemDevice::from_bytes(std::fs::read(&path).unwrap()));
    let open = || Volume::open_device(&rt, device.clone(), &OpenOptions::new().write(true));
    let first = open().unwrap();
    assert_eq!(open().unwrap_err().errno(), 16);
    first.close().unwrap();
    open().unwrap().close().unwrap();
}

#[test]
fn a_volume_is_checked_while_open_and_findings_are_told() {
    use std::sync::atomic::{AtomicU64, Ordering};
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    volume.root().create_dir("folder").unwrap();
    for n in 0..300 {
        volume.root().write(format!("folder/distinctly-named-{n}"), vec![1; 20 * n]).unwrap();
    }
    volume.root().remove_file("folder/distinctly-named-7").unwrap();
    let steps = Arc::new(AtomicU64::new(0));
    let count = steps.clone();
    let progress: extant::check::Progress = Arc::new(move |done, of| {
        assert!(done <= of);
        count.fetch_add(1, Ordering::Relaxed);
    });
    let options = extant::check::Options { progress: Some(progress), ..Default::default() };
    let checked = volume.check(options).unwrap();
    assert!(checked.is_clean(), "{checked:?}");
    assert!(steps.load(Ordering::Relaxed) > 0);
    assert!(checked.inodes >= 301, "{checked:?}");
    volume.close().unwrap();

    let mut bytes = std::fs::read(&path).unwrap();
    let name = b"distinctly-named-9";
    let places: Vec<usize> = bytes
        .windows(name.len())
        .enumerate()
        .filter(|(_, window)| window == name)
        .map(|(at, _)| at)
        .collect();
    places.iter().for_each(|&at| bytes[at] = b'D');
    std::fs::write(&path, bytes).unwrap();
    let volume = Volume::open(&path, &OpenOptions::new()).unwrap();
    let told = Arc::new(AtomicU64::new(0));
    let cancel = extant::check::Cancel::default();
    let (count, stop) = (told.clone(), cancel.clone());
    let on_finding: extant::check::OnFinding = Arc::new(move |finding| {
        assert_eq!(finding.code, extant::check::Code::DirectoryChecksum);
        count.fetch_add(1, Ordering::Relaxed);
        stop.cancel();
    });
    let options = extant::check::Options { on_finding: Some(on_finding), cancel, ..Default::default() };
    assert!(matches!(volume.check(options), Err(extant::check::CheckError::Cancelled)));
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert!(!volume.check(Default::default()).unwrap().is_clean());
}

#[test]
fn a_volume_is_created_under_a_free_name_and_opened_by_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.img");
    let volume = Volume::create(&path, 8 << 20).unwrap();
    volume.root().write("file", "text").unwrap();
    assert!(matches!(Volume::create(dir.path(), 8 << 20), Err(Error::Exists(_))));
    assert!(matches!(Volume::create(&path, 8 << 20), Err(Error::Exists(_))));
    volume.close().unwrap();
    let read = pollster::block_on(async {
        let volume = asynch::Volume::open(&path, &OpenOptions::new()).await?;
        volume.root().read("file").await
    });
    assert_eq!(read.unwrap(), b"text");
    fsck(&path);

    // Of several programs that create it at once, one does.
    let contested = dir.path().join("contested.img");
    let created = std::thread::scope(|scope| {
        let create = || Volume::create(&contested, 8 << 20);
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(create)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    for refused in created.iter().filter_map(|created| created.as_ref().err()) {
        assert!(matches!(refused, Error::Exists(_) | Error::Busy(_)), "{refused}");
    }
    assert_eq!(created.iter().filter(|created| created.is_ok()).count(), 1);
    created.into_iter().flatten().for_each(|volume| volume.close().unwrap());
    fsck(&contested);

    let tiny = dir.path().join("tiny.img");
    let refused = Volume::create(&tiny, 10_000).unwrap_err().to_string();
    assert!(refused.contains("bytes"), "{refused}");
    assert!(!tiny.exists());
    let nowhere = Volume::create(dir.path().join("missing/new.img"), 8 << 20);
    assert!(matches!(nowhere, Err(Error::NotFound(_))), "{nowhere:?}");
    let absent = pollster::block_on(asynch::Volume::open(dir.path().join("absent"), &OpenOptions::new()));
    assert!(matches!(absent, Err(Error::NotFound(_))), "{absent:?}");
}
