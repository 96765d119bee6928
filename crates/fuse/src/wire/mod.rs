//! The protocol of `/dev/fuse`, version 7.45, as in include/uapi/linux/fuse.h: structures parsed
//! and emitted in the host's byte order.
//!
//! A request is a [`RequestHeader`], a body that depends on the opcode, and extensions.
//! [`Request::parse`] accepts any bytes; [`Operation`] borrows names and data from them.

mod operation;
mod reply;
mod structs;
#[cfg(test)]
mod tests;

pub use operation::{Malformed, Operation, Request, Seek};
pub use reply::{Reply, Xattr};
pub use structs::*;

/// Major protocol version.
pub const MAJOR: u32 = 7;
/// Newest minor version that this crate supports.
pub const MINOR: u32 = 45;
/// Oldest minor version that this crate supports: Linux 5.13's, with `SETXATTR_EXT`. Since then,
/// all structures used have kept their size.
pub const MINOR_MIN: u32 = 33;
