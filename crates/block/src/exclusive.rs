//! A device with one writer, whose writes end with its claim.

use crate::{Bio, Claim, Device, IoError, IoErrorKind, Limits, Op, Sector};
use parking_lot::Mutex;
use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

/// Passes bios on, and ties writes to the claim made through it.
///
/// Once that claim is dropped, writes are refused; the claim on the device below lasts until the
/// writes in flight have ended. So a task that outlives the claim cannot write any more, and cannot
/// change what the next writer finds. Before the first claim everything passes.
#[derive(Debug)]
pub struct Exclusive {
    inner: Arc<dyn Device>,
    tenure: Arc<Mutex<Tenure>>,
}

#[derive(Debug)]
enum Tenure {
    Unclaimed,
    /// Each write in flight holds the claim too.
    Claimed(Arc<Claim>),
    Ended,
}

/// Ends the tenure when dropped.
struct End(Arc<Mutex<Tenure>>);

impl Drop for End {
    fn drop(&mut self) {
        let ended = std::mem::replace(&mut *self.0.lock(), Tenure::Ended);
        drop(ended);
    }
}

impl Exclusive {
    /// A writer's own view of `inner`.
    pub fn new(inner: Arc<dyn Device>) -> Self {
        Self { inner, tenure: Arc::new(Mutex::new(Tenure::Unclaimed)) }
    }

    /// Returns the bio, unless it would change the device after the claim has ended; then the bio
    /// fails.
    fn admit(&self, mut bio: Bio) -> Option<Bio> {
        let changes = matches!(bio.op, Op::Write | Op::Discard | Op::WriteZeroes) && !bio.is_flush();
        if !changes {
            return Some(bio);
        }
        let claim = match &*self.tenure.lock() {
            Tenure::Unclaimed => return Some(bio),
            Tenure::Claimed(claim) => Some(claim.clone()),
            Tenure::Ended => None,
        };
        let Some(claim) = claim else {
            bio.end_as(&self.limits().name, Err(IoErrorKind::ReadOnly));
            return None;
        };
        bio.before_end(move |_| drop(claim));
        Some(bio)
    }
}

impl Device for Exclusive {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        if let Some(bio) = self.admit(bio) {
            self.inner.submit(bio);
        }
    }

    fn submit_all(&self, bios: &mut dyn Iterator<Item = Bio>) {
        self.inner.submit_all(&mut bios.filter_map(|bio| self.admit(bio)));
    }

    fn reads_here(&self) -> bool {
        self.inner.reads_here()
    }

    fn is_cached_by_host(&self) -> bool {
        self.inner.is_cached_by_host()
    }

    fn flushes_soon(&self) -> bool {
        self.inner.flushes_soon()
    }

    fn read_here(&self, start: Sector, to: &mut [IoSliceMut<'_>]) -> bool {
        self.inner.read_here(start, to)
    }

    /// Claims the device below, once.
    fn claim(&self) -> Result<Claim, IoError> {
        let mut tenure = self.tenure.lock();
        if !matches!(*tenure, Tenure::Unclaimed) {
            let bio = Bio::range(Op::Write, Sector(0), 0);
            return Err(bio.error(&self.limits().name, IoErrorKind::Claimed));
        }
        *tenure = Tenure::Claimed(Arc::new(self.inner.claim()?));
        Ok(Claim::holding(End(self.tenure.clone())))
    }

    fn next_data(&self, from_bytes: u64) -> Result<Option<Range<u64>>, IoError> {
        self.inner.next_data(from_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buf, MemDevice, execute, flush};
    use extant_rt::Rt;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Holds every write, and grants one claim at a time.
    #[derive(Debug)]
    struct Held {
        inner: MemDevice,
        claimed: Arc<AtomicBool>,
        writes: Mutex<Vec<Bio>>,
    }

    struct Free(Arc<AtomicBool>);

    impl Drop for Free {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    impl Device for Held {
        fn limits(&self) -> &Limits {
            self.inner.limits()
        }
        fn submit(&self, bio: Bio) {
            match bio.op {
                Op::Write => self.writes.lock().push(bio),
                _ => self.inner.submit(bio),
            }
        }
        fn claim(&self) -> Result<Claim, IoError> {
            assert!(!self.claimed.swap(true, Ordering::SeqCst), "claimed once at a time");
            Ok(Claim::holding(Free(self.claimed.clone())))
        }
    }

    fn a_write() -> Bio {
        Bio::new(Op::Write, Sector(0), vec![Buf::from_slice(&[7; 512]).into()])
    }

    #[test]
    fn a_claim_lasts_until_its_writes_have_ended_and_lets_no_more_pass() {
        let rt = Rt::real(Default::default());
        let (claimed, writes) = Default::default();
        let below = Arc::new(Held { inner: MemDevice::new(1 << 20), claimed, writes });
        let device = Exclusive::new(below.clone());
        let claim = device.claim().unwrap();
        assert_eq!(device.claim().unwrap_err().kind, IoErrorKind::Claimed);
        device.submit(a_write());
        drop(claim);
        assert!(below.claimed.load(Ordering::SeqCst), "its write is in flight");
        let late = rt.block_on(execute(&device, a_write())).unwrap().1;
        assert_eq!(late.unwrap_err().kind, IoErrorKind::ReadOnly);
        device.submit_all(&mut [a_write()].into_iter());
        assert_eq!(below.writes.lock().len(), 1);
        rt.block_on(flush(&device)).unwrap().unwrap();
        let held = std::mem::take(&mut *below.writes.lock());
        held.into_iter().for_each(|bio| below.inner.submit(bio));
        assert!(!below.claimed.load(Ordering::SeqCst));
        assert_eq!(device.claim().unwrap_err().kind, IoErrorKind::Claimed, "it was one writer's");
    }
}
