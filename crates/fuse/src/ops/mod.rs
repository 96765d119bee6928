//! Carries out FUSE operations on the volume.

pub(crate) mod attributes;
pub(crate) mod dirs;
pub(crate) mod emulated;
pub(crate) mod files;
pub(crate) mod ioctl;
pub(crate) mod names;
pub(crate) mod xattrs;
