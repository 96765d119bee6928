//! Contents of files and symbolic links: read-only access on a volume open for reading, cached
//! contents on a volume open for writing.
//!
//! - `read` and `stream` read from the volume. `stored` caches pages of files on a volume open for
//!   reading.
//! - `contents` holds one file's pages and its in-memory map. `backing` implements what the cache
//!   asks of it: where to read (`map_lookup`), where to write back (`placement`), and what to log
//!   when a write-back ends (`map_logging`).
//! - `reserving` promises space to a write before it is acknowledged; `reserve` counts what is
//!   promised. `size_on_disk` records the size on the volume.
//! - `write`, `resize`, `emptied` and `sync` are operations for callers. `removal` frees blocks
//!   that leave a map. `extents` lists where data lie.
//! - `space` allocates and frees space without writing data. `defrag` moves blocks into fewer runs.
//!   `copy` copies ranges. `direct` does I/O past the cache.
//! - `journalled` sends data through the log. `table` holds the files that are in memory.

mod backing;
mod cache_errors;
mod contents;
mod copy;
mod defrag;
mod direct;
mod emptied;
mod extents;
mod in_flight_places;
mod inline;
mod journalled;
mod map_logging;
mod map_lookup;
mod placement;
mod read;
mod removal;
mod reserve;
mod reserving;
mod resize;
mod size_on_disk;
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
pub(crate) use removal::{check_freeing, free_from};
pub(crate) use resize::finish_shrink;
pub use space::Fallocate;
pub(crate) use stored::StoredFiles;
pub use stream::{Chunk, FileStream};
pub(crate) use table::Files;
pub use write::{FileOptions, OpenFile};
