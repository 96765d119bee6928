//! What sources hide from that over which they are laid.

/// A place that sources hide from what lies below the tree.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hidden {
    /// The directory that it lies in, from the root.
    pub(crate) dir: Vec<Step>,
    /// The name that is hidden with everything below it. Without one, all names in the directory are.
    pub(crate) name: Option<Vec<u8>>,
}

/// One name on the way to a hidden place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Step {
    pub(crate) name: Vec<u8>,
    /// A source lists this directory, so a symbolic link below the tree is not meant.
    pub(crate) listed: bool,
}

impl Hidden {
    /// The path, for messages.
    pub(crate) fn path(&self) -> Vec<u8> {
        let names = self.dir.iter().map(|step| &step.name).chain(&self.name);
        names.flat_map(|name| [&b"/"[..], name].concat()).collect()
    }
}
