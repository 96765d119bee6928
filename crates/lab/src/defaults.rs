//! What applies where neither an experiment, a machine nor an option says otherwise.

use extant_history::{Choice, Kind, MakeElevator, OURS};

/// Name of the row with our policies.
pub(crate) const OUR_ROW: &str = OURS;

/// The I/O scheduler of plain jobs.
const ELEVATOR: &str = "none";

/// Memory for pages.
pub(crate) const CACHE_BYTES: u64 = 256 << 20;

/// Limit on dirty bytes for a cache of this size (kernel: `vm.dirty_ratio`, 20 %).
pub(crate) fn dirty_limit_bytes(cache_bytes: u64) -> u64 {
    cache_bytes / 5
}

/// Dirty bytes above which flushers run (kernel: `vm.dirty_background_ratio`, 10 %).
pub(crate) fn dirty_background_bytes(dirty_limit_bytes: u64) -> u64 {
    dirty_limit_bytes / 2
}

/// The I/O scheduler of plain jobs.
pub(crate) fn elevator() -> Choice<MakeElevator> {
    ELEVATOR.parse().expect("it exists")
}

/// Our policy of a kind.
pub(crate) fn ours<F: Kind>() -> Choice<F> {
    OURS.parse().expect("ours is in the table of each such kind")
}
