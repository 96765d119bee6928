//! Devices that fail and volumes that are full: what a volume says then, and what is on its disk afterwards.

mod device;
mod full;
mod record;
mod sweep;
mod workloads;

pub use device::{FailOne, FailingDevice};
pub use full::{Full, Scarce};
pub use sweep::Sweep;
pub use workloads::{FaultWorkload, WORKLOADS};

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; a panic, a deadlock of the virtual world among them, becomes an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {text}"))
    })
}
