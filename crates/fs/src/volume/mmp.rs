//! Multiple-mount protection: a counter in a block of the volume runs while the volume is being
//! written, so that no second host writes it.
//!
//! Kernel document: *Multiple Mount Protection*. A block that says "clean" can be taken at once. A
//! counter is read again after twice its writer's interval plus one second; if it has not moved,
//! its writer crashed. A new writer first writes a number of its own and reads it back before it
//! writes anything else. It then keeps counting until the volume is closed.

use crate::names::Namespace;
use crate::{Error, Result, quote};
use extant_block::{Bio, BioFlags, Buf, Device, Op, Sector, Segment};
use extant_format::{Incompat, MMP_SEQUENCE_MAX, Mmp, MmpState, Superblock, UintExt, VolumeBlock};
use extant_rt::{Class, Nanos, Rt, TaskMutex, WaitConfig, WaitTable};
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock, Weak};

/// The shortest interval accepted (`EXT4_MMP_MIN_CHECK_INTERVAL`), and the default.
const INTERVAL_MIN_S: u16 = 5;
/// Maximum number of seconds that an interval adds to a wait (`ext4_multi_mount_protect`).
const WAIT_MORE_MAX_S: u64 = 60;
/// The node name in the block: a library does not know its host's name.
const USER: &[u8] = b"extant";

/// A volume's protection block. The counter runs until it is released or the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Protection {
    held: Arc<Held>,
}

#[derive(Debug)]
struct Held {
    rt: Rt,
    device: Arc<dyn Device>,
    sb: Superblock,
    /// Locked while the block is read and written.
    count: TaskMutex<Count>,
    /// When the block was last known to be ours.
    known: Mutex<Nanos>,
    /// How long after that another host may conclude that this one crashed.
    patience: Nanos,
    /// Why counting has stopped.
    lost: Mutex<Option<Error>>,
    /// The volume to stop writing when another host takes the block.
    namespace: OnceLock<Weak<Namespace>>,
}

#[derive(Debug)]
struct Count {
    /// The block as last written, or as read since.
    block: Mmp,
    /// The state that a failed write may have left in the block instead.
    perhaps: Option<MmpState>,
}

impl Count {
    /// Whether the block state is one that this writer wrote.
    fn has(&self, state: MmpState) -> bool {
        state == self.block.state() || Some(state) == self.perhaps
    }
}

impl Protection {
    /// Takes the volume for this writer. `time` is in seconds since 1970. Returns `None` for a
    /// volume without protection.
    ///
    /// # Errors
    /// [`Error::InUse`] if the volume is mounted or being checked, which may take some seconds to
    /// find out; a damaged block.
    pub async fn hold(rt: &Rt, device: &Arc<dyn Device>, sb: &Superblock, time: i64) -> Result<Option<Self>> {
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
        let first = rt.rng(&format!("mmp {}", rt.now().0)).below(u64::from(MMP_SEQUENCE_MAX) + 1).fit_u32();
        let ours = found
            .with_user(USER, device.limits().name.as_bytes(), interval.saturating_mul(2))
            .with_state(MmpState::Mounted(first), time.cast_unsigned());
        write(device, sb, &ours).await?;
        if is_left {
            // Another host may have waited just as long after the same crash.
            rt.sleep(wait).await;
        }
        let later = read(device, sb).await?;
        if later.state() != ours.state() {
            return Err(in_use(&later));
        }
        let (lost, namespace) = Default::default();
        let (device, sb) = (device.clone(), sb.clone());
        let patience = Nanos::from_secs(ours.check_interval_s().into());
        let known = Mutex::new(rt.now());
        let count = Count { block: ours, perhaps: None };
        let waits = WaitConfig { bucket_bits: 1, ..WaitConfig::new("multiple-mount protection") };
        let count = TaskMutex::new(&Arc::new(WaitTable::new(rt, waits)), count);
        let held = Arc::new(Held { rt: rt.clone(), device, sb, count, known, patience, lost, namespace });
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

    /// Fails if another host has taken the block, or may have, because this process was stopped for
    /// longer than other hosts wait.
    ///
    /// # Errors
    /// [`Error::InUse`]; the device's error if the block could not be written for too long;
    /// [`Error::NotWritten`] if it was not counted for too long.
    pub fn check(&self) -> Result<()> {
        self.held.check()?;
        let since = self.held.rt.now() - *self.held.known.lock();
        match since > self.held.patience {
            true => Err(Error::NotWritten(format!(
                "the volume was not marked as in use for {} seconds, so another host may have taken it",
                since.0 / 1_000_000_000
            ))),
            false => Ok(()),
        }
    }

    /// Sets the volume whose writing ends when another host takes the block.
    pub(super) fn tell(&self, namespace: &Arc<Namespace>) {
        let _ = self.held.namespace.set(Arc::downgrade(namespace));
    }

    /// Marks the volume as no longer in use. `time` is in seconds since 1970. Everything else must
    /// have been written.
    ///
    /// # Errors
    /// Another host has taken the block, or it cannot be written.
    pub async fn release(&self, time: i64) -> Result<()> {
        let held = &*self.held;
        let mut count = held.count.lock().await;
        held.check()?;
        *held.lost.lock() = Some(Error::ReadOnly);
        count.block = count.block.clone().with_state(MmpState::Clean, time.cast_unsigned());
        write(&held.device, &held.sb, &count.block).await
    }
}

impl Held {
    fn check(&self) -> Result<()> {
        self.lost.lock().clone().map_or(Ok(()), Err)
    }

    /// Advances the counter. Returns false once the block was released or taken by another host.
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

    /// Writes the next number. If the device fails, the next round tries again, but only within the
    /// interval after which another host may conclude that this one crashed.
    ///
    /// # Errors
    /// The block belongs to another host, is damaged, or could not be accessed for too long:
    /// nothing more may be written.
    async fn count_on(&self, count: &mut Count) -> Result<()> {
        let failed = match self.write_next(count).await {
            Err(Error::Io(error)) => Error::Io(error),
            other => return other,
        };
        if self.rt.now() - *self.known.lock() > self.patience {
            return Err(failed);
        }
        // The write's outcome is unknown: the block has this number or the one before. Any other
        // number means that another host took it while this one waited for the device.
        let now = self.rt.now();
        match read(&self.device, &self.sb).await {
            Ok(found) if count.has(found.state()) => {
                (count.block, count.perhaps) = (found, None);
                *self.known.lock() = now;
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
        (count.block, count.perhaps) = (written, None);
        *self.known.lock() = now;
        Ok(())
    }

    fn namespace(&self) -> Option<Arc<Namespace>> {
        self.namespace.get().and_then(Weak::upgrade)
    }
}

/// Whether writing to a volume has ended.
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

/// Reads the block from the device, bypassing all caches, because another host may write it.
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
