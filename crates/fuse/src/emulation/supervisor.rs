//! Answers the calls that are held up.

use super::agreed::{GROUPS_MAX, KEEP, NewOwner, OWNER_ATTRIBUTE};
use super::calls::Call;
use super::credentials::{Change, Credentials};
use super::listener::{Answer, Held, Listener};
use super::mark::{self, Mark, ProgramHash};
use super::process::{Namespace, Process, device};
use super::registering::register;
use extant_format::UintExt;
use rustc_hash::FxHashMap;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, XattrFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use zerocopy::IntoBytes;

/// In place of a directory: the working directory (linux/fcntl.h, `AT_FDCWD`).
const WORKING_DIRECTORY: i32 = -100;
/// Maximum number of supplementary groups (linux/limits.h, `NGROUPS_MAX`).
const NGROUPS_MAX: u32 = 65_536;
/// Maximum number of threads that are known to keep their capabilities. Most of them have long
/// started another program, and all others only need it for a moment.
const KEEPERS_MAX: usize = 1024;
/// The links in `/proc` lead to other files for this process than for the caller.
const RESOLVE: ResolveFlags = ResolveFlags::NO_MAGICLINKS;

/// What a supervisor needs of the world outside the programs that it watches.
#[derive(Debug)]
pub struct Outside {
    /// `/proc` with the numbers of processes that this process knows.
    proc: OwnedFd,
    /// The volume's root directory.
    volume: OwnedFd,
    device: u64,
    /// The user namespace of this process, in which ids are emulated.
    namespace: Namespace,
}

impl Outside {
    /// Opens the directory on which the volume is mounted. Call it as long as `/proc` is the one of
    /// this process, and after the process has entered the user namespace.
    ///
    /// # Errors
    /// `/proc` or the directory cannot be opened.
    pub fn open(volume: &Path) -> std::io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = rustix::fs::open("/proc", flags | OFlags::PATH, Mode::empty())?;
        let volume = rustix::fs::open(volume, flags | OFlags::RDONLY, Mode::empty())?;
        let namespace = Process::own(&proc)?.user_namespace()?;
        Ok(Self { device: device(&volume)?, proc, volume, namespace })
    }
}

/// Answers the calls of the programs below a filter. It changes this process's working directory
/// for good, and the root directory while it looks for a file.
#[derive(Debug)]
pub struct Supervisor {
    listener: Listener,
    outside: Outside,
    /// This process's own root directory.
    root: OwnedFd,
    /// Credentials by number.
    credentials: Vec<Credentials>,
    numbers: FxHashMap<Credentials, u32>,
    /// Threads that keep their capabilities when they become another user (PR_SET_KEEPCAPS), with
    /// the program that does.
    keepers: FxHashMap<u32, u64>,
}

/// What chown(2) and its relatives want.
#[derive(Clone, Copy, Debug)]
struct Gift {
    user: u32,
    group: u32,
}

impl Supervisor {
    /// Watches the programs of a listener.
    ///
    /// # Errors
    /// The root directory cannot be opened.
    pub fn new(outside: Outside, listener: Listener) -> std::io::Result<Self> {
        let root = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        listener.answer_on_one_processor();
        let credentials = vec![Credentials::default()];
        let numbers = [(Credentials::default(), 0)].into_iter().collect();
        Ok(Self { listener, outside, root, credentials, numbers, keepers: FxHashMap::default() })
    }

    /// Answers the next call. Call it when the listener can be read. Returns false if there are no
    /// programs any more.
    pub fn answer_next(&mut self) -> bool {
        match self.listener.receive() {
            Ok(Some(held)) => {
                let answer = self.answer(&held).unwrap_or_else(Answer::Error);
                self.listener.answer(held.id, answer);
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    fn answer(&mut self, held: &Held) -> Result<Answer, Errno> {
        let Some(call) = held.call else { return Ok(Answer::Kernel) };
        let mark = mark::read(held.thread);
        // The kernel knows the answer for processes that never changed their ids, except that it
        // still gives them the groups of the user outside.
        if mark.number == 0 && matches!(call, Call::Real(_) | Call::Effective(_) | Call::AllThree(_)) {
            return Ok(Answer::Kernel);
        }
        let process = Process::open(&self.outside.proc, held.thread)?;
        // In a user namespace of its own, a process has the ids of that one.
        if process.user_namespace()? != self.outside.namespace {
            return Ok(Answer::Kernel);
        }
        if !self.listener.is_held(held.id) {
            return Err(Errno::SRCH);
        }
        let (number, now) = self.current(held, &process, mark)?;
        let word = |at: usize| held.arguments[at].low_u32();
        let (kind, change) = match call {
            Call::Chown { .. } | Call::Fchown | Call::Fchownat => {
                return self.give(held, call, &process, number);
            }
            Call::Real(kind) => return Ok(Answer::Value(now.ids(kind).real)),
            Call::Effective(kind) => return Ok(Answer::Value(now.ids(kind).effective)),
            Call::AllThree(kind) => {
                let ids = now.ids(kind);
                let [real, effective, saved, ..] = held.arguments;
                process.write(&[
                    (real, &[ids.real]),
                    (effective, &[ids.effective]),
                    (saved, &[ids.saved]),
                ])?;
                return Ok(Answer::Value(0));
            }
            Call::Groups => return tell_groups(held, &process, &now),
            Call::KeepCapabilities => {
                self.keep_capabilities(held, &process)?;
                return Ok(Answer::Kernel);
            }
            Call::SetGroups => {
                // A process without the right learns that, whatever the list is.
                let privileged = self.is_privileged(held, &process, &now);
                now.with_groups(Vec::new(), privileged)?;
                let count = word(0);
                if count > NGROUPS_MAX {
                    return Err(Errno::INVAL);
                }
                let next =
                    now.with_groups(process.numbers(held.arguments[1], count.to_usize())?, privileged)?;
                self.take_on(held, &process, next)?;
                return Ok(Answer::Value(0));
            }
            Call::SetOne(kind) => (kind, Change::One(word(0))),
            Call::SetTwo(kind) => (kind, Change::Two([word(0), word(1)])),
            Call::SetThree(kind) => (kind, Change::Three([word(0), word(1), word(2)])),
            Call::SetFs(kind) => (kind, Change::Fs(word(0))),
        };
        let next = now.changed(kind, change, self.is_privileged(held, &process, &now))?;
        let answer = match change {
            Change::Fs(_) => now.ids(kind).fs,
            _ => 0,
        };
        self.take_on(held, &process, next)?;
        Ok(Answer::Value(answer))
    }

    /// Whether the caller may take any id: as root, or because it keeps its capabilities.
    fn is_privileged(&self, held: &Held, process: &Process, now: &Credentials) -> bool {
        now.is_privileged()
            || self.keepers.get(&held.thread).is_some_and(|keeper| process.program() == Ok(*keeper))
    }

    fn keep_capabilities(&mut self, held: &Held, process: &Process) -> Result<(), Errno> {
        if held.arguments[1] != 1 {
            self.keepers.remove(&held.thread);
            return Ok(());
        }
        if self.keepers.len() >= KEEPERS_MAX {
            self.keepers.clear();
        }
        self.keepers.insert(held.thread, process.program()?);
        Ok(())
    }

    /// The credentials of a process with a mark, and their number.
    fn current(&mut self, held: &Held, process: &Process, mark: Mark) -> Result<(u32, Credentials), Errno> {
        let marked = self.credentials.get(mark.number.to_usize()).ok_or(Errno::PERM)?.clone();
        if mark.program == ProgramHash::NONE || mark.program == ProgramHash::of(process.program()?) {
            return Ok((mark.number, marked));
        }
        let now = marked.of_next_program();
        // If all numbers are taken, the mark keeps the old number, and each call works out anew
        // what the program has.
        let number = self.take_on(held, process, now.clone()).unwrap_or(mark.number);
        Ok((number, now))
    }

    /// Gives the process new credentials, and returns their number.
    fn take_on(&mut self, held: &Held, process: &Process, next: Credentials) -> Result<u32, Errno> {
        let is_kept = next == next.of_next_program();
        let number = self.number(next)?;
        let program = if is_kept { ProgramHash::NONE } else { ProgramHash::of(process.program()?) };
        let mark = Mark { number, program };
        if mark != mark::read(held.thread) {
            // Its number belongs to the caller as long as the call is held. The kernel gives a
            // number anew only after all others, so the moment between these two steps is too short
            // for that.
            if !self.listener.is_held(held.id) {
                return Err(Errno::SRCH);
            }
            mark::set(held.thread, mark)?;
        }
        Ok(number)
    }

    /// The number of credentials, which the server then knows.
    fn number(&mut self, credentials: Credentials) -> Result<u32, Errno> {
        if let Some(number) = self.numbers.get(&credentials) {
            return Ok(*number);
        }
        if credentials.supplementary.len() > GROUPS_MAX {
            return Err(Errno::NOMEM);
        }
        // As setuid(2) fails if there are too many of something.
        let full = |_| Errno::AGAIN;
        let number = u32::try_from(self.credentials.len()).map_err(|_| Errno::AGAIN)?;
        let mut words = vec![number, credentials.users.fs, credentials.groups.fs];
        words.extend(&credentials.supplementary);
        register(&self.outside.volume, &words).map_err(full)?;
        self.credentials.push(credentials.clone());
        self.numbers.insert(credentials, number);
        Ok(number)
    }

    /// chown(2) and its relatives.
    fn give(&self, held: &Held, call: Call, process: &Process, number: u32) -> Result<Answer, Errno> {
        let arguments = held.arguments;
        let word = |at: usize| arguments[at].low_u32();
        let file = match call {
            Call::Fchown => process.file(word(0).cast_signed()),
            Call::Fchownat => {
                let flags = AtFlags::from_bits_retain(word(4));
                if !(AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW).contains(flags) {
                    return Err(Errno::INVAL);
                }
                let follows = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
                let path = process.path(arguments[1])?;
                match word(0).cast_signed() {
                    WORKING_DIRECTORY if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) => {
                        process.working_directory()
                    }
                    dir if path.is_empty() && flags.contains(AtFlags::EMPTY_PATH) => process.file(dir),
                    dir => self.resolve(process, dir, &path, follows),
                }
            }
            Call::Chown { follows } => {
                self.resolve(process, WORKING_DIRECTORY, &process.path(arguments[0])?, follows)
            }
            _ => return Ok(Answer::Kernel),
        }?;
        let at = match call {
            Call::Fchownat => 2,
            _ => 1,
        };
        let gift = Gift { user: word(at), group: word(at + 1) };
        // The caller may have been killed, or interrupted and gone on.
        if !self.listener.is_held(held.id) {
            return Err(Errno::SRCH);
        }
        self.give_file(&file, gift, number)
    }

    fn give_file(&self, file: &OwnedFd, gift: Gift, number: u32) -> Result<Answer, Errno> {
        let Gift { user, group } = gift;
        if user == KEEP && group == KEEP {
            return Ok(Answer::Kernel);
        }
        if device(file)? != self.outside.device {
            let exist = |id: u32| id == 0 || id == KEEP;
            let credentials = self.credentials.get(number.to_usize()).ok_or(Errno::PERM)?;
            return match () {
                () if !credentials.may_give(user, group) => Err(Errno::PERM),
                // The kernel can do this, and knows who may.
                () if credentials.users.fs == 0 && exist(user) && exist(group) => Ok(Answer::Kernel),
                () => Ok(Answer::Value(0)),
            };
        }
        let value = NewOwner { number, uid: user, gid: group };
        // The descriptor cannot be used itself: it was opened without access to the file, and links
        // cannot be opened with any.
        rustix::process::fchdir(&self.outside.proc)?;
        let path = format!("self/fd/{}", file.as_raw_fd());
        rustix::fs::setxattr(path, OWNER_ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?;
        Ok(Answer::Value(0))
    }

    /// Finds a file as the process would.
    fn resolve(&self, process: &Process, dir: i32, path: &CStr, follows: bool) -> Result<OwnedFd, Errno> {
        if let Some(number) = own_file(path.to_bytes()).filter(|_| follows) {
            return process.file(number);
        }
        let start = match (dir, path.to_bytes()) {
            (_, [b'/', ..]) => None,
            (WORKING_DIRECTORY, _) => Some(process.working_directory()?),
            (number, _) => Some(process.file(number)?),
        };
        rustix::process::fchdir(process.root()?)?;
        let _home = self.enter()?;
        if let Some(start) = start {
            rustix::process::fchdir(start)?;
        }
        let follow = if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        rustix::fs::openat2(CWD, path, OFlags::PATH | OFlags::CLOEXEC | follow, Mode::empty(), RESOLVE)
    }

    /// Makes the working directory the root directory, for as long as the result is alive.
    fn enter(&self) -> Result<Home<'_>, Errno> {
        rustix::process::chroot(".")?;
        Ok(Home(self))
    }
}

/// Returns to this process's own root directory when dropped.
struct Home<'a>(&'a Supervisor);

impl Drop for Home<'_> {
    fn drop(&mut self) {
        let back = rustix::process::fchdir(&self.0.root).and_then(|()| rustix::process::chroot("."));
        debug_assert!(back.is_ok(), "{back:?}");
    }
}

/// The number of an open file of the process itself, by a path that means another file here.
fn own_file(path: &[u8]) -> Option<i32> {
    let dirs: [&[u8]; 3] = [b"/proc/self/fd/", b"/proc/thread-self/fd/", b"/dev/fd/"];
    let number = dirs.iter().find_map(|dir| path.strip_prefix(*dir));
    let number = number.or(match path {
        b"/dev/stdin" => Some(b"0"),
        b"/dev/stdout" => Some(b"1"),
        b"/dev/stderr" => Some(b"2"),
        _ => None,
    });
    let number = number.filter(|number| number.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// getgroups(2).
fn tell_groups(held: &Held, process: &Process, now: &Credentials) -> Result<Answer, Errno> {
    let room = held.arguments[0].low_u32().cast_signed();
    let room = u32::try_from(room).map_err(|_| Errno::INVAL)?;
    let count = u32::try_from(now.supplementary.len()).map_err(|_| Errno::INVAL)?;
    if room == 0 {
        return Ok(Answer::Value(count));
    }
    if count > room {
        return Err(Errno::INVAL);
    }
    process.write(&[(held.arguments[1], &now.supplementary)])?;
    Ok(Answer::Value(count))
}

impl AsFd for Supervisor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_open_files_are_known() {
        let numbers = [
            "/proc/self/fd/7",
            "/dev/fd/12",
            "/dev/stdout",
            "/proc/self/fd/",
            "/proc/self/fd/7/x",
            "/dev/fd/+1",
        ]
        .map(|path| own_file(path.as_bytes()));
        assert_eq!(numbers, [Some(7), Some(12), Some(1), None, None, None]);
    }
}
