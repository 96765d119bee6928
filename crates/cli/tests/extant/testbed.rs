//! Shared by the tests of the command line: images created by other tools, and two ways to inspect
//! a tree.

use extant_testbed::{Mount, can_mount};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Output and exit code of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ran {
    /// Standard output of a command that must succeed without any message.
    pub(crate) fn clean(self) -> Vec<u8> {
        assert_eq!(self.code, Some(0), "{}", self.stderr);
        self.stdout
    }

    pub(crate) fn clean_text(self) -> String {
        String::from_utf8(self.clean()).unwrap()
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).expect("messages are UTF-8, whatever names are");
        Self { code: output.status.code(), stdout: output.stdout, stderr }
    }
}

/// Runs `extant` quietly.
pub(crate) fn extant<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.arg("--quiet").args(args).stdin(Stdio::null());
    command.output().unwrap().into()
}

/// Like [`extant`], at a given time.
pub(crate) fn extant_at<S: AsRef<OsStr>>(source_date_epoch: i64, args: impl IntoIterator<Item = S>) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.env("SOURCE_DATE_EPOCH", source_date_epoch.to_string());
    command.arg("--quiet").args(args).stdin(Stdio::null());
    command.output().unwrap().into()
}

/// Runs `extant` with text on standard input.
pub(crate) fn extant_with<S: AsRef<OsStr>>(input: &[u8], args: impl IntoIterator<Item = S>) -> Ran {
    use std::io::Write;
    let mut command = Command::new(env!("CARGO_BIN_EXE_extant"));
    command.arg("--quiet").args(args).env("SOURCE_DATE_EPOCH", "1600000000");
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses its arguments reads nothing.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// Asserts that e2fsck finds nothing wrong with a volume.
#[track_caller]
pub(crate) fn fsck(image: &Path) {
    if have("e2fsck") {
        run("e2fsck", &["-fn", image.to_str().unwrap()]);
    }
}

/// `IMAGE:PATH`.
pub(crate) fn place(image: &Path, path: &str) -> String {
    format!("{}:{path}", image.display())
}

/// Whether a tool is installed; prints that the test is skipped if not.
pub(crate) fn have(tool: &str) -> bool {
    extant_testbed::have(&[tool])
}

pub(crate) fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: needs root");
    }
    root
}

/// Runs another program, which must succeed, and returns its output.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = extant_testbed::command(program).args(args).output().unwrap();
    let ran = Ran::from(output);
    assert_eq!(ran.code, Some(0), "{program} {args:?}: {}", ran.stderr);
    String::from_utf8_lossy(&ran.stdout).into_owned() + &ran.stderr
}

/// Creates a volume with mke2fs.
pub(crate) fn mke2fs(image: &Path, size: &str, options: &[&str]) {
    let mut args = vec!["-q", "-F"];
    args.extend(options);
    args.extend([image.to_str().unwrap(), size]);
    run("mke2fs", &args);
}

/// Changes a volume with debugfs, which must not complain.
pub(crate) fn debugfs(image: &Path, commands: &[String]) {
    let script = image.with_extension("debugfs");
    fs::write(&script, commands.join("\n") + "\n").unwrap();
    let said = run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    let complaint = said
        .lines()
        .filter(|line| !line.starts_with("debugfs"))
        .find(|line| line.contains("rror") || line.contains("nknown"));
    assert_eq!(complaint, None, "{said}");
}

/// A volume mounted by the kernel; `None`, with a printed message, if the kernel does not support
/// it or the user may not.
#[track_caller]
pub(crate) fn mounted(image: &Path, options: &str) -> Option<Mount> {
    let at = image.with_extension("mnt");
    can_mount().then(|| Mount::unless_blocks_are_too_large(image, &at, options)).flatten()
}

/// Everything about a file that a copy keeps.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: char,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) links: u64,
    pub(crate) size: u64,
    pub(crate) device: u64,
    pub(crate) modified: (i64, i64),
    pub(crate) contents: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl std::fmt::Debug for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, mode, owner, links, size, device, modified, contents, xattrs } = self;
        let sum = contents.iter().fold(0u64, |sum, &b| sum.wrapping_mul(31).wrapping_add(b.into()));
        write!(f, "{kind} {mode:o} {owner:?} {links} links, {size} bytes ({sum:x}), device {device}, ")?;
        write!(f, "{modified:?}, {:?}", xattrs.iter().map(|(k, v)| (lossy(k), lossy(v))).collect::<Vec<_>>())
    }
}

fn lossy(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string()
}

/// Everything below a host directory, by path, except `lost+found`.
pub(crate) fn look(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(path) = todo.pop() {
        let relative = path.strip_prefix(root).unwrap().as_os_str().as_bytes().to_vec();
        if relative == b"lost+found" {
            continue;
        }
        let meta = path.symlink_metadata().unwrap();
        let kind = meta.file_type();
        let (letter, contents) = if kind.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            ('d', Vec::new())
        } else if kind.is_symlink() {
            ('l', fs::read_link(&path).unwrap().into_os_string().as_bytes().to_vec())
        } else if kind.is_file() {
            ('-', fs::read(&path).unwrap())
        } else if kind.is_char_device() {
            ('c', Vec::new())
        } else if kind.is_block_device() {
            ('b', Vec::new())
        } else if kind.is_fifo() {
            ('p', Vec::new())
        } else {
            ('s', Vec::new())
        };
        let is_dir = kind.is_dir();
        seen.insert(
            relative,
            Seen {
                kind: letter,
                mode: meta.mode() & 0o7777,
                owner: (meta.uid(), meta.gid()),
                // Size and link count of a directory depend on its file system.
                links: if is_dir { 0 } else { meta.nlink() },
                size: if is_dir { 0 } else { meta.size() },
                device: if matches!(letter, 'b' | 'c') { meta.rdev() } else { 0 },
                modified: (meta.mtime(), meta.mtime_nsec()),
                contents,
                xattrs: xattrs(&path),
            },
        );
    }
    seen
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let Ok(len) = rustix::fs::llistxattr(path, &mut names[..]) else { return BTreeMap::new() };
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&b| b == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(len);
        found.insert(name.to_vec(), value);
    }
    found
}

/// Fails with the first path that differs.
#[track_caller]
pub(crate) fn assert_same(what: &str, ours: &BTreeMap<Vec<u8>, Seen>, theirs: &BTreeMap<Vec<u8>, Seen>) {
    for path in theirs.keys().chain(ours.keys()) {
        let (a, b) = (ours.get(path), theirs.get(path));
        assert!(a == b, "{what}: /{}\n  ours:   {a:?}\n  theirs: {b:?}", lossy(path));
    }
}

/// Reproducible bytes without a pattern.
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| step()).collect()
}
