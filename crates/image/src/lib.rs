//! Directory, tar or OCI layout to volume in one pass; mkfs.
#![forbid(unsafe_code)]

mod build;
mod error;
pub mod export;
mod layout;
mod options;
mod owner;
mod source;
mod tree;
mod workers;
mod write;

pub use build::{BuildReport, Progress, build, mkfs};
pub(crate) use error::quoted_path;
pub use error::{BuildError, quoted};
pub use options::*;
pub use tree::Timestamp;
