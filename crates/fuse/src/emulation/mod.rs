//! Users that a namespace lacks, emulated for the programs in it.
//!
//! In a namespace with a single user and group, the kernel refuses to change an owner or to become
//! another user. Programs such as package managers need both. Here their system calls are held up
//! (seccomp_unotify(2)) and answered by a [`Supervisor`] outside:
//!
//! - A call of chown(2)'s family sets the owner on the volume. The supervisor resolves the path as
//!   the caller would and tells the server whom the file belongs to, by an attribute that only the
//!   supervisor can set.
//! - After setuid(2) and its relatives a process has *credentials*, which the calls that read ids
//!   report. The server takes it for that user: new files are the user's, and what the user may not
//!   do is denied.
//!
//! The kernel itself keeps track of whose credentials a process has, over fork and exec: as a mark
//! in a resource limit that Linux no longer uses (`mark.rs`). The server reads it there.
//!
//! This is not a boundary. All processes really have the rights of the user who runs them, and
//! nothing that they do to the supervisor gives them more: it changes nothing but owners of files
//! on the volume, which they may change anyway.

mod agreed;
mod calls;
mod credentials;
mod filter;
mod identities;
mod listener;
mod mark;
mod process;
mod registering;
mod supervisor;

pub(crate) use agreed::{NewOwner, OWNER_ATTRIBUTE, is_registration};
pub(crate) use identities::{Identities, Identity};
pub(crate) use mark::RESOURCE;

pub use filter::install;
pub use listener::Listener;
pub use supervisor::{Outside, Supervisor};
