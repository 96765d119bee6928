//! Machine models for runs of the lab.

use extant_rt::CostTable;
use extant_sim::{Machine, ModelError, Setting};
use std::path::Path;

/// Reads a machine's model, overriding some of its keys.
///
/// The model must price all work that a run charges for.
///
/// # Errors
/// Names the file, line and key of the first problem.
pub(crate) fn load(path: &Path, settings: &[Setting]) -> Result<Machine, ModelError> {
    load_for(path, settings, &[])
}

/// Like [`load`], for a run that charges for more kinds of work.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_for(
    path: &Path,
    settings: &[Setting],
    more: &[&CostTable],
) -> Result<Machine, ModelError> {
    let charged: [&CostTable; 4] = [
        extant_rt::Cost::table(),
        extant_iosched::Cost::table(),
        extant_cache::Cost::table(),
        crate::cost::Cost::table(),
    ];
    let machine = Machine::load_with(path, settings)?;
    machine.check_costs(&charged)?;
    machine.check_costs(more)?;
    Ok(machine)
}
