//! Writing to damaged volumes: a clear error, never a panic or a hang, and no more damage than there was.

mod mutate;

pub use mutate::mutate;

use crate::campaign::{self, Profile};
use crate::check::Fsck;
use crate::diff::Generator;
use crate::faults::{WORKLOADS, caught};
use crate::{
    Errno, Filesystem, Image, ImageDevice, Kind, Op, OurVolume, Ours, SlowDevice, Subject, Tree, apply, join,
};
use extant_sim::{Machine, Preemption, Sim};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Volumes to be damaged; those without checksums let more of it through.
pub const PROFILES: [Profile; 5] = [
    Profile { kib: 4 << 10, ..campaign::PROFILES[0] },
    Profile {
        name: "ext4-no-checksums",
        mke2fs: &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-O", "^metadata_csum"],
        kib: 4 << 10,
    },
    Profile { kib: 4 << 10, ..campaign::PROFILES[4] },
    campaign::UNLOGGED[0],
    Profile {
        name: "ext4-inline",
        mke2fs: &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "256",
            "-J",
            "size=1",
            "-O",
            "inline_data,^metadata_csum",
        ],
        kib: 4 << 10,
    },
];

/// Operations on a damaged volume.
const TRIES: usize = 60;
/// Names that a walk over a damaged volume looks at.
const NAMES_MAX: usize = 2000;

/// The end of a run on a damaged volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It was not opened.
    Refused,
    /// It was written to, and closed or latched.
    Written,
}

/// A volume to be damaged.
#[derive(Debug)]
pub struct Victim {
    image: Image,
    tree: Tree,
    has_checksums: bool,
}

impl Victim {
    /// A volume of this kind with a bit of everything.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(profile: Profile) -> Result<Self, String> {
        let base = profile.make().map_err(|error| error.to_string())?;
        let ours = Ours::new(1);
        let disk = Arc::new(ImageDevice::new(base.image));
        let sim = Sim::new(Machine::free(1, Preemption::None), 1);
        let mut volume = OurVolume::open(sim.rt(), disk.clone()).map_err(|error| error.to_string())?;
        for op in WORKLOADS.iter().flat_map(|workload| workload.ops(1).0) {
            let _ = apply(&mut volume, &op);
        }
        volume.close().map_err(|error| error.to_string())?;
        let (image, has_checksums) = (disk.image(), profile.name == "ext4");
        Ok(Self { tree: ours.recover(&image)?.tree, image, has_checksums })
    }

    /// Damages the volume as the seed says and writes to it.
    ///
    /// # Errors
    /// A panic, a deadlock, or more damage than there was; the damage itself comes first.
    pub fn check(&self, seed: u64, fsck: Option<&Fsck>) -> Result<End, String> {
        let mut bytes = self.image.to_vec();
        let changes = mutate(&mut bytes, seed);
        let intact = self.has_checksums.then_some(&self.tree);
        check(&Image::new(bytes.into()), intact, seed, fsck)
            .map_err(|words| format!("after {changes:#?}:\n{words}"))
    }
}

/// Writes to a damaged volume. `intact` is its tree before it was damaged, if checksums tell damage from what is good: files
/// of it that no operation named must still be there.
///
/// # Errors
/// As [`Victim::check`].
pub fn check(image: &Image, intact: Option<&Tree>, seed: u64, fsck: Option<&Fsck>) -> Result<End, String> {
    let disk = Arc::new(ImageDevice::new(image.clone()));
    let touched = caught(|| Ok(write(disk.clone(), seed)))?;
    let end = if touched.is_some() { End::Written } else { End::Refused };
    let (Some(fsck), Some(touched)) = (fsck, touched) else {
        // An orphan may have been finished, a journal replayed: nothing else.
        return Ok(end);
    };
    let Ok(before) = fsck.mend(image) else { return Ok(end) };
    let after = match fsck.mend(&disk.image()) {
        Ok(after) => after,
        // e2fsck leaves a volume that is too full for `lost+found` with errors of its own.
        Err(error) if error.to_string().contains("Cannot allocate space for /lost+found") => return Ok(end),
        Err(error) => return Err(format!("e2fsck cannot mend it any more: {error}")),
    };
    let Some(intact) = intact else { return Ok(end) };
    let ours = Ours::new(1);
    let (Ok(before), Ok(after)) = (ours.recover(&before), ours.recover(&after)) else { return Ok(end) };
    let same =
        |tree: &Tree, path: &str, data: &[u8]| tree.nodes.get(path).is_some_and(|found| *found.data == *data);
    for (path, found) in intact.nodes.iter().filter(|(_, found)| found.stat.kind == Kind::File) {
        let is_touched =
            touched.paths.iter().any(|touched| path == touched || path.starts_with(&format!("{touched}/")))
                || touched.inodes.contains(&found.stat.inode);
        if !is_touched && same(&before.tree, path, &found.data) && !same(&after.tree, path, &found.data) {
            return Err(format!("/{path} was intact and is not any more"));
        }
    }
    Ok(end)
}

/// Paths and inodes that operations named.
#[derive(Default)]
struct Touched {
    paths: BTreeSet<String>,
    inodes: BTreeSet<u64>,
}

/// Opens, changes and closes a damaged volume; `None` if it is refused.
fn write(disk: Arc<ImageDevice>, seed: u64) -> Option<Touched> {
    let sim = Sim::new(Machine::free(1, Preemption::None), seed);
    let device = Arc::new(SlowDevice::new(&sim, disk, seed));
    let mut volume = OurVolume::open(sim.rt(), device).ok()?;
    let known = walk(&mut volume);
    let mut generator = Generator::over(seed, known.iter().map(|(path, &(kind, _))| (path.clone(), kind)));
    generator.holds = false;
    let mut touched = Touched::default();
    for op in generator.take(TRIES) {
        for path in op.paths() {
            touched.inodes.extend(known.get(path).map(|&(_, inode)| inode));
            touched.paths.insert(path.to_owned());
        }
        if matches!(op, Op::Symlink { .. }) {
            continue;
        }
        let _: Result<u64, Errno> = apply(&mut volume, &op);
    }
    let _ = volume.close();
    Some(touched)
}

/// Files and directories as far as they can be found.
fn walk(volume: &mut OurVolume) -> BTreeMap<String, (Kind, u64)> {
    let mut known = BTreeMap::new();
    let mut todo = vec![String::new()];
    let mut dirs = BTreeSet::new();
    while let Some(path) = todo.pop() {
        let Ok(stat) = volume.stat(&path) else { continue };
        if !matches!(stat.kind, Kind::File | Kind::Dir) || known.len() >= NAMES_MAX {
            continue;
        }
        known.insert(path.clone(), (stat.kind, stat.inode));
        if stat.kind == Kind::Dir && dirs.insert(stat.inode) {
            let names = volume.list(&path).unwrap_or_default();
            todo.extend(names.iter().map(|name| join(&path, name)));
        } else if stat.kind == Kind::File && stat.size < 1 << 24 {
            let _ = volume.read(&path);
            let _ = volume.xattrs(&path);
        }
    }
    known
}
