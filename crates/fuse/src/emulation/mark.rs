//! The mark that says whose credentials a process has.
//!
//! It is the soft limit of RLIMIT_LOCKS, which Linux has ignored since 2.4.25 (getrlimit(2)). The
//! kernel passes limits on to children and through exec, keeps them if a process's parent ends, and
//! lets others read and set them by process number. So every process has its mark, and the server
//! need not track which process started which. The filter keeps programs from setting this limit.
#![allow(unsafe_code)]

use extant_format::UintExt;
use rustix::io::Errno;

/// The limit that holds the mark (asm-generic/resource.h).
pub(crate) const RESOURCE: u32 = 10;
/// The upper half of a limit that is a mark: "Exta". Any other value marks nothing.
const MARK: u64 = 0x4578_7461_0000_0000;
const LOWER_HALF: u64 = 0xffff_ffff;
/// Bits of the lower half that hold the number. The program's bits are above it.
const NUMBER_BITS: u32 = 17;
const NUMBER: u32 = (1 << NUMBER_BITS) - 1;

/// What a mark says. A process without one has those of root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The number of the process's credentials.
    pub(super) number: u32,
    /// The program that has these credentials, if execve(2) will change them.
    pub(super) program: ProgramHash,
}

/// 15 bits that tell programs apart; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProgramHash(u32);

impl ProgramHash {
    pub(super) const NONE: Self = Self(0);

    /// The hash of what [`Process::program`](super::process::Process::program) returns.
    pub(super) fn of(program: u64) -> Self {
        // Fibonacci hashing: the upper bits of a product depend on all bits.
        let product = program.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((product >> (64 - (32 - NUMBER_BITS))).low_u32().max(1))
    }
}

/// The mark of a process; that of root if its credentials never changed. `thread` is any thread of
/// it.
pub(super) fn read(thread: u32) -> Mark {
    // A request of the kernel itself; prlimit would read this process's own limit.
    if thread == 0 {
        return Mark::default();
    }
    let limit = limit(thread, None).map_or(0, |[soft, _]| soft);
    if limit & !LOWER_HALF != MARK {
        return Mark::default();
    }
    let lower = limit.low_u32();
    Mark { number: lower & NUMBER, program: ProgramHash(lower >> NUMBER_BITS) }
}

/// Marks a process.
///
/// # Errors
/// The process has ended, or its hard limit is lower than marks are.
pub(super) fn set(thread: u32, mark: Mark) -> Result<(), Errno> {
    let Mark { number, program: ProgramHash(program) } = mark;
    assert!(number <= NUMBER, "there are fewer credentials");
    let [_, hard] = limit(thread, None)?;
    limit(thread, Some([MARK | u64::from(program << NUMBER_BITS | number), hard])).map(drop)
}

/// Makes sure that marks fit below this process's hard limit, which its children inherit.
///
/// # Errors
/// They do not. The error says what to do.
pub(super) fn fits() -> std::io::Result<()> {
    let [_, hard] = limit(0, None)?;
    if hard >= MARK | LOWER_HALF {
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
        assert_eq!((read(pid), read(0)), (Mark::default(), Mark::default()));
        let mark = Mark { number: NUMBER, program: ProgramHash::of(0x7ffc_1234_5670) };
        set(pid, mark).unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"\n").unwrap();
        let mut told = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut told).unwrap();
        let last: u32 = told.trim().parse().unwrap();
        assert_ne!(last, pid);
        assert_eq!((read(pid), read(last), read(std::process::id())), (mark, mark, Mark::default()));
        assert_ne!(mark.program, ProgramHash::of(0x7ffc_1234_5680));
        drop(input);
        child.wait().unwrap();
        assert_eq!((set(pid, mark), read(pid)), (Err(Errno::SRCH), Mark::default()));
    }
}
