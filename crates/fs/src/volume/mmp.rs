//! Multiple-mount protection: a block of the volume counts while the volume is written, so that no second host writes it.
//!
//! Kernel document: *Multiple Mount Protection*. A block that says "clean" is taken at once; one that counts is looked at again
//! after twice the interval of its writer and a second, and belongs to a crash if it has not moved. A writer that takes
//! it writes a number of its own and looks again before it writes anything else, then goes on counting until the volume is closed.

use crate::names::Namespace;
use crate::{Error, Result, quote};
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment};
use extant_format::{Incompat, MMP_SEQUENCE_MAX, Mmp, MmpState, Superblock, VolumeBlock};
use extant_rt::{Class, Nanos, Rt, TaskMutex, WaitConfig, WaitTable};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};

/// The shortest interval that a volume waits for (`EXT4_MMP_MIN_CHECK_INTERVAL`), and the default of its writers.
const INTERVAL_MIN_S: u16 = 5;
/// The longest that an interval adds to a wait (`ext4_multi_mount_protect`).
const WAIT_MORE_MAX_S: u64 = 60;
/// The name in the block: a library does not know its host's.
const USER: &[u8] = b"extant";

/// A volume's protection block, which counts until it is released or the last of these is dropped.
#[derive(Clone, Debug)]
pub(super) struct Protection {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    rt: Rt,
    device: Arc<dyn Device>,
    sb: Superblock,
    /// Held while the block is read and written.
    count: TaskMutex<Count>,
    /// Why the count has ended.
    lost: Mutex<Option<Error>>,
    /// The volume that stops being written when the block is another's.
    namespace: OnceLock<Weak<Namespace>>,
}

#[derive(Debug)]
struct Count {
    /// The block as it was written last, or read since.
    block: Mmp,
    /// The state of a write that failed: the block may have it instead.
    perhaps: Option<MmpState>,
    /// When the block was known to be ours.
    known: Nanos,
}

impl Count {
    /// Whether a state of the block is this writer's.
    fn has(&self, state: MmpState) -> bool {
        state == self.block.state() || Some(state) == self.perhaps
    }
}

impl Protection {
    /// Takes the volume for this writer, at `time` in seconds since 1970; `None` for volumes without protection.
    ///
    /// # Errors
    /// [`Error::InUse`]: a mount or a checker uses the volume, which may take some seconds to tell; a damaged block.
    pub(super) async fn hold(
        rt: &Rt,
        device: &Arc<dyn Device>,
        sb: &Superblock,
        time: i64,
    ) -> Result<Option<Self>> {
        if !sb.incompat().contains(Incompat::MMP) {
            return Ok(None);
        }
        let found = read(device, sb).await?;
        let interval = sb.raw().s_mmp_update_interval.get().max(INTERVAL_MIN_S);
        let checked = u64::from(found.check_interval_s().max(interval));
        let wait = Nanos::from_secs((2 * checked + 1).min(checked + WAIT_MORE_MAX_S));
        let mut is_left = false;
        match found.state() {
            MmpState::Clean => {}
            MmpState::Checking => return Err(in_use(&found)),
            MmpState::Mounted(_) => {
                rt.sleep(wait).await;
                let later = read(device, sb).await?;
                if later.state() != found.state() {
                    return Err(in_use(&later));
                }
                is_left = true;
            }
        }
        let first = rt.rng(&format!("mmp {}", rt.now().0)).below(u64::from(MMP_SEQUENCE_MAX) + 1) as u32;
        let ours = found
            .with_user(USER, device.limits().name.as_bytes(), interval.saturating_mul(2))
            .with_state(MmpState::Mounted(first), time.cast_unsigned());
        write(device, sb, &ours).await?;
        if is_left {
            // Another host may have waited as long for the same crash.
            rt.sleep(wait).await;
        }
        let later = read(device, sb).await?;
        if later.state() != ours.state() {
            return Err(in_use(&later));
        }
        let (lost, namespace) = Default::default();
        let (device, sb) = (device.clone(), sb.clone());
        let count = Count { block: ours, perhaps: None, known: rt.now() };
        let waits = WaitConfig { bucket_bits: 1, ..WaitConfig::new("multiple-mount protection") };
        let count = TaskMutex::new(&Arc::new(WaitTable::new(rt, waits)), count);
        let held = Arc::new(Held { rt: rt.clone(), device, sb, count, lost, namespace });
        let (rt, weak) = (rt.clone(), Arc::downgrade(&held));
        let update = Nanos::from_secs(interval.into());
        let count = async move {
            loop {
                rt.sleep(update).await;
                let Some(held) = weak.upgrade() else { break };
                if !held.count().await {
                    break;
                }
            }
        };
        drop(held.rt.spawn("multiple-mount protection", Class::Normal, count));
        Ok(Some(Self { held }))
    }

    /// Fails if the block has become another's.
    pub(super) fn check(&self) -> Result<()> {
        self.held.lost.lock().clone().map_or(Ok(()), Err)
    }

    /// Names the volume whose writing ends when the block becomes another's.
    pub(super) fn tell(&self, namespace: &Arc<Namespace>) {
        let _ = self.held.namespace.set(Arc::downgrade(namespace));
    }

    /// Says that the volume is not in use any more, at `time` in seconds since 1970. Everything else is written.
    ///
    /// # Errors
    /// The block is another's, or cannot be written.
    pub(super) async fn release(&self, time: i64) -> Result<()> {
        let held = &*self.held;
        let mut count = held.count.lock().await;
        self.check()?;
        *held.lost.lock() = Some(Error::ReadOnly);
        count.block = count.block.clone().with_state(MmpState::Clean, time.cast_unsigned());
        write(&held.device, &held.sb, &count.block).await
    }
}

impl Held {
    /// Counts on; `false` once the block is released or another's.
    async fn count(&self) -> bool {
        let mut count = self.count.lock().await;
        if self.lost.lock().is_some() || self.namespace().is_some_and(|volume| has_ended(&volume)) {
            return false;
        }
        let Err(error) = self.count_on(&mut count).await else { return true };
        *self.lost.lock() = Some(error.clone());
        if let Some(volume) = self.namespace() {
            volume.writer.journal.latch(error);
        }
        false
    }

    /// Writes the next number. A device that fails leaves it to the next round, but not for longer than the interval after which
    /// another host may begin to take the block for one that a crash left.
    ///
    /// # Errors
    /// The block is another's, damaged, or has been out of reach for too long: nothing more may be written.
    async fn count_on(&self, count: &mut Count) -> Result<()> {
        let failed = match self.write_next(count).await {
            Err(Error::Io(error)) => Error::Io(error),
            other => return other,
        };
        let interval = Nanos::from_secs(count.block.check_interval_s().into());
        if self.rt.now() - count.known > interval {
            return Err(failed);
        }
        // The write's outcome is unknown: the block has this number or the one before. With any other it is another's, which had
        // the time to take it while this host waited for the device.
        let now = self.rt.now();
        match read(&self.device, &self.sb).await {
            Ok(found) if count.has(found.state()) => {
                (count.block, count.perhaps, count.known) = (found, None, now);
                Ok(())
            }
            Ok(found) => Err(in_use(&found)),
            Err(Error::Io(_)) => Ok(()),
            Err(damaged) => Err(damaged),
        }
    }

    async fn write_next(&self, count: &mut Count) -> Result<()> {
        let found = read(&self.device, &self.sb).await?;
        if !count.has(found.state()) {
            return Err(in_use(&found));
        }
        let MmpState::Mounted(number) = found.state() else { return Err(Error::Defect) };
        let next = MmpState::Mounted(if number >= MMP_SEQUENCE_MAX { 1 } else { number + 1 });
        let written = found.clone().with_state(next, self.rt.wall_clock().cast_unsigned());
        (count.block, count.perhaps) = (found, Some(next));
        let now = self.rt.now();
        write(&self.device, &self.sb, &written).await?;
        (count.block, count.perhaps, count.known) = (written, None, now);
        Ok(())
    }

    fn namespace(&self) -> Option<Arc<Namespace>> {
        self.namespace.get().and_then(Weak::upgrade)
    }
}

/// Whether nothing is written to a volume any more.
fn has_ended(volume: &Namespace) -> bool {
    volume.writer.journal.failure().is_some()
}

fn in_use(mmp: &Mmp) -> Error {
    let by = if mmp.state() == MmpState::Checking { "a checker" } else { "a mount" };
    Error::InUse { by: by.into(), host: quote(mmp.host()) }
}

/// The block's number and its first sector.
fn place(sb: &Superblock) -> (VolumeBlock, Sector) {
    let number = sb.raw().s_mmp_block.get();
    let sectors = u64::from(sb.block_size().bytes()) / Sector::BYTES;
    (VolumeBlock(number), Sector(number.saturating_mul(sectors)))
}

/// Reads the block from the device, past every cache: another host writes it.
async fn read(device: &Arc<dyn Device>, sb: &Superblock) -> Result<Mmp> {
    let (number, start) = place(sb);
    let block = extant_block::read(&**device, start, sb.block_size().byte_len()).await?;
    let mmp = Mmp::parse(&block, number)?;
    if let Some(seed) = sb.checksum_seed() {
        mmp.verify_checksum(seed)?;
    }
    Ok(mmp)
}

async fn write(device: &Arc<dyn Device>, sb: &Superblock, mmp: &Mmp) -> Result<()> {
    let mut block = Buf::zeroed(sb.block_size().byte_len());
    mmp.write_to(&mut block, sb.checksum_seed());
    let mut bio = Bio::new(Op::Write, place(sb).1, vec![Segment::from(block)]);
    bio.flags = BioFlags::SYNC | BioFlags::META | BioFlags::FUA;
    Ok(extant_block::execute(&**device, bio).await.1?)
}
