//! The command line. Help, completions and man pages are all generated from it.

use crate::check_args::{CheckArgs, UndoArgs};
use crate::edit_args::{DefragArgs, EditArgs, EditCommand, LockArgs, TargetArgs, TrimArgs};
use crate::exec_args::{ExecArgs, StageArgs};
pub(crate) use crate::image_args::{ImageArgs, SuperblockAt};
use crate::image_path::ImagePath;
use crate::lab_args::LabCommand;
use crate::mount_args::{MonitorArgs, MountArgs, SyncArgs, TopArgs, UmountArgs};
use crate::values;
use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser};
use clap::{Parser, Subcommand, ValueHint};
use extant_format::BlockSize;
use extant_image::{FsType, JournalSize, NamePattern, Selection, SizePolicy};
use std::ffi::OsString;
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation failed
  2  the command line was wrong
  3  the volume is damaged; its readable parts were read, and each problem is named on standard error
  4  the volume uses a feature that is not supported; its name is on standard error
141  the reader of standard output closed it";

const PLACES: &str = "\
A path in an image is written IMAGE:/path and split at the last \":/\", so that the image's own name may hold colons; for \
an image whose name holds \":/\", add a final \":/\" to mean its root. IMAGE:<12> is inode 12, for commands that read. An image may also be the address of an NBD \
export: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH. Names are printed with control characters, \
backslashes and bytes that are not UTF-8 escaped.";

/// Builds, reads, changes, compares and recovers ext2, ext3 and ext4 volumes in files and disks,
/// without root or mounts.
#[derive(Debug, Parser)]
#[command(name = "extant", version, after_help = EXIT_CODES, after_long_help = format!("{PLACES}\n\n{EXIT_CODES}"))]
pub(crate) struct Args {
    /// Print errors only: no progress, no summaries
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    #[command(flatten)]
    pub(crate) place: PlaceArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the volume is in an image or on a disk.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Where the volume is")]
pub(crate) struct PlaceArgs {
    /// The volume begins at this byte of the image or disk, such as 1M
    // `trim` and `fallocate` define an option with the same name and id; clap then does not
    // propagate this one to them.
    #[arg(id = "place_offset", long = "offset", global = true, value_name = "BYTES", value_parser = values::size)]
    pub(crate) offset: Option<u64>,
    /// Like --offset, for commands that have another --offset
    #[arg(long, global = true, hide_short_help = true, value_name = "BYTES", value_parser = values::size)]
    pub(crate) volume_offset: Option<u64>,
    /// The volume takes no more than this many bytes
    #[arg(long, global = true, value_name = "BYTES", value_parser = values::size)]
    pub(crate) size_limit: Option<u64>,
    /// The volume is in this partition of a GPT or MBR, by number, or by name; `extant info DISK`
    /// lists them
    #[arg(long, global = true, value_name = "N|NAME")]
    pub(crate) partition: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Build(Box<BuildArgs>),
    Mkfs(MkfsArgs),
    Info(InfoArgs),
    Ls(LsArgs),
    Tree(TreeArgs),
    Stat(StatArgs),
    Cat(CatArgs),
    Head(HeadArgs),
    Find(FindArgs),
    Du(DuArgs),
    Df(DfArgs),
    #[command(alias = "get")]
    Cp(CpArgs),
    Export(ExportArgs),
    Rescue(RescueArgs),
    Undelete(UndeleteArgs),
    Diff(DiffArgs),
    Check(CheckArgs),
    Undo(UndoArgs),
    Recover(RecoverArgs),
    Debug(DebugArgs),
    #[command(flatten)]
    Change(EditCommand),
    Edit(EditArgs),
    Trim(TrimArgs),
    Defrag(DefragArgs),
    Shrink(ShrinkArgs),
    Shell(ShellArgs),
    Mount(MountArgs),
    #[command(alias = "unmount")]
    Umount(UmountArgs),
    Sync(SyncArgs),
    Top(TopArgs),
    Exec(ExecArgs),
    #[command(hide = true)]
    ExecStage(StageArgs),
    #[command(hide = true)]
    MountMonitor(MonitorArgs),
    /// Run experiments on I/O paths: fio's jobs, on modelled machines or real files
    #[command(subcommand)]
    Lab(LabCommand),
    /// Print a script that completes this command's arguments, and paths in images
    ///
    /// For bash: source <(extant completions bash). For zsh, write it into a file _extant in a
    /// directory of $fpath; for fish, into ~/.config/fish/completions/extant.fish.
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
    #[command(hide = true)]
    CompletePath(CompletePathArgs),
    /// Write the man pages into a directory
    Man {
        /// Where to write them; it must exist
        #[arg(value_hint = ValueHint::DirPath)]
        directory: PathBuf,
    },
}

/// Print the completions of a word that begins a path in an image; used by the scripts of
/// `completions`
#[derive(Debug, clap::Args)]
pub(crate) struct CompletePathArgs {
    /// The word
    pub(crate) word: OsString,
    /// All words of the line
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) words: Vec<OsString>,
}

fn place() -> ValueParser {
    OsStringValueParser::new().map(ImagePath::parse).into()
}

/// Show label, features, sizes, state and journal of a volume
#[derive(Debug, clap::Args)]
pub(crate) struct InfoArgs {
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Show every block group as well
    #[arg(short, long)]
    pub(crate) verbose: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// List directories
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct LsArgs {
    /// Files and directories to list
    #[arg(required = true, value_parser = place(), value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    #[command(flatten)]
    pub(crate) flags: LsFlags,
    /// Print JSON: one array of all entries
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Which names of a directory to list, and how to show them.
#[derive(Debug, clap::Args)]
pub(crate) struct LsFlags {
    /// Show mode, links, owner, size and time of change; owners are numbers, so -n is the same
    #[arg(short, long, short_alias = 'n', alias = "numeric-uid-gid", overrides_with = "long")]
    pub(crate) long: bool,
    /// Show names that begin with a dot as well
    #[arg(short, long, short_alias = 'A', alias = "almost-all", overrides_with = "all")]
    pub(crate) all: bool,
    /// List sub-directories as well, by path
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// List a directory itself, not its contents
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Show inode numbers
    #[arg(short, long)]
    pub(crate) inode: bool,
    /// Show sizes as 1.5M, in powers of 1024
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Sort each directory by time of change, latest first
    #[arg(short = 't', conflicts_with = "recursive", overrides_with = "by_size")]
    pub(crate) by_time: bool,
    /// Sort each directory by size, largest first
    #[arg(short = 'S', conflicts_with = "recursive", overrides_with = "by_time")]
    pub(crate) by_size: bool,
    /// Sort in the opposite order
    #[arg(short, long, conflicts_with = "recursive")]
    pub(crate) reverse: bool,
    /// Print one name per line, which is the default
    #[arg(short = '1')]
    pub(crate) one_a_line: bool,
    /// When to colour names by kind
    #[arg(long, value_name = "WHEN", default_value = "auto", value_parser = ["auto", "always", "never"])]
    pub(crate) color: String,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

/// Print the paths of files that match, one per line
#[derive(Debug, clap::Args)]
pub(crate) struct FindArgs {
    /// Where to begin
    #[arg(required = true, value_parser = place(), value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    /// The name matches this pattern, with *, ? and [...]
    #[arg(short, long, value_name = "PATTERN", value_parser = values::pattern)]
    pub(crate) name: Option<glob::Pattern>,
    /// The kind: f for a regular file, d for a directory, l for a symbolic link, b, c, p or s
    #[arg(short = 't', long = "type", value_name = "KIND", value_parser = ["f", "d", "l", "b", "c", "p", "s"])]
    pub(crate) kind: Option<String>,
    /// The file has at least this many bytes
    #[arg(long, value_name = "SIZE", value_parser = values::size)]
    pub(crate) min_size: Option<u64>,
    /// Go no deeper than this
    #[arg(long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_depth: Option<u32>,
    /// End each path with NUL instead of a newline, and print it unquoted
    #[arg(short = '0', long)]
    pub(crate) print0: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Show the space that directories take, with everything below them
///
/// Blocks of contents, maps and attributes are counted; a file with several names counts once.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DuArgs {
    /// Files and directories
    #[arg(required = true, value_parser = place(), value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    /// Show the total of each place only
    #[arg(short, long)]
    pub(crate) summarize: bool,
    /// Show files, too
    #[arg(short, long, conflicts_with = "summarize")]
    pub(crate) all: bool,
    /// Show directories this deep only
    #[arg(short = 'd', long, value_name = "LEVELS", conflicts_with = "summarize")]
    pub(crate) max_depth: Option<usize>,
    /// Show sizes as 1.5M, in powers of 1024; otherwise in bytes
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Show how full volumes are
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct DfArgs {
    /// Images
    #[arg(required = true, value_name = "IMAGE", value_hint = ValueHint::FilePath)]
    pub(crate) images: Vec<PathBuf>,
    /// Show inodes instead of bytes
    #[arg(short, long)]
    pub(crate) inodes: bool,
    /// Show sizes as 1.5M, in powers of 1024; otherwise in bytes
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print JSON: one array of all volumes
    #[arg(long)]
    pub(crate) json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    pub(crate) help: Option<bool>,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Show a directory and everything below it as a tree
#[derive(Debug, clap::Args)]
pub(crate) struct TreeArgs {
    /// Where to begin
    #[arg(value_parser = place(), value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) place: ImagePath,
    /// Go no deeper than this
    #[arg(short = 'L', long, value_name = "LEVELS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) depth: Option<u32>,
    /// Print JSON: nested objects
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Show inode, times, attributes and block map of files
#[derive(Debug, clap::Args)]
pub(crate) struct StatArgs {
    /// Files to show; symbolic links are not followed
    #[arg(required = true, value_parser = place(), value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    /// Print JSON: one object for each place
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Print files
#[derive(Debug, clap::Args)]
pub(crate) struct CatArgs {
    /// Files to print
    #[arg(required = true, value_parser = place(), value_name = "IMAGE:/PATH", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Print the beginning of files
#[derive(Debug, clap::Args)]
pub(crate) struct HeadArgs {
    /// Files to print
    #[arg(required = true, value_parser = place(), value_name = "IMAGE:/PATH", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    /// Print this many lines
    #[arg(short = 'n', long, value_name = "COUNT", default_value = "10")]
    pub(crate) lines: u64,
    /// Print this many bytes instead
    #[arg(short = 'c', long, value_name = "SIZE", value_parser = values::size, conflicts_with = "lines")]
    pub(crate) bytes: Option<u64>,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Print on-disk structures of a volume
#[derive(Debug, clap::Args)]
pub(crate) struct DebugArgs {
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    #[command(subcommand)]
    pub(crate) what: DebugWhat,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// A structure.
#[derive(Debug, Subcommand)]
pub(crate) enum DebugWhat {
    /// The superblock
    Superblock,
    /// A block group's descriptor and bitmaps
    Group {
        /// The number of the group, counted from 0
        number: u32,
    },
    /// An inode
    Inode {
        /// The number of the inode, also as <12>, or its path, which begins with a slash
        #[arg(value_name = "INODE", value_parser = InodeAt::parse)]
        inode: InodeAt,
    },
    /// An inode's extent tree, or the runs of its block map
    Map {
        /// The number of the inode, also as <12>, or its path, which begins with a slash
        #[arg(value_name = "INODE", value_parser = InodeAt::parse)]
        inode: InodeAt,
    },
    /// The entries of a directory, including deleted ones
    Directory {
        /// The number of the inode, also as <12>, or its path, which begins with a slash
        #[arg(value_name = "INODE", value_parser = InodeAt::parse)]
        inode: InodeAt,
    },
    /// The hash tree of a directory
    Htree {
        /// The number of the inode, also as <12>, or its path, which begins with a slash
        #[arg(value_name = "INODE", value_parser = InodeAt::parse)]
        inode: InodeAt,
    },
    /// An inode's extended attributes, where they are stored
    Xattrs {
        /// The number of the inode, also as <12>, or its path, which begins with a slash
        #[arg(value_name = "INODE", value_parser = InodeAt::parse)]
        inode: InodeAt,
    },
    /// The journal's superblock and log
    Journal,
    /// A block's bytes
    Block {
        /// The number of the block, counted from 0
        number: u64,
    },
}

/// An inode, as users name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum InodeAt {
    Number(u32),
    Path(Vec<u8>),
}

impl InodeAt {
    fn parse(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text);
        match digits.parse() {
            Ok(number) => Ok(Self::Number(number)),
            Err(_) if text.starts_with('/') => Ok(Self::Path(text.as_bytes().to_vec())),
            Err(_) => Err("it is a number, as in 12 or <12>, or a path from the image's root".into()),
        }
    }
}

/// Copy files and directories out of an image, with their attributes
///
/// Modes, times, extended attributes, hard links and holes are kept; for root, also owners and
/// device nodes. A file at the destination is replaced, a directory is filled, and a symbolic link
/// there is not followed. HOST may be a device or named pipe: the contents of a regular file are
/// then written into it. Below HOST, devices, pipes and sockets are replaced only by files of the
/// same kind.
#[derive(Debug, clap::Args)]
pub(crate) struct CpArgs {
    /// Files and directories to copy
    #[arg(required = true, value_parser = place(), value_name = "IMAGE:/PATH", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    /// Destination: a directory to copy into, or (for one file) a new name
    #[arg(value_name = "HOST", value_hint = ValueHint::AnyPath)]
    pub(crate) to: PathBuf,
    /// Copy directories with everything in them, which is the default; -R, -a, -p and -d mean the
    /// same
    #[arg(short, long, short_aliases = ['R', 'a', 'p', 'd'], aliases = ["archive", "preserve"],
        overrides_with = "recursive")]
    pub(crate) recursive: bool,
    /// Print JSON: counts, and all that was lost
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Write the contents of an image as a tar archive
///
/// The format is POSIX (pax) with GNU tar's sparse files and star's extended attributes; GNU tar
/// and bsdtar read it. The same volume gives the same archive.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// Files and directories to export; paths in the archive are relative to a single one, and
    /// those of the image if there are several
    #[arg(required = true, value_parser = place(), value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<ImagePath>,
    /// The archive, compressed if it ends in .gz, .tgz, .zst, .tzst, .xz or .txz; - is standard
    /// output
    #[arg(short, long, value_name = "TAR", value_hint = ValueHint::FilePath)]
    pub(crate) output: PathBuf,
    /// Print JSON: counts, and all that was lost
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Copy everything that is readable out of a damaged image or disk, without writing to it
///
/// If the superblock is lost, a backup is searched for everywhere, then a copy in the journal; if
/// there is none either, directories tell where inodes are. Group descriptors that are lost with
/// all of their copies are reconstructed. A bad sector, a damaged mapping or a cut-off end costs
/// only what it hits; lost parts of files become zeros. Inodes without a name are put into
/// lost+found under their numbers, directories with their contents.
///
/// Each path is reported as whole, partial or lost, on standard output. If the archive goes there,
/// paths that are not whole are reported on standard error instead. "Left out" is what OUT cannot
/// hold, such as devices if the user is not root.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes:\n  0  the volume is sound, and everything was copied\n  1  the operation failed, or OUT cannot \
    hold everything\n  2  the command line was wrong\n  3  the volume is damaged; what is readable was copied\n  4  it uses a \
    feature that is not supported"
)]
pub(crate) struct RescueArgs {
    /// The image or disk
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// An archive if it ends in .tar, .gz, .tgz, .zst, .tzst, .xz or .txz, or is -, for standard
    /// output; otherwise a directory, new or empty
    #[arg(value_name = "OUT", value_hint = ValueHint::AnyPath)]
    pub(crate) output: PathBuf,
    /// A map of the image's holes in the format of ddrescue. If the file exists, only areas that it
    /// lists as rescued are taken for data; otherwise it is created, and lists what could not be
    /// read
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) map: Option<PathBuf>,
    /// Print JSON: one object with all paths and a summary
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Bring back deleted files that are still in reach, without writing to the image or disk
///
/// The journal keeps older versions of inodes and directories for a while, even if they were
/// written home long ago; contents, attributes, names and times are taken from these. Names are
/// also searched for in the free space behind directory entries, and on ext2, deleted inodes are
/// still in the inode tables. Do not use the volume until this is done: anything written to it may
/// reuse the blocks of deleted files.
///
/// Each path is reported as whole, partial or overwritten. Whole means that no file uses its blocks
/// now, and that no file still in reach has used them since the deletion. Files that have lost
/// their names are put into lost+found under their numbers. OUT must be elsewhere.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes:\n  0  what is in reach was brought back, which may be nothing\n  1  the operation failed, or OUT \
    cannot hold everything\n  2  the command line was wrong\n  3  the volume is damaged as well\n  4  it uses a feature that is \
    not supported"
)]
pub(crate) struct UndeleteArgs {
    /// The image or disk
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// An archive if it ends in .tar, .gz, .tgz, .zst, .tzst, .xz or .txz, or is -, for standard
    /// output; otherwise a directory, new or empty
    #[arg(value_name = "OUT", value_hint = ValueHint::AnyPath)]
    pub(crate) output: PathBuf,
    /// Print JSON: one object with all paths and a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Use a superblock other than the first, which is at byte 1024: auto (a backup, if the first
    /// is damaged), block:N, or a byte, as `info` lists backups
    #[arg(long, value_name = "auto|block:N|BYTE", value_parser = SuperblockAt::parse)]
    pub(crate) superblock: Option<SuperblockAt>,
}

/// Names to leave out.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SelectionArgs {
    /// Leave out what matches, and everything below it; repeatable
    ///
    /// A pattern without a slash matches names anywhere (*.o). One with a slash matches paths from
    /// the top (/proc, var/cache/*). * and ? stop at slashes; ** stands for any directories.
    #[arg(long, value_name = "PATTERN", value_parser = values::name_pattern)]
    pub(crate) exclude: Vec<NamePattern>,
    /// Keep what matches although --exclude matches it, too; repeatable
    #[arg(long, value_name = "PATTERN", value_parser = values::name_pattern, requires = "exclude")]
    pub(crate) include: Vec<NamePattern>,
}

impl SelectionArgs {
    pub(crate) fn to_selection(&self) -> Selection {
        Selection { exclude: self.exclude.clone(), include: self.include.clone() }
    }
}

/// Show what differs between two volumes, parts of them, or a volume and a directory
///
/// Compares names, kinds, permissions, owners, times of change, flags, projects, extended
/// attributes and access lists, device numbers, targets of symbolic links, names that are links of
/// one file, sizes, and contents; shows the first byte that differs. A directory of the host may
/// stand for one of the two, and a file of the host if the other is a path in an image. Files of
/// the host have no flags and projects to compare. Any other path names an image.
///
/// With --volume two volumes are compared as a whole, too; two that have the same files and
/// settings still differ in UUID, times and free space, which --all-volume adds. The location of
/// things on a volume is not compared.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit codes:\n  0  no difference\n  1  something differs\n  2  the command line was wrong, or something could \
    not be compared\n  3  a volume is damaged\n  4  a volume uses a feature that is not supported"
)]
pub(crate) struct DiffArgs {
    /// One volume, a file or directory of it, or a file or directory of the host
    #[arg(value_name = "A", value_hint = ValueHint::AnyPath)]
    pub(crate) a: OsString,
    /// The volume, file or directory to compare it with
    #[arg(value_name = "B", value_hint = ValueHint::AnyPath)]
    pub(crate) b: OsString,
    /// Print each path that differs once, and read its contents only up to the first difference
    #[arg(short, long)]
    pub(crate) brief: bool,
    /// Whole trees are compared in any case; this is for those who know diff(1)
    #[arg(short, long, hide = true)]
    pub(crate) recursive: bool,
    /// Do not compare times
    #[arg(long, conflicts_with = "all_times")]
    pub(crate) ignore_times: bool,
    /// Also compare times of access, of inode changes and of creation
    #[arg(long)]
    pub(crate) all_times: bool,
    /// Also compare the settings of the volumes: label, features, sizes of blocks, groups, inodes
    /// and journal, reserved blocks, and the other settings of mke2fs and tune2fs
    #[arg(long)]
    pub(crate) volume: bool,
    /// Also compare what distinguishes copies of a volume: UUID, seeds, times, counts, state and
    /// free space (includes --volume)
    #[arg(long)]
    pub(crate) all_volume: bool,
    /// Print JSON: one array of all differences
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
}

/// Build a volume from directories, tar archives and container images, or add them to one, without
/// root
///
/// The sources are laid over each other in order. The image appears under its name once it is
/// complete and durable. The same sources and the same SOURCE_DATE_EPOCH, the latest time on the
/// volume, give the same bytes. An older image with that name is replaced, and is left out if it
/// lies in a source; without --force, a file with other contents is not replaced. Attributes that
/// ext cannot store and times that it cannot represent are reported.
///
/// With --into, the sources are laid over the contents of an existing volume, through its journal.
/// Directories are merged, also with directories that symbolic links lead to (but not for
/// directories of layers). Everything else replaces what has the same name, once it has been copied
/// completely. An error ends the command; what was added before the error stays, and the volume is
/// clean.
#[derive(Debug, clap::Args)]
pub(crate) struct BuildArgs {
    /// Directories, tar files (plain, gzip, zstd, xz), images (OCI layouts, docker save), manifests
    /// (mtree); - is a tar on standard input
    ///
    /// A manifest begins with #mtree, as bsdtar writes it. It sets owners, modes and times of files
    /// from earlier sources, and creates links, devices, directories, and files with contents=.
    #[arg(required = true, value_name = "SOURCE", value_hint = ValueHint::AnyPath)]
    pub(crate) sources: Vec<PathBuf>,
    /// The image to write. A file (not standard output, because it is not written in order), or a
    /// disk or an NBD export, which is written in place; so is the part of a disk or file that
    /// --partition or --offset names
    #[arg(short, long, value_name = "IMAGE", value_hint = ValueHint::FilePath, value_parser = values::image_output(),
        required_unless_present = "into")]
    pub(crate) output: Option<PathBuf>,
    /// Add to the volume in IMAGE, at its root or below PATH, instead of making one; options for a
    /// new volume do not apply then
    #[arg(long, value_name = "IMAGE[:/PATH]", value_hint = ValueHint::FilePath, value_parser = place(),
        conflicts_with_all = ["output", "size", "fs_type", "block_size", "inode_size", "inodes", "bytes_per_inode",
            "reserved", "journal", "label", "uuid", "hash_seed", "features", "discard"])]
    pub(crate) into: Option<ImagePath>,
    /// Size of the volume: exact (as small as possible: nothing can be added), +N% (room for N%
    /// more), +64M (room for this many bytes of new files), or a size such as 2G [default: exact; a
    /// volume written in place fills the space there]
    #[arg(short, long, value_parser = values::size_policy)]
    pub(crate) size: Option<SizePolicy>,
    /// Make root the owner of every file, and the root user that file capabilities are for
    #[arg(long, conflicts_with = "owner_map")]
    pub(crate) all_root: bool,
    /// Map COUNT ids from FROM to TO: of users (u:), groups (g:), or both; repeatable
    ///
    /// This also maps the ids in access lists, and the root users of the namespaces for which file
    /// capabilities are valid. If such a user becomes 0, the capability is valid everywhere.
    #[arg(long, value_name = "[u:|g:]FROM:TO:COUNT", value_parser = values::id_rule)]
    pub(crate) owner_map: Vec<values::IdRule>,
    /// Leave out file systems mounted below a directory source; their mount points become empty
    /// directories
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,
    #[command(flatten)]
    pub(crate) selection: SelectionArgs,
    /// Leave out access lists
    #[arg(long)]
    pub(crate) no_acls: bool,
    /// Leave out all other extended attributes, including labels and file capabilities
    #[arg(long)]
    pub(crate) no_xattrs: bool,
    /// Make devices and directories, and set owners and modes, as listed in a device table of
    /// makedevs or genext2fs
    ///
    /// Each line is NAME TYPE MODE UID GID MAJOR MINOR START INC COUNT, with - for what the type
    /// does not need: d for a directory, c, b and p for devices and pipes, f for a file of the
    /// sources, r for a directory with everything in it. Owners are numbers or names.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) device_table: Option<PathBuf>,
    /// Label files (security.selinux) by path, according to the file_contexts of an SELinux policy
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file_contexts: Option<PathBuf>,
    /// The sources are layers of an image: .wh.NAME removes NAME of earlier layers, .wh..wh..opq
    /// the contents of a whole directory
    ///
    /// Devices 0:0 and the attributes of overlayfs have the same effect. Layers of whole images are
    /// always applied. Without this option, such names become files, and a message says so.
    #[arg(long)]
    pub(crate) layers: bool,
    /// Which image to take, by tag or digest, from an OCI layout or a docker archive with several
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// Which image to take if there are several, for different platforms
    #[arg(long, value_name = "OS/ARCHITECTURE")]
    pub(crate) platform: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Make an empty volume
///
/// A disk, an NBD export, or the part of a disk or file that --partition or --offset names is
/// written in place. So is an existing file if no size is given; with a size, a new file replaces
/// it. Without --force, a partition table or another known format is not overwritten, and neither
/// is an existing volume if the new one is written in place. The superblock is written last: until
/// then there is no volume.
#[derive(Debug, clap::Args)]
pub(crate) struct MkfsArgs {
    /// The image to write, or a disk or export
    #[arg(value_hint = ValueHint::FilePath, value_parser = values::image_output())]
    pub(crate) image: PathBuf,
    /// Size of the volume, such as 512M or 2G; by default that of the disk, partition or existing
    /// file
    #[arg(value_parser = values::size)]
    pub(crate) size: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) volume: VolumeArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// The layout of a volume.
#[derive(Debug, clap::Args)]
pub(crate) struct VolumeArgs {
    /// Family of the volume
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4", value_parser = values::fs_type)]
    pub(crate) fs_type: FsType,
    /// Bytes in a block: 1024 to 65536; 4096 by default, but 1024 where mkfs makes a volume of less
    /// than 512M
    #[arg(short, long, value_name = "BYTES", value_parser = values::block_size)]
    pub(crate) block_size: Option<BlockSize>,
    /// Bytes in an inode: 128, or a power of two of at least 256
    #[arg(short = 'I', long, value_name = "BYTES", default_value_t = 256)]
    pub(crate) inode_size: u16,
    /// Number of inodes
    #[arg(short = 'N', long, value_name = "COUNT")]
    pub(crate) inodes: Option<u32>,
    /// Bytes of the volume per inode
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = values::size)]
    pub(crate) bytes_per_inode: Option<u64>,
    /// Percentage of blocks reserved for root, such as 0 or 0.5; at most 50
    #[arg(short = 'm', long, value_name = "PERCENT", value_parser = values::milli_percent)]
    pub(crate) reserved: Option<u32>,
    /// Journal: auto, none, or its size such as 64M
    #[arg(short = 'J', long, value_name = "SIZE", default_value = "auto", value_parser = values::journal)]
    pub(crate) journal: JournalSize,
    /// Name of the volume, at most 16 bytes
    #[arg(short = 'L', long)]
    pub(crate) label: Option<OsString>,
    /// UUID of the volume, or "random"; by default it is derived from the contents
    #[arg(short = 'U', long, value_parser = values::uuid_choice)]
    pub(crate) uuid: Option<values::Uuid>,
    /// Seed of the hashes of names, written as a UUID
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub(crate) hash_seed: Option<[u8; 16]>,
    /// Features to add or, with ^ in front, to leave out: metadata_csum, metadata_csum_seed,
    /// uninit_bg, flex_bg, 64bit, resize_inode, orphan_file, extent, dir_index, large_dir, ea_inode
    ///
    /// "newest" means metadata_csum_seed and orphan_file; GRUB before 2.12, Linux before 5.15 and
    /// many boot loaders refuse volumes with these.
    ///
    /// Contents that need large_dir (more names in a directory than its index holds) or ea_inode
    /// (attributes longer than a block) are refused without the feature: GRUB and Linux before 4.13
    /// cannot read volumes with these.
    #[arg(short = 'O', long, value_name = "FEATURE", value_delimiter = ',', value_parser = values::feature)]
    pub(crate) features: Vec<values::Feature>,
}

/// Replay the journal of a volume that was not unmounted, and mark it clean
///
/// The journal is replayed as a mount does it, and the free counts are recomputed as e2fsck does.
/// Files that were deleted or truncated while open are finished as well, unless the volume has
/// known errors or cannot be written. An interrupted run can be repeated.
///
/// With --superblock, the first superblock and damaged group descriptors are first restored from a
/// backup. The counts in a backup are out of date, so the volume is marked as having errors;
/// `extant check --repair` then repairs the rest.
#[derive(Debug, clap::Args)]
pub(crate) struct RecoverArgs {
    /// The image or disk, which must not be mounted
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Restore the first superblock from this backup: auto (the first sound one, if the first
    /// superblock is damaged), block:N, or a byte, as `info` lists backups
    #[arg(long, value_name = "auto|block:N|BYTE", value_parser = SuperblockAt::parse)]
    pub(crate) superblock: Option<SuperblockAt>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Rewrite a volume as the smallest that holds everything on it
///
/// Everything is kept: contents, holes and preallocated space, times, owners, attributes, flags,
/// generations, hard links, label, UUID and features. Files are in as few runs as possible, inode
/// tables have only a few more inodes than are in use, and the journal has the usual size for such
/// a small volume, so the result is smaller than that of `resize2fs -M`. Inodes beyond the smaller
/// tables get other numbers. The new volume is written next to the image and takes its name once it
/// is durable; there must be space for both. The new volume is full. Growing it with resize2fs
/// makes room for data, but room for new inodes only with each group (128 MiB with blocks of 4 KiB)
/// that is added.
///
/// Refuses volumes that were not closed cleanly (`extant recover` helps), that are damaged, or that
/// have one of the features quota, bigalloc, meta_bg, sparse_super2, mmp, stable_inodes or an
/// external journal.
#[derive(Debug, clap::Args)]
pub(crate) struct ShrinkArgs {
    /// The image, which must not be in use
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Write the volume here and leave the image as it is; a disk or an NBD export is written in
    /// place. Required if the image is a disk, an export or a part of one
    #[arg(short, long, value_name = "IMAGE", value_hint = ValueHint::FilePath, value_parser = values::image_output())]
    pub(crate) output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Look at a volume, and change it, at a prompt
///
/// The commands are those of this program, without the image: ls, cd, pwd, cat, head, stat, tree,
/// get (or cp), df, and with --write, put, mkdir, rm, mv, ln, chmod, chown, xattr, truncate,
/// fallocate and copy; help explains each. Paths begin at the working directory. `| COMMAND` sends
/// the output of a line to a command of the host; `> FILE` and `>> FILE` write it to a file of the
/// host. The tab key completes commands and paths, the arrow keys find earlier lines, also from
/// earlier sessions. The newest 1,000 lines are kept in $XDG_STATE_HOME/extant/history
/// (~/.local/state/extant/history), which only the user can read. A line that begins with a space
/// is not kept; if the file cannot be written, only the history is lost. Each change is durable
/// when the next prompt appears.
///
/// If standard input is not a terminal, its lines are the commands. The first command that fails
/// ends the shell with its exit code, and the changes form one batch.
#[derive(Debug, clap::Args)]
pub(crate) struct ShellArgs {
    /// The image or disk
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Open the volume for changes; it must not be mounted
    #[arg(short, long, conflicts_with_all = ["superblock", "ignore_journal"])]
    pub(crate) write: bool,
    #[command(flatten)]
    pub(crate) open: ImageArgs,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}
