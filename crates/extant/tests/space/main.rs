//! Where files' data are, with the kernel's ext4 and e2fsck as judges.

mod bed;
mod seek;
