//! Which of the queued commands the arm serves next.

use super::command_index::Queued;
use super::{Command, Rotating};
use extant_block::Op;
use extant_rt::Nanos;

impl Rotating {
    /// Time from `now`, with the platters at `angle_ns`, until the arm has served the command.
    pub(super) fn cost(&self, now: Nanos, angle_ns: u64, queued: &Queued) -> u64 {
        let Queued { command, place, ready, transfer_ns, .. } = queued;
        let decoding = ready.0.saturating_sub(now.0);
        if let Some(rest) = self.streams(command) {
            return decoding.max(rest);
        }
        let mut there = decoding + self.geometry.move_ns(self.arm, *place);
        if command.op != Op::Read && command.start.0 != self.arm_sector {
            there += self.spec.write_settle_ns;
        }
        there + self.geometry.wait_after(angle_ns, there, *place) + transfer_ns
    }

    /// The time until the command's last sector has passed, if the command continues the
    /// read-ahead.
    pub(super) fn streams(&self, command: &Command) -> Option<u64> {
        let run = self.look_ahead.continued_from()?;
        let goes_on = command.op == Op::Read && run.contains(&command.start.0);
        goes_on.then(|| self.geometry.stream_ns(*run.end(), command.end().saturating_sub(*run.end())))
    }

    /// The queued command to serve next, and how long it takes; ties go to the lowest number.
    pub(super) fn choose(&mut self, now: Nanos) -> Option<(usize, u64)> {
        let angle_ns = self.geometry.angle_at(now.0);
        if let Some(oldest) = self.queue.overdue(now, self.spec.patience_ns) {
            return Some((oldest, self.cost(now, angle_ns, self.queue.get(oldest))));
        }
        let mut best: Option<(u64, usize)> = None;
        let look_at = |number: usize, best: &mut Option<(u64, usize)>| {
            let candidate = (self.cost(now, angle_ns, self.queue.get(number)), number);
            if best.is_none_or(|best| candidate < best) {
                *best = Some(candidate);
            }
        };
        // A command that continues the read-ahead needs no seek.
        if let Some(buffered) = self.look_ahead.continued_from() {
            self.queue.within(buffered).for_each(|number| look_at(number, &mut best));
        }
        for (distance, number) in self.queue.outwards(self.arm_sector.saturating_sub(1), self.arm.cylinder) {
            // Moving to this command, or to any farther one, already takes as long as serving the
            // best.
            if best.is_some_and(|(least, _)| self.geometry.moves_at_least_ns(distance) >= least) {
                break;
            }
            look_at(number, &mut best);
        }
        best.map(|(cost, number)| (number, cost))
    }
}
