//! Directory, tar or OCI layout to volume in one pass; mkfs.
#![forbid(unsafe_code)]

pub mod export;
