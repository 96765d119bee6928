//! One mounted volume.
#![forbid(unsafe_code)]
