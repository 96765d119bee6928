//! Where files' data are and what space they have, with the kernel's ext4 and e2fsck as judges.

mod bed;
mod bigalloc;
mod copy;
mod direct;
mod errnos;
mod model;
mod seek;
mod trim;
