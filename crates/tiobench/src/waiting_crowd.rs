//! A crowd of tasks, each waiting for a different page; some pages are unlocked, one at a time.

use crate::host::{ModelledHost, ScheduleCaller};
use crate::options::TiobenchError;
use crate::outcome::{Phase, PhaseOutcome, Sleeps, Totals};
use extant_rt::{Class, Nanos};
use extant_sim::Sim;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// Number of pages to unlock.
const WAKES: u64 = 1000;

/// Starts the waiters, unlocks evenly spaced pages, and counts.
///
/// Spuriously woken tasks have time to wait again before the next page is unlocked.
///
/// # Errors
/// If the world stops early.
pub(crate) fn run(sim: &Sim, host: &Arc<ModelledHost>, count: u32) -> Result<PhaseOutcome, TiobenchError> {
    let rt = sim.rt();
    let before = Totals::of(sim, host);
    let unlocked: Arc<[AtomicBool]> = (0..count).map(|_| AtomicBool::new(false)).collect();
    for page in 0..u64::from(count) {
        let (host, unlocked) = (host.clone(), unlocked.clone());
        drop(rt.spawn("waiter", Class::Normal, async move {
            let ready = || unlocked[page as usize].load(Relaxed);
            host.sleep(&host.pages, ScheduleCaller::PageBit, page, ready).await;
        }));
    }
    let between = Nanos::from_secs(1 + u64::from(count) / 20_000);
    rt.block_on(async {
        rt.sleep(Nanos(between.0 * 20)).await;
        for n in 0..WAKES.min(u64::from(count)) {
            let page = n * (u64::from(count) / WAKES).max(1);
            unlocked[page as usize].store(true, Relaxed);
            host.wake(&host.pages, std::iter::once(page));
            rt.sleep(between).await;
        }
    })?;
    let outcome = Totals::of(sim, host).since(&before, Phase::Waiters, 0);
    // The crowd leaves the processors mostly idle, so the number of idle processors that receive a
    // task says nothing.
    Ok(PhaseOutcome { sleeps: Sleeps { idle: 0, ..outcome.sleeps }, ..outcome })
}
