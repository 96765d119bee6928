//! What the operations work on.

use crate::handles::Handles;
use crate::ids::IdMap;
use crate::nodes::Nodes;
use crate::object::Object;
use extant_fs::Volume;

/// Longest payload of a write, and of a read.
pub(crate) const MAX_WRITE: u32 = 1 << 20;

/// The volume, with what the kernel knows of it and has open.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) volume: Volume,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    /// The users and groups of the mount's user namespace, if that is not the server's.
    pub(crate) ids: Option<IdMap>,
}

impl Served {
    pub(crate) fn new(volume: Volume, root: Object, ids: Option<IdMap>) -> Self {
        Self { volume, nodes: Nodes::new(root), handles: Handles::default(), ids }
    }
}
