//! A device that fails on purpose.

use crate::split::{Piece, split};
use crate::{Bio, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector};
use extant_rt::{Class, Nanos, Rng, Rt};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;

/// How often each fault strikes, in bios per million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultConfig {
    /// The same seed and order of bios give the same faults.
    pub seed: u64,
    /// The bio fails with EIO and does nothing.
    pub error_ppm: u32,
    /// The bio is executed, but ends as timed out.
    pub timeout_ppm: u32,
    /// Some but not all sectors of a write are written, and it fails with EIO.
    pub torn_ppm: u32,
    /// Only the first sectors of a read or write are transferred, and it ends as short.
    pub short_ppm: u32,
    /// The bio is delayed by up to [`FaultConfig::delay_max`] before it is executed or fails.
    pub delay_ppm: u32,
    /// Longest delay.
    pub delay_max: Nanos,
    /// After this many bios the device is gone, and everything fails.
    pub vanish_after: Option<u64>,
}

/// A fault that struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The operation it struck.
    pub op: Op,
    /// The bio's first sector.
    pub start: Sector,
    /// The bio's length in bytes.
    pub bytes: u64,
    /// The error the bio ended with.
    pub kind: IoErrorKind,
}

/// Passes bios on, except those that its random numbers pick to fail.
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Device>,
    rt: Rt,
    dice: Mutex<Dice>,
}

#[derive(Debug)]
struct Dice {
    config: FaultConfig,
    rng: Rng,
    seen: u64,
    injected: Vec<Injected>,
}

/// What happens to a bio.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Verdict {
    Pass,
    Fail(IoErrorKind),
    /// It is executed, but its submitter gets this error.
    Deny(IoErrorKind),
    /// Alternating runs of sectors that are written and not written, starting with written.
    Torn(Vec<u64>),
    /// This many bytes are transferred.
    Short(u64),
}

impl Dice {
    fn strikes(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < u64::from(ppm)
    }

    fn roll(&mut self, bio: &Bio) -> (Nanos, Verdict) {
        self.seen += 1;
        let config = self.config;
        let delay = match self.strikes(config.delay_ppm) {
            true => Nanos(self.rng.below(config.delay_max.0.max(1))),
            false => Nanos::ZERO,
        };
        let sectors = bio.bytes / Sector::BYTES;
        let divisible = matches!(bio.op, Op::Read | Op::Write) && sectors > 1;
        let verdict = if config.vanish_after.is_some_and(|n| self.seen > n) {
            Verdict::Fail(IoErrorKind::Gone("it was set to vanish".into()))
        } else if self.strikes(config.error_ppm) {
            Verdict::Fail(IoErrorKind::Os(Errno::IO.raw_os_error()))
        } else if self.strikes(config.timeout_ppm) {
            Verdict::Deny(IoErrorKind::TimedOut)
        } else if self.strikes(config.torn_ppm) && bio.op == Op::Write && divisible {
            Verdict::Torn(self.tear(sectors))
        } else if self.strikes(config.short_ppm) && divisible {
            Verdict::Short((1 + self.rng.below(sectors - 1)) * Sector::BYTES)
        } else {
            Verdict::Pass
        };
        let kind = match &verdict {
            Verdict::Pass => return (delay, verdict),
            Verdict::Fail(kind) | Verdict::Deny(kind) => kind.clone(),
            Verdict::Torn(_) => IoErrorKind::Os(Errno::IO.raw_os_error()),
            Verdict::Short(bytes) => IoErrorKind::Short(*bytes),
        };
        self.injected.push(Injected { op: bio.op, start: bio.start, bytes: bio.bytes, kind });
        (delay, verdict)
    }

    fn tear(&mut self, sectors: u64) -> Vec<u64> {
        let mut runs = Vec::new();
        let mut left = sectors;
        while left > 0 {
            // The first run may be empty. It must not cover the whole bio, or nothing would be
            // torn.
            let least = u64::from(!runs.is_empty());
            let most = if runs.is_empty() { left - 1 } else { left };
            let run = least + self.rng.below(most - least + 1);
            runs.push(run);
            left -= run;
        }
        runs
    }
}

impl Fault {
    /// A less reliable version of `inner`.
    pub fn new(inner: Arc<dyn Device>, rt: &Rt, config: FaultConfig) -> Self {
        let dice = Dice { config, rng: Rng::labelled(config.seed, "fault"), seen: 0, injected: Vec::new() };
        Self { inner, rt: rt.clone(), dice: Mutex::new(dice) }
    }

    /// The faults so far, in order; delays do not count.
    pub fn injected(&self) -> Vec<Injected> {
        self.dice.lock().injected.clone()
    }

    /// Changes what happens from the next bio on, without restarting the random numbers.
    pub fn set_config(&self, config: FaultConfig) {
        self.dice.lock().config = config;
    }
}

fn carry_out(inner: &dyn Device, bio: Bio, verdict: Verdict) {
    let name = &inner.limits().name;
    match verdict {
        Verdict::Pass => inner.submit(bio),
        Verdict::Fail(kind) => bio.end_as(name, Err(kind)),
        Verdict::Deny(kind) => {
            let error = bio.error(name, kind);
            inner.submit(with_end(bio, move |result| result.and(Err(error))));
        }
        Verdict::Torn(runs) => {
            let error = bio.error(name, IoErrorKind::Os(Errno::IO.raw_os_error()));
            let lengths = runs.iter().map(|sectors| sectors * Sector::BYTES);
            do_some(inner, with_end(bio, move |_| Err(error)), lengths);
        }
        Verdict::Short(bytes) => {
            let error = bio.error(name, IoErrorKind::Short(bytes));
            let rest = bio.bytes - bytes;
            do_some(inner, with_end(bio, move |_| Err(error)), [bytes, rest].into_iter());
        }
    }
}

/// Changes the bio's result on the way back.
fn with_end(
    mut bio: Bio,
    change: impl FnOnce(Result<(), IoError>) -> Result<(), IoError> + Send + 'static,
) -> Bio {
    if let Some(completion) = bio.take_completion() {
        bio.on_end(Box::new(move |bio, result| completion(bio, change(result))));
    }
    bio
}

/// Executes every other run of a bio, starting with the first.
fn do_some(inner: &dyn Device, bio: Bio, lengths: impl Iterator<Item = u64>) {
    let mut at = bio.start;
    let mut pieces = Vec::new();
    let mut done = Vec::new();
    for (index, bytes) in lengths.enumerate() {
        if bytes > 0 {
            pieces.push(Piece { start: at, bytes });
            done.push(index % 2 == 0);
        }
        at = Sector(at.0 + bytes / Sector::BYTES);
    }
    for (piece, done) in split(bio, &pieces).into_iter().zip(done) {
        match done {
            true => inner.submit(piece),
            false => piece.end(Ok(())),
        }
    }
}

impl Device for Fault {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        let (delay, verdict) = self.dice.lock().roll(&bio);
        if delay == Nanos::ZERO {
            return carry_out(&*self.inner, bio, verdict);
        }
        let (inner, rt) = (self.inner.clone(), self.rt.clone());
        let late = async move {
            rt.sleep(delay).await;
            carry_out(&*inner, bio, verdict);
        };
        drop(self.rt.spawn("delayed bio", Class::Normal, late));
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.inner.claim()
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, MemDevice, execute};
    use extant_rt::RealConfig;

    #[test]
    fn a_torn_write_is_some_sectors_old_and_some_new() {
        let rt = Rt::real(RealConfig::default());
        let disk = Arc::new(MemDevice::new(64 << 10));
        let config = FaultConfig { seed: 3, torn_ppm: 1_000_000, ..FaultConfig::default() };
        let fault = Fault::new(disk.clone(), &rt, config);
        for _ in 0..100 {
            let bio = Bio::new(Op::Write, Sector(0), vec![Buf::from_slice(&[1; 64 << 10]).into()]);
            let (bio, result) = rt.block_on(execute(&fault, bio)).unwrap();
            assert_eq!(result.unwrap_err().kind, IoErrorKind::Os(5));
            assert!(bio.segments[0].as_slice().iter().all(|&b| b == 1), "the memory comes back");
        }
        let bytes = disk.to_bytes();
        assert!(bytes.chunks(512).all(|s| s.iter().all(|b| *b == s[0])), "sectors are not torn");
        assert!(bytes.contains(&1));
        assert_eq!(fault.injected().len(), 100);
    }

    #[test]
    fn the_same_seed_strikes_the_same_bios() {
        let rt = Rt::real(RealConfig::default());
        let run = |seed| {
            let config =
                FaultConfig { seed, error_ppm: 300_000, short_ppm: 300_000, ..FaultConfig::default() };
            let fault = Fault::new(Arc::new(MemDevice::new(1 << 20)), &rt, config);
            for i in 0..100 {
                drop(rt.block_on(crate::read(&fault, Sector(i * 8), 4096)).unwrap());
            }
            fault.injected()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn a_device_that_vanishes_says_so() {
        let rt = Rt::real(RealConfig::default());
        let config = FaultConfig { vanish_after: Some(1), ..FaultConfig::default() };
        let fault = Fault::new(Arc::new(MemDevice::new(1 << 20)), &rt, config);
        assert!(rt.block_on(crate::read(&fault, Sector(0), 512)).unwrap().is_ok());
        let error = rt.block_on(crate::read(&fault, Sector(8), 512)).unwrap().unwrap_err();
        assert_eq!(
            error.to_string(),
            "memory: read of 512 bytes at sector 8: the device is gone: it was set to vanish"
        );
    }
}
