//! The same random operations on our volume, on the kernel's ext4 and on tmpfs: results and trees
//! must be equal, and e2fsck and the kernel must see the same volume.
//!
//! A failure prints the seed, and the shortest sequence that shows it; `EXTANT_SEED=<seed>
//! EXTANT_ROUNDS=1` replays it.

use extant_rt::{RealConfig, Rt};
use extant_testbed::{Mount, can_mount, have};
use extant_torture::campaign::Profile;
use extant_torture::check::{Fsck, LoopMount, Verdict};
use extant_torture::diff::{Generator, compare, shrink};
use extant_torture::{Host, Image, ImageDevice, Op, OurVolume, Special, Subject, Tree};
use std::path::PathBuf;
use std::sync::Arc;

const LARGE: Profile =
    Profile::new("large", &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=4"], 48 << 10);

/// A directory of the host: on a fresh kernel ext4, or in memory.
struct Place {
    root: PathBuf,
    // The order matters: unmount before the folder is deleted.
    _mount: Option<Mount>,
    _folder: tempfile::TempDir,
}

impl Place {
    fn memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let root = folder.path().to_owned();
        Self { root, _mount: None, _folder: folder }
    }

    fn kernel(image: &Image) -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let (file, root) = (folder.path().join("image"), folder.path().join("mount"));
        std::fs::write(&file, image.to_vec()).unwrap();
        let mount = Mount::new(&file, &root, "noatime");
        Self { root, _mount: Some(mount), _folder: folder }
    }

    fn host(&self) -> Host {
        Host::new(&self.root).unwrap()
    }
}

/// The difference between our volume and a host directory, and the volume afterwards.
fn differs(base: &Image, place: &Place, ops: &[Op]) -> (Option<String>, Image) {
    let rt = Rt::real(RealConfig::default());
    let disk = Arc::new(ImageDevice::new(base.clone()));
    let mut ours = OurVolume::open(&rt, disk.clone()).unwrap();
    let mut host = place.host();
    // A volume has this directory, tmpfs does not.
    let (_, _) = (ours.rmdir("lost+found"), host.rmdir("lost+found"));
    host.chmod("", 0o755).unwrap();
    let found = compare(&mut ours, &mut host, ops).map(|difference| difference.to_string());
    let closed = ours.close().err().map(|error| format!("close: {error}"));
    (found.or(closed), disk.image())
}

fn agree(base: &Image, place: impl Fn() -> Place, seed: u64, ops: &[Op]) -> Image {
    let (found, image) = differs(base, &place(), ops);
    if let Some(first) = found {
        let short = shrink(ops, |ops| differs(base, &place(), ops).0.is_some());
        let last = differs(base, &place(), &short).0.unwrap_or(first);
        let lines: Vec<String> = short.iter().map(Op::to_string).collect();
        panic!("EXTANT_SEED={seed}: ours on the left: {last}\n{}", lines.join("\n"));
    }
    image
}

#[test]
fn answers_and_trees_are_the_kernel_s() {
    if !have(&["mke2fs", "e2fsck"]) || !can_mount() {
        return;
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let (first, rounds) = (number("EXTANT_SEED").unwrap_or(1), number("EXTANT_ROUNDS").unwrap_or(3));
    let (fsck, mount) = (Fsck::new().unwrap(), LoopMount::new().unwrap());
    let base = LARGE.make().unwrap().image;
    for seed in first..first + rounds {
        let mut generator = Generator::new(seed);
        (generator.freezes, generator.capabilities) = (true, true);
        generator.names = 12 + 40 * (seed % 2);
        let mut ops = generator.take(600);
        // Opening a pipe or a device does not involve the volume.
        ops.iter_mut().for_each(|op| {
            match op {
                Op::Create { exclusive, .. } => *exclusive = true,
                // Linux opens a FIFO for reading and writing.
                Op::Mknod { special: special @ Special::Fifo, .. } => *special = Special::Socket,
                _ => {}
            }
        });
        let image = agree(&base, || Place::kernel(&base), seed, &ops);
        assert_eq!(fsck.check(&image).unwrap(), Verdict::Clean, "EXTANT_SEED={seed}");
        let rt = Rt::real(RealConfig::default());
        let mut ours = OurVolume::open(&rt, Arc::new(ImageDevice::new(image.clone()))).unwrap();
        let (ours, theirs) = (Tree::of(&mut ours).unwrap(), mount.tree(&image).unwrap().unwrap());
        assert_eq!(ours.differences(&theirs), [""; 0], "EXTANT_SEED={seed}");
        // tmpfs does not limit attributes to a block, and lacks some flags.
        let is_limited =
            |op: &Op| matches!(op, Op::SetXattr { .. } | Op::RemoveXattr { .. } | Op::SetFlags { .. });
        let ops: Vec<Op> = ops.into_iter().filter(|op| !is_limited(op)).collect();
        agree(&base, Place::memory, seed, &ops);
    }
}
