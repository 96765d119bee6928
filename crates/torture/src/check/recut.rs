//! Power cuts during recovery.
//!
//! A recovery is a run of writes and flushes like any other, so crash states are derived from it in
//! the same way. Each is recovered again, some of these recoveries are interrupted too, and in the
//! end the volume must hold what the first recovery found.

use super::{Filesystem, Recovered};
use crate::Image;
use crate::states::{self, Options};
use rustc_hash::FxHashSet;

/// Interrupts the recovery of some disks.
#[derive(Clone, Copy, Debug)]
pub struct Recuts {
    every: u64,
    options: Options,
    /// Maximum number of successive interrupted recoveries.
    depth: u32,
    seen: u64,
}

impl Recuts {
    /// Interrupts one recovery in `every`, twice in a row; `seed` selects the states.
    pub fn new(every: u64, seed: u64) -> Self {
        let options = Options { exhaustive: 4, sampled: 6, torn: 1, seed };
        Self { every: every.max(1), options, depth: 2, seen: 0 }
    }

    /// Interrupts the recovery of `image`, which found `recovered`, if it is this disk's turn.
    /// Returns the number of recoveries run.
    ///
    /// # Errors
    /// A recovery after an interruption fails, or finds something else.
    pub fn check(
        &mut self,
        filesystem: &dyn Filesystem,
        image: &Image,
        recovered: &Recovered,
    ) -> Result<u64, String> {
        self.seen += 1;
        match self.seen % self.every {
            0 => self.cut(filesystem, image, recovered, recovered, self.depth),
            _ => Ok(0),
        }
    }

    fn cut(
        &self,
        filesystem: &dyn Filesystem,
        image: &Image,
        recovered: &Recovered,
        wanted: &Recovered,
        depth: u32,
    ) -> Result<u64, String> {
        let mut seen = FxHashSet::from_iter([image.hash()]);
        let (mut recoveries, mut problem) = (0, None);
        states::each(&recovered.log, image, &[], self.options, None, &mut |state| {
            if !seen.insert(state.image.hash()) {
                return true;
            }
            recoveries += 1;
            let again = filesystem.recover(&state.image).and_then(|again| {
                let differences = again.tree.differences(&wanted.tree);
                if !differences.is_empty() {
                    return Err(differences.join("\n  "));
                }
                // The further a recovery got, the less the next one has to do, so few of these are
                // interrupted again.
                if depth > 1 && recoveries % 5 == 0 {
                    recoveries += self.cut(filesystem, &state.image, &again, wanted, depth - 1)?;
                }
                Ok(())
            });
            problem = again.err().map(|why| format!("recovery cut off and done again, {state}: {why}"));
            problem.is_none()
        });
        problem.map_or(Ok(recoveries), Err)
    }
}
