//! tiobench as a workload of an experiment.

use super::phased::{Phase, PhaseFigures, PhasePolicies, PhasedWorkload};
use crate::figure::Figure;
use extant_rt::CostTable;
use extant_sim::Machine;
use extant_tiobench::{PageCacheCost, Phase as Part, PhaseOutcome, Policies, Tiobench, run};
use serde::{Deserialize, Deserializer};
use std::sync::Arc;

/// The costs of every program that runs in phases.
pub(crate) fn phased_costs() -> &'static CostTable {
    PageCacheCost::table()
}

/// Reads the table `[tiobench]`.
pub(crate) fn phased_program<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<Option<Arc<dyn PhasedWorkload>>, D::Error> {
    Ok(Some(Arc::new(Tiobench::deserialize(from)?)))
}

/// Columns of a phase.
const PHASES: [Figure; 9] = [
    Figure::Seconds,
    Figure::CpuMibS,
    Figure::KernelPercent,
    Figure::PageSleepsK,
    Figure::LockSleepsK,
    Figure::BufferSleepsK,
    Figure::IdleK,
    Figure::SwitchPercent,
    Figure::WakePercent,
];
/// Columns of the wake-ups in a phase.
const WAKES: [Figure; 3] = [Figure::SpuriousK, Figure::WokenK, Figure::ExaminedPerWake];

fn shown(part: Part) -> Phase {
    let tables: &'static [&'static [Figure]] =
        if part == Part::Waiters { &[&WAKES] } else { &[&PHASES, &WAKES] };
    Phase { name: part.name(), tables, columns: &PHASES }
}

/// All parts of a run, in the order in which they run.
fn parts() -> impl Iterator<Item = Part> {
    Part::ALL.into_iter().chain([Part::Whole, Part::Waiters])
}

impl PhasedWorkload for Tiobench {
    fn name(&self) -> &'static str {
        "tiobench"
    }

    fn phases(&self) -> Vec<Phase> {
        parts().filter(|part| *part != Part::Waiters || self.waiters > 0).map(shown).collect()
    }

    fn costs(&self) -> &'static CostTable {
        phased_costs()
    }

    fn fault(&self, machine: &Machine) -> Option<String> {
        Self::fault(self, machine)
    }

    fn run(
        &self,
        machine: &Machine,
        policies: PhasePolicies,
        seed: u64,
        wanted: &[Phase],
    ) -> Result<Vec<PhaseFigures>, String> {
        let PhasePolicies { page_waits, buffer_waits, elevator, requests } = policies;
        let policies = Policies { page_waits, buffer_waits, elevator, requests };
        let is_wanted = |part: &Part| wanted.iter().any(|phase| phase.name == part.name());
        let last = parts().filter(is_wanted).last().unwrap_or(Part::Whole);
        let phases = run(*self, machine, policies, seed, last).map_err(|error| error.to_string())?;
        let of = |outcome: &PhaseOutcome| {
            let each = |figure: &Figure| Some((*figure, value(*figure, outcome)?));
            let figures = Figure::ALL.iter().filter_map(each).collect();
            PhaseFigures { phase: outcome.phase.name(), figures }
        };
        Ok(phases.iter().map(of).collect())
    }
}

/// A figure of a phase; `None` if phases do not have it.
fn value(figure: Figure, phase: &PhaseOutcome) -> Option<f64> {
    const MIB: f64 = (1 << 20) as f64;
    let (took, sleeps) = (phase.took.as_secs_f64(), phase.sleeps);
    let thousands = |count: u64| Some(count as f64 / 1e3);
    match figure {
        Figure::Seconds => Some(took),
        Figure::MibS => Some(phase.bytes as f64 / MIB / took),
        Figure::CpuMibS => Some(phase.bytes as f64 / MIB / phase.busy.as_secs_f64()),
        Figure::KernelPercent => Some(100.0 * phase.system().as_secs_f64() / took),
        Figure::PageSleepsK => thousands(sleeps.page),
        Figure::LockSleepsK => thousands(sleeps.lock),
        Figure::BufferSleepsK => thousands(sleeps.buffer),
        Figure::IdleK => thousands(sleeps.idle),
        Figure::SwitchPercent => Some(100.0 * phase.share("context_switch_ns")),
        Figure::WakePercent => Some(100.0 * phase.share("page_wake_ns")),
        Figure::SpuriousK => thousands(sleeps.spurious),
        Figure::WokenK => thousands(sleeps.woken),
        // Spurious wake-ups are not counted: those waiters did not have to be woken.
        Figure::ExaminedPerWake => {
            let wanted = sleeps.woken.saturating_sub(sleeps.spurious);
            (wanted > 0).then(|| sleeps.examined as f64 / wanted as f64)
        }
        _ => None,
    }
}
