//! Settings of a server.

use crate::ids::IdMap;
use crate::monitor::Monitor;
use crate::owners::Owners;
use crate::request_trace::RequestTrace;
use std::sync::Arc;

/// For how long the kernel may keep names and attributes, in seconds. Nobody else changes them.
pub(crate) const VALID_SECONDS: u64 = 86_400;

/// How a server serves.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The kernel checks permissions, including access lists, before it sends a request. Required
    /// if users other than the one who mounts may access the mount.
    pub kernel_checks: bool,
    /// The users and groups of the user namespace in which the volume is mounted, if it is not the
    /// server's namespace. Other owners appear as root.
    pub ids: Option<IdMap>,
    /// How owners appear, and which user acts as root.
    pub owners: Owners,
    /// The thread that emulates, for the programs that use the mount, users that do not exist in
    /// their namespace.
    pub supervisor: Option<u32>,
    /// Reading changes times of access by the rule of Linux's mount option `relatime`. Otherwise it
    /// changes none (`noatime`).
    pub relatime: bool,
    /// The kernel keeps what programs write, and sends it later. Needs `kernel_checks`.
    pub writeback: bool,
    /// The process that does what a sandboxed server may not do.
    pub monitor: Option<Arc<Monitor>>,
    /// Where requests are traced.
    pub trace: Option<Arc<RequestTrace>>,
}
