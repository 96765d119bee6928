//! Directory, tar or OCI layout to volume in one pass; mkfs.
#![forbid(unsafe_code)]

mod error;
mod layout;
mod options;
mod source;
mod tree;
mod workers;

pub use error::{BuildError, quoted};
pub(crate) use error::{path_of, quoted_path};
pub use options::*;
pub use tree::{Kind, Timestamp};
