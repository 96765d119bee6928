//! Raw `O_DIRECT` writes to the backing file: what its disk can do.

use super::super::Result;
use super::MIB;
use extant_block::{Bio, Buf, FileDevice, FileOptions, Op, Sector, execute};
use extant_rt::{RealConfig, Rt};
use std::collections::VecDeque;
use std::path::Path;
use std::time::Instant;

/// 1 MiB writes from the start of the file to byte `bytes`, `depth` in flight, then a flush; MB/s.
pub(super) fn write(path: &Path, bytes: u64, depth: usize) -> Result<f64> {
    let rt = Rt::real(RealConfig::default());
    let device = FileDevice::open(path, FileOptions { write: true, direct: true })?.driven_by(&rt);
    if !device.is_direct() {
        return Err(format!("{} gives no direct I/O to compare", path.display()).into());
    }
    let fresh = || Bio::new(Op::Write, Sector(0), vec![Buf::from_slice(&[9; MIB as usize]).into()]);
    let mut idle: Vec<Bio> = (0..depth).map(|_| fresh()).collect();
    let start = Instant::now();
    rt.block_on(async {
        let mut running = VecDeque::new();
        for at in (0..bytes).step_by(MIB as usize) {
            let mut bio = match idle.pop() {
                Some(bio) => bio,
                None => {
                    let (bio, result): (Bio, _) = running.pop_front().expect("some are in flight").await;
                    result?;
                    bio
                }
            };
            bio.start = Sector(at / Sector::BYTES);
            running.push_back(Box::pin(execute(&device, bio)));
        }
        for one in running {
            one.await.1?;
        }
        extant_block::flush(&device).await
    })??;
    Ok(bytes as f64 / start.elapsed().as_secs_f64() / 1e6)
}
