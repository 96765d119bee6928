//! Usage patterns of programs that know `std::fs`, and of executors other than the library's own.

mod bed;

use bed::{fsck, image, writable};
use extant::{
    Acl, AclKind, Caller, Error, FileOptions, OpenOptions, Special, Time, Volume, asynch, copy_tree,
};
use extant_block::{FileDevice, FileOptions as DeviceOptions};
use extant_rt::Rt;
use std::future::Future;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

/// Polls on a thread outside the library's worlds.
fn elsewhere<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "a thread of no world is what it is about")]
    std::thread::spawn(move || done.send(pollster::block_on(future)));
    wait.recv_timeout(Duration::from_secs(60)).expect("the future ends")
}

fn device(path: &Path, rt: &Rt, write: bool) -> Arc<FileDevice> {
    let options = DeviceOptions { write, direct: true };
    Arc::new(FileDevice::open(path, options).unwrap().driven_by(rt))
}

#[test]
fn futures_end_on_any_executor() {
    let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
    let path = image(dir.path());
    let rt = Rt::real(Default::default());
    let (world, disk) = (rt.clone(), device(&path, &rt, true));
    elsewhere(async move {
        let volume = asynch::Volume::open_device(&world, disk, &OpenOptions::new().write(true)).await?;
        let file = volume.root().create("file").await?;
        file.write_all_at(0, &[7; 300_000]).await?;
        file.sync_all().await?;
        drop(file);
        volume.close().await
    })
    .unwrap();
    let rt = Rt::real(Default::default());
    let (world, disk) = (rt.clone(), device(&path, &rt, false));
    let bytes = elsewhere(async move {
        let volume = asynch::Volume::open_device(&world, disk, &OpenOptions::new()).await?;
        volume.root().read("file").await
    });
    assert_eq!(bytes.unwrap(), [7; 300_000]);
}

#[test]
fn trees_deeper_than_a_path_are_walked_and_removed() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let name = [b'd'; 255];
    let mut here = volume.root();
    for _ in 0..20 {
        here.create_dir(name).unwrap();
        here = here.open_dir(name).unwrap();
    }
    here.write("file", "deep").unwrap();
    let met: Vec<_> = volume.root().walk().map(|met| met.unwrap().0.len()).collect();
    assert_eq!(met.iter().max(), Some(&(20 * 256 + 4)));
    drop(here);
    let free = volume.statfs().inodes_free;
    volume.root().remove_dir_all(name).unwrap();
    assert!(!volume.root().try_exists(name).unwrap());
    assert_eq!(volume.statfs().inodes_free, free + 21);
    volume.close().unwrap();
}

#[test]
fn a_tree_is_removed_beside_its_links_which_are_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let root = volume.root();
    root.create_dir_all("keep/below").unwrap();
    root.write("keep/file", "kept").unwrap();
    root.create_dir_all("top/a/b").unwrap();
    root.write("top/a/b/c", "gone").unwrap();
    root.symlink("/keep", "top/a/link").unwrap();
    root.symlink("/keep", "alias").unwrap();
    root.remove_dir_all("top").unwrap();
    root.remove_dir_all("alias").unwrap();
    assert!(matches!(root.remove_dir_all("keep/file"), Err(Error::NotADirectory(_))));
    assert!(matches!(root.remove_dir_all("/"), Err(Error::Busy(_))));
    assert!(matches!(root.remove_dir_all("keep/."), Err(Error::Invalid(_))));
    assert_eq!(root.read("keep/file").unwrap(), b"kept");
    drop(root);
    volume.close().unwrap();
}

#[test]
fn options_that_std_refuses_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let root = volume.root();
    root.write("file", "text").unwrap();
    let host = dir.path().join("file");
    std::fs::write(&host, "text").unwrap();
    for bits in 0_u32..64 {
        let bit = |n: u32| bits & 1 << n != 0;
        let mut ours = FileOptions::new();
        ours.read(bit(0)).write(bit(1)).append(bit(2)).truncate(bit(3)).create(bit(4)).create_new(bit(5));
        let mut std = std::fs::OpenOptions::new();
        std.read(bit(0)).write(bit(1)).append(bit(2)).truncate(bit(3)).create(bit(4)).create_new(bit(5));
        let ours = root.open_with("file", &ours).map(drop).map_err(|error| error.errno());
        let std = std.open(&host).map(drop).map_err(|error| error.raw_os_error().unwrap_or(22));
        assert_eq!(ours, std, "options {bits:06b}");
    }
    drop(root);
    volume.close().unwrap();
}

#[test]
fn the_position_of_a_file_that_is_appended_to_is_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    volume.root().write("log", "before ").unwrap();
    let mut log = volume.root().open_with("log", FileOptions::new().append(true)).unwrap();
    log.write_all(b"after").unwrap();
    assert_eq!(log.stream_position().unwrap(), 12);
    drop(log);
    volume.close().unwrap();
}

#[test]
fn short_writes_keep_the_rules_of_long_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    let root = volume.root();
    let at = |name: &str, options: &mut FileOptions| {
        root.open_with(name, options.read(true).write(true).create(true)).unwrap()
    };

    // What a file had in its last block when it was longer does not come back.
    let cut = at("cut", &mut FileOptions::new());
    cut.write_all_at(0, &[7; 3000]).unwrap();
    cut.sync_all().unwrap();
    cut.set_len(10).unwrap();
    assert_eq!(cut.write_at(2000, b"end").unwrap(), 3);
    let mut expected = vec![7; 10];
    expected.resize(2000, 0);
    expected.extend(b"end");
    assert_eq!(root.read("cut").unwrap(), expected);

    let log = at("log", FileOptions::new().append(true));
    log.write_all_at(0, &[1; 5000]).unwrap();
    for byte in [2, 3] {
        assert_eq!(log.write_at(0, &[byte]).unwrap(), 1);
    }
    assert_eq!(root.read("log").unwrap()[4998..], [1, 1, 2, 3]);

    // A stranger's write takes the set-ID bits away.
    let tool = at("tool", &mut FileOptions::new());
    tool.write_all_at(0, b"tool").unwrap();
    root.set_mode("tool", 0o6777).unwrap();
    let stranger = volume.as_caller(Caller::user(1000, 1000, Vec::new()));
    let theirs = stranger.root().open_with("tool", FileOptions::new().write(true)).unwrap();
    assert_eq!(theirs.write_at(0, b"T").unwrap(), 1);
    assert_eq!(root.metadata("tool").unwrap().mode() & 0o7777, 0o777);

    // Durable when they return, if asked for: `synced` is on the volume after what is like a power
    // cut.
    at("synced", FileOptions::new().sync(true)).write_at(0, b"synced").unwrap();
    let reading = root.open("cut").unwrap();
    assert!(matches!(reading.write_at(0, b"x"), Err(Error::BadFile("writing"))));
    drop((cut, log, tool, theirs, reading, stranger, root, volume));
    let volume = writable(&path);
    assert_eq!(volume.read("synced").unwrap(), b"synced");
    volume.close().unwrap();
    fsck(&path);
}

#[test]
fn sparse_files_beyond_memory_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let root = volume.root();
    root.create("sparse").unwrap().set_len(3 << 40).unwrap();
    assert_eq!(root.read("sparse").unwrap_err().errno(), 12);
    root.write("other", vec![3; 3 << 20]).unwrap();
    assert_eq!(root.read("other").unwrap(), vec![3; 3 << 20]);
    drop(root);
    volume.close().unwrap();
}

#[test]
fn values_that_an_inode_cannot_hold_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let root = volume.root();
    for special in [Special::Char(4096, 0), Special::Block(0, 1 << 20)] {
        assert_eq!(root.create_special("node", special, 0o600).unwrap_err().errno(), 22);
    }
    root.create_special("node", Special::Char(4095, (1 << 20) - 1), 0o600).unwrap();
    assert_eq!(root.metadata("node").unwrap().device(), Some((4095, (1 << 20) - 1)));
    let late = Time { seconds: 0, nanos: 1_000_000_000 };
    assert_eq!(root.set_times("node", None, Some(late)).unwrap_err().errno(), 22);
    drop(root);
    volume.close().unwrap();
}

#[test]
fn directories_that_exist_are_told_as_mkdir_does() {
    let dir = tempfile::tempdir().unwrap();
    let path = image(dir.path());
    let volume = writable(&path);
    volume.root().write("file", "text").unwrap();
    assert!(matches!(volume.root().create_dir_all("file/"), Err(Error::Exists(_))));
    volume.root().create_dir_all("a//b/").unwrap();
    volume.root().create_dir_all("a//b/").unwrap();
    volume.close().unwrap();
    let still = Volume::open(&path, &OpenOptions::new()).unwrap();
    assert_eq!(still.root().create_dir("a").unwrap_err().errno(), 17);
    assert_eq!(still.root().create_dir("new").unwrap_err().errno(), 30);
    still.root().create_dir_all("a/b").unwrap();
}

#[test]
fn names_that_several_threads_create_exist_for_all() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..200 {
                    volume.root().create(format!("{n}")).unwrap();
                }
            });
        }
    });
    volume.close().unwrap();
}

#[test]
fn copies_keep_their_permissions_and_not_into_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let root = volume.root();
    root.create_dir_all("from/below").unwrap();
    // user::rwx,user:1000:rwx,group::r-x,mask::rwx,other::r-x: a version, then tag, permissions and
    // id of each entry.
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [(1, 7, !0), (2, 7, 1000), (4, 5, !0), (0x10, 7, !0), (0x20, 5, !0_u32)] {
        list.extend([tag, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    let list = Acl::parse_xattr(&list, extant::InodeNumber(2)).unwrap();
    root.set_acl("from", AclKind::Default, Some(&list)).unwrap();
    root.write("from/file", "text").unwrap();
    root.set_acl("from/file", AclKind::Access, None).unwrap();
    root.set_mode("from/file", 0o640).unwrap();
    let from = root.open_dir("from").unwrap();
    for inside in ["from", "from/below"] {
        let to = root.open_dir(inside).unwrap();
        assert!(matches!(copy_tree(&from, &to), Err(Error::Invalid(_))), "{inside}");
    }
    assert_eq!(root.read("from/file").unwrap(), b"text");
    root.create_dir("to").unwrap();
    copy_tree(&from, &root.open_dir("to").unwrap()).unwrap();
    assert_eq!(root.acl("to/file", AclKind::Access).unwrap(), None);
    assert_eq!(root.metadata("to/file").unwrap().mode() & 0o777, 0o640);
    assert_eq!(root.acl("to", AclKind::Default).unwrap(), root.acl("from", AclKind::Default).unwrap());
    drop((from, root));
    volume.close().unwrap();
}

/// Creates the same names with `std` and on a volume, then compares many lookups with the host's.
#[test]
fn paths_lead_where_those_of_the_host_do() {
    let dir = tempfile::tempdir().unwrap();
    let (host, path) = (dir.path().join("tree"), image(dir.path()));
    let volume = writable(&path);
    let root = volume.root();
    for name in ["", "d", "d/below"] {
        std::fs::create_dir(host.join(name)).unwrap();
        if !name.is_empty() {
            root.create_dir(name).unwrap();
        }
    }
    std::fs::write(host.join("d/file"), "x").unwrap();
    root.write("d/file", "x").unwrap();
    let mut links = vec![
        ("to-dir".to_owned(), "d".to_owned()),
        ("to-dir-slash".into(), "d/".into()),
        ("to-file".into(), "d/file".into()),
        ("to-file-slash".into(), "d/file/".into()),
        ("to-none".into(), "none".into()),
        ("to-none-slash".into(), "none/".into()),
        ("d/up".into(), "../d/./below/..".into()),
        ("loop".into(), "loop".into()),
        ("chain-1".into(), "d/file".into()),
        ("new-1".into(), "d/made".into()),
    ];
    for n in 2..=41 {
        links.push((format!("chain-{n}"), format!("chain-{}", n - 1)));
        links.push((format!("new-{n}"), format!("new-{}", n - 1)));
    }
    for (name, target) in &links {
        std::os::unix::fs::symlink(target, host.join(name)).unwrap();
        root.symlink(target, name).unwrap();
    }
    let mut paths: Vec<String> = "d/file d/file/ d/file/. d/file/.. d/file/../file d/none/.. d/. d/./file d//file d/below/../file \
        to-file/ to-file/. to-dir/ to-dir/. to-dir/.. to-dir/file to-none/ none none/ none/x . ./ ./d/ d/up d/up/ d/up/file"
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    paths.extend(links.iter().map(|(name, _)| name.clone()));
    let host_says = |path: &str, follow: bool| {
        let path = format!("{}/{path}", host.display());
        let found = if follow { std::fs::metadata(path) } else { std::fs::symlink_metadata(path) };
        found.map(|m| m.is_dir()).map_err(|error| error.raw_os_error().unwrap())
    };
    let ours = |volume: &Volume, path: &str, follow: bool| {
        let root = volume.root();
        let found = if follow { root.metadata(path) } else { root.symlink_metadata(path) };
        found.map(|m| m.is_dir()).map_err(|error| error.errno())
    };
    let compare = |volume: &Volume| {
        for path in &paths {
            for follow in [true, false] {
                assert_eq!(ours(volume, path, follow), host_says(path, follow), "{path}, follow: {follow}");
            }
        }
    };
    compare(&volume);
    // Creation through links, the last of them dangling.
    for path in ["new-40", "new-41", "to-none-slash", "d/file/new", "none/new", "to-dir/new"] {
        let made = root.create(path).map(drop).map_err(|error| error.errno());
        let expected =
            std::fs::File::create(host.join(path)).map(drop).map_err(|error| error.raw_os_error().unwrap());
        assert_eq!(made, expected, "{path}");
    }
    compare(&volume);
    volume.close().unwrap();
    compare(&Volume::open(&path, &OpenOptions::new()).unwrap());
}

#[test]
fn a_name_moves_between_directories_that_are_open() {
    let dir = tempfile::tempdir().unwrap();
    let volume = writable(&image(dir.path()));
    let root = volume.root();
    root.create_dir_all("a/b").unwrap();
    root.write("a/file", "text").unwrap();
    let (a, b) = (root.open_dir("a").unwrap(), root.open_dir("a/b").unwrap());
    a.rename_to("file", &b, "moved").unwrap();
    assert_eq!(root.read("a/b/moved").unwrap(), b"text");
    assert_eq!(a.open("file").unwrap_err().errno(), 2);
    let elsewhere = tempfile::tempdir().unwrap();
    let other = writable(&image(elsewhere.path()));
    assert_eq!(b.rename_to("moved", &other.root(), "moved").unwrap_err().errno(), 18);
    assert_eq!(root.link_file(&b.open("moved").unwrap(), "a/").unwrap_err().errno(), 17, "as the host says");
    assert_eq!(root.link_file(&b.open("moved").unwrap(), "new/").unwrap_err().errno(), 2);
    let mut whole = [0; 4];
    b.open("moved").unwrap().read_exact_at(0, &mut whole).unwrap();
    assert_eq!(&whole, b"text");
    assert_eq!(b.open("moved").unwrap().read_exact_at(1, &mut whole).unwrap_err().errno(), 34);
}

#[test]
fn a_copy_that_fails_leaves_the_file_that_was_there() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to) = (writable(&image(one.path())), writable(&image(two.path())));
    let (source, target) = (from.root(), to.root());
    source.write("big", vec![7; 12 << 20]).unwrap();
    source.write("small", "new").unwrap();
    source.hard_link("small", "twin").unwrap();
    target.write("filler", vec![1; 20 << 20]).unwrap();
    target.write("big", "old").unwrap();
    target.write("small", "old").unwrap();
    target.write("twin", "old").unwrap();
    assert_eq!(copy_tree(&source, &target).unwrap_err().errno(), 28);
    assert_eq!(target.read("big").unwrap(), b"old");
    target.remove_file("filler").unwrap();
    copy_tree(&source, &target).unwrap();
    // Copy again over the result, including names of the same file.
    copy_tree(&source, &target).unwrap();
    assert_eq!(target.read("big").unwrap().len(), 12 << 20);
    assert_eq!(target.read("small").unwrap(), b"new");
    let (small, twin) = (target.metadata("small").unwrap(), target.metadata("twin").unwrap());
    assert_eq!((small.inode(), small.links()), (twin.inode(), 2));
    let mut names: Vec<_> = target.entries().unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    assert_eq!(names, [b"big".to_vec(), b"lost+found".to_vec(), b"small".to_vec(), b"twin".to_vec()]);
    to.close().unwrap();
    fsck(&two.path().join("disk.img"));
}
