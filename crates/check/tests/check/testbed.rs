//! Volumes for the tests, and what e2fsck says about them.

use extant_block::{Device, MemDevice};
use extant_check::{CheckError, Checked, Code, Options, check};
use extant_format::{Inode, InodeNumber, Superblock};
use extant_rt::Rt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Checks a volume in memory.
pub(crate) fn examine(bytes: Vec<u8>) -> Result<Checked, CheckError> {
    examine_with(bytes, Options::default())
}

pub(crate) fn examine_with(bytes: Vec<u8>, options: Options) -> Result<Checked, CheckError> {
    examine_on(Arc::new(MemDevice::from_bytes(bytes)), options)
}

pub(crate) fn examine_on(device: Arc<dyn Device>, options: Options) -> Result<Checked, CheckError> {
    static RT: OnceLock<Rt> = OnceLock::new();
    let rt = RT.get_or_init(|| Rt::real(Default::default()));
    rt.block_on(check(rt, device, options)).unwrap()
}

/// Codes of the findings, without duplicates.
pub(crate) fn codes(checked: &Checked) -> Vec<&'static str> {
    checked.counts.keys().map(|code| code.as_str()).collect()
}

/// Lists all findings, for the messages of tests.
pub(crate) fn list(checked: &Checked) -> String {
    let lines = checked.findings.iter().map(|finding| {
        format!(
            "{} {:?} {}: {}; {}",
            finding.code,
            finding.spot,
            finding.path.as_deref().map_or("".into(), String::from_utf8_lossy),
            finding.found,
            finding.expected
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Whether e2fsck has a name for this code.
pub(crate) fn is_known_to_e2fsck(code: Code) -> bool {
    !code.e2fsck().starts_with("none")
}

/// Whether `e2fsck -fn` found something. Some problems that it reports do not affect its exit code.
pub(crate) fn complains((exit, said): &(i32, String)) -> bool {
    let is_question = |line: &str| line.ends_with("? no") && !line.contains("Optimize");
    *exit != 0 || said.lines().any(is_question)
}

/// Exit code and output of `e2fsck -fn`.
pub(crate) fn e2fsck(image: &Path) -> (i32, String) {
    let output = extant_testbed::command("e2fsck").arg("-fn").arg(image).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.code().unwrap_or(-1), text)
}

/// Runs a program, which must succeed.
pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = extant_testbed::command(program).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {text}");
    text
}

/// Changes a volume with debugfs.
pub(crate) fn debugfs(image: &Path, commands: &[&str]) {
    let script = image.with_extension("debugfs");
    fs::write(&script, commands.join("\n") + "\n").unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
}

/// Creates a folder with files to put on volumes: one of each kind that can be created without
/// root, and a directory of several blocks.
fn files(folder: &Path) {
    let root = folder.join("files");
    if root.exists() {
        return;
    }
    fs::create_dir_all(root.join("dir/sub")).unwrap();
    fs::write(root.join("file"), vec![7; 5000]).unwrap();
    fs::write(root.join("large"), vec![9; 300_000]).unwrap();
    fs::write(root.join("empty"), "").unwrap();
    fs::write(root.join("dir/inner"), "inner").unwrap();
    fs::hard_link(root.join("file"), root.join("dir/again")).unwrap();
    std::os::unix::fs::symlink("file", root.join("short")).unwrap();
    std::os::unix::fs::symlink("x".repeat(100), root.join("long")).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for n in 0..120 {
        fs::write(root.join(format!("many/name-with-some-length-{n:03}")), "").unwrap();
    }
}

/// A new volume with files, in `folder`.
pub(crate) fn volume(folder: &Path, name: &str, kib: u32, options: &[&str]) -> PathBuf {
    files(folder);
    let image = folder.join(name);
    let root = folder.join("files");
    let (root, size) = (root.to_str().unwrap(), format!("{kib}k"));
    let mut args = vec!["-q", "-F", "-d", root];
    args.extend(options);
    args.extend([image.to_str().unwrap(), &size]);
    run("mke2fs", &args);
    image
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// Offset of an inode of the first group, on a volume with blocks of 1 KiB.
pub(crate) fn inode(bytes: &[u8], number: usize) -> usize {
    let table = u32_at(bytes, 2 * 1024 + 8) as usize * 1024;
    let size = usize::from(u16::from_le_bytes([bytes[1024 + 88], bytes[1024 + 89]]));
    table + (number - 1) * size
}

/// Changes an inode of the first group, and updates its checksum.
pub(crate) fn change(bytes: &mut [u8], number: usize, change: impl Fn(&mut Inode)) {
    let sb = Superblock::parse(&bytes[1024..]).unwrap();
    let at = inode(bytes, number);
    let to = &mut bytes[at..at + usize::from(sb.inode_size())];
    let mut inode = Inode::parse(to, &sb, InodeNumber(number as u32)).unwrap();
    change(&mut inode);
    inode.write_to(to, &sb);
}

/// Returns the inode number of a file.
pub(crate) fn number(image: &Path, path: &str) -> usize {
    let said = run("debugfs", &["-R", &format!("stat {path}"), image.to_str().unwrap()]);
    said.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the block of the volume that contains a block of a file.
pub(crate) fn place(image: &Path, path: &str, logical: u32) -> u32 {
    let said = run("debugfs", &["-R", &format!("bmap {path} {logical}"), image.to_str().unwrap()]);
    let end = said.find(|c: char| !c.is_ascii_digit()).unwrap_or(said.len());
    said[..end].parse().unwrap()
}

/// A random number generator with a seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}
