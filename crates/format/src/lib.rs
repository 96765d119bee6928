//! ext2, ext3 and ext4 on-disk structures.
#![forbid(unsafe_code)]
