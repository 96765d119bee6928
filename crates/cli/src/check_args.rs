//! The command lines of checks and repairs.

use crate::edit_args::LockArgs;
use crate::image_args::ImageArgs;
use crate::values;
use clap::ValueHint;
use extant_check::repair::Policy;
use std::path::PathBuf;

/// Find what is wrong with a volume, and repair it if asked to
///
/// All structures are checked, those that e2fsck does not look at included: backups, order and
/// hashes of attributes, access lists, names that occur twice in a directory. With a dirty journal
/// the volume is checked as replaying it would leave it. Each finding has a code, with the repair
/// that it needs; docs/check.md lists them. A volume that is in use can be checked, too, but
/// contradictions between its structures are only suspected, because it may have changed during the
/// check.
///
/// Without --repair nothing is written. With it, the repair is made and checked in memory first,
/// and written only if a check of the result finds nothing. What every changed block held before is
/// kept in an undo file, which `extant undo` puts back; remove it when you do not want that any
/// more. A repair that was interrupted is undone and made anew by the next one.
///
/// The command answers to the name fsck.extant, and to the options of fsck.
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
    /// Use at most this much memory, 25M or more, and say so if it is not enough; by default what a
    /// healthy volume of this size needs
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) memory: Option<u64>,
    /// Repair: only what loses nothing that can be read (safe, the default), or everything (all)
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
    /// Keep what changed blocks held in this file, which must not exist; by default in a new one
    /// next to the image, or in $XDG_STATE_HOME/extant/undo (~/.local/state/extant/undo)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "no")]
    pub(crate) undo: Option<PathBuf>,
    /// Do not repair
    #[arg(short = 'n')]
    pub(crate) no: bool,
    /// Check a volume that says it is clean, too (as always)
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
    /// What loses nothing that can be read
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

/// Undo a repair: put back what every block held before it
///
/// The volume is then as before the repair, to the byte. Another volume than the one that was
/// repaired is refused, and so is one that was changed after the repair. The command can be
/// interrupted and run again.
#[derive(Debug, clap::Args)]
pub(crate) struct UndoArgs {
    /// The file that `extant check --repair` named
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) undo: PathBuf,
    /// The image or disk that was repaired
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}
