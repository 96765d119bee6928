//! Places that sources hide in the trees that they are merged over.

/// A place that sources hide in the trees below.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hidden {
    /// Path of the place's directory from the root.
    pub(crate) dir: Vec<Step>,
    /// The hidden name, with everything below it; `None` for all names in the directory.
    pub(crate) name: Option<Vec<u8>>,
}

/// A component of the path to a hidden place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    pub(crate) name: Vec<u8>,
    /// Whether a source lists this directory, so that a symbolic link of that name below the tree
    /// is not followed.
    pub(crate) listed: bool,
}

impl Hidden {
    /// The path, for messages.
    pub(crate) fn path(&self) -> Vec<u8> {
        let names = self.dir.iter().map(|step| &step.name).chain(&self.name);
        names.flat_map(|name| [&b"/"[..], name].concat()).collect()
    }
}
