//! Lists the names and keys that describe a run.

use crate::setup::built_in;
use crate::workload::fio;
use extant_rt::CostTable;
use extant_sim::keys::{KEYS, Key, UNMODELLED};
use extant_sim::{Machine, ModelError};
use std::fmt::Write;
use std::path::Path;

/// The layers whose costs are priced in a machine's file.
pub(crate) fn cost_tables() -> [&'static CostTable; 8] {
    [
        extant_rt::Cost::table(),
        extant_iosched::Cost::table(),
        extant_cache::Cost::table(),
        extant_fs::Cost::table(),
        crate::Cost::table(),
        crate::workload::phased_costs(),
        extant_history::direct::Cost::table(),
        extant_history::alloc::Cost::table(),
    ]
}

/// Lists the machines of a folder or the built-in ones, the policies by kind, the keys of a
/// machine's file, and fio's options.
///
/// # Errors
/// If a machine in the folder is refused.
pub(crate) fn list(machines: Option<&Path>) -> Result<String, ModelError> {
    let mut out = String::new();
    match machines {
        Some(folder) => in_folder(&mut out, folder)?,
        None => {
            heading(&mut out, "Machines (--machine NAME; lab show NAME prints its file)");
            for (name, text) in built_in::MACHINES {
                machine(&mut out, name, &Machine::parse(name, text)?);
            }
        }
    }
    for (title, policies) in policies() {
        heading(&mut out, title);
        policies.iter().for_each(|(name, about)| line(&mut out, name, about));
    }
    out.push('\n');
    out.push_str(&keys());
    heading(
        &mut out,
        "Prices of work: nanoseconds for each unit, with up to three decimals; in [costs], where a run charges for it",
    );
    for table in cost_tables() {
        line(&mut out, table.layer, &table.keys.join(", "));
    }
    heading(&mut out, "Not modelled");
    UNMODELLED.iter().for_each(|(key, why)| line(&mut out, key, why));
    heading(&mut out, "fio's options");
    let _ = writeln!(out, "  {}", fio::KEYS);
    heading(&mut out, "fio's options that are taken without effect");
    let _ = writeln!(out, "  {}", fio::WITHOUT_EFFECT.join(", "));
    Ok(out)
}

/// Describes a name: a machine's file, policies, or keys of a machine's file. `None` if nothing has
/// it.
pub(crate) fn show(name: &str) -> Option<String> {
    if let Some(text) = built_in::machine(name) {
        return Some(text.to_owned());
    }
    let mut out = String::new();
    for (title, policies) in policies() {
        for (_, about) in policies.iter().filter(|(known, _)| *known == name) {
            heading(&mut out, title);
            line(&mut out, name, about);
        }
    }
    for key in KEYS.iter().filter(|key| key.key == name) {
        heading(&mut out, &format!("Key of a machine's file, in [{}]", key.table));
        line(&mut out, name, &described(key));
    }
    Some(out).filter(|out| !out.is_empty())
}

/// Policies by kind: a heading, and their names and meanings.
fn policies() -> [(&'static str, Vec<(&'static str, &'static str)>); 5] {
    let controls = extant_history::DIRTY_CONTROLS.iter().chain(&extant_history::OTHER_DIRTY_CONTROLS);
    [
        (
            "I/O schedulers (--elevator)",
            extant_history::ELEVATORS.iter().map(|p| (p.name, p.about)).collect(),
        ),
        ("Controllers of dirty memory (--dirty-control)", controls.map(|p| (p.name, p.about)).collect()),
        (
            "Passes of write-back (--write-back-pass)",
            extant_history::PASSES.iter().map(|p| (p.name, p.about)).collect(),
        ),
        (
            "Allocators (allocator of an experiment's row)",
            extant_history::ALLOCATORS.iter().map(|p| (p.name, p.about)).collect(),
        ),
        (
            "Direct I/O (direct_io of an experiment's row)",
            extant_history::DIRECT_IO.iter().map(|p| (p.name, p.about)).collect(),
        ),
    ]
}

fn machine(out: &mut String, name: &str, machine: &Machine) {
    let disks: Vec<String> =
        machine.disks.iter().map(|disk| format!("{} x{}", disk.name, disk.count)).collect();
    let disks = if disks.is_empty() { "no disks, so no jobs".to_owned() } else { disks.join(", ") };
    line(out, name, &format!("{} ({disks})", machine.name));
}

fn in_folder(out: &mut String, machines: &Path) -> Result<(), ModelError> {
    let mut files: Vec<_> = std::fs::read_dir(machines)
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    files.retain(|path: &std::path::PathBuf| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    heading(out, &format!("Machines in {} (--machine)", machines.display()));
    for file in &files {
        machine(out, &file.display().to_string(), &Machine::load(file)?);
    }
    if files.is_empty() {
        let _ = writeln!(out, "  none");
    }
    Ok(())
}

/// The keys of a machine's file.
pub(crate) fn keys() -> String {
    let mut out = String::new();
    heading(
        &mut out,
        "Keys of a machine's file (--set KEY=VALUE, or TABLE.KEY=VALUE): unit; range; default; meaning, with the kernel's name",
    );
    let mut table = "";
    for key in &KEYS {
        if key.table != table {
            table = key.table;
            let _ = writeln!(out, "  [{table}]");
        }
        line(&mut out, key.key, &described(key));
    }
    out
}

/// Unit, range, default and meaning of a key.
fn described(key: &Key) -> String {
    let Key { unit, about, .. } = key;
    let range = match key.bounds {
        Some((least, most)) if most >= i64::MAX as u64 => format!("{least} and more"),
        Some((least, most)) => format!("{least} to {most}"),
        None => "see the meaning".to_owned(),
    };
    let default = key.default.unwrap_or("none: the file must have it");
    format!("{unit}; {range}; {default}; {about}")
}

fn heading(out: &mut String, title: &str) {
    let gap = if out.is_empty() { "" } else { "\n" };
    let _ = writeln!(out, "{gap}{title}");
}

fn line(out: &mut String, name: &str, about: &str) {
    let _ = writeln!(out, "  {name:<28} {about}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sim::Setting;

    fn machines() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines")
    }

    #[test]
    fn every_key_of_every_machine_is_listed() {
        let shown = list(Some(&machines())).unwrap();
        let costs: Vec<&str> = cost_tables().iter().flat_map(|table| table.keys.iter().copied()).collect();
        for entry in std::fs::read_dir(machines()).unwrap() {
            let path = entry.unwrap().path();
            let file: toml::Table = std::fs::read_to_string(&path).unwrap().parse().unwrap();
            let tables = file.iter().flat_map(|(name, value)| match value {
                toml::Value::Table(table) => vec![(name, table)],
                toml::Value::Array(tables) => {
                    tables.iter().filter_map(|t| Some((name, t.as_table()?))).collect()
                }
                _ => Vec::new(),
            });
            for (table, keys) in tables {
                for key in keys.keys() {
                    let listed = match table.as_str() {
                        "costs" => costs.contains(&key.as_str()),
                        _ => KEYS.iter().any(|known| (known.in_table(), known.key) == (table.as_str(), key)),
                    };
                    assert!(listed, "{}: {table}.{key}", path.display());
                    assert!(shown.contains(key.as_str()), "{key} is not shown");
                }
            }
        }
    }

    #[test]
    fn what_is_listed_is_shown_by_name() {
        let listed = list(None).unwrap();
        for name in ["cfq-2013", "mq-deadline", "dirty_expire_centisecs", "linux-3.1"] {
            assert!(listed.contains(name), "{name}");
            assert!(
                show(name).is_some_and(|shown| shown.contains(name) || shown.contains("[processors]")),
                "{name}"
            );
        }
        assert_eq!(show("nothing"), None);
    }

    /// The listed bounds are those that the parser enforces.
    #[test]
    fn a_value_beyond_its_bounds_is_refused() {
        for (file, tables) in [
            ("sata-7200-2013.toml", ["processors", "kernel", "disk", "disk rotating"]),
            ("nvme-2017.toml", ["memory", "kernel", "disk", "disk ssd"]),
            ("jbod10-2011.toml", ["bus", "kernel", "disk", "disk rotating"]),
        ] {
            for key in KEYS.iter().filter(|key| tables.contains(&key.table)) {
                let Some((least, most)) = key.bounds else { continue };
                let load = |value: u64| {
                    let setting: Setting = format!("{}.{}={value}", key.in_table(), key.key).parse().unwrap();
                    Machine::load_with(&machines().join(file), &[setting])
                };
                let beyond = most.checked_add(1).filter(|value| *value <= i64::MAX as u64);
                for value in least.checked_sub(1).into_iter().chain(beyond) {
                    let error = load(value).expect_err(&format!("{}.{} = {value}", key.table, key.key));
                    assert!(error.to_string().contains(key.key), "{error}");
                }
                // The bounds of a disk's keys depend on each other.
                if key.table == "kernel" {
                    load(least).unwrap();
                    load(most).unwrap();
                }
            }
        }
    }
}
