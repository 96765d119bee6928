//! As Linux 3.10 had it.

use super::IdleRule;

/// A new queue is trusted to follow up within `slice_idle`, until its third request shows that it does not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

impl IdleRule for Linux {
    fn name(&self) -> &'static str {
        "linux-3.10"
    }
}
