//! Checks an experiment whose file is well-formed.

use super::toml_form::Constant;
use super::{Published, Row, Setup, Workload};
use crate::figure::Figure;
use extant_sim::Machine;
use std::collections::BTreeMap;

/// Maximum number of figures in a table of all rows.
const ALL_ROWS_FIGURES: usize = 6;

/// The first fault that does not depend on the machine.
pub(super) fn file_fault(
    workloads: &[Workload],
    rows: &[Row],
    constants: &[Constant],
    all_rows: &BTreeMap<String, Vec<Figure>>,
) -> Option<String> {
    // If a source has several rows from before the change, the file must not define constants. Then
    // nothing is checked here, and the reader has to judge which row a figure was calibrated on.
    let fitted = || if constants.is_empty() { None } else { before_only(rows) };
    rows.iter()
        .find_map(|row| row_fault(row, workloads))
        .or_else(fitted)
        .or_else(|| constants.iter().find_map(|one| constant_fault(one, rows)))
        .or_else(|| all_rows_fault(all_rows, workloads))
        .or_else(|| volume_fault(workloads, rows))
}

/// The first part of an experiment that does not fit its machine.
pub(super) fn machine_fault(setup: &Setup) -> Option<String> {
    let Setup { workloads, machine, program, .. } = setup;
    workloads.iter().find_map(|workload| too_large(workload, machine)).or_else(|| {
        let program = program.as_ref()?;
        Some(format!("{}: {}", program.name(), program.fault(machine)?))
    })
}

/// The first inconsistency in the figures to show for every row.
fn all_rows_fault(all_rows: &BTreeMap<String, Vec<Figure>>, workloads: &[Workload]) -> Option<String> {
    let unknown = |name: &&String| !workloads.iter().any(|workload| workload.name == **name);
    if let Some(name) = all_rows.keys().find(unknown) {
        return Some(format!("all_rows.{name}: no workload has this name"));
    }
    let (name, _) = all_rows.iter().find(|(_, figures)| figures.len() > ALL_ROWS_FIGURES)?;
    Some(format!("all_rows.{name}: give {ALL_ROWS_FIGURES} figures at most"))
}

/// The first inconsistency in a row's published figures, if any.
fn row_fault(row: &Row, workloads: &[Workload]) -> Option<String> {
    let Published { figures, margins, calibrated, not_derivable, .. } = &row.published;
    let names = figures.keys().chain(calibrated.keys()).chain(not_derivable.keys()).chain(margins.keys());
    if let Some(name) =
        row.workloads.iter().find(|name| !workloads.iter().any(|workload| workload.name == **name))
    {
        return Some(format!("workloads: \"{name}\" is not one"));
    }
    if let Some(name) = names.clone().find(|name| !workloads.iter().any(|workload| workload.name == **name)) {
        return Some(format!("published.{name}: no workload has this name"));
    }
    for (name, figures) in figures {
        if let Some(wrong) = figures.values().find(|figure| !figure.is_finite() || **figure <= 0.0) {
            return Some(format!("published.{name}: {wrong} was never measured; give a number above 0"));
        }
    }
    let is_there = |name: &String, figure: &Figure| {
        figures.get(name).is_some_and(|figures| figures.contains_key(figure))
    };
    for (name, margins) in margins {
        if let Some((figure, wrong)) =
            margins.iter().find(|(_, margin)| !margin.is_finite() || **margin <= 0.0)
        {
            return Some(format!("margin.{name}: {} of {wrong}; give a number above 0", figure.key()));
        }
    }
    let lists = |list: &BTreeMap<String, Vec<Figure>>| -> Vec<(String, Figure)> {
        list.iter().flat_map(|(name, all)| all.iter().map(move |figure| (name.clone(), *figure))).collect()
    };
    let margins =
        margins.iter().flat_map(|(name, all)| all.keys().map(move |figure| (name.clone(), *figure)));
    let kinds = [
        ("calibrated", lists(calibrated), "nothing can be fitted to it"),
        ("not_derivable", lists(not_derivable), "there is nothing to derive"),
        ("margin", margins.collect(), "it has no margin"),
    ];
    kinds.into_iter().find_map(|(kind, figures, so)| {
        let (name, figure) = figures.into_iter().find(|(name, figure)| !is_there(name, figure))?;
        Some(format!("{kind}.{name}: {} was not published, so {so}", figure.key()))
    })
}

/// The first workload whose volume is inconsistent, by itself or with a row.
fn volume_fault(workloads: &[Workload], rows: &[Row]) -> Option<String> {
    workloads.iter().find_map(|workload| {
        let volume = workload.volume.as_ref()?;
        let by_row = |row: &Row| {
            volume
                .fault_with(row.policies.on_volume())
                .map(|problem| format!("row \"{}\", {problem}", row.name))
        };
        let by_row = || rows.iter().filter(|row| row.runs(workload)).find_map(by_row);
        let problem = volume.fault().or_else(by_row)?;
        Some(format!("workload \"{}\", volume: {problem}", workload.name))
    })
}

/// The first file of a workload that does not fit on the machine's disks, if any.
fn too_large(workload: &Workload, machine: &Machine) -> Option<String> {
    // Files on a volume must fit that volume instead, which may span several disks.
    if workload.volume.is_some() {
        return None;
    }
    let disks = || machine.disks.iter().map(|model| (u64::from(model.count), model.capacity_bytes()));
    let largest = disks().map(|(_, bytes)| bytes).max().unwrap_or(0);
    let all: u64 = disks().map(|(count, bytes)| count.saturating_mul(bytes)).fold(0, u64::saturating_add);
    let mut files: BTreeMap<String, u64> = BTreeMap::new();
    for job in workload.jobs.iter().filter(|job| job.size_bytes() > 0) {
        let length = job.offset_bytes.saturating_add(job.size_bytes());
        if length > largest {
            return Some(format!(
                "workload \"{}\", [{}]: a file of {length} bytes does not fit a disk of {largest}",
                workload.name, job.name
            ));
        }
        for process in 0..job.processes {
            let known = files.entry(job.file_of(process)).or_default();
            *known = length.max(*known);
        }
    }
    let wanted = files.values().fold(0_u64, |sum, length| sum.saturating_add(*length));
    (wanted > all).then(|| {
        format!("workload \"{}\": files of {wanted} bytes do not fit disks of {all} bytes", workload.name)
    })
}

/// The first calibrated figure in a row other than its workload's first published one. Only that
/// first row, from before the change, may be fitted.
fn before_only(rows: &[Row]) -> Option<String> {
    rows.iter().enumerate().find_map(|(n, row)| {
        let earlier =
            |workload: &String| rows[..n].iter().find(|row| row.published.figures.contains_key(workload));
        row.published.calibrated.keys().find_map(|workload| {
            let first = &earlier(workload)?.name;
            Some(format!(
                "calibrated.{workload}: the row \"{}\" is a prediction; only \"{first}\" may be fitted",
                row.name
            ))
        })
    })
}

/// The first inconsistency in the definition of a constant, if any.
fn constant_fault(constant: &Constant, rows: &[Row]) -> Option<String> {
    let name = constant.keys.first().map_or("(none)", String::as_str);
    let problem = |text: String| Some(format!("constant {name}: {text}"));
    if constant.keys.is_empty() {
        return problem("keys: name a key of the machine's file".to_owned());
    }
    let is_range = constant.least > 0.0 && constant.most > constant.least;
    if constant.values.is_empty() != is_range {
        return problem("give either values, or least and most, above 0".to_owned());
    }
    if constant.seeds.iter().enumerate().any(|(n, seed)| constant.seeds[..n].contains(seed)) {
        return problem("seeds: each counts once".to_owned());
    }
    let Some(row) = rows.iter().find(|row| row.name == constant.row) else {
        return problem(format!("row: there is no row \"{}\"", constant.row));
    };
    for (workload, figures) in &constant.sees {
        let calibrated = row.published.calibrated.get(workload);
        if let Some(figure) =
            figures.iter().find(|figure| !calibrated.is_some_and(|list| list.contains(figure)))
        {
            return problem(format!(
                "sees {} of \"{workload}\", which the row \"{}\" does not list as calibrated",
                figure.key(),
                constant.row
            ));
        }
    }
    None
}
