//! Files as stored on the volume, read from there. `cached_files` caches their pages on a volume
//! open for reading.

mod cached_files;
mod stored_file;
mod stream;
mod symlink;

pub(crate) use cached_files::StoredFiles;
pub use stored_file::File;
pub(super) use stored_file::check_size;
pub use stream::{Chunk, FileStream};
