//! The sides of a comparison: our mount and the others.

use super::Result;
use super::bed::{self, text, tool};
use extant_testbed::{LoopDevice, Mount};
use rustix::mount::{UnmountFlags, unmount};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const IMAGE_BYTES: u64 = 2 << 30;
/// `USER_HZ`, in which `/proc` counts processor time.
const TICKS_PER_SECOND: f64 = 100.0;
const PAUSE: Duration = Duration::from_millis(10);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `extant mount`.
    Ours,
    /// A server that does no work: [`super::null`].
    Null,
    /// The kernel's ext4 on a loop device with direct I/O.
    Kernel,
    /// fuse2fs of e2fsprogs.
    Fuse2fs,
    /// The host's file, past its page cache: no mount at all.
    Raw,
}

impl Kind {
    pub(super) const ALL: [Self; 5] = [Self::Ours, Self::Null, Self::Kernel, Self::Fuse2fs, Self::Raw];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Null => "null",
            Self::Kernel => "kernel",
            Self::Fuse2fs => "fuse2fs",
            Self::Raw => "raw",
        }
    }

    /// Whether this kind can be measured on this host.
    pub(super) fn is_there(self) -> bool {
        self != Self::Fuse2fs || Command::new("fuse2fs").arg("-V").output().is_ok()
    }
}

/// A mounted volume.
pub(super) struct Side {
    pub(super) kind: Kind,
    /// Users other than root may enter.
    allow_other: bool,
    extant: PathBuf,
    /// The directory that it is mounted on; for the raw side, a directory of the host.
    pub(super) at: PathBuf,
    pub(super) image: PathBuf,
    held: Held,
}

enum Held {
    Nothing,
    Ours(u32),
    Null(Box<Null>),
    Kernel { _mount: Mount, _device: LoopDevice },
    Fuse2fs(Child),
}

struct Null {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Null {
    fn wait_for_mount(&mut self) -> Result<()> {
        let mut line = String::new();
        match self.output.read_line(&mut line)? {
            0 => Err("the null server has ended".into()),
            _ => Ok(()),
        }
    }
}

/// The time that a step took.
#[derive(Clone, Copy, Debug)]
pub(super) struct Took {
    pub(super) seconds: f64,
    /// Processor time of the step's programs and of the server, in seconds.
    pub(super) processor: f64,
}

fn ticks(stat: &Path, fields: [usize; 2]) -> f64 {
    let stat = fs::read_to_string(stat).unwrap_or_default();
    // The second field is a name, which may have spaces.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let words: Vec<f64> = rest.split_whitespace().map(|word| word.parse().unwrap_or(0.0)).collect();
    fields.iter().map(|field| words.get(field - 3).copied().unwrap_or(0.0)).sum::<f64>() / TICKS_PER_SECOND
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

impl Side {
    /// A fresh volume of this kind, mounted. Every kind has an image of its own, whose blocks the
    /// host has allocated.
    pub(super) fn fresh(kind: Kind, dir: &Path, extant: &Path, allow_other: bool) -> Result<Self> {
        let name = format!("{}.img", kind.name());
        let image = match kind {
            Kind::Null => dir.join(name),
            _ => bed::image(dir, &name, IMAGE_BYTES, &[])?,
        };
        Self::of_image(kind, dir, extant, allow_other, image)
    }

    /// Mounts a volume that already exists.
    pub(super) fn of_image(
        kind: Kind,
        dir: &Path,
        extant: &Path,
        allow_other: bool,
        image: PathBuf,
    ) -> Result<Self> {
        let at = match kind {
            Kind::Raw => dir.to_owned(),
            _ => dir.join(format!("{}.mnt", kind.name())),
        };
        fs::create_dir_all(&at)?;
        let extant = extant.to_owned();
        let mut side = Self { kind, allow_other, extant, at, image, held: Held::Nothing };
        side.mount()?;
        Ok(side)
    }

    fn options(&self) -> Vec<&'static str> {
        if self.allow_other { vec!["-o", "allow_other"] } else { vec![] }
    }

    pub(super) fn mount(&mut self) -> Result<()> {
        let (before, options) = (device_of(&self.at)?, self.options());
        self.held = match self.kind {
            Kind::Raw => return Ok(()),
            Kind::Ours => {
                let mut command = Command::new(&self.extant);
                command.args(["--quiet", "mount"]).args(options).arg(&self.image).arg(&self.at);
                // The server continues in the background, so do not wait for its output to end.
                if !command.stdin(Stdio::null()).stdout(Stdio::null()).status()?.success() {
                    return Err("extant mount failed".into());
                }
                let mut value = [0; 16];
                let read = rustix::fs::getxattr(&self.at, "system.extant.server", &mut value)?;
                Held::Ours(std::str::from_utf8(&value[..read])?.parse()?)
            }
            Kind::Null => Held::Null(Box::new(self.mount_null()?)),
            Kind::Kernel => {
                let device = LoopDevice::attach(&self.image, &["--direct-io=on"])?;
                let mount = Mount::of_device(&device, &self.at, "ext4")?;
                Held::Kernel { _mount: mount, _device: device }
            }
            Kind::Fuse2fs => {
                let mut command = Command::new("fuse2fs");
                command.arg("-f").args(options).arg(&self.image).arg(&self.at);
                let child =
                    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
                let start = Instant::now();
                while device_of(&self.at)? == before {
                    if start.elapsed() > Duration::from_secs(30) {
                        return Err("fuse2fs has not mounted".into());
                    }
                    std::thread::sleep(PAUSE);
                }
                Held::Fuse2fs(child)
            }
        };
        Ok(())
    }

    fn mount_null(&mut self) -> Result<Null> {
        if let Held::Null(mut null) = std::mem::replace(&mut self.held, Held::Nothing) {
            writeln!(null.input)?;
            null.wait_for_mount()?;
            return Ok(*null);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench", "mount", "null", text(&self.at)]);
        if self.allow_other {
            command.arg("allow_other");
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("a pipe")?;
        let output = BufReader::new(child.stdout.take().ok_or("a pipe")?);
        let mut null = Null { child, input, output };
        null.wait_for_mount()?;
        Ok(null)
    }

    /// Makes everything durable that has been written to the volume.
    pub(super) fn sync(&self) -> Result<()> {
        match self.kind {
            Kind::Ours => run(Command::new(&self.extant).arg("sync").arg(&self.at)).map(drop),
            _ => Ok(rustix::fs::syncfs(File::open(&self.at)?)?),
        }
    }

    /// Unmounts; returns once the volume is clean and durable, and its image is no longer in use.
    pub(super) fn unmount(&mut self) -> Result<()> {
        match &mut self.held {
            Held::Nothing => return Ok(()),
            Held::Ours(_) => drop(run(Command::new(&self.extant).arg("umount").arg(&self.at))?),
            // The null server keeps its files for the next mount.
            Held::Null(_) => return Ok(unmount(&self.at, UnmountFlags::empty())?),
            Held::Kernel { .. } => {}
            Held::Fuse2fs(child) => {
                unmount(&self.at, UnmountFlags::empty())?;
                child.wait()?;
            }
        }
        self.held = Held::Nothing;
        Ok(File::open(&self.image)?.sync_all()?)
    }

    /// Mounts it again, with neither the volume nor its image cached.
    pub(super) fn cool(&mut self) -> Result<()> {
        self.unmount()?;
        if self.image.exists() {
            bed::forget(&self.image)?;
        }
        self.mount()
    }

    /// Unmounts it for good. e2fsck must find our and the kernel's volumes valid.
    pub(super) fn finish(mut self) -> Result<()> {
        self.unmount()?;
        if let Held::Null(null) = std::mem::replace(&mut self.held, Held::Nothing) {
            let Null { mut child, input, .. } = *null;
            drop(input);
            child.wait()?;
            return Ok(());
        }
        match self.kind {
            Kind::Ours | Kind::Kernel => tool("e2fsck", &["-fn", text(&self.image)]),
            _ => Ok(()),
        }
    }

    /// The server's process.
    pub(super) fn server(&self) -> Option<u32> {
        match &self.held {
            Held::Ours(pid) => Some(*pid),
            Held::Null(null) => Some(null.child.id()),
            Held::Fuse2fs(child) => Some(child.id()),
            Held::Nothing | Held::Kernel { .. } => None,
        }
    }

    /// Processor time of the server, and of all programs that have been started and have ended.
    fn processor(&self) -> f64 {
        let server = self.server().map(|pid| ticks(Path::new(&format!("/proc/{pid}/stat")), [14, 15]));
        server.unwrap_or(0.0) + ticks(Path::new("/proc/self/stat"), [16, 17])
    }

    /// Measures some work.
    pub(super) fn took(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<Took> {
        let (before, start) = (self.processor(), Instant::now());
        work(self)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Took { seconds, processor: self.processor() - before })
    }

    /// Runs a shell script in the volume's root directory.
    pub(super) fn shell(&mut self, script: &str) -> Result<Took> {
        let at = self.at.clone();
        self.took(|_| run(Command::new("sh").args(["-ec", script]).current_dir(at)).map(drop))
    }

    /// Runs a step of [`super::steps`] on a path below the root, as root or as another user.
    /// Returns its figures and its processor time.
    pub(super) fn step(&mut self, step: &str, path: &str, count: u64, user: u32) -> Result<(Vec<f64>, f64)> {
        let path = self.at.join(path);
        let mut said = String::new();
        let took = self.took(|_| {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["bench", "mount", "step", step, text(&path), &count.to_string()]);
            if user != 0 {
                command.uid(user).gid(user);
            }
            said = run(&mut command)?;
            Ok(())
        })?;
        let figures = said.split_whitespace().map(str::parse).collect::<std::result::Result<_, _>>()?;
        Ok((figures, took.processor))
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // After an error, do not leave a server behind.
        if !matches!(self.held, Held::Nothing) && self.kind != Kind::Kernel {
            let _ = unmount(&self.at, UnmountFlags::DETACH);
        }
    }
}

fn device_of(at: &Path) -> Result<u64> {
    Ok(fs::metadata(at)?.dev())
}
