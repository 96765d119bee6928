//! Suggestions of what to type instead, for commands of other tools and for words in another order.

use crate::args::{Args, CatArgs, Command, CpArgs, LsArgs, PlaceArgs, StatArgs};
use crate::failure::Failure;
use crate::image_path::ImagePath;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use extant_fs::quote;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Commands known from other tools, and what to use here instead.
const ELSEWHERE: [(&[&str], &str); 15] = [
    (
        &["fsck", "e2fsck", "fsck.ext2", "fsck.ext3", "fsck.ext4", "repair", "verify"],
        "`extant check` finds what is wrong with a volume, and with --repair puts it right. `extant recover` replays \
         a journal.",
    ),
    (
        &["resize", "grow", "resize2fs", "expand"],
        "`extant shrink` makes a volume as small as its contents. Extant cannot grow one yet: enlarge the file with \
         truncate, then run resize2fs IMAGE.",
    ),
    (
        &["extract", "unpack", "dump"],
        "`extant cp IMAGE:/ DIR` copies files out, `extant export IMAGE -o X.tar` into an archive.",
    ),
    (
        &["create", "new", "pack", "make"],
        "`extant build` makes a volume of files, `extant mkfs` an empty one.",
    ),
    (&["mke2fs", "format", "mkfs.ext2", "mkfs.ext3", "mkfs.ext4"], "`extant mkfs` makes an empty volume."),
    (
        &["import", "add", "write"],
        "`extant put` copies files into a volume, `extant build --into` archives and images.",
    ),
    (
        &["dumpe2fs", "show", "tune2fs", "label", "e2label", "tune"],
        "`extant info` shows a volume's settings. Extant cannot change them: use tune2fs.",
    ),
    (&["debugfs"], "`extant debug` prints structures, `extant shell` looks at files at a prompt."),
    (&["chroot", "run", "enter"], "`extant exec IMAGE --root -- COMMAND` runs a command of the volume."),
    (&["readlink", "test", "exists", "file"], "`extant stat IMAGE:/PATH` tells what a path is, or fails."),
    (
        &["grep", "tail", "less", "more", "wc", "sort", "md5sum", "sha256sum", "hexdump", "strings"],
        "`extant cat IMAGE:/PATH | COMMAND` gives a file to a command of the host.",
    ),
    (&["cmp", "compare"], "`extant diff A B` compares volumes, and files of volumes."),
    (
        &["getfattr", "setfattr", "attr", "getfacl", "setfacl", "getcap", "setcap"],
        "`extant xattr IMAGE:/PATH` lists attributes, access lists and capabilities too; with -s NAME=VALUE it sets one.",
    ),
    (&["version"], "`extant --version` prints it."),
    (&["partitions", "fdisk", "parted", "lsblk"], "`extant info DISK` lists partitions."),
];

/// Options of other tools that a command lacks, and what there is.
const OPTIONS_ELSEWHERE: [(&[&str], &[&str], &str); 23] = [
    (&["build", "mkfs"], &["-d"], MAKES_OF_DIRECTORY),
    (&["build"], &["-E"], "There are options of their own: --discard, --hash-seed and --all-root."),
    (&["mkfs"], &["-E"], "There are options of their own: --discard and --hash-seed."),
    (
        &["build", "mkfs"],
        &["--compress", "--gzip", "--zstd", "-z"],
        "An image is written raw; xz or zstd packs it afterwards.",
    ),
    (&["mkfs"], &["-n"], "There is no trial run; what holds something is not written over without --force."),
    (&["build", "mkfs"], &["--no-journal", "--nojournal"], "-J none leaves the journal out."),
    (&["build", "mkfs"], &["--fs", "--fstype", "--format"], "-t ext2|ext3|ext4 is the kind of volume."),
    (
        &["build", "mkfs"],
        &["-T"],
        "-b, -i and -N say for what files: sizes of blocks, bytes for each inode, inodes.",
    ),
    (
        &["build"],
        &["--root-owner", "--squash-uids", "--squash", "--numeric-owner"],
        "--all-root makes root the owner of everything, --owner-map changes numbers.",
    ),
    (
        &["build"],
        &["-f", "--file", "--dockerfile"],
        "Build the image with podman or docker, save it, and name the archive.",
    ),
    (
        &["put"],
        &["--preserve", "--archive", "-v", "--verbose"],
        "Modes, owners, times and attributes are kept; --json says how much was put.",
    ),
    (
        &["check", "recover", "rescue", "info"],
        &["-b", "-B"],
        "--superblock block:N is a backup, which `extant info` lists; auto finds one.",
    ),
    (
        &["rescue", "undelete"],
        &["-o", "--output", "-d"],
        "The directory or archive for the files follows the image: IMAGE OUT.",
    ),
    (
        &["stat", "du"],
        &["-c", "--format", "-f", "--json"],
        "`extant ls -d --json IMAGE:/PATH` tells all of a path, `extant df --json IMAGE` the space.",
    ),
    (
        &["undelete"],
        &["-l", "--list"],
        "`extant undelete IMAGE DIRECTORY` copies what is left, and lists it.",
    ),
    (&["put"], &["-p", "--parents"], "`extant mkdir -p IMAGE:/DIRECTORY` makes directories."),
    (&["put"], &["-o", "-g", "--chown", "--group"], "--owner OWNER:GROUP says whose the copy is."),
    (
        &["touch"],
        &["-d", "-t", "--date"],
        "--mtime SECONDS sets a time; `date -d DATE +%s` tells its seconds.",
    ),
    (
        &["edit"],
        &["-c", "-e"],
        "Commands come from a file or, as in `echo 'rm /x' | extant edit IMAGE -`, from others.",
    ),
    (
        &["export"],
        &["-C", "-d", "--directory"],
        "`extant cp IMAGE:/ DIRECTORY` copies files into a directory.",
    ),
    (
        &["find"],
        &[
            "-size", "-mtime", "-newer", "-perm", "-user", "-group", "-links", "-iname", "-path", "-empty",
            "-exec",
        ],
        "`extant ls -R --json IMAGE:/` tells sizes, times, modes and owners, for jq; in a mount, find(1) works.",
    ),
    (&["find"], &["-delete"], "`extant rm IMAGE:/PATH` removes files."),
    (&["ls"], &["--sort"], "-S sorts by size, -t by time of change."),
];

const MAKES_OF_DIRECTORY: &str = "`extant build DIRECTORY -o IMAGE` makes a volume of a directory.";

/// Translates the command line of a name under which another program calls this one: `fsck.extant`
/// (fsck(8)), `mount.extant` and `mount.fuse.extant` (mount(8)), `umount.extant` and
/// `umount.fuse.extant` (umount(8)). mount.fuse3(8) runs `extant IMAGE DIRECTORY -o OPTIONS`.
pub(crate) fn as_extant(words: Vec<OsString>) -> Vec<OsString> {
    let [program, rest @ ..] = &words[..] else { return words };
    let name = Path::new(program).file_name().unwrap_or_default().as_bytes();
    let mut ours = match (name, rest) {
        (b"fsck.extant", _) => [vec!["check".into()], rest.to_vec()].concat(),
        (b"mount.extant" | b"mount.fuse.extant", _) => as_mount(rest),
        (b"umount.extant" | b"umount.fuse.extant", _) => as_umount(rest),
        (_, [source, directory, option, _])
            if option == "-o"
                && Path::new(directory).is_dir()
                && Path::new(source).exists()
                && Args::command().find_subcommand(source).is_none() =>
        {
            as_mount(rest)
        }
        _ => return words,
    };
    ours.insert(0, "extant".into());
    ours
}

/// Translates the arguments that mount(8) passes to a helper: `SOURCE DIRECTORY [-sfnv] [-N
/// NAMESPACE] [-o OPTIONS] [-t TYPE]`.
fn as_mount(words: &[OsString]) -> Vec<OsString> {
    let mut ours = vec!["mount".into()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => ours.extend([Some(word), words.next()].into_iter().flatten().cloned()),
            b"-t" => drop(words.next()),
            // These have no effect: mount(8) keeps no table of its own, and there is nothing to
            // tolerate or to report.
            b"-n" | b"-s" | b"-v" => {}
            // This differs from our -f.
            b"-f" => ours.push("--fake".into()),
            _ => ours.push(word.clone()),
        }
    }
    ours
}

/// Translates the arguments that umount(8) passes to a helper: `DIRECTORY [-flnrv] [-N NAMESPACE]
/// [-t TYPE]`.
fn as_umount(words: &[OsString]) -> Vec<OsString> {
    let mut ours = vec!["umount".into()];
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-t" => drop(words.next()),
            b"-n" | b"-v" | b"-f" | b"-r" => {}
            _ => ours.push(word.clone()),
        }
    }
    ours
}

/// Rewrites options of find(1), which begin with one dash, to ours, which begin with two.
fn as_find(words: &mut Vec<OsString>) {
    let Some(at) = words.iter().skip(1).position(|word| !word.as_bytes().starts_with(b"-")) else { return };
    if words[at + 1] != "find" {
        return;
    }
    // `find` prints matches even without it.
    words.retain(|word| word != "-print");
    for word in &mut words[at + 2..] {
        let ours = match word.as_bytes() {
            b"-name" => "--name",
            b"-type" => "--type",
            b"-maxdepth" | b"--maxdepth" => "--max-depth",
            b"-print0" => "--print0",
            b"--" => break,
            _ => continue,
        };
        *word = ours.into();
    }
}

/// Whether a command line is that of a check, which has the exit codes of fsck(8).
pub(crate) fn is_check(words: &[OsString]) -> bool {
    words.iter().skip(1).find(|word| !word.as_bytes().starts_with(b"-")).is_some_and(|word| word == "check")
}

/// The command line with only the commands that scripts often run for single files. Describing all
/// commands and their options takes a millisecond, much longer than copying a small file.
#[derive(Debug, Parser)]
#[command(name = "extant")]
struct Frequent {
    #[arg(short, long, global = true)]
    quiet: bool,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(subcommand)]
    command: FrequentCommand,
}

#[derive(Debug, Subcommand)]
enum FrequentCommand {
    Ls(LsArgs),
    Stat(StatArgs),
    Cat(CatArgs),
    #[command(alias = "get")]
    Cp(CpArgs),
}

impl Frequent {
    /// Parses the command line if it is one of these commands and has no mistake. Messages about
    /// mistakes, and help, come from the description of all commands.
    fn parse(words: &[OsString]) -> Option<Args> {
        const NAMES: [&str; 5] = ["ls", "stat", "cat", "cp", "get"];
        let name = words.iter().skip(1).find(|word| !word.as_bytes().starts_with(b"-"))?;
        if !NAMES.iter().any(|known| name == known) {
            return None;
        }
        let Self { quiet, place, command } = Self::try_parse_from(words).ok()?;
        let command = match command {
            FrequentCommand::Ls(args) => Command::Ls(args),
            FrequentCommand::Stat(args) => Command::Stat(args),
            FrequentCommand::Cat(args) => Command::Cat(args),
            FrequentCommand::Cp(args) => Command::Cp(args),
        };
        Some(Args { quiet, place, command })
    }
}

/// Parses the command line. `find` takes the options of find(1) as well, and `debug WHAT [NUMBER]
/// IMAGE` is understood like `debug IMAGE WHAT [NUMBER]`.
pub(crate) fn parse(mut words: Vec<OsString>) -> Result<Args, clap::Error> {
    as_find(&mut words);
    if let Some(args) = Frequent::parse(&words) {
        return Ok(args);
    }
    let told = match Args::try_parse_from(&words) {
        Ok(args) => return Ok(args),
        Err(told) => told,
    };
    let at = words.iter().position(|word| word == "debug");
    if let Some(at) = at
        && let [what, rest @ ..] = &words[at + 1..]
        && Args::command()
            .find_subcommand("debug")
            .is_some_and(|debug| debug.get_subcommands().any(|known| *what == *known.get_name()))
        && let Some(image) = rest.iter().rposition(|word| !word.as_bytes().starts_with(b"-"))
    {
        let mut turned = words[..=at].to_vec();
        turned.extend([rest[image].clone(), what.clone()]);
        turned.extend(rest.iter().enumerate().filter(|&(n, _)| n != image).map(|(_, word)| word.clone()));
        if let Ok(args) = Args::try_parse_from(turned) {
            return Ok(args);
        }
    }
    Err(told)
}

/// What to use instead of an unknown command, or of an option from another tool.
pub(crate) fn instead(told: &clap::Error, words: &[OsString]) -> Option<&'static str> {
    let command = words.iter().skip(1).find(|word| !word.as_bytes().starts_with(b"-"));
    let is_command = |name: &str| command.is_some_and(|word| word == name);
    if told.kind() == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(option)) = told.get(ContextKind::InvalidArg)
    {
        // Of an option with one dash, the error names only the first letter.
        let is_it = |known: &str| {
            known == option || known.starts_with(option.as_str()) && words.iter().any(|word| word == known)
        };
        let mut known = OPTIONS_ELSEWHERE.iter();
        return known
            .find(|(commands, options, _)| {
                commands.iter().any(|name| is_command(name)) && options.iter().any(|option| is_it(option))
            })
            .map(|(_, _, hint)| *hint);
    }
    if told.kind() == ErrorKind::MissingRequiredArgument {
        return match () {
            () if is_command("build") => Some(MAKES_OF_DIRECTORY),
            () if is_command("export") => Some("`extant export IMAGE -o X.tar` writes an archive."),
            () => None,
        };
    }
    if told.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let Some(ContextValue::String(word)) = told.get(ContextKind::InvalidSubcommand) else { return None };
    ELSEWHERE.iter().find(|(words, _)| words.contains(&word.as_str())).map(|(_, hint)| *hint)
}

/// Refuses a path in an image as the source of `put`, and names the right command.
pub(crate) fn put_wrong_way(paths: &[OsString]) -> Result<(), Failure> {
    let [source, .., target] = paths else { return Ok(()) };
    let of_image = |path: &OsString| {
        let is_written_so = path.as_bytes().windows(2).any(|pair| pair == b":/");
        Some(ImagePath::parse(path.clone())).filter(|place| is_written_so && place.image.is_file())
    };
    let Some(from) = of_image(source).filter(|_| !Path::new(source).exists()) else { return Ok(()) };
    let to = quote(target.as_bytes());
    Err(Failure::Usage(match of_image(target) {
        None => format!("put copies into an image; out of one: extant cp {} {to}", from.quoted()),
        Some(into) if into.image == from.image => {
            format!("put copies from the host; within an image: extant copy {} {to}", from.quoted())
        }
        Some(_) => {
            format!("put copies from the host; copy {} to a directory first, then put that", from.quoted())
        }
    }))
}

/// Refuses a copy into an image, and names the command for it.
pub(crate) fn wrong_way(args: &CpArgs) -> Result<(), Failure> {
    let to = args.to.as_os_str();
    let target = ImagePath::parse(to.to_owned());
    let is_image =
        to.as_bytes().windows(2).any(|pair| pair == b":/") && target.image.is_file() && !args.to.exists();
    if !is_image {
        return Ok(());
    }
    let place = args.places.first().expect("clap wants one");
    let (from, to) = (place.image_quoted(), quote(to.as_bytes()));
    let is_host = place.path == b"/" && Path::new(&place.image).exists();
    Err(Failure::Usage(match is_host && place.image != target.image {
        true => format!("cp copies out of an image; into one: extant put -r {from} {to}"),
        false if place.image == target.image => {
            format!("cp copies out of an image; within one: extant copy {} {to}", place.quoted())
        }
        false => {
            format!("cp copies out of an image; copy {} to a directory first, then put that", place.quoted())
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that the short description accepts must mean the same in the full one.
    #[test]
    fn frequent_commands_are_parsed_alike_by_both_descriptions() {
        for (line, is_frequent) in [
            ("extant cp -r a.img:/etc out", true),
            ("extant -q get --offset 1M a.img:/etc b.img:/x out --json", true),
            ("extant cat --partition 2 a.img:/f -q", true),
            ("extant ls -lR --size-limit 8M a.img", true),
            ("extant stat --volume-offset 512 a.img:/f", true),
            ("extant --offset 1M cp a.img:/etc out", false),
            ("extant find a.img", false),
            ("extant cp --help", false),
            ("extant cp a.img:/etc", false),
            ("extant cp --offset 1M --partition", false),
        ] {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let frequent = Frequent::parse(&words).map(|args| format!("{args:?}"));
            assert_eq!(frequent.is_some(), is_frequent, "{line}");
            if let Some(frequent) = frequent {
                assert_eq!(frequent, format!("{:?}", Args::try_parse_from(&words).unwrap()), "{line}");
            }
        }
    }
}
