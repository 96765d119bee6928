//! Machine models for runs of the lab.

use super::built_in;
use extant_rt::CostTable;
use extant_sim::{Machine, ModelError, Setting};
use std::path::Path;

/// Reads a machine's model, overriding some of its keys. `path` is a file, or the name of a machine
/// that is built in.
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
    let machine = match built_in::name(path).map(|name| (name, built_in::machine(name))) {
        Some((name, Some(text))) => Machine::parse_with(name, text, settings)?,
        Some((name, None)) => {
            let problem =
                format!("no such file, and no machine of this name; there are {}", built_in::names());
            return Err(ModelError { file: name.to_owned(), line: 0, key: String::new(), problem });
        }
        None => Machine::load_with(path, settings)?,
    };
    machine.check_costs(&charged)?;
    machine.check_costs(more)?;
    Ok(machine)
}
