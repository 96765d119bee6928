//! A file's pages: copies to and from cached pages, loads pages, and removes them.

pub(crate) mod cached_read;
pub(crate) mod cached_write;
pub(crate) mod exclude;
pub(crate) mod load;
pub(crate) mod load_here;
mod loading_pages;
mod new_pages;
pub(crate) mod page_removal;
pub(crate) mod read_past;
