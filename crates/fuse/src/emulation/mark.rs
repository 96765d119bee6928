//! The mark that says whose credentials a process has.
//!
//! It is the soft limit of RLIMIT_LOCKS, which Linux has ignored since 2.4.25 (getrlimit(2)). The
//! kernel passes limits on to children and through exec, keeps them if a process's parent ends, and
//! lets others read and set them by process number. So every process has its mark, and the server
//! need not track which process started which. The filter keeps programs from setting this limit.
#![allow(unsafe_code)]

use rustix::io::Errno;

/// The limit that holds the mark (asm-generic/resource.h).
pub(crate) const RESOURCE: u32 = 10;
/// The upper half of a limit that is a mark: "Exta". Any other value marks nothing.
const MARK: u64 = 0x4578_7461_0000_0000;
const NUMBER: u64 = 0xffff_ffff;

/// The number of a process's credentials; 0 if they never changed. `thread` is any thread of it.
pub(super) fn read(thread: u32) -> u32 {
    // A request of the kernel itself; prlimit would read this process's own limit.
    if thread == 0 {
        return 0;
    }
    let limit = limit(thread, None).map_or(0, |[soft, _]| soft);
    let number = u32::try_from(limit & NUMBER).unwrap_or(0);
    if limit & !NUMBER == MARK { number } else { 0 }
}

/// Marks a process.
///
/// # Errors
/// The process has ended, or its hard limit is lower than marks are.
pub(super) fn set(thread: u32, number: u32) -> Result<(), Errno> {
    let [_, hard] = limit(thread, None)?;
    limit(thread, Some([MARK | u64::from(number), hard])).map(drop)
}

/// Makes sure that marks fit below this process's hard limit, which its children inherit.
///
/// # Errors
/// They do not. The error says what to do.
pub(super) fn fits() -> std::io::Result<()> {
    let [_, hard] = limit(0, None)?;
    if hard >= MARK | NUMBER {
        return Ok(());
    }
    let told = format!(
        "the hard limit of file locks (ulimit -Hx) is {hard}; let root make it unlimited, in \
         /etc/security/limits.conf or by prlimit --locks=unlimited --pid of your shell"
    );
    Err(std::io::Error::new(std::io::ErrorKind::Unsupported, told))
}

/// Returns the soft and the hard limit, and changes them.
fn limit(thread: u32, new: Option<[u64; 2]>) -> Result<[u64; 2], Errno> {
    let mut old = [0; 2];
    let new = new.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `new` is null or points to two numbers that are alive until the end of this function,
    // and `old` has room for two (linux/resource.h, `struct rlimit64`).
    let done = unsafe { libc::syscall(libc::SYS_prlimit64, thread, RESOURCE, new, &raw mut old) };
    if done == 0 { Ok(old) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::PERM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_mark_is_passed_on_to_children_and_other_programs() {
        // Once marked, the shell starts another, which becomes a third one.
        let script = "read line; sh -c \"exec sh -c 'echo \\$\\$; read line'\"; :";
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        assert_eq!((read(pid), read(0)), (0, 0));
        set(pid, 7).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        let last: u32 = told.trim().parse().unwrap();
        assert_ne!(last, pid);
        assert_eq!((read(pid), read(last), read(std::process::id())), (7, 7, 0));
        drop(input);
        child.wait().unwrap();
        assert_eq!((set(pid, 7), read(pid)), (Err(Errno::SRCH), 0));
    }
}
