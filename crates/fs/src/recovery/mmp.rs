//! Multiple-mount protection: refusal of volumes that are mounted elsewhere.

use crate::view::View;
use crate::{Error, Result, quote};
use extant_block::Sector;
use extant_format::{Incompat, Mmp, MmpState, VolumeBlock};
use extant_rt::{Nanos, Rt};

/// Shortest interval that is waited for (`EXT4_MMP_MIN_CHECK_INTERVAL`).
const INTERVAL_MIN_S: u64 = 5;

/// Fails where the volume has multiple-mount protection and is in use. Where its block says that it is mounted, this
/// waits, as Linux does, twice the interval at which the other one counts and a second: a count that stands still was
/// left by a crash.
pub(super) async fn refuse_in_use(rt: &Rt, view: &View) -> Result<()> {
    let sb = view.superblock();
    if !sb.incompat().contains(Incompat::MMP) {
        return Ok(());
    }
    let number = VolumeBlock(sb.raw().s_mmp_block.get());
    let mmp = read(view, number).await?;
    let in_use = |mmp: &Mmp, by: &str| Error::InUse { by: by.into(), host: quote(mmp.host()) };
    match mmp.state() {
        MmpState::Clean => return Ok(()),
        MmpState::Checking => return Err(in_use(&mmp, "a checker")),
        MmpState::Mounted(_) => {}
    }
    let interval =
        u64::from(mmp.check_interval_s().max(sb.raw().s_mmp_update_interval.get())).max(INTERVAL_MIN_S);
    rt.sleep(Nanos::from_secs(2 * interval + 1)).await;
    let later = read(view, number).await?;
    if later.state() == mmp.state() { Ok(()) } else { Err(in_use(&later, "a mount")) }
}

/// Reads the block from the device, not from the cache: another host writes it.
async fn read(view: &View, number: VolumeBlock) -> Result<Mmp> {
    let size = view.superblock().block_size();
    let start = Sector(number.0.saturating_mul(u64::from(size.bytes()) / Sector::BYTES));
    let block = extant_block::read(&**view.device(), start, size.byte_len()).await?;
    let mmp = Mmp::parse(&block, number)?;
    if let Some(seed) = view.superblock().checksum_seed() {
        mmp.verify_checksum(seed)?;
    }
    Ok(mmp)
}
