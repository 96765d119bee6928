//! The command line of `mount`, `umount` and `sync`.

use crate::edit_args::LockArgs;
use crate::sandbox::SandboxArgs;
use crate::values;
use clap::{Args, ValueHint};
use extant_fs::{ErrorPolicy, Synchronous};
use extant_fuse::{IdRange, IdRanges, Owners, ShownIds, VolumeOptions};
use extant_rt::Nanos;
use std::path::PathBuf;

/// Mount a volume on a directory, for any program to use
///
/// Does not need root if fusermount3 (package fuse3) is installed and the user may open /dev/fuse.
/// Returns once the directory can be used; the volume is served in the background until `extant
/// umount DIRECTORY`. Data that programs have synced survive even if the server is killed; the next
/// mount then recovers the volume.
///
/// Linked as /sbin/mount.fuse.extant and /sbin/umount.fuse.extant, the command also serves
/// mount(8), umount(8) and lines of /etc/fstab of type fuse.extant.
#[derive(Debug, Args)]
pub(crate) struct MountArgs {
    /// The image or disk
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) image: PathBuf,
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Options, separated by commas: ro; norecovery (with ro: leave the journal alone); allow_other
    /// (users other than you may enter); discard (free space becomes holes of the image);
    /// commit=SECONDS (5); sync (a call that changes something returns once that is durable),
    /// dirsync (for changes of names only); cache=SIZE (256M); dirty=SIZE (writers wait when so
    /// much is not written back; half of cache= by default); errors=continue|remount-ro|panic;
    /// suid, dev (set-ID programs and device nodes work); noexec; noacl (access lists are neither
    /// honoured nor shown, and stay as they are); noatime (the default: reading changes no time of
    /// access), relatime (it does, by Linux's rule); writeback (the kernel keeps what is written
    /// for some seconds, which is faster for small writes; a killed server loses it); offset=BYTES,
    /// sizelimit=BYTES, partition=N|NAME (where the volume is); fakeroot (your calls count as
    /// root's); uid=N, gid=N (everything appears to be this user's and this group's; without
    /// allow_other, N must be you, and acts as root); uid=VOLUME:HERE:COUNT, gid=... (a range of
    /// the volume's numbers, and the numbers under which it appears here; may be repeated)
    #[arg(short, value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Stay in the foreground until unmounted, or until Ctrl-C
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Serve counters for Prometheus on this Unix socket: requests by operation, errors, latency,
    /// cache and journal, as in `extant top`
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) metrics: Option<PathBuf>,
    /// Append a line for each request to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) trace: Option<PathBuf>,
    /// Used by the command itself: report on standard output when the directory can be used
    #[arg(long, hide = true, requires = "foreground")]
    pub(crate) tell: bool,
    /// Do everything except mounting, as mount(8) requests with -f
    #[arg(long, hide = true)]
    pub(crate) fake: bool,
    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Used by `mount` and `exec` themselves: a process outside the server's sandbox.
#[derive(Debug, Args)]
pub(crate) struct MonitorArgs {
    /// The descriptor of the process's socket
    #[arg(long)]
    pub(crate) socket: i32,
    /// The directory to mount on, if the process is to mount
    #[arg(long)]
    pub(crate) directory: Option<PathBuf>,
    #[arg(long)]
    pub(crate) source: Option<PathBuf>,
    #[arg(long)]
    pub(crate) ro: bool,
    #[arg(long)]
    pub(crate) allow_other: bool,
    #[arg(long)]
    pub(crate) kernel_checks: bool,
    #[arg(long)]
    pub(crate) suid: bool,
    #[arg(long)]
    pub(crate) dev: bool,
    #[arg(long)]
    pub(crate) noexec: bool,
    /// Release the terminal once the volume is mounted
    #[arg(long)]
    pub(crate) in_background: bool,
    /// The server's socket, to be removed when the server ends
    #[arg(long)]
    pub(crate) metrics: Option<PathBuf>,
}

/// Unmount a directory that `extant mount` has mounted
///
/// Returns when the volume is clean and its image free.
#[derive(Debug, Args)]
pub(crate) struct UmountArgs {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Detach the directory at once, and do not wait for programs that still use it
    #[arg(short, long)]
    pub(crate) lazy: bool,
}

/// Make everything on a mounted volume durable; sync(1) does not reach it
#[derive(Debug, Args)]
pub(crate) struct SyncArgs {
    /// The directory on which the volume is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

/// Show what a mounted volume is doing: requests, their latency, memory
///
/// The display is redrawn every second, with the counts of that second. Ends when the volume is
/// unmounted.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The directory on which the volume is mounted
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Show the counts since the volume was mounted, once
    #[arg(long)]
    pub(crate) once: bool,
    /// Like --once, as JSON
    #[arg(long, requires = "once")]
    pub(crate) json: bool,
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
}

/// The options given with `-o`.
#[derive(Clone, Debug, Default)]
pub(crate) struct MountWords {
    pub(crate) volume: VolumeOptions,
    pub(crate) offset_bytes: Option<u64>,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) partition: Option<String>,
    pub(crate) allow_other: bool,
    pub(crate) suid: bool,
    pub(crate) dev: bool,
    pub(crate) noexec: bool,
    pub(crate) owners: Owners,
    pub(crate) relatime: bool,
    pub(crate) writeback: bool,
    sync: bool,
    dirsync: bool,
}

/// Options that take no value.
const PLAIN: &str = "acl allow_other async auto defaults dev dirsync discard exec fakeroot group loop noacl \
                     noatime noauto nodev nodiratime nodiscard noexec nofail norecovery nosuid nouser owner \
                     relatime ro rw suid sync user users writeback";
/// Options that take a value.
const VALUED: &str = "cache comment commit dirty errors gid offset partition sizelimit uid";

/// Says what is wrong with an option that cannot be taken as it is.
fn refusal(name: &str, value: Option<&str>) -> String {
    let is_one_of = |names: &str| names.split(' ').any(|known| known == name);
    if value.is_none() && is_one_of(VALUED) {
        return format!("{name} takes a value: {name}=...");
    }
    if value.is_some() && is_one_of(PLAIN) {
        return format!("{name} takes no value");
    }
    if name == "remount" {
        return "remount: a mount keeps its options; unmount it, and mount again with others".into();
    }
    if name == "atime" || name == "strictatime" {
        return format!("{name}: there is no such mount option; the nearest is relatime");
    }
    if let Some(option) =
        name.strip_prefix("no").filter(|option| PLAIN.split(' ').any(|known| known == *option))
    {
        return format!("{name}: there is no such mount option; leave out {option} instead");
    }
    let known =
        PLAIN.split(' ').chain(VALUED.split(' ')).filter(|known| known.strip_prefix("no") != Some(name));
    let similar = known.map(|known| (strsim::damerau_levenshtein(name, known), known));
    match similar.min().filter(|&(edits, known)| edits <= 2 && edits * 2 < known.len()) {
        Some((_, known)) => format!("{name}: there is no such mount option; did you mean {known}?"),
        None => format!("{name}: there is no such mount option; extant help mount lists them"),
    }
}

/// Minimum of `dirty=`: one request may write this much.
const DIRTY_MIN: u64 = 1 << 20;

/// Adds the value of `uid=` or `gid=`: one number for all, or another range.
fn add_shown(name: &str, shown: &mut ShownIds, value: &str) -> Result<(), String> {
    let wrong = || format!("{name}= takes a number, or VOLUME:HERE:COUNT such as 0:100000:65536");
    let digits = |number: &str| number.bytes().all(|byte| byte.is_ascii_digit());
    let number = |text: &str| text.parse().ok().filter(|_| digits(text));
    let numbers: Option<Vec<u32>> = value.split(':').map(number).collect();
    let range = match numbers.as_deref() {
        // The highest number is not a user: to chown(2), it means no change.
        Some(&[one]) if one < u32::MAX => {
            if *shown != ShownIds::Own {
                return Err(format!("{name}={value} does not go with another {name}="));
            }
            *shown = ShownIds::AllAs(one);
            return Ok(());
        }
        Some(&[inside, outside, count]) => IdRange { inside, outside, count },
        _ => return Err(wrong()),
    };
    let is_within = |first: u32| first.checked_add(range.count).is_some();
    if range.count == 0 || !is_within(range.inside) || !is_within(range.outside) {
        return Err(wrong());
    }
    let mut ranges = match std::mem::take(shown) {
        ShownIds::Own => Vec::new(),
        ShownIds::Ranges(IdRanges(ranges)) => ranges,
        ShownIds::AllAs(_) => return Err(format!("{name}={value} does not go with another {name}=")),
    };
    let meet = |a: u32, b: u32, count: u32| a < b.saturating_add(count) && b < a.saturating_add(range.count);
    if ranges.iter().any(|other| {
        meet(range.inside, other.inside, other.count) || meet(range.outside, other.outside, other.count)
    }) {
        return Err(format!("{name}={value} overlaps with another range"));
    }
    ranges.push(range);
    *shown = ShownIds::Ranges(IdRanges(ranges));
    Ok(())
}

impl MountWords {
    /// # Errors
    /// The name of an unknown option, or of one with an invalid value.
    pub(crate) fn parse(words: &[String]) -> Result<Self, String> {
        let mut parsed = Self::default();
        for word in words.iter().filter(|word| !word.is_empty()) {
            parsed.add(word)?;
        }
        if parsed.volume.ignore_journal && parsed.volume.write {
            return Err("norecovery goes with ro only".into());
        }
        if parsed.volume.discard && !parsed.volume.write {
            return Err("discard does not go with ro".into());
        }
        // Once the kernel has cached a name, only its own permission check keeps other users out of
        // the directory, and it does not know which user acts as root.
        if parsed.owners.fakeroot.is_some() && parsed.allow_other {
            return Err("fakeroot does not go with allow_other; uid= and gid= do".into());
        }
        if parsed.owners.fakeroot.is_some() && parsed.writeback {
            return Err("fakeroot does not go with writeback, for which the kernel checks permissions".into());
        }
        if parsed.writeback && !parsed.volume.write {
            return Err("writeback does not go with ro".into());
        }
        if parsed.writeback && parsed.sync {
            return Err("writeback does not go with sync; fsync makes what it keeps durable".into());
        }
        parsed.volume.synchronous = match (parsed.sync, parsed.dirsync) {
            (true, _) => Synchronous::All,
            (false, true) => Synchronous::Names,
            (false, false) => Synchronous::Flagged,
        };
        let most = parsed.volume.dirty_bytes_max();
        if parsed.volume.dirty_bytes.is_some_and(|bytes| bytes > most) {
            let most = most >> 20;
            return Err(format!(
                "dirty= takes at most three quarters of the cache, {most}M; for more, make cache= larger"
            ));
        }
        if parsed.owners.are_changed() && (parsed.suid || parsed.dev) {
            return Err("suid and dev do not go with fakeroot, uid= or gid=".into());
        }
        Ok(parsed)
    }

    fn add(&mut self, word: &str) -> Result<(), String> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        match (name, value) {
            // For mount(8), systemd and others that read /etc/fstab. Every image is mounted as with
            // a loop device.
            (
                "loop" | "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "owner" | "group",
                None,
            )
            | ("_netdev" | "nofail" | "nodiratime", None)
            | ("comment", Some(_)) => {}
            _ if name.starts_with("x-") => {}
            ("ro", None) => self.volume.write = false,
            ("rw", None) => self.volume.write = true,
            ("norecovery" | "noload", None) => self.volume.ignore_journal = true,
            ("allow_other", None) => self.allow_other = true,
            ("discard", None) => self.volume.discard = true,
            ("nodiscard", None) => self.volume.discard = false,
            ("suid", None) => self.suid = true,
            ("nosuid", None) => self.suid = false,
            ("dev", None) => self.dev = true,
            ("nodev", None) => self.dev = false,
            ("exec", None) => self.noexec = false,
            ("noexec", None) => self.noexec = true,
            ("noatime", None) => self.relatime = false,
            ("relatime", None) => self.relatime = true,
            ("acl", None) => self.volume.ignores_acls = false,
            ("noacl", None) => self.volume.ignores_acls = true,
            ("writeback", None) => self.writeback = true,
            ("sync", None) => self.sync = true,
            ("async", None) => self.sync = false,
            ("dirsync", None) => self.dirsync = true,
            ("fakeroot", None) => self.owners.fakeroot = Some(rustix::process::getuid().as_raw()),
            ("uid", Some(value)) => add_shown(name, &mut self.owners.users, value)?,
            ("gid", Some(value)) => add_shown(name, &mut self.owners.groups, value)?,
            ("commit", Some(seconds)) => {
                let seconds = seconds.parse().ok().filter(|seconds| (1..=900).contains(seconds));
                let seconds = seconds.ok_or("commit= takes seconds, from 1 to 900")?;
                self.volume.commit_interval = Nanos::from_secs(seconds);
            }
            ("cache", Some(size)) => {
                let bytes = values::size(size).ok().filter(|bytes| *bytes >= 8 << 20);
                self.volume.cache_bytes = bytes.ok_or("cache= takes a size such as 64M, at least 8M")?;
            }
            ("dirty", Some(size)) => {
                let bytes = values::size(size).ok().filter(|bytes| *bytes >= DIRTY_MIN);
                self.volume.dirty_bytes = Some(bytes.ok_or("dirty= takes a size such as 32M, at least 1M")?);
            }
            ("offset", Some(size)) => {
                self.offset_bytes = Some(values::size(size).map_err(|told| format!("offset: {told}"))?);
            }
            ("sizelimit", Some(size)) => {
                self.limit_bytes = Some(values::size(size).map_err(|told| format!("sizelimit: {told}"))?);
            }
            ("partition", Some(name)) => self.partition = Some(name.to_owned()),
            ("errors", Some(policy)) => {
                self.volume.errors = Some(match policy {
                    "continue" => ErrorPolicy::Continue,
                    "remount-ro" => ErrorPolicy::ReadOnly,
                    "panic" => ErrorPolicy::Panic,
                    _ => return Err("errors= takes continue, remount-ro or panic".into()),
                });
            }
            _ => return Err(refusal(name, value)),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_do_not_exist_are_refused_by_name() {
        let parse = |text: &str| MountWords::parse(&text.split(',').map(str::to_owned).collect::<Vec<_>>());
        let parsed = parse("ro,allow_other,cache=64M,commit=30").unwrap();
        assert!(!parsed.volume.write && parsed.allow_other);
        assert_eq!(
            (parsed.volume.cache_bytes, parsed.volume.commit_interval),
            (64 << 20, Nanos::from_secs(30))
        );
        let parsed = parse("defaults,noauto,_netdev,x-systemd.automount,offset=1M,sizelimit=16M").unwrap();
        assert_eq!((parsed.offset_bytes, parsed.limit_bytes), (Some(1 << 20), Some(16 << 20)));
        let parsed = parse("dirty=24M,cache=32M").unwrap();
        assert_eq!((parsed.volume.cache_bytes, parsed.volume.dirty_bytes), (32 << 20, Some(24 << 20)));
        assert!(parse("noacl").unwrap().volume.ignores_acls);
        assert!(!parse("noacl,ro,acl").unwrap().volume.ignores_acls);
        let parsed = parse("uid=0:1000:1,uid=1:100000:65535,gid=7").unwrap();
        let range = |inside, outside, count| IdRange { inside, outside, count };
        let users = vec![range(0, 1000, 1), range(1, 100_000, 65_535)];
        assert_eq!(parsed.owners.users, ShownIds::Ranges(IdRanges(users)));
        assert_eq!(parsed.owners.groups, ShownIds::AllAs(7));
        for (text, synchronous) in [
            ("rw,sync", Synchronous::All),
            ("sync,dirsync,ro", Synchronous::All),
            ("dirsync,sync,async", Synchronous::Names),
            ("sync,defaults,async", Synchronous::Flagged),
            ("writeback,dirsync", Synchronous::Names),
        ] {
            assert_eq!(parse(text).unwrap().volume.synchronous, synchronous, "{text}");
        }
        for (text, name) in [
            ("ro,data=journal", "data"),
            ("offset=here", "offset"),
            ("partition", "partition"),
            ("ro=1", "ro takes no value"),
            ("alow_other", "alow_other: there is no such mount option; did you mean allow_other?"),
            ("cahce=64M", "cahce: there is no such mount option; did you mean cache?"),
            ("atime", "atime: there is no such mount option; the nearest is relatime"),
            ("norelatime", "norelatime: there is no such mount option; leave out relatime instead"),
            ("loop=/dev/loop0", "loop takes no value"),
            ("data=ordered", "data: there is no such mount option; extant help mount lists them"),
            ("remount,ro", "remount: a mount keeps its options"),
            ("commit=0", "commit"),
            ("norecovery", "norecovery"),
            ("uid", "uid takes"),
            ("uid=root", "uid= takes"),
            ("uid=+5", "uid= takes"),
            ("uid=0:1:1,uid=1000", "uid=1000 does not go"),
            ("uid=1000,uid=0:1:1", "uid=0:1:1 does not go"),
            ("gid=0:1", "gid= takes"),
            ("uid=4294967295", "uid= takes"),
            ("uid=0:4294967290:10", "uid= takes"),
            ("uid=0:1000:10,uid=5:2000:1", "uid=5:2000:1 overlaps"),
            ("suid,fakeroot", "suid and dev"),
            ("allow_other,fakeroot", "fakeroot does not go"),
            ("writeback,fakeroot", "fakeroot does not go"),
            ("writeback,ro", "writeback does not go"),
            ("sync,writeback", "writeback does not go with sync"),
            ("sync=1", "sync takes no value"),
            ("dirty=200M", "dirty= takes at most three quarters of the cache, 192M"),
            ("dirty=32M,cache=32M", "dirty= takes at most three quarters of the cache, 24M"),
            ("dirty=1", "dirty= takes a size"),
            ("dirty", "dirty takes a value"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.starts_with(name), "{text}: {told}");
        }
    }
}
