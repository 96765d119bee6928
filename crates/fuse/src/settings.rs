//! Settings of a server.

use crate::ids::IdMap;
use crate::monitor::Monitor;
use crate::owners::Owners;
use crate::request_trace::RequestTrace;
use std::sync::Arc;

/// How a server serves.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The kernel checks permissions, access lists included, before it asks. Needed if users other
    /// than the one who mounts may enter.
    pub kernel_checks: bool,
    /// The users and groups of the user namespace that the volume is mounted in, if that is not the
    /// server's. Others appear as root.
    pub ids: Option<IdMap>,
    /// How owners appear, and which user acts as root.
    pub owners: Owners,
    /// The process that does what a server in a sandbox may not do.
    pub monitor: Option<Arc<Monitor>>,
    /// Where each request is traced.
    pub trace: Option<Arc<RequestTrace>>,
}
