//! Many small files through the command: `edit` and `cp -r` beside debugfs, `build --into` beside
//! `build`.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads the clock itself

use super::bed::{text, tool};
use super::report::{Target, compared, head};
use super::{Result, read};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const USAGE: &str = "usage: cargo xtask bench edits [--rounds N] [--files N] [--tree DIRECTORY] \
    [--dir DIRECTORY] [--extant PROGRAM]";

/// The rules, printed before any figure.
const RULES: &str = "\
Rules:
- A run is a whole process, from its start to its exit; its output is discarded. A round runs both
  sides once; the other one begins in the next round. The figure is the median of the rounds' ratios,
  ours / theirs. Processor time is user + system.
- Sources and images are in the host's page cache. Each run gets a fresh image or an empty directory;
  making it, and a sync before the run, do not count.
- put: 1,000 files of 1,000 bytes into one directory, one put (debugfs: write) for each, in a script.
- cp: a tree, which our build has put into an image, out of it again (debugfs: rdump), to /dev/shm:
  an ext4 that holds the copies takes up to twenty times as long after files were removed.
- into: a tree of files of 200 bytes, 300 in each directory, into a volume that our mkfs has made,
  beside a build of the same tree into a new image.
- Nothing is left out. A program that fails ends the bench.
";

const PUTS: usize = 1000;

struct Args {
    rounds: usize,
    files: usize,
    tree: PathBuf,
    dir: PathBuf,
    extant: Option<PathBuf>,
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let args = parse(args)?;
    fs::create_dir_all(&args.dir)?;
    let extant = match &args.extant {
        Some(extant) => extant.clone(),
        None => read::build()?,
    };
    let bench = Bench { dir: args.dir.canonicalize()?, extant, rounds: args.rounds };
    println!("{RULES}");
    head();
    bench.put()?;
    bench.copy(&args.tree)?;
    bench.add(args.files)?;
    Ok(fs::remove_dir_all(&args.dir)?)
}

fn parse(args: &[&str]) -> Result<Args> {
    let mut parsed = Args {
        rounds: 9,
        files: 60_000,
        tree: "/etc".into(),
        dir: std::env::temp_dir().join(format!("extant-bench-edits-{}", std::process::id())),
        extant: None,
    };
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => parsed.rounds = n.parse::<usize>()?.max(1),
            ["--files", n] => parsed.files = n.parse::<usize>()?.max(1),
            ["--tree", path] => parsed.tree = path.into(),
            ["--dir", path] => parsed.dir = path.into(),
            ["--extant", path] => parsed.extant = Some(fs::canonicalize(path)?),
            _ => return Err(USAGE.into()),
        }
    }
    Ok(parsed)
}

struct Bench {
    dir: PathBuf,
    extant: PathBuf,
    rounds: usize,
}

/// One side of a comparison: the preparation of each run, and the command.
struct Side<'a> {
    ready: Box<dyn Fn() -> Result<()> + 'a>,
    program: &'a str,
    args: Vec<&'a str>,
}

impl Bench {
    fn put(&self) -> Result<()> {
        let (from, base) = (self.dir.join("from"), self.dir.join("base.img"));
        fs::create_dir(&from)?;
        let (mut ours, mut theirs) = (String::new(), String::new());
        for n in 0..PUTS {
            let file = from.join(format!("file{n}"));
            fs::write(&file, vec![b'x'; 1000])?;
            ours += &format!("put {} /file{n}\n", text(&file));
            theirs += &format!("write {} file{n}\n", text(&file));
        }
        let (script, their_script) = (self.dir.join("script"), self.dir.join("their-script"));
        fs::write(&script, ours)?;
        fs::write(&their_script, theirs)?;
        self.volume(&base, 512 << 20)?;
        let image = self.dir.join("put.img");
        let ready = || {
            let _ = fs::remove_file(&image);
            tool("cp", &["--sparse=always", text(&base), text(&image)])
        };
        let extant = Side {
            ready: Box::new(ready),
            program: text(&self.extant),
            args: vec!["-q", "edit", text(&image), text(&script)],
        };
        let debugfs = Side {
            ready: Box::new(ready),
            program: "debugfs",
            args: vec!["-w", "-f", text(&their_script), text(&image)],
        };
        self.compare(&format!("{PUTS} puts, debugfs write"), &extant, &debugfs, Target::AtMost(1.0))
    }

    fn copy(&self, tree: &Path) -> Result<()> {
        let image = self.dir.join("cp.img");
        let out = Path::new("/dev/shm").join(format!("extant-bench-edits-{}", std::process::id()));
        // In a subdirectory, because debugfs creates a directory with the tree's name.
        let source = self.dir.join("source");
        fs::create_dir(&source)?;
        tool("cp", &["-a", text(tree), text(&source.join("tree"))])?;
        tool(text(&self.extant), &["-q", "build", text(&source), "-o", text(&image)])?;
        let clear = || if out.exists() { fs::remove_dir_all(&out) } else { Ok(()) };
        let ready = || {
            clear()?;
            Ok(fs::create_dir(&out)?)
        };
        let place = format!("{}:/tree", text(&image));
        let request = format!("rdump /tree {}", text(&out));
        let extant = Side {
            ready: Box::new(ready),
            program: text(&self.extant),
            args: vec!["-q", "cp", "-r", &place, text(&out)],
        };
        let debugfs =
            Side { ready: Box::new(ready), program: "debugfs", args: vec!["-R", &request, text(&image)] };
        let what = format!("cp -r of {}, debugfs rdump", tree.display());
        self.compare(&what, &extant, &debugfs, Target::AtMost(1.0))?;
        Ok(clear()?)
    }

    fn add(&self, files: usize) -> Result<()> {
        let (tree, base) = (self.dir.join("many"), self.dir.join("many-base.img"));
        for n in 0..files {
            let dir = tree.join(format!("dir{:04}", n / 300));
            if n % 300 == 0 {
                fs::create_dir_all(&dir)?;
            }
            fs::write(dir.join(format!("file{n:07}")), vec![b'x'; 200])?;
        }
        // Our mkfs makes an inode for every 16 KiB.
        let bytes = (files as u64 * 20_000).max(64 << 20);
        self.volume(&base, bytes)?;
        let (image, new) = (self.dir.join("into.img"), self.dir.join("new.img"));
        let into = Side {
            ready: Box::new(|| {
                let _ = fs::remove_file(&image);
                tool("cp", &["--sparse=always", text(&base), text(&image)])
            }),
            program: text(&self.extant),
            args: vec!["-q", "build", text(&tree), "--into", text(&image)],
        };
        let build = Side {
            ready: Box::new(|| {
                let _ = fs::remove_file(&new);
                Ok(())
            }),
            program: text(&self.extant),
            args: vec!["-q", "build", text(&tree), "-o", text(&new)],
        };
        let what = format!("build --into of {files} files, build");
        self.compare(&what, &into, &build, Target::AtMost(2.0))
    }

    fn volume(&self, image: &Path, bytes: u64) -> Result<()> {
        tool(text(&self.extant), &["-q", "mkfs", text(image), &bytes.to_string()])
    }

    fn compare(&self, what: &str, ours: &Side<'_>, theirs: &Side<'_>, target: Target) -> Result<()> {
        // Ours and theirs, each as (seconds, processor seconds).
        let mut runs = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        for round in 0..self.rounds {
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for side in order {
                let (seconds, processor) = once([ours, theirs][side])?;
                runs[side].0.push(seconds * 1e3);
                runs[side].1.push(processor * 1e3);
            }
        }
        compared(what, "ms", &runs[0].0, &runs[1].0, target);
        compared("the same: processor time", "ms", &runs[0].1, &runs[1].1, Target::None);
        Ok(())
    }
}

/// Seconds and processor seconds of one run.
fn once(side: &Side<'_>) -> Result<(f64, f64)> {
    (side.ready)()?;
    rustix::fs::sync();
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(side.program);
    command.args(&side.args).env("PATH", path);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create("/dev/null")?);
    let (before, start) = (processor()?, Instant::now());
    let status = command.status().map_err(|error| format!("{}: {error}", side.program))?;
    let seconds = start.elapsed().as_secs_f64();
    match status.success() {
        true => Ok((seconds, processor()? - before)),
        false => Err(format!("{} {} ended with {status}", side.program, side.args.join(" ")).into()),
    }
}

/// Processor time of all children so far, in seconds.
fn processor() -> Result<f64> {
    let used = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    Ok((used.user_time().num_microseconds() + used.system_time().num_microseconds()) as f64 / 1e6)
}
