//! The processes between `extant exec` and its command: one that leaves the namespaces and mounts,
//! and the first of the new process namespace. Each has a single thread, as the kernel requires.

use crate::attendant::Attendant;
use crate::exec::EXIT_NOT_RUN;
use crate::exec_args::StageArgs;
use crate::failure::Failure;
use extant_fuse::contain::{enter_root, leave_namespaces, mount_own_proc, own_map, private_mounts};
use extant_fuse::emulation::{Outside, Supervisor, install};
use extant_fuse::{MountOptions, Tie, mount, unmount};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::{Pid, Signal};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Variable with the path of the volume's root directory.
const VOLUME: &str = "EXTANT_VOLUME";

const EXIT_CANNOT_RUN: u8 = 126;
const EXIT_NOT_FOUND: u8 = 127;

pub(crate) fn run(args: &StageArgs, quiet: bool) -> ExitCode {
    let done = match args.socket {
        Some(socket) => mount_and_wait(args, socket, quiet),
        None => run_command(args, quiet),
    };
    ExitCode::from(done.unwrap_or_else(|failure| {
        complain(&failure.to_string());
        EXIT_NOT_RUN
    }))
}

fn complain(words: &str) {
    eprintln!("extant: {}", extant_fs::printable(words));
}

/// Asks for a signal when the parent ends, so that nothing outlives it.
fn end_with_parent() -> Result<(), Failure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|error| Failure::host(Path::new("/proc/self"), io::Error::from(error)))
}

fn mount_and_wait(args: &StageArgs, socket: i32, quiet: bool) -> Result<u8, Failure> {
    let own = |error: io::Error| Failure::host(Path::new("/proc/self/exe"), error);
    let tie = Tie::inherited(socket).map_err(own)?;
    let mut attendant = Attendant::new().map_err(own)?;
    leave_namespaces()?;
    let _ = tie.tell();
    // The process must have its ids first: the kernel drops the death signal when they change.
    if !tie.hear() {
        return Ok(EXIT_NOT_RUN);
    }
    end_with_parent()?;
    private_mounts()?;
    let temporary = args.dir.is_none().then(Temporary::new).transpose()?;
    let dir = args.dir.as_deref().or(temporary.as_ref().map(|made| &*made.path)).unwrap_or(Path::new("/"));
    let is_single = own_map().is_single();
    let mounting = MountOptions {
        source: args.source.clone().unwrap_or_default(),
        read_only: args.ro,
        // If there are no other users, there is nothing for the kernel to check.
        allow_other: !is_single,
        kernel_checks: false,
        suid: true,
        dev: false,
        exec: !args.noexec,
    };
    let device = mount(dir, &mounting)?;
    // Dropped before the directory is.
    let mounted = Mounted(dir);
    let sent = tie.send_device(&device);
    drop(device);
    if sent.is_err() || !tie.hear() {
        return Ok(EXIT_NOT_RUN);
    }
    let mut command = Command::new("/proc/self/exe");
    command.args(quiet.then_some("--quiet")).args(["exec-stage", "--dir"]).arg(dir);
    command.args(args.root.then_some("--root"));
    let (child, supervisor) = start(command, args, is_single.then_some(dir)).map_err(own)?;
    let code = match supervisor {
        Some(mut supervisor) => attendant.wait_and_serve(child, &mut supervisor, Supervisor::answer_next),
        None => attendant.wait_for(child),
    };
    let code = code.map_err(own)?;
    if args.root {
        // The mount is the root directory, and goes away with the namespace.
        std::mem::forget(mounted);
    }
    Ok(code)
}

/// Starts the first process of the process namespace. If the user namespace lacks users, `lacking`
/// is the volume's directory, and this process gets the calls of programs that need them.
fn start(
    mut command: Command,
    args: &StageArgs,
    lacking: Option<&Path>,
) -> io::Result<(Pid, Option<Supervisor>)> {
    let Some(volume) = lacking else {
        let child = command.arg("--").args(&args.command).spawn()?;
        return Ok((Pid::from_child(&child), None));
    };
    let outside = Outside::open(volume)?;
    let (ours, theirs) = Tie::pair()?;
    command.arg("--listener").arg(theirs.number().to_string()).arg("--").args(&args.command);
    let child = Pid::from_child(&command.spawn()?);
    // If the child sends no listener, only closing its end says so.
    drop(theirs);
    let listener = ours.receive_listener()?;
    let supervisor = listener.map(|listener| Supervisor::new(outside, listener)).transpose()?;
    Ok((child, supervisor))
}

/// Has the other process emulate the users that the namespace lacks, from now on.
fn emulate(socket: i32, quiet: bool) -> Result<(), Failure> {
    let own = |error: io::Error| Failure::host(Path::new("/proc/self"), error);
    let tie = Tie::inherited(socket).map_err(own)?;
    match install() {
        Ok(listener) => tie.send_listener(&listener).map_err(own),
        Err(error) => {
            if !quiet {
                complain(&format!("only root exists, and other users cannot be emulated: {error}"));
            }
            Ok(())
        }
    }
}

/// A directory to mount on. It is removed when dropped, even if the root directory has changed.
struct Temporary {
    parent: OwnedFd,
    name: String,
    path: PathBuf,
}

impl Temporary {
    fn new() -> Result<Self, Failure> {
        let all = std::env::temp_dir();
        let failed = |error: io::Error| Failure::host(&all, error);
        let parent = all.canonicalize().map_err(failed)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&parent, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        for n in 0.. {
            let name = format!("extant-{}-{n}", std::process::id());
            let path = parent.join(&name);
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { parent: opened, name, path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        unreachable!("some name is free")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = rustix::fs::unlinkat(&self.parent, &self.name, AtFlags::REMOVEDIR);
    }
}

/// The volume, mounted on a directory. It is unmounted when dropped.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, true);
    }
}

/// Adapts environment variables to the volume. Variables that name directories which the volume
/// lacks are replaced, and `PATH` gets root's directories: dpkg fails without them, and an ordinary
/// user's `PATH` does not have them.
fn fit_environment(command: &mut Command) {
    let is_lacking = |name: &str| std::env::var_os(name).is_some_and(|dir| !Path::new(&dir).is_dir());
    if is_lacking("TMPDIR") {
        command.env_remove("TMPDIR");
    }
    if is_lacking("HOME") {
        command.env("HOME", "/root");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut dirs: Vec<PathBuf> =
        std::env::split_paths(&path).filter(|dir| !dir.as_os_str().is_empty()).collect();
    for dir in
        ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from)
    {
        if !dirs.contains(&dir) {
            dirs.push(dir);
        }
    }
    if let Ok(path) = std::env::join_paths(dirs) {
        command.env("PATH", path);
    }
}

/// The first process of the namespace. When it ends, the kernel kills all others.
fn run_command(args: &StageArgs, quiet: bool) -> Result<u8, Failure> {
    end_with_parent()?;
    let own = |error: io::Error| Failure::host(Path::new("/proc/self"), error);
    let mut attendant = Attendant::new().map_err(own)?;
    let mut volume = args.dir.clone().unwrap_or_else(|| "/".into());
    if args.root {
        for missing in enter_root(&volume)?.into_iter().filter(|_| !quiet) {
            complain(&missing.to_string());
        }
        volume = "/".into();
    } else {
        mount_own_proc();
    }
    if let Some(socket) = args.listener {
        emulate(socket, quiet)?;
    }
    let Some((program, words)) = args.command.split_first() else { return Ok(EXIT_NOT_FOUND) };
    let mut command = Command::new(program);
    command.args(words).current_dir(&volume).env(VOLUME, &volume);
    if args.root {
        fit_environment(&mut command);
    }
    match command.spawn() {
        Ok(child) => attendant.wait_for(Pid::from_child(&child)).map_err(own),
        Err(error) => {
            let is_missing = error.kind() == io::ErrorKind::NotFound;
            complain(&Failure::host(Path::new(program), error).to_string());
            Ok(if is_missing { EXIT_NOT_FOUND } else { EXIT_CANNOT_RUN })
        }
    }
}
