//! A file's pages: copying to and from those that are cached, loading and removing them.

pub(crate) mod cached_read;
pub(crate) mod cached_write;
pub(crate) mod exclude;
pub(crate) mod load;
pub(crate) mod load_here;
mod loading_pages;
mod new_pages;
pub(crate) mod page_removal;
