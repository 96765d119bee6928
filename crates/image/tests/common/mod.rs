//! Shared by the tests of built images: source trees, external tools, and comparison path by path.
#![allow(dead_code)] // each test binary uses part of it

pub(crate) mod entries;

use extant_image::{BuildError, BuildOptions, BuildReport, Source, VolumeOptions, build};
use extant_rt::Rt;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

/// Default options.
pub(crate) fn options(output: PathBuf) -> BuildOptions {
    BuildOptions::new(output)
}

/// Builds without reporting progress.
pub(crate) fn try_build(options: &BuildOptions, sources: &[Source]) -> Result<BuildReport, BuildError> {
    build(options, sources, &Rt::real(Default::default()), Arc::new(|_, _| {}))
}

/// Builds a directory with the given volume options.
pub(crate) fn build_directory(source: &Path, output: &Path, volume: VolumeOptions) -> BuildReport {
    let options = BuildOptions { volume, ..options(output.to_path_buf()) };
    try_build(&options, &[Source::Directory(source.to_path_buf())]).expect("the build succeeds")
}

/// Runs a tool; prints a message and returns `None` if it is not installed.
pub(crate) fn tool(name: &str, args: &[&str]) -> Option<Output> {
    match extant_testbed::command(name).args(args).output() {
        Ok(output) => Some(output),
        Err(_) => {
            println!("skipped: {name} is not installed");
            None
        }
    }
}

/// Runs a tool that must succeed; returns false if it is not installed.
pub(crate) fn must(name: &str, args: &[&str]) -> bool {
    let Some(output) = tool(name, args) else { return false };
    assert!(output.status.success(), "{name} {args:?}: {}", text(&output));
    true
}

pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Asserts that e2fsck finds nothing wrong.
pub(crate) fn assert_clean(image: &Path) {
    let Some(output) = tool("e2fsck", &["-fn", image.to_str().unwrap()]) else { return };
    assert!(output.status.success(), "e2fsck on {}: {}", image.display(), text(&output));
}

/// A kernel mount, unmounted on drop; `None`, with a message, if mounting is not allowed.
pub(crate) struct Mount {
    // The order matters: the mount must end before the folder is deleted.
    mount: extant_testbed::Mount,
    _dir: tempfile::TempDir,
}

impl Mount {
    pub(crate) fn new(image: &Path, options: &str) -> Option<Self> {
        Self::with(|at| extant_testbed::Mount::new(image, at, options))
    }

    fn with(mount: impl FnOnce(&Path) -> extant_testbed::Mount) -> Option<Self> {
        let dir = extant_testbed::can_mount().then(|| tempfile::tempdir().unwrap())?;
        Some(Self { mount: mount(dir.path()), _dir: dir })
    }

    /// A file system that allows attributes of the maximum size in Linux; the host's may not.
    pub(crate) fn new_source() -> Option<Self> {
        let mount = Self::tmpfs("size=100m")?;
        let probe = mount.path().join("probe");
        fs::write(&probe, b"").unwrap();
        let set = rustix::fs::lsetxattr(&probe, "user.probe", &[0; 20_000], rustix::fs::XattrFlags::empty());
        fs::remove_file(&probe).unwrap();
        if set.is_err() {
            println!("skipped: no file system here takes large user attributes");
            return None;
        }
        Some(mount)
    }

    /// Creates a file system of 4 MiB.
    pub(crate) fn small() -> Option<Self> {
        Self::tmpfs("size=4m")
    }

    fn tmpfs(options: &str) -> Option<Self> {
        Self::with(|at| extant_testbed::Mount::tmpfs(at, options))
    }

    pub(crate) fn path(&self) -> &Path {
        self.mount.path()
    }

    /// The loop device it is mounted from.
    pub(crate) fn device(&self) -> &str {
        self.mount.device().and_then(Path::to_str).expect("it is an image's")
    }
}

/// Asserts that the kernel's view of the image equals the source, path by path.
pub(crate) fn assert_kernel_sees(image: &Path, source: &Path) {
    if let Some(mount) = Mount::new(image, "ro") {
        assert_same_tree(source, mount.path());
    }
}

/// Everything about a path that must be preserved.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: &'static str,
    mode: u32,
    owner: (u32, u32),
    links: u64,
    size: u64,
    mtime: (i64, i64),
    device: u64,
    target: Option<PathBuf>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path with the same inode.
    first: PathBuf,
}

/// Compares two trees: names, metadata, attributes, hard links, contents; ignores `lost+found` at
/// the top.
pub(crate) fn assert_same_tree(expected: &Path, found: &Path) {
    let (a, b) = (look(expected), look(found));
    let missing: Vec<_> = a.keys().filter(|path| !b.contains_key(*path)).take(5).collect();
    let extra: Vec<_> = b.keys().filter(|path| !a.contains_key(*path)).take(5).collect();
    assert!(missing.is_empty() && extra.is_empty(), "missing {missing:?}, extra {extra:?}");
    for (path, expected_entry) in &a {
        assert_eq!(expected_entry, &b[path], "{}", path.display());
        if expected_entry.kind == "file" {
            assert_same_bytes(&expected.join(path), &found.join(path));
        }
    }
}

/// Compares contents, skipping holes common to both.
fn assert_same_bytes(a: &Path, b: &Path) {
    let files = [fs::File::open(a).unwrap(), fs::File::open(b).unwrap()];
    let len = files[0].metadata().unwrap().len();
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut at = 0;
    while let Some(data) = files.iter().filter_map(|file| next_data(file, at)).min() {
        at = data;
        let here = (len - at).min(1 << 20) as usize;
        for (file, buffer) in files.iter().zip(&mut buffers) {
            file.read_exact_at(&mut buffer[..here], at).unwrap();
        }
        assert!(buffers[0][..here] == buffers[1][..here], "{} differs past byte {at}", a.display());
        at += here as u64;
    }
}

fn next_data(file: &fs::File, from: u64) -> Option<u64> {
    rustix::fs::seek(file, rustix::fs::SeekFrom::Data(from)).ok()
}

fn look(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut out = BTreeMap::new();
    let mut firsts = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(path) = pending.pop() {
        let full = root.join(&path);
        let meta = fs::symlink_metadata(&full).unwrap();
        let kind = meta.file_type();
        let is_dir = kind.is_dir();
        if is_dir {
            let mut names: Vec<_> = fs::read_dir(&full).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            pending.extend(
                names
                    .iter()
                    .rev()
                    .filter(|n| path != Path::new("") || *n != "lost+found")
                    .map(|n| path.join(n)),
            );
        }
        let kind = match () {
            _ if is_dir => "directory",
            _ if kind.is_file() => "file",
            _ if kind.is_symlink() => "symlink",
            _ if kind.is_char_device() => "char device",
            _ if kind.is_block_device() => "block device",
            _ if kind.is_fifo() => "fifo",
            _ => "socket",
        };
        let is_link = kind == "symlink";
        let seen = Seen {
            kind,
            mode: if is_link { 0 } else { meta.permissions().mode() },
            owner: (meta.uid(), meta.gid()),
            links: if is_dir { 0 } else { meta.nlink() },
            size: if is_dir { 0 } else { meta.size() },
            mtime: (meta.mtime(), meta.mtime_nsec()),
            device: meta.rdev(),
            target: is_link.then(|| fs::read_link(&full).unwrap()),
            xattrs: xattrs(&full),
            first: firsts.entry((meta.dev(), meta.ino())).or_insert_with(|| path.clone()).clone(),
        };
        out.insert(path, seen);
    }
    out
}

/// All extended attributes of a path.
pub(crate) fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else { return BTreeMap::new() };
    names[..len]
        .split(|b| *b == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 65536];
            let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}

/// A generator of repeatable bytes (xorshift64*).
pub(crate) struct Bytes(pub(crate) u64);

impl Bytes {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend(self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

/// A source with one of everything. Without root, parts that need it are left out.
pub(crate) fn make_source(root: &Path) {
    let mut bytes = Bytes(0x5eed);
    let dir = |name: &str| {
        let path = root.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    };
    fs::write(root.join("empty"), b"").unwrap();
    fs::write(root.join("one"), b"1").unwrap();
    for len in [1023, 1024, 1025, 4095, 4096, 4097, 65_536, 65_537, 300_000, 3_000_001] {
        fs::write(root.join(format!("file-{len}")), bytes.take(len)).unwrap();
    }
    let deep = dir("a/b/c/d/e/f/g");
    fs::write(deep.join("leaf"), b"leaf").unwrap();
    fs::hard_link(deep.join("leaf"), root.join("a/link-to-leaf")).unwrap();
    fs::hard_link(deep.join("leaf"), root.join("zz-link-to-leaf")).unwrap();
    symlink("short", root.join("symlink")).unwrap();
    for len in [59, 60, 61, 1000] {
        symlink("x".repeat(len), root.join(format!("symlink-{len}"))).unwrap();
    }
    fs::write(root.join("n".repeat(255)), b"long name").unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"not-utf8-\xff\xfe\n\x1b[31m");
    fs::write(root.join(odd), b"odd").unwrap();
    let many = dir("many");
    for n in 0..1500 {
        fs::write(many.join(format!("entry-{n:05}-{}", "y".repeat(n % 40))), n.to_string()).unwrap();
    }
    fs::set_permissions(dir("mode"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(root.join("setuid"), b"#!").unwrap();
    fs::set_permissions(root.join("setuid"), fs::Permissions::from_mode(0o6755)).unwrap();
    dir("empty-dir");
    make_sparse(&root.join("sparse"), &mut bytes);
    set_xattr(&root.join("one"), "user.small", b"small");
    set_xattr(&root.join("one"), "user.empty", b"");
    set_xattr(&root.join("empty"), "user.medium", &bytes.take(500));
    for n in 0..5 {
        let path = root.join(format!("shares-{n}"));
        fs::write(&path, b"same attributes").unwrap();
        set_xattr(&path, "user.shared", &[b's'; 700]);
    }
    set_xattr(&root.join("a"), "user.of-a-directory", b"yes");
    if rustix::process::geteuid().is_root() {
        make_what_needs_root(root);
    }
    // Directories last: creating their entries changed their times.
    set_times(root);
}

fn make_what_needs_root(root: &Path) {
    use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
    let dir = root.join("devices");
    fs::create_dir(&dir).unwrap();
    let node = |name: &str, kind, major, minor| {
        mknodat(CWD, dir.join(name), kind, Mode::from_raw_mode(0o640), makedev(major, minor)).unwrap();
    };
    node("null", FileType::CharacterDevice, 1, 3);
    node("large", FileType::BlockDevice, 259, 70_000);
    node("fifo", FileType::Fifo, 0, 0);
    node("socket", FileType::Socket, 0, 0);
    std::os::unix::fs::chown(root.join("file-1024"), Some(1000), Some(100)).unwrap();
    std::os::unix::fs::chown(root.join("file-1025"), Some(0x12345), Some(0x54321)).unwrap();
    // cap_net_raw+ep, as written by setcap.
    set_xattr(&root.join("setuid"), "security.capability", b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    set_xattr(&root.join("one"), "trusted.note", b"root only");
    set_xattr(&root.join("one"), "system.posix_acl_access", &acl(0o6));
    set_xattr(&root.join("mode"), "system.posix_acl_default", &acl(0o7));
}

/// A list with a named user and a named group.
fn acl(permissions: u16) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries =
        [(1, 6, NO_ID), (2, 4, 1000), (4, 4, NO_ID), (8, 5, 33), (16, permissions, NO_ID), (32, 4, NO_ID)];
    let mut out = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        out.extend(u16::to_le_bytes(tag));
        out.extend(permissions.to_le_bytes());
        out.extend(u32::to_le_bytes(id));
    }
    out
}

pub(crate) fn make_sparse(path: &Path, bytes: &mut Bytes) {
    let file = fs::File::create(path).unwrap();
    file.set_len(200 << 20).unwrap();
    for (at, len) in [(10_000, 5), (1 << 20, 70_000), (60 << 20, 4096), ((200 << 20) - 1, 1)] {
        file.write_all_at(&bytes.take(len), at).unwrap();
    }
}

pub(crate) fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// Gives every path a distinct time, some before 1970 and after 2038.
pub(crate) fn set_times(root: &Path) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let mut n = 0;
    let mut pending = vec![root.to_path_buf()];
    while let Some(path) = pending.pop() {
        if fs::symlink_metadata(&path).unwrap().is_dir() {
            let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).collect();
            names.sort();
            pending.extend(names);
        }
        n += 1;
        let seconds = match n % 50 {
            0 => -1_000_000,
            1 => 5_000_000_000,
            _ => 1_600_000_000 + n,
        };
        let time = Timespec { tv_sec: seconds, tv_nsec: (n * 1_000_003) % 1_000_000_000 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// Digest of a file, for comparing whole images.
pub(crate) fn sha256(path: &Path) -> String {
    use sha2::Digest;
    let bytes = fs::read(path).unwrap();
    sha2::Sha256::digest(&bytes).iter().map(|b| format!("{b:02x}")).collect()
}
