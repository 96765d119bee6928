//! Allocators of blocks as Linux had them.

mod cost;
mod mballoc;

pub use cost::Cost;
pub use mballoc::{Geometry, Mballoc, StripeRule, Work};
