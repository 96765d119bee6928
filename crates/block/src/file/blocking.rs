//! The blocking engine: makes a transfer's system calls one after another on the caller's thread.

use super::host_file::HostFile;
use super::transfer::{Step, Transfer};
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};

/// Runs a transfer to completion on this thread.
pub(super) fn run(host_file: &HostFile, mut transfer: Transfer) {
    let result = loop {
        let step = transfer.step(host_file);
        let outcome = take_step(host_file, step, &mut transfer);
        if let Some(result) = transfer.completed(host_file, outcome) {
            break result;
        }
    };
    transfer.bio.end_as(&host_file.limits.name, result);
}

/// Reads what the host's page cache holds, without waiting for the device. Ends the transfer if
/// that was everything; otherwise returns it, to read the rest. Errors are left to the next
/// attempt.
pub(super) fn read_now(host_file: &HostFile, mut transfer: Transfer) -> Option<Transfer> {
    let Step::Read { offset, direct } = transfer.step(host_file) else { return Some(transfer) };
    let (fd, flags) = (host_file.fd(direct), ReadWriteFlags::NOWAIT);
    let outcome = rustix::io::preadv2(fd, &mut transfer.slices_mut(), offset, flags);
    if matches!(outcome, Err(Errno::OPNOTSUPP | Errno::NOSYS)) {
        host_file.refuse_to_read_now();
    }
    let result = match outcome {
        Ok(bytes) if bytes > 0 => transfer.completed(host_file, Ok(bytes)),
        _ => None,
    };
    let Some(result) = result else { return Some(transfer) };
    transfer.bio.end_as(&host_file.limits.name, result);
    None
}

/// Reads at byte `at` on this thread, through the host's page cache. Returns whether it filled
/// `to`.
pub(super) fn read_here(host_file: &HostFile, at: u64, to: &mut [IoSliceMut<'_>]) -> bool {
    let bytes = to.iter().map(|part| part.len()).sum::<usize>();
    loop {
        let outcome = match to {
            [one] => rustix::io::pread(&host_file.buffered, &mut **one, at),
            _ => rustix::io::preadv(&host_file.buffered, to, at),
        };
        if outcome != Err(Errno::INTR) {
            return outcome == Ok(bytes);
        }
    }
}

fn take_step(host_file: &HostFile, step: Step, transfer: &mut Transfer) -> Result<usize, Errno> {
    match step {
        Step::Sync => rustix::fs::fdatasync(&host_file.buffered).map(|()| 0),
        Step::Read { offset, direct } => {
            rustix::io::preadv(host_file.fd(direct), &mut transfer.slices_mut(), offset)
        }
        Step::Write { offset, direct, dsync: false } => {
            rustix::io::pwritev(host_file.fd(direct), &transfer.slices(), offset)
        }
        Step::Write { offset, direct, dsync: true } => {
            rustix::io::pwritev2(host_file.fd(direct), &transfer.slices(), offset, ReadWriteFlags::DSYNC)
        }
        Step::PunchHole { offset, len } => {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&host_file.buffered, mode, offset, len).map(|()| 0)
        }
        Step::Discard { len: 0, .. } => Ok(0),
        Step::Discard { offset, len } => discard(host_file.buffered.as_fd(), offset, len).map(|()| 0),
    }
}

fn discard(fd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<(), Errno> {
    /// `_IO(0x12, 119)` of linux/fs.h, an exception to the usual encoding: the argument is two
    /// 64-bit numbers.
    const BLKDISCARD: rustix::ioctl::Opcode = 0x1277;
    // SAFETY: BLKDISCARD reads an array of two u64 (first byte and length) from its argument, and
    // writes nothing.
    unsafe { rustix::ioctl::ioctl(fd, rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
}
