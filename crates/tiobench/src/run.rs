//! Runs tiobench's phases one after the other.

use crate::host::{ModelledHost, PageCacheCost, world};
use crate::options::{Policies, Tiobench, TiobenchError};
use crate::outcome::{Phase, PhaseOutcome, Totals};
use crate::page_cache::BLOCK_BYTES;
use crate::reading::ReadHandle;
use crate::waiting_crowd;
use extant_rt::{Class, RtError};
use extant_sim::Machine;
use std::sync::Arc;

/// Runs the phases up to `until`. After all of them, adds their total.
///
/// # Errors
/// If options and policies do not fit together; reported before anything runs.
pub fn run(
    options: Tiobench,
    machine: &Machine,
    policies: Policies,
    seed: u64,
    until: Phase,
) -> Result<Vec<PhaseOutcome>, TiobenchError> {
    if let Some(problem) = options.fault(machine) {
        return Err(TiobenchError::Options(problem));
    }
    if policies.requests == 0 {
        return Err(TiobenchError::Options("requests: must be above 0".to_owned()));
    }
    let (sim, host) = world(options, machine, policies, seed)?;
    let rt = sim.rt();
    drop(rt.spawn("pdflush", Class::Normal, host.clone().write_old()));
    let begin = Totals::of(&sim, &host);
    let mut before = begin.clone();
    let mut all = Vec::new();
    for phase in Phase::ALL {
        host.stripe.begin_phase();
        let threads = (0..options.threads).map(|file| {
            let work = phase_of(host.clone(), phase, file);
            rt.spawn("tiotest", Class::Normal, work)
        });
        let threads: Vec<_> = threads.collect();
        rt.block_on(async {
            for thread in threads {
                thread.await?;
            }
            Ok::<(), RtError>(())
        })??;
        let now = Totals::of(&sim, &host);
        let blocks = u64::from(options.threads) * blocks_of(&host, phase);
        all.push(now.since(&before, phase, blocks * BLOCK_BYTES));
        before = now;
        if phase == until {
            return Ok(all);
        }
    }
    let bytes = all.iter().map(|phase| phase.bytes).sum();
    all.push(before.since(&begin, Phase::Whole, bytes));
    if until == Phase::Waiters {
        let (sim, host) = world(options, machine, policies, seed)?;
        all.push(waiting_crowd::run(&sim, &host, options.waiters)?);
    }
    Ok(all)
}

/// How many blocks a thread reads or writes in a phase.
fn blocks_of(host: &ModelledHost, phase: Phase) -> u64 {
    if phase.is_random() { u64::from(host.options.random_ops) } else { host.shape.file_blocks() }
}

/// What a thread does in a phase.
async fn phase_of(host: Arc<ModelledHost>, phase: Phase, file: u32) {
    let blocks = host.shape.file_blocks();
    let mut rng = host.rt.rng(&format!("{phase:?} {file}"));
    let mut open = ReadHandle::new(&host, file);
    if phase == Phase::Write {
        host.create(file).await;
    }
    for n in 0..blocks_of(&host, phase) {
        let block = if phase.is_random() { rng.below(blocks) } else { n };
        host.rt.charge(PageCacheCost::User(1));
        host.rt.charge(PageCacheCost::Syscall(1));
        if phase.writes() {
            host.write(file, block).await;
        } else {
            host.read(&mut open, block).await;
        }
        // On return from the system call, another thread may get the processor.
        host.rt.resched().await;
    }
    if phase.writes() {
        host.fsync(file).await;
        host.volume.lock().close(file);
    }
    host.stripe.exited(file);
}
