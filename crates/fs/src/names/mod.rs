//! Names: paths and walks over a whole tree.

mod path;
mod walk;

pub use path::{Follow, quote};
pub use walk::{DEPTH_MAX, PATH_MAX, Walk, WalkEntry, WalkError, WalkOptions};
