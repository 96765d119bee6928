//! Changes of names and small files, through the library and through the kernel's loop mount, side by side in one run.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)] // a bench reads the clock and starts threads itself

use super::{Result, median};
use extant::{Dir, FileOptions, OpenOptions, Volume};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 2 << 30;
const FILES: usize = 20_000;

struct Options {
    rounds: usize,
    slice: Duration,
    dir: PathBuf,
    only: Option<String>,
    growth: usize,
}

pub(super) fn run(args: &[&str]) -> Result<()> {
    let mut options = Options {
        rounds: 5,
        slice: Duration::from_secs(2),
        dir: PathBuf::from("target/bench-meta"),
        only: None,
        growth: 1_000_000,
    };
    for pair in args.chunks(2) {
        match *pair {
            ["--rounds", n] => options.rounds = n.parse()?,
            ["--slice-ms", n] => options.slice = Duration::from_millis(n.parse()?),
            ["--dir", path] => options.dir = path.into(),
            ["--only", name] => options.only = Some(name.into()),
            ["--growth", n] => options.growth = n.parse()?,
            _ => {
                return Err("usage: cargo xtask bench meta [--rounds N] [--slice-ms N] [--dir DIRECTORY] \
                            [--growth FILES] [--only names|fsync|untar|recover|open|growth]"
                    .into());
            }
        }
    }
    fs::create_dir_all(&options.dir)?;
    println!("| bench | ours | kernel, loop | ratio | target |");
    println!("|---|---|---|---|---|");
    type Part = fn(&Options) -> Result<()>;
    let parts: [(&str, Part); 6] = [
        ("names", names),
        ("fsync", fsyncs),
        ("untar", untar),
        ("recover", recovery),
        ("open", open_large),
        ("growth", growth),
    ];
    for (name, part) in parts {
        if options.only.as_ref().is_none_or(|only| only == name) {
            part(&options)?;
        }
    }
    Ok(())
}

/// Prints one line; `higher` figures are better unless they are times.
fn row(what: &str, ours: &[f64], theirs: &[f64], unit: &str, target: &str) {
    let ours = median(ours.to_vec());
    match theirs.is_empty() {
        true => println!("| {what} | {ours:.1} {unit} | | | {target} |"),
        false => {
            let theirs = median(theirs.to_vec());
            let ratio = ours / theirs;
            println!("| {what} | {ours:.1} {unit} | {theirs:.1} {unit} | {ratio:.2}x | {target} |");
        }
    }
}

fn tool(name: &str, args: &[&str]) -> Result<()> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(args).env("PATH", path).stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{name} {args:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this bench")
}

/// A fresh volume in a file.
fn image(options: &Options, name: &str, bytes: u64, mke2fs: &[&str]) -> Result<PathBuf> {
    let path = options.dir.join(name);
    let _ = fs::remove_file(&path);
    File::create(&path)?.set_len(bytes)?;
    let mut args = vec!["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1"];
    args.extend_from_slice(mke2fs);
    args.push(text(&path));
    tool("mke2fs", &args)?;
    Ok(path)
}

/// Mounts it; `None`, told once, where this process may not.
fn mount(options: &Options, image: &Path) -> Result<Option<PathBuf>> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("the kernel's figures need root");
        return Ok(None);
    }
    let mount = options.dir.join("mount");
    fs::create_dir_all(&mount)?;
    tool("mount", &["-o", "loop", text(image), text(&mount)])?;
    Ok(Some(mount))
}

fn unmount(mount: &Path) -> Result<()> {
    tool("umount", &[text(mount)])
}

fn open(path: &Path) -> Result<Volume> {
    Ok(Volume::open(path, &OpenOptions::new().write(true).cache_bytes(512 << 20))?)
}

fn seconds(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64())
}

fn create(dir: &Dir, name: &str) -> Result<()> {
    dir.open_with(name, FileOptions::new().write(true).create_new(true))?;
    Ok(())
}

/// 20,000 files in one directory: made, looked at, removed; each part ends with a sync.
fn names(options: &Options) -> Result<()> {
    let k = |seconds: f64| FILES as f64 / seconds / 1000.0;
    let mut figures: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..options.rounds {
        let path = image(options, "ours.img", IMAGE_BYTES, &["-t", "ext4"])?;
        let volume = open(&path)?;
        volume.root().create_dir("d")?;
        let dir = volume.root().open_dir("d")?;
        figures[0][0].push(k(seconds(|| {
            (0..FILES).try_for_each(|n| create(&dir, &format!("file-{n:06}")))?;
            Ok(volume.sync()?)
        })?));
        figures[1][0].push(k(seconds(|| {
            (0..FILES).try_for_each(|n| dir.symlink_metadata(format!("file-{n:06}")).map(drop))?;
            Ok(())
        })?));
        figures[2][0].push(k(seconds(|| {
            (0..FILES).try_for_each(|n| dir.remove_file(format!("file-{n:06}")))?;
            Ok(volume.sync()?)
        })?));
        drop(dir);
        volume.close()?;
        let path = image(options, "theirs.img", IMAGE_BYTES, &["-t", "ext4"])?;
        let Some(mount) = mount(options, &path)? else { continue };
        let dir = mount.join("d");
        fs::create_dir(&dir)?;
        let name = |n: usize| dir.join(format!("file-{n:06}"));
        let sync = || -> Result<()> { Ok(rustix::fs::syncfs(File::open(&mount)?)?) };
        figures[0][1].push(k(seconds(|| {
            (0..FILES).try_for_each(|n| File::create_new(name(n)).map(drop))?;
            sync()
        })?));
        figures[1][1].push(k(seconds(|| {
            (0..FILES).try_for_each(|n| fs::symlink_metadata(name(n)).map(drop))?;
            Ok(())
        })?));
        figures[2][1].push(k(seconds(|| {
            (0..FILES).try_for_each(|n| fs::remove_file(name(n)))?;
            sync()
        })?));
        unmount(&mount)?;
    }
    for (what, [ours, theirs]) in ["create", "stat", "unlink"].iter().zip(&figures) {
        row(&format!("20,000 files in one directory: {what}"), ours, theirs, "k/s", ">= 3x");
    }
    Ok(())
}

/// fsyncs in a second, by so many threads that each append 4 KiB to a file of their own.
fn fsync_rate(threads: usize, slice: Duration, append: impl Fn(usize, u64) -> Result<()> + Sync) -> f64 {
    let start = Instant::now();
    let done: u64 = std::thread::scope(|scope| {
        let append = &append;
        let work = move |thread| {
            let mut n = 0;
            while start.elapsed() < slice {
                append(thread, n).expect("an append");
                n += 1;
            }
            n
        };
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
        handles.into_iter().map(|handle| handle.join().expect("a writer")).sum()
    });
    done as f64 / start.elapsed().as_secs_f64()
}

fn fsyncs(options: &Options) -> Result<()> {
    let block = [7_u8; 4096];
    let mut figures: [[Vec<f64>; 2]; 3] = Default::default();
    for _ in 0..options.rounds {
        let path = image(options, "ours.img", IMAGE_BYTES, &["-t", "ext4"])?;
        let volume = open(&path)?;
        let mut flags = FileOptions::new();
        flags.read(true).write(true).create(true);
        let file = |n: usize| volume.root().open_with(format!("f{n}"), &flags);
        let files: Vec<_> = (0..17).map(file).collect::<std::result::Result<_, _>>()?;
        let append = |thread: usize, n: u64| -> Result<()> {
            files[thread].write_all_at(n * 4096, &block)?;
            Ok(files[thread].sync_all()?)
        };
        figures[0][0].push(fsync_rate(1, options.slice, append));
        figures[1][0].push(fsync_rate(16, options.slice, append));
        let stream = |n: u64| Ok(files[16].write_all_at((n % 512) << 20, &vec![1; 1 << 20])?);
        figures[2][0].push(p99_beside(options.slice, |n| append(0, n), stream)?);
        drop(files);
        volume.close()?;
        let path = image(options, "theirs.img", IMAGE_BYTES, &["-t", "ext4"])?;
        let Some(mount) = mount(options, &path)? else { continue };
        let files: Vec<File> =
            (0..17).map(|n| File::create(mount.join(format!("f{n}")))).collect::<std::io::Result<_>>()?;
        let append = |thread: usize, n: u64| -> Result<()> {
            files[thread].write_all_at(&block, n * 4096)?;
            Ok(files[thread].sync_all()?)
        };
        figures[0][1].push(fsync_rate(1, options.slice, append));
        figures[1][1].push(fsync_rate(16, options.slice, append));
        let stream = |n: u64| Ok(files[16].write_all_at(&vec![1; 1 << 20], (n % 512) << 20)?);
        figures[2][1].push(p99_beside(options.slice, |n| append(0, n), stream)?);
        drop(files);
        unmount(&mount)?;
    }
    let [one, sixteen, p99] = &figures;
    row("4 KiB append + fsync, 1 thread", &one[0], &one[1], "/s", ">= 1x");
    row("the same, 16 threads", &sixteen[0], &sixteen[1], "/s", ">= 1x; >= 6x one thread");
    row("the same, 1 thread, beside a stream: p99", &p99[0], &p99[1], "µs", "<= 0.5x");
    Ok(())
}

/// The 99th percentile of `append`'s time in microseconds while another thread streams.
fn p99_beside(
    slice: Duration,
    append: impl Fn(u64) -> Result<()>,
    stream: impl Fn(u64) -> Result<()> + Sync,
) -> Result<f64> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                stream(n).expect("a stream");
                n += 1;
            }
        });
        let (start, mut times) = (Instant::now(), Vec::new());
        let mut done = Ok(());
        while done.is_ok() && start.elapsed() < slice {
            let before = Instant::now();
            done = append(times.len() as u64);
            times.push(before.elapsed().as_secs_f64() * 1e6);
        }
        stop.store(true, Ordering::Relaxed);
        times.sort_by(f64::total_cmp);
        done.map(|()| times[times.len() * 99 / 100])
    })
}

/// Sizes of files of a tree like a distribution's: most small, a few large; 237 MB in 20,000 files.
fn size_of(n: usize) -> usize {
    match n % 100 {
        0 => 400_000,
        1..10 => 40_000,
        10..40 => 10_000,
        _ => 2_000,
    }
}

fn untar(options: &Options) -> Result<()> {
    let data = vec![42_u8; 400_000];
    let mut figures: [Vec<f64>; 2] = Default::default();
    for _ in 0..options.rounds {
        let path = image(options, "ours.img", IMAGE_BYTES, &["-t", "ext4"])?;
        figures[0].push(seconds(|| {
            let volume = open(&path)?;
            for d in 0..200 {
                volume.root().create_dir(format!("d{d}"))?;
                let dir = volume.root().open_dir(format!("d{d}"))?;
                for n in 0..FILES / 200 {
                    let mut flags = FileOptions::new();
                    flags.write(true).create_new(true);
                    let file = dir.open_with(format!("f{n}"), &flags)?;
                    file.write_all_at(0, &data[..size_of(n)])?;
                }
            }
            Ok(volume.close()?)
        })?);
        let path = image(options, "theirs.img", IMAGE_BYTES, &["-t", "ext4"])?;
        let Some(mount) = mount(options, &path)? else { continue };
        figures[1].push(seconds(|| {
            for d in 0..200 {
                let dir = mount.join(format!("d{d}"));
                fs::create_dir(&dir)?;
                for n in 0..FILES / 200 {
                    File::create_new(dir.join(format!("f{n}")))?.write_all(&data[..size_of(n)])?;
                }
            }
            Ok(rustix::fs::syncfs(File::open(&mount)?)?)
        })?);
        unmount(&mount)?;
    }
    row("20,000 files written, durable", &figures[0], &figures[1], "s", "<= 0.5x");
    Ok(())
}

/// A volume whose journal of 128 MiB is as full as a crash leaves it.
fn recovery(options: &Options) -> Result<()> {
    let path = image(options, "crashed.img", IMAGE_BYTES, &["-t", "ext4", "-J", "size=128", "-N", "400000"])?;
    let volume = open(&path)?;
    for d in 0..60 {
        volume.root().create_dir(format!("d{d}"))?;
        let dir = volume.root().open_dir(format!("d{d}"))?;
        (0..5000).try_for_each(|n| create(&dir, &format!("file-{n}")))?;
        volume.sync()?;
    }
    drop(volume);
    let copy = options.dir.join("copy.img");
    let mut figures: [Vec<f64>; 3] = Default::default();
    for _ in 0..options.rounds {
        for (which, figures) in figures.iter_mut().enumerate() {
            tool("cp", &["--sparse=always", text(&path), text(&copy)])?;
            rustix::fs::sync();
            figures.push(match which {
                0 => seconds(|| {
                    let rt = extant_rt::Rt::real(extant_rt::RealConfig::default());
                    let file = extant_block::FileOptions { write: true, ..Default::default() };
                    let device = extant_block::FileDevice::open(&copy, file)?.driven_by(&rt);
                    let device = std::sync::Arc::new(device);
                    rt.block_on(extant_fs::recover(&rt, device, extant_fs::OpenOptions::default()))??;
                    Ok(())
                })?,
                1 => seconds(|| {
                    // 1: everything is mended now.
                    let done = Command::new("e2fsck").args(["-p", text(&copy)]).output()?;
                    if done.status.code() > Some(1) { Err("e2fsck -p failed".into()) } else { Ok(()) }
                })?,
                _ => match mount(options, &copy)? {
                    Some(at) => {
                        unmount(&at)?;
                        tool("cp", &["--sparse=always", text(&path), text(&copy)])?;
                        rustix::fs::sync();
                        let time = seconds(|| mount(options, &copy).map(drop))?;
                        unmount(&at)?;
                        time
                    }
                    None => f64::NAN,
                },
            });
        }
    }
    row("recovery of a full journal (kernel: mount)", &figures[0], &figures[2], "s", "< 1x");
    row("the same (beside it: e2fsck -p)", &figures[0], &figures[1], "s", "< 1x");
    Ok(())
}

fn open_large(options: &Options) -> Result<()> {
    let path = image(options, "large.img", 1 << 40, &["-t", "ext4"])?;
    let mut figures = Vec::new();
    for _ in 0..options.rounds {
        let start = Instant::now();
        let volume = open(&path)?;
        figures.push(start.elapsed().as_secs_f64() * 1000.0);
        volume.close()?;
    }
    row("open a volume of 1 TiB for writing", &figures, &[], "ms", "< 100 ms");
    Ok(fs::remove_file(&path)?)
}

/// Microseconds for each create, in directories of growing size.
fn growth(options: &Options) -> Result<()> {
    let mut count = 1000;
    let mut first = None;
    while count <= options.growth {
        let inodes = (count * 2).to_string();
        let path = image(options, "growth.img", 4 << 30, &["-t", "ext4", "-N", &inodes])?;
        let volume = open(&path)?;
        volume.root().create_dir("d")?;
        let dir = volume.root().open_dir("d")?;
        let time = seconds(|| {
            (0..count).try_for_each(|n| create(&dir, &format!("file-{n:07}")))?;
            Ok(volume.sync()?)
        })?;
        drop(dir);
        volume.close()?;
        let each = time * 1e6 / count as f64;
        let base = *first.get_or_insert(each);
        println!(
            "| create in a directory of {count} | {each:.2} µs | | {:.2}x the first | <= 1.3x |",
            each / base
        );
        count *= 10;
    }
    Ok(())
}
