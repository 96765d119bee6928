//! Arguments of the commands that change a volume; also used for lines of scripts.

use crate::modes::ModeChange;
use crate::owners::NamedOwner;
use crate::values;
use clap::{Args, Parser, Subcommand, ValueHint};
use extant::{Fallocate, Special};
use extant_block::ForeignLocks;
use std::ffi::OsString;
use std::path::PathBuf;

const TARGETS: &str = "IMAGE:/PATH";

/// What to do about an image that is in use.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct LockArgs {
    /// Write the image even if another program, such as a virtual machine, holds a lock on it. An
    /// image that the kernel has mounted is still refused
    #[arg(long)]
    pub(crate) force: bool,
}

impl LockArgs {
    pub(crate) fn foreign_locks(self) -> ForeignLocks {
        match self.force {
            true => ForeignLocks::Override,
            false => ForeignLocks::Honour,
        }
    }
}

/// What to do if the place of a new volume is already occupied.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct TargetArgs {
    /// Overwrite an existing volume, partition table or other format, and write the image even if
    /// another program, such as a virtual machine, holds a lock on it. An image that the kernel has
    /// mounted is still refused
    #[arg(long, short_alias = 'F')]
    pub(crate) force: bool,
    /// First discard all contents of the disk, partition or export
    #[arg(long)]
    pub(crate) discard: bool,
}

impl TargetArgs {
    pub(crate) fn foreign_locks(self) -> ForeignLocks {
        LockArgs { force: self.force }.foreign_locks()
    }
}

/// A change of a volume.
#[derive(Debug, Subcommand)]
pub(crate) enum EditCommand {
    Put(PutArgs),
    Mkdir(MkdirArgs),
    Mknod(MknodArgs),
    Touch(TouchArgs),
    Rm(RmArgs),
    Mv(MvArgs),
    Ln(LnArgs),
    Chmod(ChmodArgs),
    Chown(ChownArgs),
    Xattr(XattrArgs),
    Truncate(TruncateArgs),
    Fallocate(FallocateArgs),
    Copy(CopyArgs),
}

/// Make the changes of a script in one batch. Each line is a command without the image: put
/// notes.txt /etc/motd
///
/// Words are quoted as in a shell: '…' quotes everything, "…" and \ the next character; # at the
/// beginning of a word starts a comment. The whole script is read first, and mistakes in it are
/// reported before anything is changed. The first command that fails ends the script; the changes
/// of earlier commands stay, unless --atomic is given.
#[derive(Debug, Args)]
pub(crate) struct EditArgs {
    /// Change nothing unless every command succeeds. Until then, all changes are kept in memory, in
    /// at most half of what is free
    #[arg(long)]
    pub(crate) atomic: bool,
    /// The image to change
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// The script; by default, or if it is -, standard input
    #[arg(default_value = "-", value_hint = ValueHint::FilePath)]
    pub(crate) script: PathBuf,
    /// Print JSON: how many commands were done, and the line that failed
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Give the free space of an image back to the host: free blocks of a file become holes, those of a
/// disk are discarded
#[derive(Debug, Args)]
pub(crate) struct TrimArgs {
    /// The image or disk, which must not be mounted
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// Begin at this byte of the volume
    #[arg(id = "place_offset", short = 'o', long = "offset", default_value = "0", value_parser = values::size)]
    pub(crate) offset: u64,
    /// Trim this many bytes; by default all that follow
    #[arg(short, long, value_parser = values::size)]
    pub(crate) length: Option<u64>,
    /// Skip runs of fewer free bytes
    #[arg(short, long, default_value = "0", value_name = "SIZE", value_parser = values::size)]
    pub(crate) minimum: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Move the blocks of files to as few runs as free space allows
///
/// Each file is copied on the volume, and its map is changed in transactions, so that the file is
/// complete after a crash. There must be space for a second copy. A file whose number of runs
/// cannot be reduced stays as it is. Files with block pointers instead of extents, as on ext2 and
/// ext3, are refused. Prints how many runs of adjacent blocks each file had before, and has now.
#[derive(Debug, Args)]
pub(crate) struct DefragArgs {
    /// Files, all in the same image
    #[arg(required = true, value_name = TARGETS, value_hint = ValueHint::FilePath)]
    pub(crate) paths: Vec<OsString>,
    /// Print JSON: one array of all files
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// A line of a script.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, disable_help_subcommand = true)]
pub(crate) struct ScriptLine {
    #[command(subcommand)]
    pub(crate) command: EditCommand,
}

/// Copy files and directories of the host into an image, with their modes, owners, times and
/// attributes
///
/// A file gets its name once it has been copied completely. After a failure, the name still leads
/// to the old file; other names of the old file are never affected. If the name is that of a
/// symbolic link in the image, contents and attributes of a file or directory go to the link's
/// target; links, devices, pipes and sockets replace the link.
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Copy directories with everything in them
    #[arg(short, long, short_aliases = ['R', 'a'], alias = "archive")]
    pub(crate) recursive: bool,
    /// Make root the owner of everything
    #[arg(long)]
    pub(crate) all_root: bool,
    /// Permissions of files, in octal; by default those of the source, and 644 for standard input
    #[arg(short, long, value_parser = mode)]
    pub(crate) mode: Option<u32>,
    /// The owner: OWNER, OWNER:GROUP or :GROUP, as numbers or as names from the image's /etc/passwd
    /// and /etc/group
    #[arg(long, value_parser = NamedOwner::parse, conflicts_with = "all_root")]
    pub(crate) owner: Option<NamedOwner>,
    /// The time of change, in seconds since 1970
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub(crate) mtime: Option<i64>,
    /// Print JSON: how many files, directories and bytes were copied
    #[arg(long)]
    pub(crate) json: bool,
    /// Files of the host, and where to put them: a directory of the image, or (for one file) its
    /// new name; - is standard input
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", TARGETS], value_hint = ValueHint::AnyPath)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Make directories
#[derive(Debug, Args)]
pub(crate) struct MkdirArgs {
    /// Also make missing parent directories, and accept directories that exist
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Permissions, in octal
    #[arg(short, long, default_value = "755", value_parser = mode)]
    pub(crate) mode: u32,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Make device nodes, named pipes and sockets
#[derive(Debug, Args)]
pub(crate) struct MknodArgs {
    /// Permissions, in octal
    #[arg(short, long, default_value = "644", value_parser = mode)]
    pub(crate) mode: u32,
    #[arg(value_name = TARGETS)]
    pub(crate) path: OsString,
    /// b for a block device, c or u for a character device, p for a named pipe, s for a socket
    #[arg(value_parser = ["b", "c", "u", "p", "s"])]
    pub(crate) kind: String,
    /// Device number: major and minor
    #[arg(requires = "minor", required_if_eq_any = [("kind", "b"), ("kind", "c"), ("kind", "u")])]
    pub(crate) major: Option<u32>,
    pub(crate) minor: Option<u32>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

impl MknodArgs {
    /// The kind of file to create.
    pub(crate) fn special(&self) -> Result<Special, String> {
        let device = match (self.major, self.minor) {
            (Some(major), Some(minor)) => Some((major, minor)),
            _ => None,
        };
        match (self.kind.as_str(), device) {
            ("b", Some((major, minor))) => Ok(Special::Block(major, minor)),
            ("c" | "u", Some((major, minor))) => Ok(Special::Char(major, minor)),
            ("p", None) => Ok(Special::Fifo),
            ("s", None) => Ok(Special::Socket),
            _ => Err("only devices have numbers".into()),
        }
    }
}

/// Set times of access and change to now, and create empty files that do not exist
#[derive(Debug, Args)]
pub(crate) struct TouchArgs {
    /// Do not create files that do not exist
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
    /// Set this time instead of now, in seconds since 1970
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    pub(crate) mtime: Option<i64>,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Remove files
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Remove directories with everything in them
    #[arg(short, long, short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Ignore files that do not exist
    #[arg(short = 'f')]
    pub(crate) is_content: bool,
    /// Like -f, and also write the image even if another program, such as a virtual machine, holds
    /// a lock on it
    #[arg(long)]
    pub(crate) force: bool,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
}

/// Rename a file, or move files into a directory of the same image
///
/// If both names belong to the same file, the old one is removed.
#[derive(Debug, Args)]
pub(crate) struct MvArgs {
    /// Fail if the new name exists
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    #[arg(required = true, num_args = 2.., value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Give a file another name, or make a symbolic link
///
/// With -f, the link replaces an existing file of that name, once the link has been created.
#[derive(Debug, Args)]
pub(crate) struct LnArgs {
    /// Make a symbolic link; TARGET is stored as given
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace an existing file of the new name
    #[arg(short = 'f')]
    pub(crate) replaces: bool,
    /// Like -f, and also write the image even if another program, such as a virtual machine, holds
    /// a lock on it
    #[arg(long)]
    pub(crate) force: bool,
    /// The file in the image; with -s, any text
    pub(crate) target: OsString,
    /// The new name, or a directory in which to make a link of the same name
    #[arg(value_name = TARGETS)]
    pub(crate) name: OsString,
}

/// Set permissions
#[derive(Debug, Args)]
pub(crate) struct ChmodArgs {
    /// Change everything below directories, too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Permissions in octal, such as 644 or 4755, or changes to make, such as u+x,go-w or a=rX
    #[arg(value_parser = ModeChange::parse, allow_hyphen_values = true)]
    pub(crate) mode: ModeChange,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Set owner and group
#[derive(Debug, Args)]
pub(crate) struct ChownArgs {
    /// Change everything below directories, too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// OWNER, OWNER:GROUP or :GROUP, as numbers or as names from the image's /etc/passwd and
    /// /etc/group
    #[arg(value_parser = NamedOwner::parse)]
    pub(crate) owner: NamedOwner,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Set, remove or list extended attributes
///
/// Without --set and --remove, lists attributes in the format of `getfattr --dump`, and changes
/// nothing.
///
/// A value that begins with 0x is in hexadecimal digits and one that begins with 0s in base64, as
/// getfattr prints them; any other value is taken literally, and cannot contain NUL. Access control
/// lists (system.posix_acl_*) and file capabilities (security.capability) have the binary form that
/// `getfattr -e hex` prints, and are refused where Linux would refuse them.
#[derive(Debug, Args)]
pub(crate) struct XattrArgs {
    /// Set an attribute. The value begins after the first =; 0x means hexadecimal, and 0s base64
    #[arg(short, long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<OsString>,
    /// Remove an attribute
    #[arg(short = 'x', long, value_name = "NAME")]
    pub(crate) remove: Vec<OsString>,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

impl XattrArgs {
    /// Whether the command changes nothing.
    pub(crate) fn only_lists(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }
}

/// Set the size of files: contents beyond it are lost, and new contents are zeroes
#[derive(Debug, Args)]
pub(crate) struct TruncateArgs {
    /// The new size, such as 0 or 64K
    #[arg(short, long, value_parser = values::size)]
    pub(crate) size: u64,
    /// Do not create files that do not exist
    #[arg(short = 'c', long)]
    pub(crate) no_create: bool,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Allocate, free or zero a range of files, remove it from them, or insert it
///
/// By default the range is allocated; newly allocated space reads as zeroes, and a file that does
/// not exist is created. In files of ext2 and ext3, which have block pointers instead of extents,
/// only holes can be punched.
#[derive(Debug, Args)]
pub(crate) struct FallocateArgs {
    /// Free the range: it becomes a hole
    #[arg(short, long, group = "mode")]
    pub(crate) punch_hole: bool,
    /// Make the range read as zeroes, and allocate it
    #[arg(short, long, group = "mode")]
    pub(crate) zero_range: bool,
    /// Remove the range, which must consist of whole blocks: what follows moves to its place
    #[arg(short, long, group = "mode")]
    pub(crate) collapse_range: bool,
    /// Insert a hole at the offset, which must consist of whole blocks: what follows moves back
    #[arg(short, long, group = "mode")]
    pub(crate) insert_range: bool,
    /// Keep the size of the files, even if space is allocated beyond their end
    #[arg(short = 'n', long, conflicts_with_all = ["punch_hole", "collapse_range", "insert_range"])]
    pub(crate) keep_size: bool,
    /// Where the range begins, such as 0 or 64K
    #[arg(id = "place_offset", short = 'o', long = "offset", default_value = "0", value_parser = values::size)]
    pub(crate) offset: u64,
    /// Length of the range, such as 64K
    #[arg(short, long, value_parser = values::size)]
    pub(crate) length: u64,
    #[arg(required = true, value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

impl FallocateArgs {
    /// The mode selected by the options.
    pub(crate) fn mode(&self) -> Fallocate {
        let keep_size = self.keep_size;
        match self {
            Self { punch_hole: true, .. } => Fallocate::PunchHole,
            Self { zero_range: true, .. } => Fallocate::ZeroRange { keep_size },
            Self { collapse_range: true, .. } => Fallocate::CollapseRange,
            Self { insert_range: true, .. } => Fallocate::InsertRange,
            _ => Fallocate::Allocate { keep_size },
        }
    }
}

/// Copy files within an image, with their permissions and holes
///
/// A copy belongs to root, and gets its name once it is complete. After a failure, the name still
/// leads to the old file; other names of the old file are never affected. If the name is that of a
/// symbolic link, the copy replaces the link's target.
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// Files to copy, and then a directory to copy them into or (for one file) the name of the copy
    #[arg(required = true, num_args = 2.., value_name = TARGETS)]
    pub(crate) paths: Vec<OsString>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("permissions are written in octal, from 0 to 7777".into()),
    }
}

impl EditCommand {
    /// How to treat an image that is in use.
    pub(crate) fn lock(&self) -> LockArgs {
        match self {
            Self::Put(PutArgs { lock, .. })
            | Self::Mkdir(MkdirArgs { lock, .. })
            | Self::Mknod(MknodArgs { lock, .. })
            | Self::Touch(TouchArgs { lock, .. })
            | Self::Mv(MvArgs { lock, .. })
            | Self::Chmod(ChmodArgs { lock, .. })
            | Self::Chown(ChownArgs { lock, .. })
            | Self::Xattr(XattrArgs { lock, .. })
            | Self::Truncate(TruncateArgs { lock, .. })
            | Self::Fallocate(FallocateArgs { lock, .. })
            | Self::Copy(CopyArgs { lock, .. }) => *lock,
            &Self::Rm(RmArgs { force, .. }) | &Self::Ln(LnArgs { force, .. }) => LockArgs { force },
        }
    }

    /// Refuses options that make no sense when the image is already open.
    pub(crate) fn check_in_batch(&self) -> Result<(), &'static str> {
        match self {
            Self::Rm(_) | Self::Ln(_) => Ok(()),
            Self::Put(PutArgs { paths, .. }) if paths[..paths.len() - 1].iter().any(|path| path == "-") => {
                Err("standard input cannot be put here; name a file")
            }
            Self::Put(PutArgs { json: true, .. }) => {
                Err("--json is an option of the command that opens the image")
            }
            Self::Xattr(args) if args.only_lists() => Err("a script sets (-s) or removes (-x) attributes"),
            _ if self.lock().force => Err("--force is an option of the command that opens the image"),
            _ => Ok(()),
        }
    }

    /// The command's paths in the image.
    pub(crate) fn targets_mut(&mut self) -> Vec<&mut OsString> {
        match self {
            Self::Put(args) => args.paths.last_mut().into_iter().collect(),
            Self::Mkdir(args) => args.paths.iter_mut().collect(),
            Self::Mknod(args) => vec![&mut args.path],
            Self::Touch(args) => args.paths.iter_mut().collect(),
            Self::Rm(args) => args.paths.iter_mut().collect(),
            Self::Mv(args) => args.paths.iter_mut().collect(),
            Self::Ln(LnArgs { symbolic, target, name, .. }) => match symbolic {
                true => vec![name],
                false => vec![target, name],
            },
            Self::Chmod(args) => args.paths.iter_mut().collect(),
            Self::Chown(args) => args.paths.iter_mut().collect(),
            Self::Xattr(args) => args.paths.iter_mut().collect(),
            Self::Truncate(args) => args.paths.iter_mut().collect(),
            Self::Fallocate(args) => args.paths.iter_mut().collect(),
            Self::Copy(args) => args.paths.iter_mut().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_octal() {
        assert_eq!((mode("644"), mode("4755")), (Ok(0o644), Ok(0o4755)));
        assert!(mode("8").is_err() && mode("10000").is_err() && mode("u+x").is_err());
    }
}
