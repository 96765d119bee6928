//! Operations on volumes made by mke2fs, compared with the same operations on a host directory:
//! first by errno, then by name, as seen by e2fsck, our reader and, where mounting is allowed, the
//! kernel.

mod errnos;
mod flags;
mod gone;
mod hostile;
mod journalled;
mod kernel;
mod link_over;
mod memory;
mod nospace;
mod privileges;
mod quotas;
mod shared_xattrs;
mod small_files;
mod syncs;
mod values;

use super::*;
use crate::dir::Cookie;
use crate::xattr::SetMode;
use crate::{Error, Result, Volume, WriteOptions};
use extant_block::{Device, FileDevice, FileOptions};
use extant_cache::{CacheConfig, PageCache};
use extant_format::{DeviceNumber, FileKind, InodeFlags};
use extant_rt::{Rng, Rt};
use extant_testbed::{Mount, can_mount};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const UMASK: u16 = 0o027;
const NOW: i64 = 1_700_000_000;

fn run(command: &str, args: &[&str]) -> String {
    let out = Command::new(command).args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

fn have_tools() -> bool {
    let found = ["mke2fs", "e2fsck"].iter().all(|tool| {
        Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    });
    if !found {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
    }
    found
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Opens the volume in `image` for writing, runs `work` with it and its root, and closes it.
fn within(image: &Path, work: impl AsyncFnOnce(&Bed, &Node)) {
    let rt = Rt::real(Default::default());
    rt.block_on(async {
        let bed = Bed::open(&rt, device(image)).await;
        let root = bed.volume.root_node().await.unwrap();
        work(&bed, &root).await;
        drop(root);
        bed.close().await;
    })
    .unwrap();
}

fn make(dir: &Path, args: &str) -> PathBuf {
    let image = dir.join("image");
    let mut all = vec!["-q", "-F", "-E", "root_owner=0:0,hash_seed=01234567-89ab-cdef-0123-456789abcdef"];
    all.extend(args.split(' ').filter(|arg| !arg.is_empty()));
    let (options, size) = all.split_at(all.len() - 1);
    let mut all = options.to_vec();
    all.extend([image.to_str().unwrap(), size[0]]);
    let said = run("mke2fs", &all);
    assert!(!said.contains("mke2fs:"), "mke2fs {all:?}: {said}");
    image
}

/// A volume open for writing.
struct Bed {
    // Fields drop in this order: the volume before the cache.
    volume: Volume,
    _cache: PageCache,
}

impl Bed {
    async fn open(rt: &Rt, device: Arc<dyn Device>) -> Self {
        Self::open_with(rt, device, WriteOptions::default()).await
    }

    async fn open_with(rt: &Rt, device: Arc<dyn Device>, options: WriteOptions) -> Self {
        let cache = PageCache::new(rt, CacheConfig::with_budget(8 << 20)).unwrap();
        let options = WriteOptions { fixed_time: Some(NOW), commit_interval: None, ..options };
        let volume = Volume::open_writable(rt, &cache.attach(device), options).await.unwrap();
        Self { volume, _cache: cache }
    }

    fn writer(&self) -> &Arc<Writer> {
        self.volume.writer().unwrap()
    }

    async fn close(self) {
        let writer = self.writer();
        self.volume.namespace().unwrap().delete_doomed().await;
        let (counts, totals) = (writer.alloc.statfs(), writer.store.groups().free_totals());
        assert_eq!((counts.free, counts.free_inodes), totals, "nothing is promised at the end");
        assert!(writer.alloc.problems().is_empty(), "{:?}", writer.alloc.problems());
        self.volume.close().await.unwrap();
    }
}

fn device(image: &Path) -> Arc<dyn Device> {
    let options = FileOptions { write: true, ..FileOptions::default() };
    Arc::new(FileDevice::open(image, options).unwrap())
}

fn check_is_silent(image: &Path, what: &str) {
    let said = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    let spoke: Vec<_> = said
        .lines()
        .filter(|line| !line.starts_with("e2fsck 1.") && !line.starts_with("Pass "))
        .filter(|line| !line.contains(" files (") && !line.trim().is_empty())
        .collect();
    assert!(spoke.is_empty(), "{what}: {:#?} of {} lines", &spoke[..spoke.len().min(8)], spoke.len());
}

/// The attributes of a name that a program can see.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Seen {
    mode: u32,
    links: u64,
    owner: (u32, u32),
    target: Option<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first of the names of the same inode.
    first_name: PathBuf,
}

type Tree = BTreeMap<PathBuf, Seen>;

fn host_tree(root: &Path) -> Tree {
    fn walk(root: &Path, at: &Path, tree: &mut Tree, inodes: &mut BTreeMap<u64, PathBuf>) {
        let mut names: Vec<_> = std::fs::read_dir(at).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for path in names.into_iter().filter(|path| !path.ends_with("lost+found")) {
            let meta = std::fs::symlink_metadata(&path).unwrap();
            let short = path.strip_prefix(root).unwrap().to_path_buf();
            let first_name = inodes.entry(meta.ino()).or_insert_with(|| short.clone()).clone();
            let target = meta.is_symlink().then(|| {
                use std::os::unix::ffi::OsStringExt;
                std::fs::read_link(&path).unwrap().into_os_string().into_vec()
            });
            let mut xattrs = BTreeMap::new();
            let mut buffer = vec![0; 1 << 16];
            let len = rustix::fs::llistxattr(&path, &mut buffer).unwrap_or(0);
            for name in buffer[..len].split(|&byte| byte == 0).filter(|name| name.starts_with(b"user.")) {
                let mut value = vec![0; 1 << 16];
                let len = rustix::fs::lgetxattr(&path, name, &mut value).unwrap();
                value.truncate(len);
                xattrs.insert(name.to_vec(), value);
            }
            let owner = (meta.uid(), meta.gid());
            let seen = Seen { mode: meta.mode(), links: meta.nlink(), owner, target, xattrs, first_name };
            tree.insert(short, seen);
            if meta.is_dir() {
                walk(root, &path, tree, inodes);
            }
        }
    }
    let (mut tree, mut inodes) = Default::default();
    walk(root, root, &mut tree, &mut inodes);
    tree
}

/// The same for a volume, through the operations themselves.
async fn our_tree(bed: &Bed) -> Tree {
    let (mut tree, mut inodes) = (Tree::new(), BTreeMap::new());
    let mut stack = vec![(PathBuf::new(), bed.volume.root_node().await.unwrap())];
    let root = Caller::root();
    let mut found = Vec::new();
    while let Some((at, dir)) = stack.pop() {
        let mut names = Vec::new();
        let mut cookie = Cookie::START;
        while cookie < Cookie::END {
            let mut room = 7;
            cookie = dir
                .read_dir(cookie, &mut |listed| {
                    names.push(listed.name.to_vec());
                    room -= 1;
                    room > 0
                })
                .await
                .unwrap();
        }
        names.sort();
        names.dedup();
        for name in names.into_iter().filter(|name| !matches!(&name[..], b"." | b".." | b"lost+found")) {
            let node = dir.lookup(&root, &name).await.unwrap();
            let path = at.join(String::from_utf8(name).unwrap());
            if node.is_dir() {
                stack.push((path.clone(), node.clone()));
            }
            found.push((path, node));
        }
    }
    // The order in which the host's tree is walked: a directory before its contents.
    found.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, node) in found {
        let seen = node.attributes().unwrap();
        let target = match seen.kind {
            FileKind::Symlink => Some(node.read_link().await.unwrap()),
            _ => None,
        };
        let mut xattrs = BTreeMap::new();
        for name in node.xattrs(&root).await.unwrap() {
            xattrs.insert(name.clone(), node.xattr(&root, &name).await.unwrap());
        }
        let first_name = inodes.entry(seen.inode).or_insert_with(|| path.clone()).clone();
        let mode = u32::from(seen.kind.mode_bits() | seen.permissions);
        let owner = (seen.uid, seen.gid);
        let seen = Seen { mode, links: seen.links.into(), owner, target, xattrs, first_name };
        tree.insert(path, seen);
    }
    tree
}

fn assert_same(ours: &Tree, theirs: &Tree, what: &str) {
    for (path, seen) in ours {
        assert_eq!(Some(seen), theirs.get(path), "{what}: {}", path.display());
    }
    for path in theirs.keys() {
        assert!(ours.contains_key(path), "{what}: {} is missing", path.display());
    }
}

/// One operation. A path is a directory and a name.
#[derive(Clone, Debug)]
enum Op {
    Create(PathBuf, u16),
    Mkdir(PathBuf, u16),
    Symlink(PathBuf, Vec<u8>),
    Mknod(PathBuf, u16),
    Unlink(PathBuf),
    Rmdir(PathBuf),
    Link(PathBuf, PathBuf),
    Rename(PathBuf, PathBuf, RenameMode),
    Chmod(PathBuf, u16),
    Chown(PathBuf, u32, u32),
    SetXattr(PathBuf, Vec<u8>, Vec<u8>, SetMode),
    RemoveXattr(PathBuf, Vec<u8>),
}

fn random_path(rng: &mut Rng) -> PathBuf {
    let name = |rng: &mut Rng| match rng.below(12) {
        0 => format!("{}-{}", rng.below(30), "long".repeat(50)),
        1 => "n".repeat(254 + rng.below(3) as usize),
        _ => format!("{}", rng.below(12)),
    };
    let mut path = PathBuf::new();
    for _ in 0..1 + rng.below(3) {
        path.push(name(rng));
    }
    path
}

fn random_op(rng: &mut Rng) -> Op {
    let path = random_path(rng);
    let mode = (rng.below(0o10000) as u16) | 0o700;
    match rng.below(24) {
        0..=4 => Op::Create(path, mode),
        5..=8 => Op::Mkdir(path, mode),
        9 => Op::Symlink(path, b"t/".repeat(250)[..[1, 30, 59, 60, 61, 500][rng.below(6) as usize]].to_vec()),
        10 => Op::Mknod(path, mode),
        11..=12 => Op::Unlink(path),
        13..=14 => Op::Rmdir(path),
        15..=16 => Op::Link(path, random_path(rng)),
        17..=19 => {
            let modes =
                [RenameMode::Replace, RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Op::Rename(path, random_path(rng), modes[rng.below(4) as usize])
        }
        20 => Op::Chmod(path, mode),
        21 => Op::Chown(path, rng.below(5) as u32, rng.below(70_000) as u32),
        22 => {
            let name = format!("user.{}", rng.below(4)).into_bytes();
            let modes = [SetMode::Any, SetMode::Any, SetMode::Create, SetMode::Replace];
            Op::SetXattr(path, name, vec![b'v'; rng.below(300) as usize], modes[rng.below(4) as usize])
        }
        _ => Op::RemoveXattr(path, format!("user.{}", rng.below(4)).into_bytes()),
    }
}

fn errno<T>(result: Result<T>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

fn on_host(root: &Path, op: &Op) -> i32 {
    rustix::process::umask(Mode::from_raw_mode(UMASK.into()));
    let at = |path: &Path| root.join(path);
    let mode = |mode: u16| Mode::from_raw_mode(mode.into());
    let result = match op {
        Op::Create(path, bits) => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW;
            rustix::fs::open(at(path), flags, mode(*bits)).map(drop)
        }
        Op::Mkdir(path, bits) => rustix::fs::mkdir(at(path), mode(*bits)),
        Op::Symlink(path, target) => rustix::fs::symlink(&target[..], at(path)),
        Op::Mknod(path, bits) => rustix::fs::mknodat(CWD, at(path), FileType::Fifo, mode(*bits), 0),
        Op::Unlink(path) => rustix::fs::unlink(at(path)),
        Op::Rmdir(path) => rustix::fs::rmdir(at(path)),
        Op::Link(path, to) => rustix::fs::linkat(CWD, at(path), CWD, at(to), AtFlags::empty()),
        Op::Rename(path, to, how) => {
            let flags = match how {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
                RenameMode::Whiteout => RenameFlags::WHITEOUT,
                RenameMode::WhiteoutNoReplace => RenameFlags::WHITEOUT | RenameFlags::NOREPLACE,
            };
            rustix::fs::renameat_with(CWD, at(path), CWD, at(to), flags)
        }
        // Not through symbolic links: none of our targets resolves.
        Op::Chmod(path, bits) => rustix::fs::chmod(at(path), mode(*bits)),
        Op::Chown(path, uid, gid) => rustix::fs::chownat(
            CWD,
            at(path),
            Some(rustix::fs::Uid::from_raw(*uid)),
            Some(rustix::fs::Gid::from_raw(*gid)),
            AtFlags::SYMLINK_NOFOLLOW,
        ),
        Op::SetXattr(path, name, value, how) => {
            let flags = match how {
                SetMode::Any => XattrFlags::empty(),
                SetMode::Create => XattrFlags::CREATE,
                SetMode::Replace => XattrFlags::REPLACE,
            };
            rustix::fs::lsetxattr(at(path), &name[..], value, flags)
        }
        Op::RemoveXattr(path, name) => rustix::fs::lremovexattr(at(path), &name[..]),
    };
    result.map_or_else(|error| error.raw_os_error(), |()| 0)
}

async fn resolve(root: &Node, path: &Path) -> Result<Node> {
    let mut at = root.clone();
    for name in path {
        if at.kind() == Some(FileKind::Symlink) {
            // The same error as for a missing target.
            return Err(Error::NotFound("target".into()));
        }
        at = at.lookup(&Caller::root(), name.as_encoded_bytes()).await?;
    }
    Ok(at)
}

/// The directory of a path, and the name in it.
async fn split(root: &Node, path: &Path) -> Result<(Node, Vec<u8>)> {
    let dir = resolve(root, path.parent().unwrap()).await?;
    if dir.kind() == Some(FileKind::Symlink) {
        return Err(Error::NotFound("target".into()));
    }
    if !dir.is_dir() {
        return Err(Error::NotADirectory("a file".into()));
    }
    Ok((dir, path.file_name().unwrap().as_encoded_bytes().to_vec()))
}

async fn on_ours(root: &Node, op: &Op) -> Result<()> {
    let caller = &Caller { umask: UMASK, ..Caller::root() };
    match op {
        Op::Create(path, mode) => {
            let (dir, name) = split(root, path).await?;
            dir.create(caller, &name, *mode).await.map(drop)
        }
        Op::Mkdir(path, mode) => {
            let (dir, name) = split(root, path).await?;
            dir.mkdir(caller, &name, *mode).await.map(drop)
        }
        Op::Symlink(path, target) => {
            let (dir, name) = split(root, path).await?;
            dir.symlink(caller, &name, target).await.map(drop)
        }
        Op::Mknod(path, mode) => {
            let (dir, name) = split(root, path).await?;
            let device = DeviceNumber { major: 0, minor: 0 };
            dir.mknod(caller, &name, FileKind::Fifo, *mode, device).await.map(drop)
        }
        Op::Unlink(path) => {
            let (dir, name) = split(root, path).await?;
            dir.unlink(caller, &name).await
        }
        Op::Rmdir(path) => {
            let (dir, name) = split(root, path).await?;
            dir.rmdir(caller, &name).await
        }
        Op::Link(path, to) => {
            let node = resolve(root, path).await?;
            let (dir, name) = split(root, to).await?;
            dir.link(caller, &node, &name).await
        }
        Op::Rename(path, to, how) => {
            let (from, name) = split(root, path).await?;
            let (dir, new) = split(root, to).await?;
            from.rename(caller, &name, &dir, &new, *how).await
        }
        Op::Chmod(path, mode) => {
            let node = resolve(root, path).await?;
            if node.kind() == Some(FileKind::Symlink) {
                return Err(Error::NotFound("target".into()));
            }
            let set = SetAttributes { permissions: Some(*mode), ..Default::default() };
            node.set_attributes(caller, &set).await
        }
        Op::Chown(path, uid, gid) => {
            let node = resolve(root, path).await?;
            let set = SetAttributes { uid: Some(*uid), gid: Some(*gid), ..Default::default() };
            node.set_attributes(caller, &set).await
        }
        Op::SetXattr(path, name, value, how) => {
            resolve(root, path).await?.set_xattr(caller, name, value, *how).await
        }
        Op::RemoveXattr(path, name) => resolve(root, path).await?.remove_xattr(caller, name).await,
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("EXTANT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => vec![1, 2],
    }
}

fn differential(args: &str, ops: u32) {
    if !have_tools() || !is_root() {
        return println!("skipped: needs e2fsprogs and root");
    }
    for seed in seeds() {
        let shm = Path::new("/dev/shm");
        let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.unwrap();
        let host = dir.path().join("host");
        std::fs::create_dir(&host).unwrap();
        let image = make(dir.path(), args);
        let rt = Rt::real(Default::default());
        let what = format!("mke2fs {args}, EXTANT_SEED={seed}");
        rt.block_on(async {
            let bed = Bed::open(&rt, device(&image)).await;
            let root = bed.volume.root_node().await.unwrap();
            let mut rng = Rng::new(seed);
            for n in 0..ops {
                let op = random_op(&mut rng);
                let (theirs, ours) = (on_host(&host, &op), on_ours(&root, &op).await);
                let said = ours.as_ref().map_or_else(ToString::to_string, |()| String::new());
                let ours = errno(ours);
                assert_eq!(ours, theirs, "{what}: operation {n}, {op:?}: {said}");
                if n % 200 == 199 {
                    bed.volume.sync().await.unwrap();
                }
            }
            assert_same(&our_tree(&bed).await, &host_tree(&host), &what);
            drop(root);
            bed.close().await;
        })
        .unwrap();
        check_is_silent(&image, &what);
        let theirs = host_tree(&host);
        let mounted = dir.path().join("mounted");
        if let Some(mount) =
            can_mount().then(|| Mount::unless_blocks_are_too_large(&image, &mounted, "ro")).flatten()
        {
            assert_same(&host_tree(mount.path()), &theirs, &format!("{what}, mounted"));
        }
    }
}

#[test]
fn ext4_does_what_the_host_does() {
    differential("-t ext4 -b 4096 64M", 3000);
}

#[test]
fn ext4_of_small_blocks_does_what_the_host_does() {
    differential("-t ext4 -b 1024 -I 256 -O ^has_journal 32M", 3000);
}

#[test]
fn ext3_does_what_the_host_does() {
    differential("-t ext3 -b 1024 -I 128 32M", 2000);
}

#[test]
fn ext2_does_what_the_host_does() {
    differential("-t ext2 -b 1024 -I 128 -O ^dir_index,^filetype 32M", 2000);
}

#[test]
fn large_blocks_do_what_the_host_does() {
    differential("-t ext4 -b 65536 -O ^has_journal,^metadata_csum 256M", 800);
}

/// Creates enough names for trees of one and two levels, removes some, then runs e2fsck and the
/// kernel.
fn many_names(args: &str, count: u32) {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), args);
    let rt = Rt::real(Default::default());
    let caller = Caller::root();
    rt.block_on(async {
        let bed = Bed::open(&rt, device(&image)).await;
        let root = bed.volume.root_node().await.unwrap();
        let many = root.mkdir(&caller, b"many", 0o755).await.unwrap();
        let name = |n: u32| format!("a name of a file number {n}").into_bytes();
        for n in 0..count {
            many.create(&caller, &name(n), 0o644).await.unwrap();
        }
        for n in (0..count).step_by(3) {
            many.unlink(&caller, &name(n)).await.unwrap();
        }
        for n in 0..count {
            let found = errno(many.lookup(&caller, &name(n)).await);
            assert_eq!(found, if n % 3 == 0 { 2 } else { 0 }, "{n}");
        }
        let mut read = 0;
        let mut at = Cookie::START;
        while at < Cookie::END {
            at = many
                .read_dir(at, &mut |_| {
                    read += 1;
                    true
                })
                .await
                .unwrap();
        }
        assert_eq!(read, count - count.div_ceil(3) + 2);
        drop((root, many));
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, args);
    let volume = rt.block_on(Volume::open(device(&image), Default::default())).unwrap().unwrap();
    let many = rt.block_on(async { volume.resolve(b"/many", Follow::No).await.unwrap() }).unwrap();
    let listed = rt.block_on(async { volume.list(&many).await.unwrap() }).unwrap();
    assert_eq!(listed.len() as u32, count - count.div_ceil(3));
    assert_eq!(many.flags().contains(InodeFlags::INDEX), args.contains("ext4"));
}

#[test]
fn a_tree_of_names_is_valid() {
    many_names("-t ext4 -b 1024 -N 40000 -O ^has_journal 64M", 12_000);
}

#[test]
fn a_linear_directory_of_many_blocks_is_valid() {
    many_names("-t ext2 -b 1024 -N 10000 -O ^dir_index 64M", 3000);
}

/// Creates per second in one directory. Not a test; run by hand in release mode.
#[test]
#[ignore = "a measurement"]
fn creates_per_second() {
    let dir = tempfile::tempdir().unwrap();
    let image = make(dir.path(), "-t ext4 -b 4096 -N 200000 -O ^has_journal 512M");
    let rt = Rt::real(Default::default());
    let caller = Caller::root();
    rt.block_on(async {
        let bed = Bed::open(&rt, device(&image)).await;
        let root = bed.volume.root_node().await.unwrap();
        for round in 0..5 {
            let many = root.mkdir(&caller, format!("d{round}").as_bytes(), 0o755).await.unwrap();
            let names: Vec<_> = (0..20_000).map(|n| format!("file-{n:06}").into_bytes()).collect();
            let begin = rt.now();
            for name in &names {
                many.create(&caller, name, 0o644).await.unwrap();
            }
            let created = rt.now();
            for name in &names {
                many.lookup(&caller, name).await.unwrap();
            }
            let found = rt.now();
            for name in names.iter().step_by(2) {
                many.unlink(&caller, name).await.unwrap();
            }
            let gone = rt.now();
            bed.volume.sync().await.unwrap();
            let committed = rt.now();
            let rate =
                |n: f64, from: extant_rt::Nanos, to: extant_rt::Nanos| n * 1e9 / (to.0 - from.0) as f64;
            println!(
                "create {:.0}/s lookup {:.0}/s unlink {:.0}/s commit {} ms",
                rate(20_000.0, begin, created),
                rate(20_000.0, created, found),
                rate(10_000.0, found, gone),
                (committed.0 - gone.0) / 1_000_000
            );
        }
        drop(root);
        bed.close().await;
    })
    .unwrap();
    check_is_silent(&image, "after the measurement");
}
