//! The command line of `exec`.

use crate::edit_args::LockArgs;
use crate::sandbox::SandboxArgs;
use clap::{Args, ValueHint};
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a command with a volume that only it sees, without root
///
/// The command runs in namespaces of its own. It starts in the volume's root directory, whose path
/// is also in the variable EXTANT_VOLUME; with --root, it sees nothing of the host but the network,
/// /proc and the usual devices. When it ends, all processes that it has left behind are killed; the
/// volume is then clean, and its image is free.
///
/// It runs as root of a user namespace. All users of the volume exist there if newuidmap (package
/// uidmap) is installed and /etc/subuid and /etc/subgid have ids for you; otherwise only root
/// exists, and the other users are emulated: files of theirs appear as root's, but chown(1) gives
/// files to them, and su(1) and the like make processes theirs, for the volume. If you are root,
/// the command has your access to the host's files.
///
/// The exit code is the command's, or 128 plus the number of the signal that killed it; 125 if
/// extant failed, 126 if the command cannot be run, 127 if it does not exist. Signals are passed on
/// to the command.
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The image or disk
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Make the volume the root directory of the command, with /proc, /dev and the host's
    /// /etc/resolv.conf
    #[arg(long)]
    pub(crate) root: bool,
    /// Write nothing to the image
    #[arg(long)]
    pub(crate) ro: bool,
    /// Mount the volume on this directory instead of a temporary one; other programs do not see it
    /// there
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath, conflicts_with = "root")]
    pub(crate) dir: Option<PathBuf>,
    /// Options of `extant mount` that concern the volume, separated by commas
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Used by `exec` itself: a process between it and the command.
#[derive(Debug, Args)]
pub(crate) struct StageArgs {
    /// The descriptor of the process's socket; only the process that mounts has one
    #[arg(long)]
    pub(crate) socket: Option<i32>,
    /// The descriptor of a socket for the listener of the calls to be emulated; only the first
    /// process of the namespace has one
    #[arg(long)]
    pub(crate) listener: Option<i32>,
    /// The image
    #[arg(long)]
    pub(crate) source: Option<PathBuf>,
    /// Where the volume is mounted, unless on a temporary directory
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    #[arg(long)]
    pub(crate) root: bool,
    #[arg(long)]
    pub(crate) ro: bool,
    #[arg(long)]
    pub(crate) noexec: bool,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}
