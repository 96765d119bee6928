//! Devices that fail, and volumes that are full: the errors returned, and the state left on disk.

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

/// Runs `work`, turning a panic (including a deadlock of the virtual world) into an error.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {text}"))
    })
}
