//! A FUSE server for one volume.
//!
//! [`wire`] contains the protocol's structures. A [`Transport`] carries requests and replies: the
//! kernel's device ([`Device`]), or memory in tests. [`Server`] maps each operation to one of `fs`
//! and has no file-system logic of its own. [`mount`] and [`unmount`] attach a directory to a
//! server and detach it, as root or through `fusermount3`. [`contain`] is for programs that run in
//! namespaces of their own.
//!
//! Only the server changes the volume, so the kernel may keep names, attributes and pages for as
//! long as it likes. Writes are passed through at once; `fs` commits them every few seconds, and an
//! fsync makes them durable.
#![deny(unsafe_code)]

mod buffers;
mod caller;
pub mod contain;
mod device;
mod errno;
mod groups;
mod handles;
mod ids;
mod inherit;
mod interrupts;
mod lane;
mod listing;
mod metrics;
mod metrics_socket;
mod monitor;
mod mounting;
mod nodes;
mod object;
mod ops;
mod owners;
mod request_trace;
mod sandbox;
mod served;
mod server;
mod settings;
mod shown_owners;
mod tie;
mod transport;
mod volume;
pub mod wire;

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
