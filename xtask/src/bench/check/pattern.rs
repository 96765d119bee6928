//! The reads of `e2fsck -fn`, recorded with strace.

use super::{Result, text};
use crate::bench::bed::tool;
use extant_rt::Nanos;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// A call on the image, with its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// `pread64(2)`.
    Read(Range<u64>),
    /// `fadvise64(2)` with `POSIX_FADV_WILLNEED`.
    WillNeed(Range<u64>),
}

/// What e2fsck does on an image.
#[derive(Debug)]
pub(super) struct Pattern {
    pub(super) calls: Vec<Call>,
    /// Processor time of the program itself, without the kernel's.
    pub(super) user: Nanos,
}

/// Runs e2fsck twice: for its processor time, and for its calls.
pub(super) fn record(image: &Path) -> Result<Pattern> {
    let user = || -> Result<i64> { Ok(getrusage(UsageWho::RUSAGE_CHILDREN)?.user_time().num_nanoseconds()) };
    let before = user()?;
    tool("e2fsck", &["-fn", text(image)?])?;
    let user = Nanos(u64::try_from(user()? - before)?);
    let log = image.with_extension("strace");
    let options = ["-s", "0", "-e", "trace=pread64,fadvise64", "-e", "signal=none", "-P"];
    let rest = [text(image)?, "-o", text(&log)?, "e2fsck", "-fn", text(image)?];
    tool("strace", &[&options[..], &rest].concat())?;
    let lines = fs::read_to_string(&log)?;
    fs::remove_file(log)?;
    let mut calls = Vec::new();
    for line in lines.lines().filter(|line| line.contains('(')) {
        calls.push(call(line).ok_or_else(|| format!("strace: a line that is no read: {line}"))?);
    }
    Ok(Pattern { calls, user })
}

/// Parses `pread64(3, ""..., 4096, 8192) = 4096`.
fn call(line: &str) -> Option<Call> {
    let (name, rest) = line.split_once('(')?;
    let (arguments, _) = rest.rsplit_once(')')?;
    let arguments: Vec<&str> = arguments.split(", ").collect();
    let (_, last) = arguments.split_first()?;
    let number = |n: usize| last.get(n)?.parse::<u64>().ok();
    match name {
        "pread64" => {
            let (bytes, start) = (number(1)?, number(2)?);
            Some(Call::Read(start..start + bytes))
        }
        "fadvise64" if last.get(2) == Some(&"POSIX_FADV_WILLNEED") => {
            let (start, bytes) = (number(0)?, number(1)?);
            Some(Call::WillNeed(start..start + bytes))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        assert_eq!(call("pread64(3, \"\"..., 4096, 8192) = 4096"), Some(Call::Read(8192..12288)));
        let will_need = call("fadvise64(3, 4096, 100, POSIX_FADV_WILLNEED) = 0");
        assert_eq!(will_need, Some(Call::WillNeed(4096..4196)));
        assert_eq!(call("pread64(3,  <unfinished ...>"), None);
    }
}
