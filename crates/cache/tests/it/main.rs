//! The cache from outside.

mod behaviour;
mod common;
mod faults;
