//! Allocation and mapping of file data, checked against the kernel's ext4 and e2fsck.

mod bed;
mod bigalloc;
mod copy;
mod direct;
mod errnos;
mod model;
mod seek;
mod trim;
