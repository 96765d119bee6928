//! Building images, compared with mke2fs -d, cp -a and tar2ext4.

use super::{Result, median};
use extant_image::{BuildOptions, Source, build};
use extant_rt::Rt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

const USAGE: &str = "usage: cargo xtask bench build [--runs N] [--scratch DIR] [TREE…]";
const TAR2EXT4: &str = "github.com/Microsoft/hcsshim/cmd/tar2ext4";
const TAR2EXT4_VERSION: &str = "v0.12.9";

/// `bench build`: builds each tree, or two generated ones, with every builder, several times in
/// turn.
pub(super) fn run(args: &[&str]) -> Result<()> {
    if let ["--one", output, source] = args {
        return one(output, source);
    }
    let mut runs = 5;
    let mut scratch = std::env::temp_dir().join("extant-bench-build");
    let mut trees = Vec::new();
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match arg {
            "--runs" => runs = args.next().ok_or(USAGE)?.parse::<usize>()?.max(1),
            "--scratch" => scratch = args.next().ok_or(USAGE)?.into(),
            tree if !tree.starts_with('-') => trees.push(PathBuf::from(tree)),
            _ => return Err(USAGE.into()),
        }
    }
    fs::create_dir_all(&scratch)?;
    if trees.is_empty() {
        trees = vec![
            made_up(&scratch.join("small"), 20_000, 240 << 20)?,
            made_up(&scratch.join("large"), 60_000, 1 << 30)?,
        ];
    }
    let bench = Bench { rt: Rt::real(Default::default()), tar2ext4: find_tar2ext4(&scratch), scratch, runs };
    trees.iter().try_for_each(|tree| bench.tree(&fs::canonicalize(tree)?))
}

/// One build in its own process, so that start-up and memory count; prints the peak memory.
fn one(output: &str, source: &str) -> Result<()> {
    let options = BuildOptions::new(output);
    build(&options, &[Source::Guess(source.into())], &Rt::real(Default::default()), Arc::new(|_, _| {}))?;
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    println!("{}", peak.trim());
    Ok(())
}

struct Bench {
    rt: Rt,
    tar2ext4: Option<PathBuf>,
    scratch: PathBuf,
    runs: usize,
}

/// A command to time: its name, the command, and the times of its runs.
struct Contender {
    name: &'static str,
    command: Box<dyn Fn() -> Command>,
    times: Vec<f64>,
}

impl Bench {
    fn tree(&self, tree: &Path) -> Result<()> {
        let path = |name: &str| self.scratch.join(name);
        let (tar, image, copy) = (path("tree.tar"), path("image"), path("copy"));
        must(Command::new("tar").args(["--numeric-owner", "-C"]).arg(tree).arg("-cf").arg(&tar).arg("."))?;
        let us = std::env::current_exe()?;
        let ours = |source: PathBuf, image: PathBuf| {
            let us = us.clone();
            Box::new(move || {
                let mut command = Command::new(&us);
                command.args(["bench", "build", "--one"]).arg(&image).arg(&source);
                command
            }) as Box<dyn Fn() -> Command>
        };
        // A first run warms the caches and gives the size and the memory.
        let peaks = [tree, &tar].map(|source| output_of(&mut ours(source.into(), image.clone())()));
        let image_bytes = fs::metadata(&image)?.len();
        must(Command::new("e2fsck").args(["-fn"]).arg(&image))?;
        // The size that a user would guess for mke2fs: a third more than needed.
        let guess = image_bytes / 3 * 4 + (64 << 20);
        let mut contenders = vec![
            Contender { name: "extant, directory", command: ours(tree.into(), image.clone()), times: vec![] },
            Contender { name: "mke2fs -d", command: mke2fs(tree, &image, guess), times: vec![] },
            Contender { name: "cp -a, syncfs", command: copy_and_sync(tree, &copy), times: vec![] },
            Contender { name: "extant, tar", command: ours(tar.clone(), image.clone()), times: vec![] },
        ];
        if let Some(tool) = &self.tar2ext4 {
            // tar2ext4 leaves the image in the page cache. Followed by a sync, it gives the same
            // guarantee as the others.
            for (name, then) in [("tar2ext4", "true"), ("tar2ext4, sync", "sync")] {
                let command = tar2ext4(tool, &tar, &image, then);
                contenders.push(Contender { name, command, times: vec![] });
            }
        }
        for _ in 0..self.runs {
            for contender in &mut contenders {
                let _ = fs::remove_file(&image);
                let _ = fs::remove_dir_all(&copy);
                // Data left dirty by earlier contenders must not slow this one down.
                must(Command::new("sync").arg("-f").arg(&self.scratch))?;
                let mut command = (contender.command)();
                let start = self.rt.now();
                must(&mut command)?;
                contender.times.push(self.rt.now().saturating_sub(start).as_secs_f64());
            }
        }
        let _ = fs::remove_file(&image);
        let _ = fs::remove_dir_all(&copy);
        let (files, bytes) = count(tree)?;
        println!(
            "\n{}: {files} files, {} MB, image of {} MB",
            tree.display(),
            bytes / 1_000_000,
            image_bytes / 1_000_000
        );
        println!("| builder | median of {}, s | beside ours |\n|---|---|---|", self.runs);
        let middle = |n: usize| median(contenders[n].times.clone());
        for (n, contender) in contenders.iter().enumerate() {
            let beside = if n < 3 { 0 } else { 3 };
            println!("| {} | {:.2} | {:.1}x |", contender.name, middle(n), middle(n) / middle(beside));
        }
        for (peak, what) in peaks.into_iter().zip(["directory", "tar"]) {
            println!("peak memory from the {what}: {}", peak?);
        }
        Ok(())
    }
}

fn mke2fs(tree: &Path, image: &Path, bytes: u64) -> Box<dyn Fn() -> Command> {
    let (tree, image) = (tree.to_path_buf(), image.to_path_buf());
    Box::new(move || {
        let mut command = Command::new("mke2fs");
        command
            .args(["-q", "-F", "-t", "ext4", "-d"])
            .arg(&tree)
            .arg(&image)
            .arg(format!("{}k", bytes >> 10));
        command
    })
}

fn copy_and_sync(tree: &Path, to: &Path) -> Box<dyn Fn() -> Command> {
    let (tree, to) = (tree.to_path_buf(), to.to_path_buf());
    Box::new(move || {
        let mut command = Command::new("sh");
        command.args(["-c", r#"cp -a "$1" "$2" && sync -f "$2""#, "sh"]).arg(&tree).arg(&to);
        command
    })
}

fn tar2ext4(tool: &Path, tar: &Path, image: &Path, then: &'static str) -> Box<dyn Fn() -> Command> {
    let (tool, tar, image) = (tool.to_path_buf(), tar.to_path_buf(), image.to_path_buf());
    Box::new(move || {
        let mut command = Command::new("sh");
        command
            .args(["-c", r#""$1" -i "$2" -o "$3" && "$4" "$3""#, "sh"])
            .arg(&tool)
            .arg(&tar)
            .arg(&image)
            .arg(then);
        command
    })
}

/// tar2ext4 from `PATH`, or built with Go if that is installed.
fn find_tar2ext4(scratch: &Path) -> Option<PathBuf> {
    let built = fs::canonicalize(scratch).ok()?.join("bin/tar2ext4");
    let in_path = std::env::var_os("PATH")
        .into_iter()
        .flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .map(|dir| dir.join("tar2ext4"))
        .find(|tool| tool.is_file());
    if in_path.is_some() || built.is_file() {
        return in_path.or(Some(built));
    }
    // Build it in our own module, because "go install" refuses modules with replace directives.
    let module = built.parent()?.with_file_name("go");
    let _ = fs::remove_dir_all(&module);
    fs::create_dir_all(&module).ok()?;
    let go = |args: &[&str]| must(Command::new("go").args(args).current_dir(&module));
    let made = go(&["mod", "init", "bench"])
        .and_then(|()| go(&["get", &format!("{TAR2EXT4}@{TAR2EXT4_VERSION}")]))
        .and_then(|()| go(&["build", "-o", &built.to_string_lossy(), TAR2EXT4]));
    match made {
        Ok(()) => Some(built),
        Err(error) => {
            println!("without tar2ext4: it is not installed, and Go could not build it: {error}");
            None
        }
    }
}

fn must(command: &mut Command) -> Result<()> {
    output_of(command).map(drop)
}

fn output_of(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

fn count(tree: &Path) -> Result<(u64, u64)> {
    let mut sum = (0, 0);
    let mut pending = vec![tree.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let meta = entry.metadata()?;
            if meta.is_dir() {
                pending.push(entry.path());
            } else {
                sum = (sum.0 + 1, sum.1 + meta.len());
            }
        }
    }
    Ok(sum)
}

/// A tree of `files` files and `bytes` bytes, always the same: mostly small files and a few large
/// ones, 14 per directory as in source trees. An existing one is reused.
fn made_up(dir: &Path, files: u64, bytes: u64) -> Result<PathBuf> {
    let done = dir.with_extension("made");
    if done.is_file() {
        return Ok(dir.to_path_buf());
    }
    let _ = fs::remove_dir_all(dir);
    println!("making {} ({files} files, {} MB)", dir.display(), bytes / 1_000_000);
    let mut rng = extant_rt::Rng::new(files);
    // Log-normal sizes, e^normal, approximated by a sum of a few uniform numbers in the exponent.
    let weights: Vec<f64> =
        (0..files).map(|_| (0..6).map(|_| rng.unit()).sum::<f64>()).map(|sum| (sum * 2.2).exp()).collect();
    let total: f64 = weights.iter().sum();
    let mut block = vec![0; 1 << 20];
    for (n, weight) in weights.into_iter().enumerate() {
        let parent = dir
            .join(format!("part{:02}/module{:03}", n / 14 % 20, n / 280))
            .join(["src", "include", "doc"][n % 3]);
        if n % 14 < 3 {
            fs::create_dir_all(&parent)?;
        }
        let size = ((weight / total * bytes as f64) as usize).min(64 << 20);
        let mut content = Vec::with_capacity(size);
        while content.len() < size {
            for word in block.chunks_exact_mut(8).take((size - content.len()).div_ceil(8)) {
                word.copy_from_slice(&rng.next_u64().to_le_bytes());
            }
            let here = block.len().min(size - content.len());
            content.extend_from_slice(&block[..here]);
        }
        fs::write(parent.join(format!("file_{n:05}.c")), content)?;
    }
    fs::write(done, b"")?;
    Ok(dir.to_path_buf())
}
