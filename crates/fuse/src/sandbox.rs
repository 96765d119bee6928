//! The privileges that a server gives up, so that a hostile image that takes it over gains access
//! to nothing but itself.
//!
//! Landlock first restricts access to files. This happens before the volume is opened and while
//! there is only one thread, because it applies only to the calling thread and threads that it
//! starts. What opening the volume needs remains: the image, and `/proc`, `/sys` and `/dev` for
//! reading. Once the volume is open and mounted, a system call filter for all threads denies
//! opening any file, executing programs, and access to other processes and the network. The server
//! can still read, write and map what is open. The io_uring, whose operations no filter sees, is
//! restricted to these operations when it is created.

use crate::emulation::RESOURCE;
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, path_beneath_rules,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch,
};
use std::collections::BTreeMap;
use std::path::Path;
use thiserror::Error;

/// The newest landlock version whose rules are requested. Older kernels apply the rules that they
/// know.
const NEWEST: ABI = ABI::V5;

/// Why the sandbox could not be set up.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Landlock failed.
    #[error("landlock: {0}")]
    Files(#[from] landlock::RulesetError),
    /// Seccomp failed.
    #[error("seccomp: {0}")]
    Calls(#[from] seccompiler::Error),
}

/// Where a server's image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageIs<'a> {
    /// In a file or on a disk.
    At(&'a Path),
    /// On a server, to which a new connection may be necessary.
    OnNetwork,
}

/// Denies access to the host's files, for this thread and those that it will start. Returns false,
/// and changes nothing, if the kernel has no landlock.
///
/// # Errors
/// The kernel refuses the rules.
pub fn confine_files(image: ImageIs<'_>) -> Result<bool, SandboxError> {
    let read = AccessFs::from_read(NEWEST) & !AccessFs::Execute;
    let mut rules = Ruleset::default().handle_access(AccessFs::from_all(NEWEST))?;
    let mut readable = vec!["/proc", "/sys"];
    match image {
        ImageIs::At(_) => rules = rules.handle_access(AccessNet::from_all(NEWEST))?,
        // To look up the server's address.
        ImageIs::OnNetwork => readable.extend(["/etc", "/lib", "/lib64", "/usr", "/run"]),
    }
    let mut rules = rules
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        // To use loop devices whose backing file is the image.
        .add_rules(path_beneath_rules(["/dev"], read | AccessFs::IoctlDev))?;
    if let ImageIs::At(image) = image
        && let Ok(image) = PathFd::new(image)
    {
        let change: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate;
        rules = rules.add_rule(PathBeneath::new(image, change | AccessFs::IoctlDev))?;
    }
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Denies the system calls that a server does not need once its volume is mounted, for all threads.
/// They fail with EPERM. Signals can be sent only to `child`.
///
/// # Errors
/// The kernel has no seccomp.
pub fn confine_calls(image: ImageIs<'_>, child: Option<u32>) -> Result<(), SandboxError> {
    let target = TargetArch::try_from(std::env::consts::ARCH).map_err(seccompiler::Error::Backend)?;
    let denied = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let install = |rules, otherwise, listed| -> Result<(), SandboxError> {
        let filter =
            SeccompFilter::new(rules, otherwise, listed, target).map_err(seccompiler::Error::Backend)?;
        let program = BpfProgram::try_from(filter).map_err(seccompiler::Error::Backend)?;
        Ok(seccompiler::apply_filter_all_threads(&program)?)
    };
    // The flags of clone3 are in memory, where a filter cannot see them. Without clone3, the C
    // library uses clone.
    let missing = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    install(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), SeccompAction::Allow, missing)?;
    install(allowed(image, child)?, denied, SeccompAction::Allow)
}

/// Allows a call if the bits of an argument that are in `mask` equal `bits`.
fn only(argument: u8, mask: u64, bits: u64) -> Result<Vec<SeccompRule>, SandboxError> {
    let op = SeccompCmpOp::MaskedEq(mask);
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, bits);
    let rule = condition.and_then(|condition| SeccompRule::new(vec![condition]));
    Ok(vec![rule.map_err(seccompiler::Error::Backend)?])
}

/// Allows reading the limit that marks whose credentials a process has, and setting none.
fn reading_marks() -> Result<Vec<SeccompRule>, SandboxError> {
    let is = |argument, length, value| {
        SeccompCondition::new(argument, length, SeccompCmpOp::Eq, value).map_err(seccompiler::Error::Backend)
    };
    let (resource, new) =
        (is(1, SeccompCmpArgLen::Dword, RESOURCE.into())?, is(2, SeccompCmpArgLen::Qword, 0)?);
    Ok(vec![SeccompRule::new(vec![resource, new]).map_err(seccompiler::Error::Backend)?])
}

fn allowed(image: ImageIs<'_>, child: Option<u32>) -> Result<BTreeMap<i64, Vec<SeccompRule>>, SandboxError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = ALWAYS.iter().map(|call| (*call, Vec::new())).collect();
    let flag = |bit: i32| u64::from(bit.unsigned_abs());
    // Allow starting threads, but not processes.
    rules.insert(libc::SYS_clone, only(0, flag(libc::CLONE_THREAD), flag(libc::CLONE_THREAD))?);
    let all = u64::from(u32::MAX);
    // Needed to abort.
    rules.insert(libc::SYS_tgkill, only(0, all, std::process::id().into())?);
    if let Some(child) = child {
        rules.insert(libc::SYS_kill, only(0, all, child.into())?);
        rules.insert(libc::SYS_prlimit64, reading_marks()?);
    }
    // Allow these calls for open files, but not for paths.
    let empty = flag(libc::AT_EMPTY_PATH);
    rules.insert(libc::SYS_newfstatat, only(3, empty, empty)?);
    rules.insert(libc::SYS_statx, only(2, empty, empty)?);
    // Deny executable memory.
    let exec = flag(libc::PROT_EXEC);
    rules.insert(libc::SYS_mmap, only(2, exec, 0)?);
    rules.insert(libc::SYS_mprotect, only(2, exec, 0)?);
    // Discards blocks of a disk.
    const BLKDISCARD: u64 = 0x1277;
    rules.insert(libc::SYS_ioctl, only(1, all, BLKDISCARD)?);
    if image == ImageIs::OnNetwork {
        // Used to reconnect within a time limit.
        const FIONBIO: u64 = 0x5421;
        rules.insert(libc::SYS_ioctl, [only(1, all, BLKDISCARD)?, only(1, all, FIONBIO)?].concat());
        rules.extend(NETWORK.iter().map(|call| (*call, Vec::new())));
        let writes = flag(libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC);
        rules.insert(libc::SYS_openat, only(2, writes, flag(libc::O_RDONLY))?);
    }
    Ok(rules)
}

/// Memory, threads, time, open files, signals and children.
const ALWAYS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_gettid,
    libc::SYS_geteuid,
    libc::SYS_getuid,
    libc::SYS_getegid,
    libc::SYS_getgid,
    libc::SYS_membarrier,
    libc::SYS_prctl,
    libc::SYS_rseq,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrusage,
    libc::SYS_close,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_lseek,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ppoll,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_ctl,
    libc::SYS_eventfd2,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // Only works on a socket that is already listening.
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_shutdown,
    libc::SYS_pidfd_send_signal,
    libc::SYS_wait4,
    libc::SYS_waitid,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_dup2,
];

/// Calls needed to reconnect to the server of an image.
const NETWORK: &[i64] = &[
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_bind,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_sendmmsg,
    libc::SYS_epoll_create1,
    libc::SYS_uname,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
];
