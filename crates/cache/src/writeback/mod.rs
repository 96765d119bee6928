//! Write-back: dirty pages go to the device, and their backing learns that they have arrived.
//!
//! A run of pages is [taken](take_dirty), [placed](submit_bios) by its backing and submitted,
//! [lands](landing) when its last bio ends, and is [settled](settling).

pub(crate) mod flusher;
mod landing;
mod pass_yields;
mod settling;
mod submit_bios;
mod take_dirty;
mod window;
pub(crate) mod write_back;
