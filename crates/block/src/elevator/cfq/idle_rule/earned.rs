//! The alternative in the same thread (S. Li, 30 July 2013; as a patch, T. Sekiyama, 1 August 2013).

use super::IdleRule;
use crate::elevator::ProgramId;

/// As [`Linux`](super::Linux), but a new queue starts without the idle window and earns it by short think times.
#[derive(Clone, Copy, Debug, Default)]
pub struct Earned;

impl IdleRule for Earned {
    fn name(&self) -> &'static str {
        "earned"
    }

    fn opens_at_birth(&self, _program: ProgramId) -> bool {
        false
    }
}
