//! Programs in namespaces of their own, with a volume that only they see.
//!
//! Three processes take part. The one that serves the volume stays outside and says which ids exist
//! inside ([`OwnIds`]). A second leaves its namespaces ([`leave_namespaces`]), mounts, and passes
//! the device back over a [`Tie`](crate::Tie). A third is the first process of the new process
//! namespace, and may take the volume as its root directory ([`enter_root`]). If a single user and
//! group exist inside, the second also emulates the others ([`emulation`](crate::emulation)).

mod namespaces;
mod own_ids;
mod proc_mount;
mod root;

pub use namespaces::{NamespaceError, leave_namespaces, private_mounts};
pub use own_ids::{IdError, OwnIds, own_map};
pub use proc_mount::mount_own_proc;
pub use root::{Missing, RootError, enter_root};
