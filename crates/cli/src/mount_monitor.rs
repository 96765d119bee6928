//! The process outside a server's sandbox, which mounts and unmounts for it. It has a single
//! thread.

use crate::failure::Failure;
use crate::mount_args::MonitorArgs;
use crate::session::Session;
use extant_fuse::{MountOptions, Tie, monitor};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What a monitor does outside the sandbox.
#[derive(Clone, Copy)]
pub(crate) struct Outside<'a> {
    /// The directory to mount on, and the mount options.
    pub(crate) directory: &'a Path,
    pub(crate) mounting: &'a MountOptions,
    /// Release the terminal once the volume is mounted.
    pub(crate) in_background: bool,
    /// The server's socket, to be removed when the server ends.
    pub(crate) metrics: Option<&'a Path>,
}

/// Starts the monitor, which mounts when the server tells it to.
pub(crate) fn start(outside: Option<Outside<'_>>) -> Result<(Tie, Child), Failure> {
    let own = |error: std::io::Error| Failure::host(Path::new("/proc/self/exe"), error);
    let (ours, theirs) = Tie::pair().map_err(own)?;
    let mut command = Command::new("/proc/self/exe");
    command.arg("mount-monitor").arg("--socket").arg(theirs.number().to_string());
    if let Some(Outside { directory, mounting, in_background, metrics }) = outside {
        command.arg("--directory").arg(directory).arg("--source").arg(&mounting.source);
        let MountOptions { read_only, allow_other, kernel_checks, suid, dev, exec, .. } = *mounting;
        let flags = [
            (read_only, "--ro"),
            (allow_other, "--allow-other"),
            (kernel_checks, "--kernel-checks"),
            (suid, "--suid"),
            (dev, "--dev"),
            (!exec, "--noexec"),
            (in_background, "--in-background"),
        ];
        command.args(flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)));
        if let Some(metrics) = metrics {
            // The path must be absolute, because the monitor changes its working directory.
            command.arg("--metrics").arg(std::path::absolute(metrics).map_err(own)?);
        }
    }
    let child = command.spawn().map_err(own)?;
    Ok((ours, child))
}

/// `extant mount-monitor`.
pub(crate) fn run(session: &mut Session, args: &MonitorArgs) -> Result<(), Failure> {
    let own = |error: std::io::Error| Failure::host(Path::new("/proc/self"), error);
    let tie = Tie::inherited(args.socket).map_err(own)?;
    // Ignore these signals: the server gets them too, and still needs this process to unmount.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(own)?;
    }
    if let Some(directory) = &args.directory {
        if !tie.hear() {
            return Ok(());
        }
        let mounting = MountOptions {
            source: args.source.clone().unwrap_or_default(),
            read_only: args.ro,
            allow_other: args.allow_other,
            kernel_checks: args.kernel_checks,
            suid: args.suid,
            dev: args.dev,
            exec: !args.noexec,
        };
        let device = extant_fuse::mount(directory, &mounting)?;
        if let Err(error) = tie.send_device(&device) {
            let _ = extant_fuse::unmount(directory, true);
            return Err(own(error));
        }
    }
    if args.in_background {
        // The command that waits for the server also waits until this process has closed its
        // output.
        let_go(File::options().read(true).write(true).open("/dev/null").ok());
        let _ = std::env::set_current_dir("/");
    }
    // By now the server has bound the socket.
    let made = args.metrics.as_deref().and_then(identity);
    let report = |error: &extant_fuse::MountError| session.complain(&error.to_string());
    let ended = monitor(tie, args.directory.as_deref(), report).map_err(own);
    if let Some(metrics) = &args.metrics {
        // By now the socket may be gone, or belong to another server.
        if made.is_some() && identity(metrics) == made {
            let _ = std::fs::remove_file(metrics);
        }
    }
    ended
}

/// The device and inode number of a socket's file.
fn identity(path: &Path) -> Option<(u64, u64)> {
    let found = path.symlink_metadata().ok()?;
    found.file_type().is_socket().then(|| (found.dev(), found.ino()))
}

/// Releases the terminal.
pub(crate) fn let_go(null: Option<File>) {
    if let Some(null) = null {
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
}
