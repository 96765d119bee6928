//! Reading with the command, compared with dd, debugfs, find and tar, with cold caches.

use super::{Result, median};
use extant_rt::Rt;
use extant_testbed::Mount;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FILE_MIB: u64 = 1024;
const OUTER: usize = 20;
const INNER: usize = 25;
const FILES: usize = 200;

/// One way to do a task; its output is discarded.
struct Contender {
    name: &'static str,
    program: PathBuf,
    args: Vec<String>,
    /// An image that the kernel mounts for the duration of the run.
    mounted: Option<PathBuf>,
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let mut rounds = 5;
    let mut dir = PathBuf::from("target/bench-read");
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => rounds = n.parse()?,
            ["--dir", path] => dir = path.into(),
            _ => return Err("usage: cargo xtask bench read [--rounds N] [--dir DIRECTORY]".into()),
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Err("this bench drops the host's caches and mounts images: run it as root".into());
    }
    fs::create_dir_all(&dir)?;
    let dir = dir.canonicalize()?;
    let (large, tree, mount) = (dir.join("file.img"), dir.join("tree.img"), dir.join("mnt"));
    fs::create_dir_all(&mount)?;
    let extant = build()?;
    make_large(&large, &mount)?;
    make_tree(&tree, &mount)?;
    let script = dir.join("debugfs");
    fs::write(&script, debugfs_script())?;

    let path = |path: &Path| path.display().to_string();
    let args = |args: &[&str]| args.iter().map(ToString::to_string).collect::<Vec<_>>();
    let ours = |name, args| Contender { name, program: extant.clone(), args, mounted: None };
    let other = |name, program: &str, args, mounted: Option<&Path>| Contender {
        name,
        program: program.into(),
        args,
        mounted: mounted.map(Path::to_path_buf),
    };
    let read_image = format!("if={}", large.display());
    // dd reads as many bytes of the image as the file has, at the position of the file's data.
    let dd = args(&[&read_image, "bs=1M", "iflag=direct", "skip=32", &format!("count={FILE_MIB}")]);
    println!("| what, cold | extant, ms | others, ms | others / extant |");
    println!("|---|---|---|---|");
    compare(
        &format!("a file of {FILE_MIB} MiB"),
        rounds,
        &mount,
        &[
            ours("extant cat", args(&["cat", &format!("{}:/file", large.display())])),
            other("dd bs=1M iflag=direct of the image", "dd", dd, None),
        ],
    )?;
    let list = args(&["-f", &path(&script), &path(&tree)]);
    compare(
        &format!("the names of {} files", OUTER * INNER * FILES),
        rounds,
        &mount,
        &[
            ours("extant tree", args(&["-q", "tree", &path(&tree)])),
            other("debugfs, ls -p of each directory", "debugfs", list, None),
            other("find on a kernel mount", "find", args(&[&path(&mount)]), Some(&tree)),
        ],
    )?;
    compare(
        "all of them as an archive",
        rounds,
        &mount,
        &[
            ours("extant export", args(&["-q", "export", &path(&tree), "-o", "-"])),
            // Use a pipe: when tar writes to /dev/null itself, it does not read contents.
            other(
                "tar on a kernel mount",
                "sh",
                args(&["-c", &format!("tar -cf - -C {} . | cat", mount.display())]),
                Some(&tree),
            ),
        ],
    )?;
    fs::remove_dir_all(&dir)?;
    Ok(())
}

fn compare(what: &str, rounds: usize, mount: &Path, contenders: &[Contender]) -> Result<()> {
    let mut times = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for (contender, times) in contenders.iter().zip(&mut times) {
            times.push(time(contender, mount)?);
        }
    }
    let medians: Vec<f64> = times.into_iter().map(median).collect();
    for (contender, theirs) in contenders.iter().zip(&medians).skip(1) {
        let (ours, name) = (medians[0], contender.name);
        println!(
            "| {what}: {} | {ours:.0} | {name}: {theirs:.0} | {:.2} |",
            contenders[0].name,
            theirs / ours
        );
    }
    Ok(())
}

/// Milliseconds of one run with none of the images cached.
fn time(contender: &Contender, mount: &Path) -> Result<f64> {
    let mounted = match &contender.mounted {
        Some(image) => Some(Mount::try_new(image, mount, "ro")?),
        None => None,
    };
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    let mut command = Command::new(&contender.program);
    command.args(&contender.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let rt = Rt::real(Default::default());
    let start = rt.now();
    let status = command.status()?;
    let spent = rt.now().0 - start.0;
    drop(mounted);
    match status.success() {
        true => Ok(spent as f64 / 1e6),
        false => Err(format!("{} failed", contender.name).into()),
    }
}

/// The release build of the command.
pub(super) fn build() -> Result<PathBuf> {
    call("cargo", &["build", "--release", "-p", "extant-cli"])?;
    let this = std::env::current_exe()?;
    let target = this.ancestors().nth(2).ok_or("where is the target directory?")?;
    Ok(target.join("release/extant"))
}

fn make_large(image: &Path, mount: &Path) -> Result<()> {
    File::create(image)?.set_len((FILE_MIB + 128) << 20)?;
    call("mke2fs", &["-q", "-F", "-t", "ext4", &image.display().to_string()])?;
    let _mounted = Mount::try_new(image, mount, "rw")?;
    let mut file = File::create(mount.join("file"))?;
    let mut block = vec![0u8; 1 << 20];
    for n in 0..FILE_MIB {
        // Every sector differs, so that no lower layer can share or compress the contents.
        block.chunks_mut(512).enumerate().for_each(|(at, sector)| {
            sector[..8]
                .copy_from_slice(&(n << 20 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        });
        file.write_all(&block)?;
    }
    file.sync_all()?;
    Ok(())
}

fn make_tree(image: &Path, mount: &Path) -> Result<()> {
    File::create(image)?.set_len(2 << 30)?;
    call("mke2fs", &["-q", "-F", "-t", "ext4", &image.display().to_string()])?;
    let _mounted = Mount::try_new(image, mount, "rw")?;
    for dir in directories() {
        let dir = mount.join(dir);
        fs::create_dir_all(&dir)?;
        for n in 0..FILES {
            fs::write(dir.join(format!("file-{n:04}.txt")), vec![b'x'; n * 10])?;
        }
    }
    Ok(())
}

fn directories() -> impl Iterator<Item = String> {
    (0..OUTER).flat_map(|a| (0..INNER).map(move |b| format!("dir{a:02}/sub{b:02}")))
}

fn debugfs_script() -> String {
    let outer = (0..OUTER).map(|a| format!("dir{a:02}"));
    let all = std::iter::once(String::new()).chain(outer).chain(directories());
    all.map(|dir| format!("ls -p /{dir}\n")).collect()
}

fn call(program: &str, args: &[&str]) -> Result<()> {
    match Command::new(program).args(args).status()?.success() {
        true => Ok(()),
        false => Err(format!("{program} {} failed", args.join(" ")).into()),
    }
}
