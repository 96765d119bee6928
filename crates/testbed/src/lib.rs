//! Kernel loop devices and mounts, which many tests use as an oracle.
//!
//! A test calls [`can_mount`] first; the only valid reasons to skip it are a process that is not
//! root, or a kernel without loop devices. Loop devices are shared by all programs on a machine,
//! and the kernel releases them in the background, so an attempt that finds one busy is repeated
//! for about five seconds. Any other failure, and that of the last attempt, is returned or panics
//! with the message of the program that failed.
//!
//! ```
//! use extant_testbed::{Mount, can_mount};
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let image = dir.path().join("image");
//! # std::fs::write(&image, vec![0; 1 << 20]).unwrap();
//! if can_mount() {
//!     let refused = Mount::try_new(&image, &dir.path().join("mounted"), "ro").unwrap_err();
//!     assert!(refused.contains("wrong fs type"), "there is no volume: {refused}");
//! }
//! ```
#![forbid(unsafe_code)]

mod loops;
mod mounts;

pub use loops::LoopDevice;
pub use mounts::Mount;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Attempts to get a loop device or to unmount, and the pause between two: about five seconds in
/// total.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);

/// Whether this process can mount images.
pub fn mounts_are_possible() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists()
}

/// Like [`mounts_are_possible`]; if not, prints that the test is skipped, and why.
pub fn can_mount() -> bool {
    let possible = mounts_are_possible();
    if !possible {
        println!("skipped: mounting needs root and /dev/loop-control");
    }
    possible
}

/// Whether these programs are installed; if not, prints that the test is skipped, and why.
pub fn have(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| find(program).is_none());
    if let Some(missing) = missing {
        println!("skipped: {missing} is not installed (./check install)");
    }
    missing.is_none()
}

/// `PATH`, plus the directories where Debian installs mke2fs and losetup, which an ordinary user's
/// `PATH` lacks.
fn path() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin"
}

fn find(program: &str) -> Option<PathBuf> {
    path().split(':').map(|dir| Path::new(dir).join(program)).find(|file| file.is_file())
}

/// A command that runs a system program, with Debian's directories for administrators in its
/// `PATH`, and no input.
///
/// It names the program by its path: looked up in a changed `PATH`, it would be started by fork,
/// which copies the page tables of a test that holds whole images in memory.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("PATH", path()).stdin(Stdio::null());
    command
}

/// A failed attempt, with the program's message.
enum Failed {
    /// Another attempt may succeed.
    Busy(String),
    /// No attempt will.
    ForGood(String),
}

/// Repeats an attempt until it succeeds, fails permanently, or the number of attempts is used up.
fn insist<T>(mut attempt: impl FnMut() -> Result<T, Failed>) -> Result<T, String> {
    for _ in 1..TRIES {
        match attempt() {
            Ok(done) => return Ok(done),
            Err(Failed::ForGood(words)) => return Err(words),
            Err(Failed::Busy(_)) => pause(),
        }
    }
    attempt().map_err(|(Failed::Busy(words) | Failed::ForGood(words))| words)
}

#[expect(
    clippy::disallowed_methods,
    reason = "this crate is for tests only and depends on no other, `rt` included"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}

/// Runs a system program; returns its standard output, or its message on standard error.
fn run(program: &str, args: &[&str]) -> Result<String, String> {
    let mut command = command(program);
    let output =
        command.args(args).env("LC_ALL", "C").output().map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(format!("{program} {}: {}, {said}", args.join(" "), output.status))
        }
    }
}

/// A path as a program argument.
fn text(path: &Path) -> &str {
    path.to_str().expect("a test's path is UTF-8")
}

/// Reports a failure to release something: panics, or prints a line if already panicking.
#[track_caller]
fn report(words: &str) {
    if std::thread::panicking() {
        eprintln!("{words}");
    } else {
        panic!("{words}");
    }
}
