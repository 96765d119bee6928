//! The system call filter that holds up the calls to be emulated.
#![allow(unsafe_code)]

use super::calls::{PROCESSORS, Processor};
use super::listener::Listener;
use super::mark::{self, RESOURCE};
use libc::sock_filter;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{FromRawFd, OwnedFd};

/// Where a filter finds what it looks at (linux/seccomp.h, `struct seccomp_data`).
const NUMBER: u32 = 0;
const PROCESSOR: u32 = 4;
/// The low half of the first argument, on processors with the low half first.
const ARGUMENTS: u32 = 16;

/// Opcodes: load a word, jump if equal, return a constant (linux/bpf_common.h).
const LOAD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

const fn load(at: u32) -> sock_filter {
    sock_filter { code: LOAD, jt: 0, jf: 0, k: at }
}

/// Skips `equal` instructions if the loaded word equals `word`, and `otherwise` if not.
const fn skip(word: u32, equal: u8, otherwise: u8) -> sock_filter {
    sock_filter { code: JUMP_IF_EQUAL, jt: equal, jf: otherwise, k: word }
}

const fn end(action: u32) -> sock_filter {
    sock_filter { code: RETURN, jt: 0, jf: 0, k: action }
}

const ALLOW: sock_filter = end(libc::SECCOMP_RET_ALLOW);
const HOLD: sock_filter = end(libc::SECCOMP_RET_USER_NOTIF);
/// The call returns 0, and does nothing.
const PRETEND: sock_filter = end(libc::SECCOMP_RET_ERRNO);
const DENY: sock_filter = end(libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned());

/// First argument of prctl(2) (linux/prctl.h, `PR_SET_KEEPCAPS`).
const KEEP_CAPABILITIES: u32 = 8;

/// A call's number as filters see it.
fn word(number: i64) -> u32 {
    u32::try_from(number).expect("numbers of system calls are small")
}

/// Decides about the calls of one kind of processor. The number of the call is loaded.
fn of_processor(processor: &Processor) -> Vec<sock_filter> {
    let mut program = Vec::new();
    for (number, _) in processor.calls {
        program.extend([skip(word(*number), 0, 1), HOLD]);
    }
    // Programs must not lose the mark.
    let [set, change] = processor.limits.map(word);
    program.extend([skip(set, 0, 4), load(ARGUMENTS), skip(RESOURCE, 0, 1), PRETEND, ALLOW]);
    let [new, old] = [ARGUMENTS + 2 * 8, ARGUMENTS + 3 * 8];
    program.extend([skip(change, 0, 13), load(ARGUMENTS + 8), skip(RESOURCE, 0, 10)]);
    // Without a new limit, the old one is read.
    program.extend([load(new), skip(0, 0, 2), load(new + 4), skip(0, 6, 0)]);
    // A call that also asks for the old limit would get an uninitialised one.
    program.extend([load(old), skip(0, 0, 3), load(old + 4), skip(0, 0, 1), PRETEND, DENY, ALLOW]);
    // Only keeping capabilities.
    program.extend([
        skip(word(processor.control), 0, 3),
        load(ARGUMENTS),
        skip(KEEP_CAPABILITIES, 0, 1),
        HOLD,
    ]);
    program.push(ALLOW);
    program
}

fn program() -> Vec<sock_filter> {
    let mut program = vec![load(PROCESSOR)];
    for processor in PROCESSORS {
        let decision = of_processor(processor);
        let length = u8::try_from(1 + decision.len()).expect("a jump is short");
        program.extend([skip(processor.number, 0, length), load(NUMBER)]);
        program.extend(decision);
    }
    program.push(ALLOW);
    program
}

/// Holds up the calls of this process and of all that it will start. The process needs
/// CAP_SYS_ADMIN in its user namespace, and a single thread.
///
/// # Errors
/// The kernel cannot do it, another filter of this process already has a listener, or a limit keeps
/// programs from being marked.
pub fn install() -> Result<Listener> {
    if PROCESSORS.is_empty() {
        return Err(Error::new(ErrorKind::Unsupported, "this processor's system calls are not known"));
    }
    mark::fits()?;
    let mut program = program();
    let length = u16::try_from(program.len()).map_err(Error::other)?;
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    let listener = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Once the supervisor has begun with a call, only being killed interrupts it (Linux 5.19).
    // Otherwise every signal makes the call start anew.
    apply(listener | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program).or_else(|error| {
        match error.raw_os_error() {
            Some(libc::EINVAL) => apply(listener, &program),
            _ => Err(error),
        }
    })
}

fn apply(flags: libc::c_ulong, program: &libc::sock_fprog) -> Result<Listener> {
    // SAFETY: `program` counts the instructions of an array that `install` keeps alive. The kernel
    // copies and checks them.
    let descriptor = unsafe {
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, std::ptr::from_ref(program))
    };
    let descriptor = i32::try_from(descriptor).ok().filter(|descriptor| *descriptor >= 0);
    let descriptor = descriptor.ok_or_else(Error::last_os_error)?;
    // SAFETY: the kernel has just opened this descriptor, which therefore has no other owner.
    Ok(Listener::new(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the filter (Documentation/networking/filter.rst) for a call.
    fn decide(processor: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let program = program();
        let halves = arguments
            .map(|whole| [whole & 0xffff_ffff, whole >> 32].map(|half| u32::try_from(half).unwrap()));
        let data: Vec<u32> =
            [number, processor, 0, 0].into_iter().chain(halves.into_iter().flatten()).collect();
        let (mut at, mut loaded) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match code {
                LOAD => loaded = data[usize::try_from(k).unwrap() / 4],
                JUMP_IF_EQUAL => at += usize::from(if loaded == k { jt } else { jf }),
                _ => return k,
            }
        }
    }

    #[test]
    fn only_calls_about_ids_and_setting_the_mark_are_held_up() {
        for Processor { number, calls, limits, control } in PROCESSORS {
            let decide = |call: i64, arguments: [u64; 6]| decide(*number, word(call), arguments);
            for (call, _) in *calls {
                assert_eq!(decide(*call, [0; 6]), libc::SECCOMP_RET_USER_NOTIF, "{call}");
            }
            let mark = u64::from(RESOURCE);
            let [set, change] = *limits;
            assert_eq!(decide(set, [mark, 1, 0, 0, 0, 0]), libc::SECCOMP_RET_ERRNO);
            assert_eq!(decide(set, [7, 1, 0, 0, 0, 0]), libc::SECCOMP_RET_ALLOW);
            for new in [1, 1 << 32] {
                assert_eq!(decide(change, [0, mark, new, 0, 0, 0]), libc::SECCOMP_RET_ERRNO);
                for old in [1, 1 << 32] {
                    assert_eq!(decide(change, [0, mark, new, old, 0, 0]), libc::SECCOMP_RET_ERRNO | 1);
                }
            }
            assert_eq!(decide(change, [0, mark, 0, 1, 0, 0]), libc::SECCOMP_RET_ALLOW);
            assert_eq!(decide(change, [mark, 7, 1, 1, 0, 0]), libc::SECCOMP_RET_ALLOW);
            assert_eq!(decide(*control, [8, 1, 0, 0, 0, 0]), libc::SECCOMP_RET_USER_NOTIF);
            let known: Vec<i64> = calls.iter().map(|(call, _)| *call).chain(*limits).collect();
            for other in (0..500).filter(|other| !known.contains(other)) {
                assert_eq!(decide(other, [mark; 6]), libc::SECCOMP_RET_ALLOW, "{other}");
            }
        }
        // A processor that is not known, and x32.
        assert_eq!(decide(5, 105, [0; 6]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(decide(0xc000_003e, 0x4000_0069, [0; 6]), libc::SECCOMP_RET_ALLOW);
    }
}
