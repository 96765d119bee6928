//! Volumes to measure on, and the machine.

use crate::Result;
use crate::peer::Kind;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const IMAGE_BYTES: u64 = 1 << 30;

/// Runs a tool of e2fsprogs.
pub(crate) fn tool(name: &str, args: &[&str]) -> Result<Output> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(name).args(args).env("PATH", path).stdin(Stdio::null()).output();
    output.map_err(|error| format!("{name}: {error}").into())
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this bench")
}

/// A fresh volume of 1 GiB in a file that the host has allocated, as on a disk. Each peer has a
/// file of its own: the kernel may keep its one attached for a while.
pub(crate) fn fresh_image(dir: &Path, kind: &Kind) -> Result<PathBuf> {
    let image = dir.join(format!("{}.img", kind.name));
    if fs::metadata(&image).map_or(0, |metadata| metadata.len()) != IMAGE_BYTES {
        let file = File::create(&image)?;
        let zeroes = vec![0; 1 << 20];
        (0..IMAGE_BYTES >> 20).try_for_each(|n| file.write_all_at(&zeroes, n << 20))?;
    }
    let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
    let args = ["-q", "-F", "-t", "ext4", "-E", extended, "-O", kind.features, text(&image)];
    let made = tool("mke2fs", &args)?;
    match made.status.success() {
        true => Ok(image),
        false => Err(String::from_utf8_lossy(&made.stderr).into()),
    }
}

/// Makes the host write back and drop its cached pages of an image.
pub(crate) fn forget(image: &Path) -> Result<()> {
    let file = File::open(image)?;
    file.sync_all()?;
    Ok(rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?)
}

/// Whether the kernel's side can be measured.
pub(crate) fn may_mount() -> bool {
    rustix::process::geteuid().is_root()
}

/// Processor time of this process, in nanoseconds.
pub(crate) fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// Most memory this process has had at a time, in KiB.
pub(crate) fn peak_kib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Prints the processor, the kernel and the load, which the figures depend on.
pub(crate) fn say_machine(when: &str) {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let count = processors.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let model = model.trim_start_matches(['\t', ':', ' ']);
    eprintln!("{when}: {count} x {model}, Linux {}, load {}", kernel.trim(), load.trim());
}
