//! Tests of the cache through its public interface.

mod accounts;
mod behaviour;
mod blocks;
mod bounds;
mod common;
mod corners;
mod defects;
mod endings;
mod eviction;
mod exclusion;
mod failing;
mod faults;
mod herd;
mod journalled;
mod races;
mod seam;
