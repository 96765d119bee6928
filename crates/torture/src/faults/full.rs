//! Volumes that are full except for a few blocks or inodes: an operation that finds no room must
//! not change anything.

use super::caught;
use crate::campaign::Profile;
use crate::check::{Fsck, Verdict};
use crate::diff::Generator;
use crate::{
    Errno, Filesystem, Image, ImageDevice, Model, Op, OurVolume, Ours, SlowDevice, Subject, Tree, apply,
};
use extant_sim::{Machine, Preemption, Sim};
use std::sync::Arc;

/// The resource that runs out, and how much of it is left.
#[derive(Clone, Copy, Debug)]
pub enum Scarce {
    /// Free blocks.
    Blocks(u64),
    /// Free inodes.
    Inodes(u64),
}

/// A volume to fill.
#[derive(Debug)]
pub struct Full {
    image: Image,
    block_bytes: u64,
    ours: Ours,
    fsck: Option<Fsck>,
}

/// Volumes small enough to fill quickly.
pub(super) const TINY: [Profile; 8] = [
    Profile::new("tiny-ext4", &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1"], 4 << 10),
    Profile::new("tiny-ext3", &["-t", "ext3", "-b", "1024", "-J", "size=1"], 4 << 10),
    Profile::new("tiny-ext2", &["-t", "ext2", "-b", "1024"], 600),
    Profile::new(
        "tiny-groups",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-g", "512", "-G", "4"],
        4 << 10,
    )
    .lazy_tables(),
    Profile::new(
        "tiny-inline",
        &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1", "-g", "512", "-O", "inline_data,^flex_bg"],
        4 << 10,
    )
    .lazy_tables(),
    Profile::new("tiny-data-journal", &["-t", "ext4", "-b", "1024", "-I", "256", "-J", "size=1"], 4 << 10)
        .tuned(&["-o", "journal_data"]),
    TINY_BIGALLOC,
    Profile { name: "tiny-bigalloc-data-journal", ..TINY_BIGALLOC }.tuned(&["-o", "journal_data"]),
];

const TINY_BIGALLOC: Profile = Profile::new(
    "tiny-bigalloc",
    &["-t", "ext4", "-b", "1024", "-C", "4096", "-I", "256", "-J", "size=1", "-O", "bigalloc"],
    4 << 10,
);

/// Operations tried on a full volume.
const TRIES: usize = 60;

impl Full {
    /// The tiny volumes.
    pub const PROFILES: [Profile; 8] = TINY;

    /// A volume of this kind.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn new(profile: Profile) -> Result<Self, String> {
        let base = profile.make().map_err(|error| error.to_string())?;
        let fsck = match Fsck::is_installed() {
            true => Some(Fsck::new().map_err(|error| error.to_string())?),
            false => None,
        };
        Ok(Self { image: base.image, block_bytes: base.block_bytes, ours: Ours::new(1), fsck })
    }

    /// Fills the volume, and tries random operations on it. Returns how many found no room.
    ///
    /// # Errors
    /// A panic, a wrong count of free space, or an operation that failed but took partial effect.
    pub fn check(&self, scarce: Scarce, seed: u64) -> Result<u64, String> {
        caught(|| self.fill_and_try(scarce, seed))
    }

    fn fill_and_try(&self, scarce: Scarce, seed: u64) -> Result<u64, String> {
        let sim = Sim::new(Machine::free(1, Preemption::None), seed);
        let disk = Arc::new(ImageDevice::new(self.image.clone()));
        let device = Arc::new(SlowDevice::new(&sim, disk.clone(), seed));
        let mut volume = OurVolume::open(sim.rt(), device).map_err(|error| error.to_string())?;
        let mut generator = Generator::new(seed);
        (generator.holds, generator.longest_write) = (false, 6000);
        for op in generator.take(60) {
            let _ = apply(&mut volume, &op);
        }
        self.fill(&mut volume, scarce).map_err(|errno| format!("the volume cannot be filled: {errno}"))?;
        let mut model = Model::new(&Tree::of(&mut volume).map_err(|error| error.to_string())?);
        let mut refused = 0;
        for op in generator.take(TRIES) {
            let before = volume.free();
            let answer = apply(&mut volume, &op);
            if answer == Err(Errno::NOSPC) {
                refused += 1;
                // Reservations for delayed data may have become smaller.
                let after = volume.free();
                if after.0 < before.0 || after.1 < before.1 {
                    return Err(format!(
                        "{op} found no room, but free space went from {before:?} to {:?}",
                        volume.free()
                    ));
                }
            }
            model.record(&op, answer)?;
        }
        volume.sync().map_err(|errno| format!("no room for acknowledged data: {errno}"))?;
        let free = volume.free();
        volume.close().map_err(|error| format!("close: {error}"))?;
        let image = disk.image();
        if let Some(fsck) = &self.fsck
            && let Verdict::Complains(words) = fsck.check(&image).map_err(|error| error.to_string())?
        {
            return Err(words);
        }
        let word = |at: usize| {
            let mut bytes = [0; 4];
            image.read(1024 + at, &mut bytes);
            u64::from(u32::from_le_bytes(bytes))
        };
        // s_free_blocks_count and s_free_inodes_count.
        if (word(0x0c), word(0x10)) != free {
            return Err(format!("statfs said {free:?}, the volume has {:?}", (word(0x0c), word(0x10))));
        }
        let wrong = model.compare_now(&self.ours.recover(&image)?.tree);
        if wrong.is_empty() { Ok(refused) } else { Err(wrong.join("\n  ")) }
    }

    fn fill(&self, volume: &mut OurVolume, scarce: Scarce) -> Result<(), Errno> {
        match scarce {
            Scarce::Blocks(left) => {
                volume.create("filler", 0o644, true)?;
                let mut size = 0;
                for piece in [64 * self.block_bytes, self.block_bytes] {
                    loop {
                        let op = Op::write("filler", size, piece, 1);
                        match apply(volume, &op) {
                            Ok(count) if count == piece => size += count,
                            Ok(count) => {
                                size += count;
                                break;
                            }
                            Err(Errno::NOSPC) => break,
                            Err(other) => return Err(other),
                        }
                    }
                }
                let blocks = size / self.block_bytes;
                volume.truncate("filler", blocks.saturating_sub(left) * self.block_bytes)?;
            }
            Scarce::Inodes(left) => {
                volume.mkdir("fill", 0o755)?;
                let mut made = 0;
                loop {
                    match volume.create(&format!("fill/{made}"), 0o644, true) {
                        Ok(()) => made += 1,
                        Err(Errno::NOSPC) => break,
                        Err(other) => return Err(other),
                    }
                }
                for n in 0..left.min(made) {
                    volume.unlink(&format!("fill/{n}"))?;
                }
            }
        }
        volume.sync()
    }
}
