//! Contents of files and symbolic links: read-only access on a volume open for reading, cached
//! contents on a volume open for writing.
//!
//! - `stored` reads from the volume. `files_in_memory` holds the files in memory on a volume open
//!   for writing; two openers share one.
//! - `contents` holds one file's pages and its in-memory map. `backing` implements what the cache
//!   asks of it: where to read (`map_lookup`), where to write back (`placement`), and what to log
//!   when a write-back ends (`map_logging`).
//! - `reserving` promises space to a write before it is acknowledged; `reserve` counts what is
//!   promised. `size_on_disk` records the size on the volume.
//! - `open_file` with `reading`, `writing`, `resize`, `delayed_truncate` and `fsync` has the
//!   operations for callers. `freeing` frees blocks that leave a map. `extent_list` lists where
//!   data lie.
//! - `fallocate` and `shift_blocks` allocate, free and move space without writing data.
//!   `move_blocks` moves blocks into fewer runs. `copy` copies ranges. `direct` does I/O past the
//!   cache. `data_journal` sends data through the log.

mod backing;
mod cache_errors;
mod contents;
mod copy;
mod data_journal;
mod delayed_truncate;
mod direct;
mod extent_list;
mod fallocate;
mod files_in_memory;
mod freeing;
mod fsync;
mod in_flight_places;
mod inline_contents;
mod map_logging;
mod map_lookup;
mod move_blocks;
mod open_file;
mod placement;
mod reading;
mod reserve;
mod reserving;
mod resize;
mod shift_blocks;
mod size_on_disk;
mod stored;
#[cfg(test)]
mod tests;
mod writing;

pub use extent_list::{ExtentFlags, FileExtent};
pub use fallocate::Fallocate;
pub(crate) use files_in_memory::FilesInMemory;
pub(crate) use freeing::{check_freeing, free_from};
pub use move_blocks::Defragmented;
pub use open_file::{FileOptions, OpenFile};
pub use resize::Dates;
pub(crate) use resize::finish_shrink;
pub(crate) use stored::StoredFiles;
pub use stored::{Chunk, File, FileStream};
