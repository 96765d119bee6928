//! Writing to damaged volumes: clear errors, never a panic or a hang, and no additional damage.

mod features;
mod forge;
mod kept;
mod mutate;

pub use forge::forge;
pub use kept::keeps;
pub use mutate::mutate;

use crate::campaign::{self, Profile};
use crate::check::{Fsck, Verdict};
use crate::diff::Generator;
use crate::faults::{WORKLOADS, caught};
use crate::{
    Errno, Filesystem, Image, ImageDevice, Kind, Op, OurVolume, Ours, SlowDevice, Subject, apply, join,
};
use extant_sim::{Machine, Preemption, Sim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Volumes to damage; those without checksums detect less of the damage.
pub const PROFILES: [Profile; 7] = [
    Profile { kib: 4 << 10, ..campaign::PROFILES[0] },
    Profile::new(
        "ext4-no-checksums",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "^metadata_csum"],
        4 << 10,
    ),
    Profile { kib: 4 << 10, ..campaign::PROFILES[4] },
    campaign::UNLOGGED[0],
    Profile::new(
        "ext4-inline",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "inline_data,^metadata_csum"],
        4 << 10,
    ),
    Profile::new(
        "ext4-groups",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-g", "512", "-G", "4"],
        4 << 10,
    )
    .lazy_tables(),
    Profile::new(
        "ext4-groups-no-checksums",
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-g", "512", "-O", "^metadata_csum,^flex_bg,uninit_bg"],
        4 << 10,
    )
    .lazy_tables(),
];

/// Operations tried on a damaged volume.
const TRIES: usize = 60;
/// Maximum names visited by a walk over a damaged volume.
const NAMES_MAX: usize = 2000;

/// Outcome of a run on a damaged volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Opening was refused.
    Refused,
    /// The volume was written to, and closed or shut down.
    Written,
}

/// A volume to damage.
#[derive(Debug)]
pub struct Victim {
    image: Image,
}

impl Victim {
    /// A volume of this kind, with a few files of every sort.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new(profile: Profile) -> Result<Self, String> {
        let base = profile.make().map_err(|error| error.to_string())?;
        let disk = Arc::new(ImageDevice::new(base.image));
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let mut volume = OurVolume::open(sim.rt(), disk.clone()).map_err(|error| error.to_string())?;
        // Large values need a feature that none of these volumes has.
        let workloads = WORKLOADS.iter().filter(|workload| workload.name != "values");
        for op in workloads.flat_map(|workload| workload.ops(1).0) {
            let _ = apply(&mut volume, &op);
        }
        volume.close().map_err(|error| error.to_string())?;
        Ok(Self { image: disk.image() })
    }

    /// Its bytes.
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Damages the volume as determined by the seed, and writes to it.
    ///
    /// # Errors
    /// Those of [`check`]; the message starts with the damage.
    pub fn check(&self, seed: u64, fsck: Option<&Fsck>) -> Result<End, String> {
        let mut bytes = self.image.to_vec();
        let changes = mutate(&mut bytes, seed);
        check(&Image::new(bytes.into()), seed, fsck).map_err(|words| format!("after {changes:#?}:\n{words}"))
    }
}

/// Writes to a damaged volume. Files that e2fsck found before, and that no operation named, must
/// still be found. A volume that cannot be opened keeps its bytes, except for journal replay.
///
/// # Errors
/// A panic, a deadlock, an errno that does not fit the operation, or additional damage.
pub fn check(image: &Image, seed: u64, fsck: Option<&Fsck>) -> Result<End, String> {
    let disk = Arc::new(ImageDevice::new(image.clone()));
    let touched = caught(|| write(disk.clone(), seed))?;
    let end = if touched.is_some() { End::Written } else { End::Refused };
    let is_same = disk.image().hash() == image.hash();
    if end == End::Refused && !is_same && !features::is_recovered(image) {
        return Err("the volume was refused, had nothing to be recovered, and is not as it was".into());
    }
    let Some(fsck) = fsck.filter(|_| !is_same) else { return Ok(end) };
    let Ok(before) = fsck.mend(image) else { return Ok(end) };
    let after = match fsck.mend(&disk.image()) {
        Ok(after) => after,
        // On a volume too full for `lost+found`, e2fsck itself leaves errors.
        Err(error) if error.to_string().contains("Cannot allocate space for /lost+found") => return Ok(end),
        Err(error) => return Err(format!("e2fsck can no longer repair it: {error}")),
    };
    if !features::has_checksums(image) && is_misleading(fsck, image)? {
        return Ok(end);
    }
    let ours = Ours::new(1);
    let (Ok(before), Ok(after)) = (ours.recover(&before), ours.recover(&after)) else { return Ok(end) };
    let touched = touched.unwrap_or_default();
    for (path, found) in before.tree.nodes.iter().filter(|(_, found)| found.stat.kind == Kind::File) {
        let is_touched =
            touched.paths.iter().any(|touched| path == touched || path.starts_with(&format!("{touched}/")))
                || touched.inodes.contains(&found.stat.inode);
        // If a directory on the path is beyond repair, e2fsck moves the file to `lost+found` under
        // its number.
        let lost = format!("lost+found/#{}", found.stat.inode);
        let is_kept = |path: &str| after.tree.nodes.get(path).is_some_and(|after| *after.data == *found.data);
        if !is_touched && !is_kept(path) && !is_kept(&lost) {
            let now = after.tree.nodes.get(path).map(|after| after.data.len());
            return Err(format!(
                "/{path} had {} bytes and was named by no operation, now {now:?}",
                found.data.len()
            ));
        }
    }
    Ok(end)
}

/// Whether the damage misleads a file system into writing to blocks or inodes in use, in a way that
/// only checksums could reveal.
fn is_misleading(fsck: &Fsck, image: &Image) -> Result<bool, String> {
    const WORDS: [&str; 5] = [
        "Multiply-claimed",
        "bitmap differences",
        "conflicts with",
        // A file's blocks are in use, but its inode or directory says otherwise.
        "deleted/unused inode",
        "zero dtime",
    ];
    let verdict = fsck.check(image).map_err(|error| error.to_string())?;
    Ok(matches!(verdict, Verdict::Complains(said) if WORDS.iter().any(|word| said.contains(word))))
}

/// Paths and inodes named by operations, and inodes of files that were unreadable before.
#[derive(Default)]
struct Touched {
    paths: BTreeSet<String>,
    inodes: BTreeSet<u64>,
}

/// Opens, changes and closes a damaged volume; `None` if opening is refused.
fn write(disk: Arc<ImageDevice>, seed: u64) -> Result<Option<Touched>, String> {
    let sim = Sim::new(Machine::free(1, Preemption::None), seed);
    let device = Arc::new(SlowDevice::new(&sim, disk, seed));
    let mut volume = match OurVolume::open(sim.rt(), device) {
        Ok(volume) => volume,
        Err(error) => {
            let errno = Errno::from_raw_os_error(error.errno());
            // An unsupported feature, or a volume without a journal that was not closed.
            let fits = is_damage(errno) || [Errno::OPNOTSUPP, Errno::INVAL].contains(&errno);
            return if fits { Ok(None) } else { Err(format!("opening: {errno:?}: {error}")) };
        }
    };
    let Walk { known, damaged } = walk(&mut volume)?;
    let mut generator = Generator::over(seed, known.iter().map(|(path, &(kind, _))| (path.clone(), kind)));
    generator.holds = false;
    // A damaged map may lead to blocks that nothing else marks as in use.
    let mut touched = Touched { inodes: damaged, ..Touched::default() };
    for op in generator.take(TRIES) {
        for path in op.paths() {
            touched.inodes.extend(known.get(path).map(|&(_, inode)| inode));
            // The path may be below a renamed directory, with a link that the walk found elsewhere.
            touched.inodes.extend(volume.stat(path).ok().map(|stat| stat.inode));
            touched.paths.insert(path.to_owned());
        }
        if matches!(op, Op::Symlink { .. }) {
            continue;
        }
        match apply(&mut volume, &op) {
            Err(errno) if !is_damage(errno) && !fits(errno, &op) => {
                return Err(format!("{op} was answered with {errno:?}"));
            }
            _ => {}
        }
    }
    let _ = volume.close();
    Ok(Some(touched))
}

/// Whether an errno reports damage, no space, or a volume that has shut down writing.
fn is_damage(errno: Errno) -> bool {
    [Errno::IO, Errno::UCLEAN, Errno::BADMSG, Errno::ROFS, Errno::NOSPC].contains(&errno)
}

/// Whether a sound volume may return this errno for one of the generator's operations; because of
/// damage, a path may lead anywhere.
fn fits(errno: Errno, op: &Op) -> bool {
    // Errnos of path resolution, and of flags and file types that damage can set.
    const ANY: [Errno; 10] = [
        Errno::NOENT,
        Errno::NOTDIR,
        Errno::NAMETOOLONG,
        Errno::LOOP,
        Errno::PERM,
        Errno::ISDIR,
        Errno::INVAL,
        Errno::OPNOTSUPP,
        // A special file cannot be opened.
        Errno::NXIO,
        // Damage may mark a file as encrypted.
        Errno::NOKEY,
    ];
    ANY.contains(&errno)
        || match op {
            Op::Create { .. } | Op::Mkdir { .. } | Op::Mknod { .. } => errno == Errno::EXIST,
            Op::Link { .. } => [Errno::EXIST, Errno::MLINK].contains(&errno),
            Op::Rmdir { .. } => errno == Errno::NOTEMPTY,
            Op::Rename { .. } => [Errno::EXIST, Errno::NOTEMPTY, Errno::MLINK].contains(&errno),
            Op::SetXattr { .. } => {
                [Errno::EXIST, Errno::NODATA, Errno::ACCESS, Errno::RANGE, Errno::TOOBIG].contains(&errno)
            }
            Op::RemoveXattr { .. } => errno == Errno::NODATA,
            // An inode with a block map has a smaller size limit.
            Op::Truncate { .. } | Op::Write { .. } => errno == Errno::FBIG,
            _ => false,
        }
}

/// Findings of a walk.
struct Walk {
    known: BTreeMap<String, (Kind, u64)>,
    /// Inodes of files that cannot be read.
    damaged: BTreeSet<u64>,
}

/// Visits all files and directories that can be found.
fn walk(volume: &mut OurVolume) -> Result<Walk, String> {
    // A name that leads to a free inode is damage too.
    let fits = |errno| is_damage(errno) || [Errno::OPNOTSUPP, Errno::NOKEY].contains(&errno);
    let clear = |call: &str, path: &str, errno: Errno| match fits(errno) {
        true => Ok(()),
        false => Err(format!("{call} /{path}: {errno:?}")),
    };
    let (mut known, mut damaged) = (BTreeMap::new(), BTreeSet::new());
    let mut todo = vec![String::new()];
    let mut dirs = BTreeSet::new();
    while let Some(path) = todo.pop() {
        let stat = match volume.stat(&path) {
            Ok(stat) => stat,
            // A damaged hash tree may hide a name that a scan finds, from Linux as well.
            Err(Errno::NOENT) => continue,
            Err(errno) => {
                clear("stat", &path, errno)?;
                continue;
            }
        };
        if !matches!(stat.kind, Kind::File | Kind::Dir) || known.len() >= NAMES_MAX {
            continue;
        }
        known.insert(path.clone(), (stat.kind, stat.inode));
        if stat.kind == Kind::Dir && dirs.insert(stat.inode) {
            match volume.list(&path) {
                Ok(names) => todo.extend(names.iter().map(|name| join(&path, name))),
                // Names need not be UTF-8.
                Err(Errno::ILSEQ) => {}
                Err(errno) => clear("readdir", &path, errno)?,
            }
        } else if stat.kind == Kind::File && stat.size < 1 << 24 {
            if let Err(errno) = volume.read(&path) {
                clear("read", &path, errno)?;
                damaged.insert(stat.inode);
            }
            match volume.xattrs(&path) {
                Ok(_) | Err(Errno::ILSEQ) => {}
                Err(errno) => clear("listxattr", &path, errno)?,
            }
        }
    }
    Ok(Walk { known, damaged })
}
