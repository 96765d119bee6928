//! What the operations work on.

use crate::groups::groups_of;
use crate::handles::Handles;
use crate::ids::IdMap;
use crate::monitor::Monitor;
use crate::nodes::Nodes;
use crate::object::Object;
use crate::settings::Settings;
use extant_fs::Volume;
use std::sync::Arc;

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
    /// Who reads of processes, if the server may not.
    monitor: Option<Arc<Monitor>>,
}

impl Served {
    pub(crate) fn new(volume: Volume, root: Object, settings: Settings) -> Self {
        let Settings { ids, monitor, kernel_checks: _ } = settings;
        let nodes = Nodes::new(volume.clone(), root);
        Self { volume, nodes, handles: Handles::default(), ids, monitor }
    }

    /// The supplementary groups of a thread, as they are in its own namespace.
    pub(crate) fn groups_of(&self, thread: u32) -> Vec<u32> {
        let groups = match &self.monitor {
            Some(monitor) => monitor.groups(thread),
            None => groups_of(thread),
        };
        match &self.ids {
            Some(ids) => groups.into_iter().filter_map(|group| ids.groups.inside(group)).collect(),
            None => groups,
        }
    }
}
