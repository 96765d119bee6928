//! A FUSE server for one volume.
//!
//! [`wire`] contains the protocol's structures. A [`Transport`] carries requests and replies: the
//! kernel's device ([`Device`]), or memory in tests. [`Server`] maps each operation to one of `fs`
//! and has no file-system logic of its own. [`mount`] and [`unmount`] attach a directory to a
//! server and detach it, as root or through `fusermount3`. [`contain`] is for programs that run in
//! namespaces of their own, and [`emulation`] for users that those lack.
//!
//! Only the server changes the volume, so the kernel may keep names, attributes and pages for as
//! long as it likes. Writes are passed through at once; `fs` commits them every few seconds, and an
//! fsync makes them durable.
//!
//! With [`Settings::writeback`] the kernel also caches writes, and then only the kernel knows a
//! file's size and times. It sends dirty pages through the handle of any writer, and the times
//! afterwards (SETATTR). So a write changes no times here, and the write of a page is checked
//! neither against the file's flags nor against the handle's mode. It never pauses: it holds one of
//! the few slots for background requests, which readers need. The kernel throttles its writers.
#![deny(unsafe_code)]

mod buffers;
mod caller;
pub mod contain;
mod device;
pub mod emulation;
mod errno;
mod groups;
mod handles;
mod ids;
mod inherit;
mod interrupts;
mod lane;
mod listing;
mod lone_syncs;
mod metrics;
mod metrics_socket;
mod monitor;
mod mounting;
mod nodes;
mod object;
mod ops;
mod owners;
mod request_trace;
mod responders;
mod sandbox;
mod served;
mod server;
mod settings;
mod shown_owners;
mod tie;
mod transport;
mod volume;
pub mod wire;
mod writers;

pub use device::Device;
pub use ids::{IdMap, IdRange, IdRanges};
pub use metrics::METRICS_ATTRIBUTE;
pub use metrics_socket::MetricsSocket;
pub use monitor::{Monitor, Unmounting, monitor};
pub use mounting::{
    FS_TYPE, MountError, MountOptions, Mounted, SERVER_ATTRIBUTE, SYNC_ATTRIBUTE, clear_dead,
    keep_own_descriptors, mount, mounted_at, mounted_from, unmount,
};
pub use owners::{Owners, ShownIds};
pub use request_trace::RequestTrace;
pub use sandbox::{ImageIs, SandboxError, confine_calls, confine_files};
pub use server::{Server, WANTED_FEATURES};
pub use settings::Settings;
pub use tie::Tie;
pub use transport::{Received, Transport};
pub use volume::{OpenVolume, VolumeOptions};
pub use writers::{WRITERS_ATTRIBUTE, inode_name};
