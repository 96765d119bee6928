//! Contents of files and symbolic links: reading a volume that is open for reading, and the cached contents of files on one
//! that is open for writing.
//!
//! `read` and `stream` read from the volume; `stored` keeps pages of files of a volume that is open for reading. `contents` is one file's pages and its map in memory; `backing` is what the cache asks
//! of it (where to read, where to write back, what to log at the end of that); `write`, `resize`, `emptied` and `sync` are
//! the operations of callers; `removal` frees the blocks that leave a map; `extents` lists where data lie; `space` gives and
//! takes space without writes; `defrag` moves blocks to fewer runs; `copy` copies ranges; `direct` moves bytes past the
//! cache; `journalled` has data go through the log; `table` holds the files that are in memory.

mod backing;
mod contents;
mod copy;
mod defrag;
mod direct;
mod emptied;
mod extents;
mod inline;
mod journalled;
mod read;
mod removal;
mod resize;
mod space;
mod stored;
mod stream;
mod sync;
mod table;
#[cfg(test)]
mod tests;
mod write;

pub use defrag::Defragmented;
pub use extents::{ExtentFlags, FileExtent};
pub use read::File;
pub(crate) use removal::free_from;
pub(crate) use resize::finish_shrink;
pub use space::Fallocate;
pub(crate) use stored::StoredFiles;
pub use stream::{Chunk, FileStream};
pub(crate) use table::Files;
pub use write::{FileOptions, OpenFile};
