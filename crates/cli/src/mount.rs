//! `extant mount` and `umount`.

use crate::edit_args::LockArgs;
use crate::failure::{Exit, Failure};
use crate::hints;
use crate::image_path::ImagePath;
use crate::mount_args::{MountArgs, MountWords, UmountArgs};
use crate::mount_monitor;
use crate::mount_sync::{is_read_only, make_durable, ours};
use crate::place;
use crate::sandbox::Sandbox;
use crate::session::{Access, Session};
use extant::Part;
use extant_format::Incompat;
use extant_fs::{quote, read_superblock};
use extant_fuse::{
    MetricsSocket, Monitor, MountError, MountOptions, OpenVolume, RequestTrace, Server, Settings, Transport,
    Unmounting, VolumeOptions, clear_dead, keep_own_descriptors, unmount,
};
use extant_rt::{Nanos, Rt};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long programs may keep using the volume after a signal has asked to unmount it.
const LEAVE: Nanos = Nanos::from_secs(10);

fn quoted(path: &Path) -> String {
    quote(path.as_os_str().as_bytes())
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        Self::Mount(error)
    }
}

/// `extant mount`.
pub(crate) fn run(session: &mut Session, args: &MountArgs) -> Result<(), Failure> {
    let words = MountWords::parse(&args.options).map_err(Failure::Usage)?;
    choose_part(session, &words)?;
    if args.fake {
        return Ok(());
    }
    match args.foreground {
        true => serve(session, args, &words),
        false => in_background(session),
    }
}

/// Selects the part of the image that the mount options name.
pub(crate) fn choose_part(session: &mut Session, words: &MountWords) -> Result<(), Failure> {
    let part = place::chosen(words.offset_bytes, words.limit_bytes, words.partition.as_deref());
    match part {
        Some(Part::Whole) => {}
        Some(part) if session.part == Part::Whole => session.part = part,
        _ => return Err(Failure::Usage("say once where the volume is".into())),
    }
    Ok(())
}

/// Opens a volume to be served.
pub(crate) fn open_volume(
    session: &Session,
    image: &Path,
    lock: LockArgs,
    options: VolumeOptions,
) -> Result<OpenVolume, Failure> {
    let device = session.device_to_mount(image, options.write, lock.foreign_locks())?;
    let opened = session.rt.block_on(OpenVolume::open(&session.rt, device, options))?;
    opened.map_err(|error| match options.write {
        true => session.not_opened_to_change(image, error),
        false => session.not_opened(image, None, error),
    })
}

/// Runs the same command as a new process in a session of its own, and waits until the directory
/// can be used or the command has failed.
fn in_background(session: &mut Session) -> Result<(), Failure> {
    let own = |error: std::io::Error| Failure::host(Path::new("/proc/self/exe"), error);
    let mut words = hints::as_extant(std::env::args_os().collect());
    words.remove(0);
    // Whether the word is the value of the option before it.
    let is_value = |at: usize| {
        at > 0
            && ["--offset", "--volume-offset", "--size-limit", "--partition"]
                .map(OsStr::new)
                .contains(&&*words[at - 1])
    };
    let at =
        (0..words.len()).find(|&at| words[at] == "mount" && !is_value(at)).map_or(words.len(), |at| at + 1);
    words.splice(at..at, ["--foreground".into(), "--tell".into()]);
    keep_own_descriptors();
    let mut command = Command::new("/proc/self/exe");
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(own)?;
    let mut told = [0];
    let is_ready = child.stdout.take().is_some_and(|mut pipe| pipe.read_exact(&mut told).is_ok());
    if is_ready {
        return Ok(());
    }
    // The child has printed the reason.
    session.exit_with(match child.wait().map_err(own)?.code() {
        Some(2) => Exit::Usage,
        Some(3) => Exit::Corrupt,
        Some(4) => Exit::Unsupported,
        _ => Exit::Failed,
    });
    Ok(())
}

fn serve(session: &mut Session, args: &MountArgs, words: &MountWords) -> Result<(), Failure> {
    clear_dead(&args.directory)?;
    let whole = |path: &Path| path.canonicalize().map_err(|error| Failure::host(path, error));
    let directory = whole(&args.directory)?;
    if !directory.is_dir() {
        return Err(Failure::host(&args.directory, std::io::Error::other("is not a directory")));
    }
    // The address of an export has no canonical form.
    let image = args.image.canonicalize().unwrap_or_else(|_| args.image.clone());
    if args.tell {
        // A signal from the terminal is not meant for the server.
        let _ = rustix::process::setsid();
    }
    // Do this before the volume is open, so that no signal ends the process without closing it.
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])
        .map_err(|error| Failure::host(Path::new("signals"), error))?;
    let rt = session.rt.clone();
    let mounting = MountOptions {
        source: image,
        read_only: !words.volume.write,
        allow_other: words.allow_other,
        kernel_checks: words.writeback,
        suid: words.suid,
        dev: words.dev,
        exec: !words.noexec,
    };
    let watching = Watching::open(args)?;
    let outside = mount_monitor::Outside {
        directory: &directory,
        mounting: &mounting,
        in_background: args.tell,
        metrics: args.metrics.as_deref(),
    };
    let (tie, _monitor) = mount_monitor::start(Some(outside))?;
    let null = File::options().read(true).write(true).open("/dev/null").ok();
    let sandbox = Sandbox::new(args.sandbox, &args.image);
    sandbox.confine_files()?;
    let opened = open_volume(session, &args.image, args.lock, words.volume)?;
    // If the monitor has ended, there is no device.
    let _ = tie.tell();
    let device = tie.receive_device().map_err(|error| Failure::host(Path::new("/dev/fuse"), error))?;
    let Some(device) = device else {
        // The monitor has printed the reason.
        session.exit_with(Exit::Failed);
        return rt.block_on(opened.close())?.map_err(|error| failed(&args.image, error));
    };
    let monitor = Arc::new(Monitor::new(tie));
    if args.tell {
        let _ = std::env::set_current_dir("/");
    }
    if let Err(failure) = sandbox.confine_calls(None) {
        monitor.unmount(true);
        rt.block_on(opened.close())?.map_err(|error| failed(&args.image, error))?;
        return Err(failure);
    }
    let ready = {
        let (told, tells) =
            (format!("extant: {} is mounted on {}", quoted(&args.image), quoted(&directory)), args.tell);
        let quiet = session.quiet;
        move || match tells {
            true => go_to_background(null),
            false if !quiet => eprintln!("{told}"),
            false => {}
        }
    };
    let Watching { trace, metrics } = watching;
    let settings = Settings {
        kernel_checks: words.allow_other || words.writeback,
        ids: None,
        supervisor: None,
        owners: words.owners.clone(),
        relatime: words.relatime,
        writeback: words.writeback,
        monitor: Some(monitor.clone()),
        trace,
    };
    let transport: Arc<dyn Transport> = Arc::new(device);
    let server = Server::new(&rt, opened, transport, settings, ready);
    let handle = signals.handle();
    let closing = Arc::new(AtomicBool::new(false));
    let watch = {
        let leave = Leave { rt: rt.clone(), server: server.clone(), closing: closing.clone() };
        let monitor = monitor.clone();
        rt.spawn_blocking("signals", move || on_signals(&leave, &monitor, &mut signals))
    };
    let telling = metrics.clone().map(|metrics| {
        let server = server.clone();
        rt.spawn_blocking("metrics", move || metrics.serve(|| server.metrics()))
    });
    let served = server.serve();
    metrics.inspect(|metrics| metrics.end());
    if closing.swap(true, Ordering::Relaxed) {
        // Another thread closes the volume and ends the process.
        rt.block_on(std::future::pending::<()>())?;
    }
    handle.close();
    rt.block_on(watch)??;
    let closed = rt.block_on(server.close())?.map_err(|error| failed(&args.image, error));
    if let Some(telling) = telling {
        rt.block_on(telling)??;
    }
    // After an abort the directory stays mounted, and only gives errors.
    let cleared = match served.is_err() {
        true => monitor.unmount(true),
        false => monitor.clear_dead(),
    };
    if cleared != Unmounting::Done {
        // The monitor has printed the reason.
        session.exit_with(Exit::Failed);
    }
    served.map_err(|error| Failure::host(Path::new("/dev/fuse"), error))?;
    closed
}

/// The trace file and the metrics socket. Both are opened before the sandbox.
struct Watching {
    trace: Option<Arc<RequestTrace>>,
    metrics: Option<Arc<MetricsSocket>>,
}

impl Watching {
    fn open(args: &MountArgs) -> Result<Self, Failure> {
        let append = |path: &PathBuf| {
            let file = File::options().create(true).append(true).open(path);
            file.map(|file| Arc::new(RequestTrace::new(file))).map_err(|error| Failure::host(path, error))
        };
        let listen = |path: &PathBuf| {
            MetricsSocket::bind(path).map(Arc::new).map_err(|error| Failure::host(path, error))
        };
        Ok(Self {
            trace: args.trace.as_ref().map(append).transpose()?,
            metrics: args.metrics.as_ref().map(listen).transpose()?,
        })
    }
}

fn failed(image: &Path, error: extant_fs::Error) -> Failure {
    Failure::Volume { place: quoted(image), error }
}

/// Notifies the waiting command, and releases its terminal and directory.
fn go_to_background(null: Option<File>) {
    // If the waiting command has ended, the directory stays mounted.
    let _ = std::io::stdout().write_all(b".").and_then(|()| std::io::stdout().flush());
    mount_monitor::let_go(null);
}

/// Ends the process even if programs still use the volume.
#[derive(Clone)]
struct Leave {
    rt: Rt,
    server: Arc<Server>,
    /// Set by the thread that closes the volume.
    closing: Arc<AtomicBool>,
}

impl Leave {
    fn now(&self) {
        if !self.closing.swap(true, Ordering::Relaxed) {
            let closed = self.rt.block_on(self.server.close());
            std::process::exit(if matches!(closed, Ok(Ok(()))) { 1 } else { 3 });
        }
    }
}

/// Unmounts at the first signal, and lets programs use the volume for a while longer. Ends the
/// process at the second signal, or when that time is over.
fn on_signals(leave: &Leave, monitor: &Monitor, signals: &mut Signals) {
    let mut received = signals.forever();
    if received.next().is_none() {
        return;
    }
    if monitor.unmount(false) == Unmounting::Busy {
        monitor.unmount(true);
    }
    let late = leave.clone();
    drop(leave.rt.spawn_blocking("deadline", move || {
        let _ = late.rt.block_on(late.rt.sleep(LEAVE));
        late.now();
    }));
    if received.next().is_some() {
        leave.now();
    }
}

/// `extant umount`.
pub(crate) fn umount(session: &mut Session, args: &UmountArgs) -> Result<(), Failure> {
    let mounted = ours(&args.directory)?;
    if args.lazy {
        // Do not ask the server anything: it may hang.
        return Ok(unmount(&mounted.point, true)?);
    }
    let number = mounted.server();
    let pid = number.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let server = pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    if number.is_some() && server.is_none() {
        let words = "the server is in another namespace of processes; unmount it from there, or with --lazy";
        return Err(Failure::host(&mounted.point, std::io::Error::other(words)));
    }
    let is_read_only = is_read_only(&mounted.point);
    // The server cannot report errors of its final writes, so write everything here first.
    let written = match server.is_some() && !is_read_only {
        true => make_durable(&mounted.point),
        false => Ok(()),
    };
    unmount(&mounted.point, server.is_none())?;
    // The server ends once the volume is clean.
    while let Some(server) = &server {
        const PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
        match rustix::event::poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&PATIENCE)) {
            Err(rustix::io::Errno::INTR) => {}
            Ok(0) => session.summary(&format!(
                "{}: waiting for process {}, which writes, or whose mount is in use in another namespace",
                quoted(&mounted.point),
                number.unwrap_or_default()
            )),
            _ => break,
        }
    }
    if is_read_only {
        return Ok(());
    }
    let place = ImagePath { image: mounted.source.clone(), path: Vec::new() };
    // The volume may lie in a part of the image, or on a server.
    let Ok(device) = session.device(&place, Access::Metadata) else { return written };
    let Ok(superblock) = session.rt.block_on(read_superblock(&*device, 1024))? else { return written };
    match superblock.incompat().contains(Incompat::RECOVER) {
        true => {
            let words = "the server ended without closing the volume; extant recover replays its journal";
            Err(Failure::host(&mounted.source, std::io::Error::other(words)))
        }
        false => written,
    }
}
