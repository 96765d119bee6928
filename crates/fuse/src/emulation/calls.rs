//! The system calls that are emulated, and their numbers.

use super::credentials::Kind;

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    /// chown(2), or lchown(2) for a link itself.
    Chown {
        follows: bool,
    },
    Fchown,
    Fchownat,
    /// getuid(2), getgid(2).
    Real(Kind),
    /// geteuid(2), getegid(2).
    Effective(Kind),
    /// getresuid(2), getresgid(2).
    AllThree(Kind),
    Groups,
    /// setuid(2), setgid(2).
    SetOne(Kind),
    /// setreuid(2), setregid(2).
    SetTwo(Kind),
    /// setresuid(2), setresgid(2).
    SetThree(Kind),
    /// setfsuid(2), setfsgid(2).
    SetFs(Kind),
    SetGroups,
    /// prctl(2) with PR_SET_KEEPCAPS.
    KeepCapabilities,
}

/// The calls of programs of one kind of processor.
#[derive(Debug)]
pub(super) struct Processor {
    /// Its number (linux/audit.h, `AUDIT_ARCH_*`).
    pub(super) number: u32,
    pub(super) calls: &'static [(i64, Call)],
    /// Numbers of setrlimit(2) and prlimit64(2).
    pub(super) limits: [i64; 2],
    /// Number of prctl(2).
    pub(super) control: i64,
}

/// The processors whose programs this kernel runs. The calls of others, of x32 and those with ids
/// of 16 bits are left to the kernel, which refuses them.
pub(super) const PROCESSORS: &[Processor] = &[
    #[cfg(target_arch = "x86_64")]
    Processor {
        number: 0xc000_003e,
        calls: &NATIVE,
        limits: [libc::SYS_setrlimit, libc::SYS_prlimit64],
        control: libc::SYS_prctl,
    },
    // i386, by arch/x86/entry/syscalls/syscall_32.tbl.
    #[cfg(target_arch = "x86_64")]
    Processor { number: 0x4000_0003, calls: &I386, limits: [75, 340], control: 172 },
    #[cfg(target_arch = "aarch64")]
    Processor {
        number: 0xc000_00b7,
        calls: &NATIVE,
        limits: [libc::SYS_setrlimit, libc::SYS_prlimit64],
        control: libc::SYS_prctl,
    },
];

/// The call with this number.
pub(super) fn call(processor: u32, number: i64) -> Option<Call> {
    let of = PROCESSORS.iter().find(|of| of.number == processor)?;
    if number == of.control {
        return Some(Call::KeepCapabilities);
    }
    of.calls.iter().find(|(known, _)| *known == number).map(|(_, call)| *call)
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const NATIVE: [(i64, Call); if cfg!(target_arch = "x86_64") { 20 } else { 18 }] = [
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chown, Call::Chown { follows: true }),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_lchown, Call::Chown { follows: false }),
    (libc::SYS_fchown, Call::Fchown),
    (libc::SYS_fchownat, Call::Fchownat),
    (libc::SYS_getuid, Call::Real(Kind::User)),
    (libc::SYS_getgid, Call::Real(Kind::Group)),
    (libc::SYS_geteuid, Call::Effective(Kind::User)),
    (libc::SYS_getegid, Call::Effective(Kind::Group)),
    (libc::SYS_getresuid, Call::AllThree(Kind::User)),
    (libc::SYS_getresgid, Call::AllThree(Kind::Group)),
    (libc::SYS_getgroups, Call::Groups),
    (libc::SYS_setuid, Call::SetOne(Kind::User)),
    (libc::SYS_setgid, Call::SetOne(Kind::Group)),
    (libc::SYS_setreuid, Call::SetTwo(Kind::User)),
    (libc::SYS_setregid, Call::SetTwo(Kind::Group)),
    (libc::SYS_setresuid, Call::SetThree(Kind::User)),
    (libc::SYS_setresgid, Call::SetThree(Kind::Group)),
    (libc::SYS_setfsuid, Call::SetFs(Kind::User)),
    (libc::SYS_setfsgid, Call::SetFs(Kind::Group)),
    (libc::SYS_setgroups, Call::SetGroups),
];

#[cfg(target_arch = "x86_64")]
const I386: [(i64, Call); 20] = [
    (198, Call::Chown { follows: false }),
    (199, Call::Real(Kind::User)),
    (200, Call::Real(Kind::Group)),
    (201, Call::Effective(Kind::User)),
    (202, Call::Effective(Kind::Group)),
    (203, Call::SetTwo(Kind::User)),
    (204, Call::SetTwo(Kind::Group)),
    (205, Call::Groups),
    (206, Call::SetGroups),
    (207, Call::Fchown),
    (208, Call::SetThree(Kind::User)),
    (209, Call::AllThree(Kind::User)),
    (210, Call::SetThree(Kind::Group)),
    (211, Call::AllThree(Kind::Group)),
    (212, Call::Chown { follows: true }),
    (213, Call::SetOne(Kind::User)),
    (214, Call::SetOne(Kind::Group)),
    (215, Call::SetFs(Kind::User)),
    (216, Call::SetFs(Kind::Group)),
    (298, Call::Fchownat),
];
