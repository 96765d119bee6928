//! The machines built into the program, by name.

use std::path::Path;

/// A machine's name, and its model's file.
type BuiltIn = (&'static str, &'static str);

macro_rules! built_in {
    ($name:literal) => {
        ($name, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/machines/", $name, ".toml")))
    };
}

/// All built-in machines, sorted by name.
pub(crate) const MACHINES: [BuiltIn; 13] = [
    built_in!("altix-2006"),
    built_in!("cfq-2013"),
    built_in!("cloud-gp2-2014"),
    built_in!("e3000-2004"),
    built_in!("jbod10-2011"),
    built_in!("jbod10-2011-16"),
    built_in!("nvme-2017"),
    built_in!("nvme-and-stick-2013"),
    built_in!("sata-7200-2010"),
    built_in!("sata-7200-2013"),
    built_in!("sata-7200-2023"),
    built_in!("turion-2010"),
    built_in!("vm-2026"),
];

/// The file of the built-in machine with this name.
pub(crate) fn machine(name: &str) -> Option<&'static str> {
    MACHINES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The name in a path that is a bare name and does not exist as a file.
pub(crate) fn name(path: &Path) -> Option<&str> {
    let name = path.to_str()?;
    let is_name = !name.contains('/') && !name.ends_with(".toml") && !path.exists();
    is_name.then_some(name)
}

/// All names, for messages.
pub(crate) fn names() -> String {
    MACHINES.map(|(name, _)| name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_of_the_folder_is_there() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut files: Vec<String> = files.map(|name| name.into_string().unwrap()).collect();
        files.iter_mut().for_each(|name| *name = name.strip_suffix(".toml").unwrap().to_owned());
        files.sort();
        assert_eq!(files, MACHINES.map(|(name, _)| name));
        assert_eq!((name(Path::new("cfq-2013")), name(Path::new("a/b"))), (Some("cfq-2013"), None));
        assert!(machine("cfq-2013").unwrap().contains("name = ") && machine("cfq").is_none());
    }
}
