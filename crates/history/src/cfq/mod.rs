//! CFQ's rules for idling: as Linux 3.10 had it, and the two changes that were proposed for it on the list in 2013 (the
//! thread "cfq-iosched: limit slice_idle when many busy queues are in idle window"). The rest of CFQ is in
//! [`extant_iosched::elevator::cfq`], where our rule is.

mod earned;
mod limited;
mod linux_3_10;

pub use earned::Earned;
pub use limited::Limited;
pub use linux_3_10::Linux310;
