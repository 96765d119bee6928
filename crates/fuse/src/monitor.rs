//! A process outside the server's sandbox that does the few things which the server may no longer
//! do itself (privilege separation, as in OpenSSH's sshd).
//!
//! A server that an image has taken over can make it unmount its own directory, and read the groups
//! of processes and whether they are being killed, which every user may.

use crate::groups::groups_of;
use crate::interrupts::is_killed;
use crate::mounting::{MountError, clear_dead, device_at, unmount};
use crate::tie::Tie;
use parking_lot::Mutex;
use std::io::{Read, Result, Write};
use std::path::Path;

/// Maximum number of supplementary groups of a process (limits.h, `NGROUPS_MAX`).
const GROUPS_MAX: u32 = 65_536;

/// Kinds of requests. The last two also send the number of a thread.
const UNMOUNT: u8 = b'u';
const UNMOUNT_LAZILY: u8 = b'l';
const CLEAR_DEAD: u8 = b'c';
const GROUPS: u8 = b'g';
const KILLED: u8 = b'k';

/// The result of unmounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounting {
    /// Nothing of this server is mounted on the directory any more.
    Done,
    /// The mount is in use by programs.
    Busy,
    /// Unmounting failed, and the monitor has printed why; or the monitor has ended.
    Failed,
}

/// The server's connection to the monitor.
#[derive(Debug)]
pub struct Monitor(Mutex<Tie>);

impl Monitor {
    /// Sends requests over this tie.
    pub fn new(tie: Tie) -> Self {
        Self(Mutex::new(tie))
    }

    /// Unmounts the server's directory.
    pub fn unmount(&self, lazy: bool) -> Unmounting {
        self.ask_for_one(if lazy { UNMOUNT_LAZILY } else { UNMOUNT })
    }

    /// Unmounts the directory if its server has ended.
    pub fn clear_dead(&self) -> Unmounting {
        self.ask_for_one(CLEAR_DEAD)
    }

    /// The supplementary groups of a thread; none if it has ended.
    pub fn groups(&self, thread: u32) -> Vec<u32> {
        self.ask(GROUPS, thread).unwrap_or_default()
    }

    /// Whether a thread is being killed.
    pub fn is_killed(&self, thread: u32) -> bool {
        matches!(self.ask(KILLED, thread).as_deref(), Ok([1]))
    }

    fn ask_for_one(&self, kind: u8) -> Unmounting {
        match self.ask(kind, 0).as_deref() {
            Ok([0]) => Unmounting::Done,
            Ok([1]) => Unmounting::Busy,
            _ => Unmounting::Failed,
        }
    }

    fn ask(&self, kind: u8, thread: u32) -> Result<Vec<u32>> {
        let mut tie = self.0.lock();
        let [a, b, c, d] = thread.to_le_bytes();
        tie.write_all(&[kind, a, b, c, d])?;
        let mut number = || {
            let mut bytes = [0; 4];
            tie.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes))
        };
        let count = number()?.min(GROUPS_MAX);
        (0..count).map(|_| number()).collect()
    }
}

/// Does what the server asks for, until the server has ended. `dir` is the directory that was
/// mounted for it, if any; errors go to `report`.
///
/// # Errors
/// The connection is broken.
pub fn monitor(mut tie: Tie, dir: Option<&Path>, report: impl Fn(&MountError)) -> Result<()> {
    // After a lazy unmount, another volume may be mounted on the same directory.
    let own = dir.and_then(device_at);
    let mut request = [0; 5];
    while tie.read_exact(&mut request).is_ok() {
        let [kind, a, b, c, d] = request;
        let outcome = |done: std::result::Result<(), MountError>| match done {
            Ok(()) => vec![0],
            Err(MountError::Busy(_)) => vec![1],
            Err(error) => {
                report(&error);
                vec![2]
            }
        };
        let numbers = match (kind, dir) {
            // Do not ask the server: it may be waiting for this answer.
            (UNMOUNT | UNMOUNT_LAZILY, Some(dir)) => match device_at(dir) == own {
                true => outcome(unmount(dir, kind == UNMOUNT_LAZILY)),
                false => vec![0],
            },
            (CLEAR_DEAD, Some(dir)) => outcome(clear_dead(dir).map(drop)),
            (GROUPS, _) => groups_of(u32::from_le_bytes([a, b, c, d])),
            (KILLED, _) => vec![is_killed(u32::from_le_bytes([a, b, c, d])).into()],
            _ => Vec::new(),
        };
        let count = u32::try_from(numbers.len()).unwrap_or(0);
        let all = std::iter::once(&count).chain(&numbers);
        let bytes: Vec<u8> = all.flat_map(|number| number.to_le_bytes()).collect();
        tie.write_all(&bytes)?;
    }
    Ok(())
}
