//! A tree of small files: unpacked, walked, removed; git's work on a part of it.

use super::bed::{text, tool};
use super::report::Target;
use super::side::{Kind, Side};
use super::{Figure, Figures, Options, Part, Result, Row};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

const DIRS: u64 = 200;
const FILES_IN_EACH: u64 = 100;
/// Number of folders in the git repository, with some 5,200 files.
const GIT_DIRS: u64 = 52;

pub(super) const PART: Part = Part {
    name: "tree",
    sides: &[Kind::Ours, Kind::Null, Kind::Kernel, Kind::Fuse2fs],
    allow_other: false,
    rows: &[
        Row {
            name: "untar, sync, umount",
            unit: "s",
            targets: &[
                (Kind::Kernel, Target::AtMost(3.0)),
                (Kind::Null, Target::AtMost(1.5)),
                (Kind::Fuse2fs, Target::None),
            ],
        },
        Row {
            name: "find -size, cold",
            unit: "s",
            targets: &[
                (Kind::Fuse2fs, Target::AtMost(0.1)),
                (Kind::Kernel, Target::None),
                (Kind::Null, Target::None),
            ],
        },
        Row {
            name: "du, cold",
            unit: "s",
            targets: &[
                (Kind::Fuse2fs, Target::AtMost(0.1)),
                (Kind::Kernel, Target::None),
                (Kind::Null, Target::None),
            ],
        },
        Row {
            name: "rm -rf",
            unit: "s",
            targets: &[(Kind::Kernel, Target::AtMost(2.0)), (Kind::Null, Target::None)],
        },
        Row {
            name: "git clone",
            unit: "s",
            targets: &[(Kind::Kernel, Target::AtMost(2.0)), (Kind::Null, Target::None)],
        },
        Row {
            name: "git status",
            unit: "s",
            targets: &[(Kind::Kernel, Target::AtMost(2.0)), (Kind::Null, Target::None)],
        },
        Row {
            name: "git status, cold",
            unit: "s",
            targets: &[(Kind::Kernel, Target::AtMost(2.0)), (Kind::Null, Target::None)],
        },
    ],
    run,
};

/// Sizes as in a distribution's tree: most files small, a few large; about 190 MB in 20,000 files.
fn size_of(n: u64) -> usize {
    match n % 100 {
        0 => 400_000,
        1..10 => 40_000,
        10..40 => 10_000,
        _ => 2_000,
    }
}

/// Makes the archive `tree.tar` and the git `repository`, unless they exist.
fn sources(options: &Options) -> Result<(PathBuf, PathBuf)> {
    let of_scale = |name: &str| options.dir.join(format!("{name}-{}", options.scale));
    let (tar, repository) = (of_scale("tree.tar"), of_scale("repository"));
    if !tar.exists() {
        let tree = of_scale("tree");
        for dir in 0..options.scaled(DIRS) {
            let folder = tree.join(format!("tree/d{dir}"));
            fs::create_dir_all(&folder)?;
            (0..FILES_IN_EACH).try_for_each(|n| fill(&folder.join(format!("f{n}")), dir, n))?;
        }
        tool("cp", &["-a", text(&tree.join("tree")), text(&repository)])?;
        for dir in options.scaled(GIT_DIRS)..options.scaled(DIRS) {
            fs::remove_dir_all(repository.join(format!("d{dir}")))?;
        }
        let git =
            |args: &[&str]| tool("git", &[&["-C", text(&repository), "-c", "gc.auto=0"], args].concat());
        git(&["init", "--quiet"])?;
        git(&["add", "."])?;
        let author = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"];
        git(&[&author[..], &["commit", "--quiet", "--message", "base"]].concat())?;
        git(&["repack", "-adq"])?;
        let part = tar.with_extension("part");
        tool("tar", &["--numeric-owner", "-C", text(&tree), "-cf", text(&part), "tree"])?;
        fs::rename(part, &tar)?;
        fs::remove_dir_all(tree)?;
    }
    Ok((tar, repository))
}

/// Fills a file with lines that differ.
fn fill(path: &Path, dir: u64, n: u64) -> Result<()> {
    let mut lines = Vec::new();
    let (mut state, size) = ((dir << 32 | n) | 1 << 60, size_of(n));
    while lines.len() < size {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        writeln!(lines, "    let value_{:x} = {};", state >> 48, state >> 33 & 0xffff)?;
    }
    lines.truncate(size);
    Ok(File::create(path)?.write_all(&lines)?)
}

fn run(options: &Options, side: &mut Side) -> Result<Figures> {
    let (tar, repository) = sources(options)?;
    // Load the archive into the host's cache.
    fs::read(&tar)?;
    let mut figures = Vec::new();
    let unpacked = side.took(|side| {
        side.shell(&format!("tar -xf '{}' --numeric-owner", text(&tar)))?;
        side.sync()?;
        side.unmount()
    })?;
    figures.push(Figure::time(unpacked));
    side.mount()?;
    for walk in ["find . -size +1G", "du -s ."] {
        side.cool()?;
        figures.push(Figure::time(side.shell(walk)?));
    }
    figures.push(Figure::time(side.shell("rm -rf tree")?));
    let clone = format!("git clone --quiet --no-hardlinks '{}' clone", text(&repository));
    figures.push(Figure::time(side.shell(&clone)?));
    let status = "test -z \"$(git -C clone status --porcelain)\"";
    figures.push(Figure::time(side.shell(status)?));
    side.cool()?;
    figures.push(Figure::time(side.shell(status)?));
    Ok(figures)
}
