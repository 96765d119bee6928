//! Waits for a command, and passes signals on to it.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::backend::SignalDelivery;
use signal_hook::iterator::exfiltrator::WithRawSiginfo;
use std::io::{Error, Result};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Signals that other programs may send; they are passed on to the command.
const PASSED_ON: [i32; 7] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH];

/// Receives the signals sent to this process, from the moment it is created.
pub(crate) struct Attendant(SignalDelivery<UnixStream, WithRawSiginfo>);

impl Attendant {
    /// Create it before the command is started, so that no exit is missed.
    pub(crate) fn new() -> Result<Self> {
        // Signals that are ignored from the start, as under nohup(1), stay ignored here and in the
        // command.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let is_ignored = |signal: i32| ignored(&status) & (1 << (signal - 1)) != 0;
        let signals = PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal));
        let (read, write) = UnixStream::pair()?;
        let signals = signals.chain([SIGCHLD]);
        SignalDelivery::with_pipe(read, write, WithRawSiginfo, signals).map(Self)
    }

    /// Waits until `child` has ended; returns its exit code, or 128 plus the number of the signal
    /// that killed it. Reaps all other children meanwhile.
    pub(crate) fn wait_for(&mut self, child: Pid) -> Result<u8> {
        self.wait(child, |signals| until_ready([signals]).map(drop))
    }

    /// Like [`Self::wait_for`]. Calls `serve` whenever there is something to read from `server`,
    /// until it returns false or `server` is closed at its other end.
    pub(crate) fn wait_and_serve<S: AsFd>(
        &mut self,
        child: Pid,
        server: &mut S,
        serve: impl Fn(&mut S) -> bool,
    ) -> Result<u8> {
        let mut serves = true;
        self.wait(child, |signals| {
            while serves {
                let [of_signals, of_server] = until_ready([&signals, &server.as_fd()])?;
                serves = match of_server {
                    is if is.contains(PollFlags::IN) => serve(server),
                    is => is.is_empty(),
                };
                if !of_signals.is_empty() {
                    return Ok(());
                }
            }
            until_ready([signals]).map(drop)
        })
    }

    /// `until_signal` returns when there is something to read from its argument.
    fn wait(&mut self, child: Pid, mut until_signal: impl FnMut(&UnixStream) -> Result<()>) -> Result<u8> {
        loop {
            while let Some((ended, status)) = rustix::process::wait(WaitOptions::NOHANG)? {
                if ended == child {
                    return code(status).ok_or_else(|| Error::other("a child neither exited nor was killed"));
                }
            }
            until_signal(self.0.get_read())?;
            for received in self.0.pending() {
                // The kernel sends a terminal's signals to all foreground processes, so the command
                // already has them. Their codes are positive (sigaction(2)).
                let is_sent = received.si_code <= 0 && received.si_signo != SIGCHLD;
                if let Some(signal) = Signal::from_named_raw(received.si_signo).filter(|_| is_sent) {
                    // The command may already have ended.
                    let _ = rustix::process::kill_process(child, signal);
                }
            }
        }
    }
}

/// Waits until there is something to read from one of these, and says what happened to each.
fn until_ready<const N: usize>(from: [&dyn AsFd; N]) -> Result<[PollFlags; N]> {
    let descriptors = from.map(|one| one.as_fd());
    let mut watched = std::array::from_fn(|at| PollFd::from_borrowed_fd(descriptors[at], PollFlags::IN));
    loop {
        match poll(&mut watched, None) {
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(watched.map(|one| one.revents())),
        }
    }
}

fn code(status: WaitStatus) -> Option<u8> {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal))?;
    u8::try_from(code).ok()
}

/// The signals that a process ignores, from its `/proc` file.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_those_of_the_status_file() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000440\n";
        assert_eq!(ignored(status), (1 << (SIGHUP - 1)) | (1 << 12));
    }
}
