//! `extant exec`: the process that serves the volume.

use crate::attendant::Attendant;
use crate::exec_args::ExecArgs;
use crate::failure::Failure;
use crate::mount;
use crate::mount_args::MountWords;
use crate::mount_monitor;
use crate::sandbox::Sandbox;
use crate::session::Session;
use extant_fs::quote;
use extant_fuse::contain::OwnIds;
use extant_fuse::{Device, IdMap, Monitor, OpenVolume, Server, Settings, Tie};
use extant_rt::{Nanos, Rt, Task};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;

/// Exit code if extant itself failed, like that of env(1), timeout(1) and other programs that run a
/// command.
pub(crate) const EXIT_NOT_RUN: u8 = 125;

/// How long processes outside the namespaces may keep using the volume after the command has ended.
const LEAVE: Nanos = Nanos::from_secs(10);

/// `extant exec`. The exit code is that of the command.
pub(crate) fn run(mut session: Session, args: &ExecArgs) -> ExitCode {
    match with_volume(&mut session, args) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            session.fail(failure);
            ExitCode::from(EXIT_NOT_RUN)
        }
    }
}

fn with_volume(session: &mut Session, args: &ExecArgs) -> Result<u8, Failure> {
    let mut words = MountWords::parse(&args.options).map_err(Failure::Usage)?;
    if words.owners.are_changed() || words.writeback {
        return Err(Failure::Usage("fakeroot, uid=, gid= and writeback go with mount only".into()));
    }
    words.volume.write &= !args.ro;
    mount::choose_part(session, &words)?;
    let mut attendant = Attendant::new().map_err(of_signals)?;
    let (tie, child) = start(session, args, &words)?;
    let pid = Pid::from_child(&child);
    let Some((device, ids)) = mounted(session, &tie, child.id())? else {
        // The child has printed the reason.
        return attendant.wait_for(pid).map_err(of_signals);
    };
    let sandbox = Sandbox::new(args.sandbox, &args.image);
    let (monitor, volume) = match open(session, args, &words, &ids, &sandbox) {
        Ok(opened) => opened,
        Err(failure) => {
            // The child then unmounts, and exits.
            drop((tie, device));
            attendant.wait_for(pid).map_err(of_signals)?;
            return Err(failure);
        }
    };
    let settings = Settings {
        kernel_checks: !ids.is_single(),
        supervisor: ids.is_single().then(|| child.id()),
        ids: Some(ids),
        relatime: words.relatime,
        monitor,
        ..Settings::default()
    };
    let server = Server::new(&session.rt, volume, Arc::new(device), settings, || {});
    let end =
        rustix::process::pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from).map_err(of_signals)?;
    let serving = server.clone();
    let served = session.rt.spawn_blocking("fuse", move || {
        let served = serving.serve();
        if served.is_err() {
            // Requests to the mount are no longer answered, so end these processes.
            let _ = rustix::process::pidfd_send_signal(end, Signal::KILL);
        }
        served
    });
    let failed = |error| Failure::Volume { place: quote(args.image.as_os_str().as_bytes()), error };
    if let Err(failure) = sandbox.confine_calls(Some(pid)) {
        drop(tie);
        attendant.wait_for(pid).map_err(of_signals)?;
        session.rt.block_on(server.close())?.map_err(failed)?;
        return Err(failure);
    }
    // If the child has ended, waiting for it shows why.
    let _ = tie.tell();
    let code = attendant.wait_for(pid).map_err(of_signals)?;
    let ended = session.rt.block_on(within(&session.rt, served, LEAVE))?;
    if ended.is_none() {
        session.complain("a process outside still uses the volume; it gets errors from now on");
    }
    let closed = session.rt.block_on(server.close())?;
    match ended {
        Some(served) => served?.map_err(|error| Failure::host(Path::new("/dev/fuse"), error))?,
        // A thread still waits for requests.
        None => {
            if let Err(error) = closed {
                session.fail(failed(error));
                std::process::exit(EXIT_NOT_RUN.into());
            }
            std::process::exit(code.into());
        }
    }
    closed.map_err(failed)?;
    Ok(code)
}

fn of_signals(error: io::Error) -> Failure {
    Failure::host(Path::new("signals"), error)
}

/// Starts the process that leaves the namespaces and mounts.
fn start(session: &Session, args: &ExecArgs, words: &MountWords) -> Result<(Tie, Child), Failure> {
    let own = |error: io::Error| Failure::host(Path::new("/proc/self/exe"), error);
    let (ours, theirs) = Tie::pair().map_err(own)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(session.quiet.then_some("--quiet")).arg("exec-stage");
    command.arg("--socket").arg(theirs.number().to_string());
    // The address of an export has no canonical form.
    let image = args.image.canonicalize().unwrap_or_else(|_| args.image.clone());
    command.arg("--source").arg(image);
    if let Some(dir) = &args.dir {
        let dir = dir.canonicalize().map_err(|error| Failure::host(dir, error))?;
        command.arg("--dir").arg(dir);
    }
    let flags = [(args.root, "--root"), (!words.volume.write, "--ro"), (words.noexec, "--noexec")];
    command.args(flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)));
    command.arg("--").args(&args.command);
    let child = command.spawn().map_err(own)?;
    Ok((ours, child))
}

/// Gives the process its ids, and waits until it has mounted; `None` if it has ended.
fn mounted(session: &Session, tie: &Tie, process: u32) -> Result<Option<(Device, IdMap)>, Failure> {
    if !tie.hear() {
        return Ok(None);
    }
    let OwnIds { map, refused } = OwnIds::give_to(process)?;
    if let Some(refused) = refused {
        session.summary(&format!("{refused}; only root exists, and other users are emulated"));
    }
    let _ = tie.tell();
    let device = tie.receive_device().map_err(|error| Failure::host(Path::new("/dev/fuse"), error))?;
    Ok(device.map(|device| (device, map)))
}

/// Gives up access to most files, and then opens the volume.
fn open(
    session: &Session,
    args: &ExecArgs,
    words: &MountWords,
    ids: &IdMap,
    sandbox: &Sandbox<'_>,
) -> Result<(Option<Arc<Monitor>>, OpenVolume), Failure> {
    let monitor = match ids.is_single() {
        // Root does not need groups.
        true => None,
        false => Some(Arc::new(Monitor::new(mount_monitor::start(None)?.0))),
    };
    sandbox.confine_files()?;
    let volume = mount::open_volume(session, &args.image, args.lock, words.volume)?;
    Ok((monitor, volume))
}

/// The result of a task; `None` if the task does not end in time.
async fn within<T>(rt: &Rt, task: Task<T>, most: Nanos) -> Option<Result<T, extant_rt::RtError>> {
    let (mut task, mut late) = (pin!(task), pin!(rt.sleep(most)));
    std::future::poll_fn(|cx| match task.as_mut().poll(cx) {
        std::task::Poll::Ready(done) => std::task::Poll::Ready(Some(done)),
        std::task::Poll::Pending => late.as_mut().poll(cx).map(|_| None),
    })
    .await
}
