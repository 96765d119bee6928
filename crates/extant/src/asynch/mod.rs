//! The same types for code that awaits: nothing here blocks the calling thread for the disk.
//!
//! A future runs on any executor; I/O is driven by the threads of the volume's own world ([`extant_rt::Rt`]).

mod dir;
mod file;
mod path;
mod volume;

pub use crate::metadata::DirEntry;
pub use dir::Dir;
pub use file::File;
pub use volume::Volume;
