//! CFQ's idling rules: that of Linux 3.10, and the two changes proposed on the list in 2013 (the
//! thread "cfq-iosched: limit slice_idle when many busy queues are in idle window"). The rest of
//! CFQ, with our own rule, is in [`extant_iosched::elevator::cfq`].

mod earned;
mod limited;
mod linux_3_10;

pub use earned::Earned;
pub use limited::Limited;
pub use linux_3_10::Linux310;
