//! The figures of a run's outcome.

use super::outcome::{Outcome, ProcessorUse};
use crate::figure::{Figure, RUN_S};
use extant_rt::Nanos;
use extant_sim::Spent;

/// A figure of one result of a run; `None` if the run does not have it.
pub(crate) fn figure_of(figure: Figure, outcome: &Outcome, result: usize) -> Option<f64> {
    const MIB: f64 = (1 << 20) as f64;
    let outcome = match outcome {
        Outcome::Phase(phase) => return phase.figures.get(&figure).copied(),
        Outcome::Jobs(jobs) => jobs,
    };
    let measured = &outcome.results[result].measured;
    let side = if measured.read.ios > 0 { &measured.read } else { &measured.write };
    let completion = &side.completion;
    let synced = Some(&measured.sync).filter(|sync| sync.count > 0);
    let written_mib_s = outcome.written.map(|written| written.bytes_s() / MIB);
    let latency = outcome.latency.as_ref();
    let counted = outcome.on_device.as_ref();
    let layout = outcome.layout.filter(|layout| layout.extents > 0);
    let used = outcome.processors.filter(|_| counted.is_some());
    let a_second = |count: u64| used.map(|used| count as f64 / used.over.as_secs_f64());
    // Prefer the bytes that the disks wrote: pages still dirty at the end had no bio.
    let written_bytes = outcome.written.map_or(measured.write.bytes, |written| written.bytes);
    let a_gib = |amount: f64| (written_bytes > 0).then(|| amount / (written_bytes as f64 / MIB / 1024.0));
    let percent = |time: Nanos, used: ProcessorUse| 100.0 * time.as_secs_f64() / used.over.as_secs_f64();
    match figure {
        Figure::Iops => Some(side.iops(measured.runtime)),
        Figure::MeanMs => Some(completion.mean_ns / 1e6),
        Figure::MaxMs => Some(completion.max_ns as f64 / 1e6),
        Figure::DeviationMs => Some(completion.deviation_ns() / 1e6),
        Figure::SyncMeanMs => synced.map(|sync| sync.mean_ns / 1e6),
        Figure::SyncMaxMs => synced.map(|sync| sync.max_ns as f64 / 1e6),
        Figure::MibS => Some(side.bytes_s(measured.runtime) / MIB),
        Figure::WrittenMibS => written_mib_s,
        Figure::WrittenMpages => written_mib_s.map(|mib_s| mib_s * 256.0 * RUN_S / 1e6),
        Figure::PiecesS => counted.and_then(|counted| a_second(counted.pieces)),
        Figure::CommandsS => counted.and_then(|counted| a_second(counted.commands)),
        Figure::FlushesGib => {
            let linux = counted.filter(|counted| counted.sent.bios() > 0);
            linux.map(|linux| linux.sent.boundary as f64 / (side.bytes as f64 / MIB / 1024.0))
        }
        Figure::SystemPercent => used.map(|used| percent(used.system, used)),
        Figure::InterruptPercent => used.map(|used| percent(used.interrupts, used)),
        Figure::Seconds => outcome.drained.map(|drained| drained.as_secs_f64()),
        Figure::SystemSeconds => used.map(|used| used.system.as_secs_f64()),
        Figure::GroupsPerSearch => {
            let searched = counted.filter(|counted| counted.search.1 > 0);
            searched.map(|counted| counted.search.0.searched as f64 / counted.search.1 as f64)
        }
        Figure::SearchUsPerGroup => {
            let searched = counted.filter(|counted| counted.search.1 > 0);
            searched.map(|counted| {
                let linux = |spent: &&Spent| spent.layer == extant_history::alloc::Cost::table().layer;
                let ns: u64 = outcome.spent.iter().filter(linux).map(|spent| spent.time.0).sum();
                ns as f64 / 1e3 / counted.search.1 as f64 / counted.groups as f64
            })
        }
        Figure::ExtentsPerFile => layout.map(|layout| layout.extents as f64 / layout.files as f64),
        Figure::ExtentKib => layout.map(|layout| layout.bytes as f64 / 1024.0 / layout.extents as f64),
        Figure::RereadMibS => layout.map(|layout| layout.bytes as f64 / MIB / layout.reread.as_secs_f64()),
        Figure::BiosGib => counted.and_then(|counted| a_gib(counted.pieces as f64)),
        Figure::CpuGib => {
            used.and_then(|used| a_gib(used.system.as_secs_f64() + used.interrupts.as_secs_f64()))
        }
        Figure::LatencyMinUs => latency.map(|latency| latency.min_ns as f64 / 1e3),
        Figure::LatencyMeanUs => latency.map(|latency| latency.mean_ns / 1e3),
        Figure::LatencyMaxUs => latency.map(|latency| latency.max_ns as f64 / 1e3),
        _ => None,
    }
}
