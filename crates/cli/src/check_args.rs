//! The command lines of checks and repairs.

use crate::edit_args::LockArgs;
use crate::image_args::ImageArgs;
use crate::values;
use clap::ValueHint;
use extant_check::repair::Policy;
use std::path::PathBuf;

/// Find what is wrong with a volume, and repair it if asked to
///
/// All structures are checked, including those that e2fsck does not look at: backups, order and
/// hashes of attributes, access lists, names that occur twice in a directory. If the journal is
/// dirty, the volume is checked as it would be after a replay. Each finding has a code;
/// docs/check.md lists the codes and their repairs. A volume that is in use can be checked, too,
/// but contradictions between its structures are only suspected, because it may have changed during
/// the check.
///
/// Without --repair nothing is written. With it, the repair is made and checked in memory first,
/// and written only if a check of the result finds nothing. The old contents of every changed block
/// are kept in an undo file, and `extant undo` restores them; remove the file when you no longer
/// need it. If a repair was interrupted, the next one undoes it and starts again.
///
/// The command can be called fsck.extant, and accepts the options of fsck.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit codes, as of fsck(8):\n  0  nothing is wrong, or things are suspected only\n  \
    1  everything that was wrong has been repaired\n  4  something is wrong, and nothing was repaired\n  \
    5  something has been repaired, and something is left\n  8  the volume could not be checked, or not all of it\n  12  something is wrong, and not everything was checked\n  \
    16  the command line was wrong\n  32  it was interrupted (Ctrl-C)")]
pub(crate) struct CheckArgs {
    /// The image or disk
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Print JSON: one object with counts and all findings
    #[arg(long)]
    pub(crate) json: bool,
    /// Print at most this many findings of each class; all are counted
    #[arg(long, value_name = "COUNT", default_value = "1000")]
    pub(crate) max_per_class: usize,
    /// Use at most this much memory, 25M or more; if that is not enough, the check says so. The
    /// default is what a healthy volume of this size needs
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) memory: Option<u64>,
    /// Repair what can be repaired without losing anything readable (safe, the default), or
    /// everything (all)
    #[arg(
        long,
        value_name = "WHAT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "safe",
        conflicts_with_all = ["no", "preen", "auto", "yes", "superblock", "ignore_journal"]
    )]
    pub(crate) repair: Option<Repair>,
    /// Print what a repair would do, and write nothing
    #[arg(long, conflicts_with_all = ["no", "superblock", "ignore_journal"])]
    pub(crate) dry_run: bool,
    /// Keep the old contents of changed blocks in this file, which must not exist; by default in a
    /// new file next to the image, or in $XDG_STATE_HOME/extant/undo (~/.local/state/extant/undo)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "no")]
    pub(crate) undo: Option<PathBuf>,
    /// Do not repair
    #[arg(short = 'n')]
    pub(crate) no: bool,
    /// Check the volume even if it is marked clean, which is the default
    #[arg(short = 'f')]
    pub(crate) force_check: bool,
    /// The same as --repair=safe
    #[arg(short = 'p', conflicts_with_all = ["no", "yes", "superblock", "ignore_journal"])]
    pub(crate) preen: bool,
    /// The same as -p
    #[arg(short = 'a', conflicts_with_all = ["no", "yes", "superblock", "ignore_journal"])]
    pub(crate) auto: bool,
    /// The same as --repair=all
    #[arg(short = 'y', conflicts_with_all = ["no", "superblock", "ignore_journal"])]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// What to repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Repair {
    /// What can be repaired without losing anything readable
    Safe,
    /// Everything
    All,
}

impl CheckArgs {
    /// Which repairs were asked for.
    pub(crate) fn policy(&self) -> Option<Policy> {
        match self.repair {
            Some(Repair::All) => Some(Policy::All),
            Some(Repair::Safe) => Some(Policy::Safe),
            None if self.yes => Some(Policy::All),
            None if self.preen || self.auto || self.dry_run => Some(Policy::Safe),
            None => None,
        }
    }
}

/// Undo a repair: restore the old contents of every block
///
/// Afterwards, every byte of the volume is as before the repair. Refuses any volume other than the
/// one that was repaired, and a volume that was changed after the repair. The command can be
/// interrupted and run again.
#[derive(Debug, clap::Args)]
pub(crate) struct UndoArgs {
    /// The undo file that `extant check --repair` reported
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) undo: PathBuf,
    /// The image or disk that was repaired
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}
