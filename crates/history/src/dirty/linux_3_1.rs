//! Writers over the limit write back themselves: Linux up to 3.1.

use super::share::Completions;
use super::{CHUNK_UNIT, QUEUE_PAGES};
use extant_cache::control::{Background, ControlState, DirtyControl, Numbers, Verdict, Writer};
use extant_rt::Nanos;

const MS: u64 = 1_000_000;
/// A writer of a device over its part asks every so many pages.
const ASK_WHEN_EXCEEDED: u64 = 8;
/// The longest sleep between two looks.
const LONGEST_SLEEP_MS: u64 = 100;
/// After so long a writer goes on if little more than the limit is dirty (kernel: `MAX_PAUSE`).
const ENOUGH_MS: u64 = 200;

/// The foreground throttle (kernel: `balance_dirty_pages()` of 3.1): over the limit a writer writes back half as much
/// again as it dirtied, whichever of its device's files comes first, and sleeps 1, 2, 4 … 100 ms if it found less.
///
/// The rule of [`Verdict::WriteBack`] is `linux-3.1: foreground`, that of [`Verdict::Pause`] `linux-3.1: sleep`. Left out is
/// that a task's limit is lower than its device's by an eighth of the task's part in all dirtying.
#[derive(Debug)]
pub struct Linux31 {
    ratelimit: u64,
    completions: Completions,
    /// Devices on which a writer was found over the limit since nobody was.
    exceeded: Vec<bool>,
}

impl Linux31 {
    /// On a machine with `memory_bytes` and `cpus` processors, which say how often a writer is looked at: memory / (32 ×
    /// processors), from 16 pages to 4 MiB.
    pub fn new(memory_bytes: u64, cpus: u32) -> Self {
        let ratelimit = (memory_bytes >> 12) / (32 * u64::from(cpus.max(1)));
        Self {
            ratelimit: ratelimit.clamp(16, 1024),
            completions: Completions::default(),
            exceeded: Vec::new(),
        }
    }

    fn exceeded(&mut self, numbers: &Numbers) -> &mut bool {
        let at = numbers.device.0 as usize;
        if self.exceeded.len() <= at {
            self.exceeded.resize(at + 1, false);
        }
        &mut self.exceeded[at]
    }

    fn go(&mut self, numbers: &Numbers, writer: &mut Writer) -> Verdict {
        writer.dirtied_pages = 0;
        writer.written_pages = 0;
        writer.steps = 0;
        let exceeded = *self.exceeded(numbers);
        writer.ask_after_pages = if exceeded { ASK_WHEN_EXCEEDED } else { self.ratelimit };
        Verdict::Go
    }
}

impl DirtyControl for Linux31 {
    fn balance(&mut self, now: Nanos, numbers: &Numbers, writer: &mut Writer) -> Verdict {
        let limit = numbers.limits.limit_pages;
        let dirty = numbers.global.total();
        let on_device = numbers.on_device.total();
        let share = self.completions.share(numbers.device, limit);
        let chunk = self.ratelimit.max(writer.dirtied_pages) * 3 / 2;
        // Even steps are the head of the kernel's loop, odd ones come after the writer's own write-back.
        if writer.steps.is_multiple_of(2) {
            if dirty <= (numbers.limits.background_pages + limit) / 2 {
                return self.go(numbers, writer);
            }
            if on_device <= share - share / 8 && dirty <= limit {
                *self.exceeded(numbers) = false;
            }
            if on_device <= share && dirty <= limit {
                return self.go(numbers, writer);
            }
            *self.exceeded(numbers) = true;
            if writer.steps == 0 {
                writer.paused_at = now;
            } else {
                let waited_ms = now.saturating_sub(writer.paused_at).0 / MS;
                if dirty < limit + limit / 16 && waited_ms > ENOUGH_MS {
                    return self.go(numbers, writer);
                }
                if dirty < limit + limit / 8 && on_device < share {
                    return self.go(numbers, writer);
                }
            }
            if numbers.on_device.dirty_pages > share {
                writer.steps += 1;
                return Verdict::WriteBack {
                    pages: chunk,
                    chunk_pages: CHUNK_UNIT,
                    in_flight_pages: QUEUE_PAGES,
                    rule: "linux-3.1: foreground",
                };
            }
            writer.steps += 2;
        } else {
            if writer.written_pages >= chunk {
                return self.go(numbers, writer);
            }
            writer.steps += 1;
        }
        let sleep_ms = (1 << (writer.steps / 2 - 1).min(10)).min(LONGEST_SLEEP_MS);
        // Asked again after the sleep.
        writer.ask_after_pages = writer.ask_after_pages.min(writer.dirtied_pages);
        Verdict::Pause { until: now.saturating_add(Nanos::from_millis(sleep_ms)), rule: "linux-3.1: sleep" }
    }

    fn background(&mut self, _now: Nanos, numbers: &Numbers) -> Background {
        if numbers.global.dirty_pages <= numbers.limits.background_pages {
            return Background::Stop;
        }
        Background::Run { chunk_pages: CHUNK_UNIT, in_flight_pages: QUEUE_PAGES }
    }

    fn written(&mut self, _now: Nanos, numbers: &Numbers, pages: u64, _took: Nanos) {
        self.completions.add(numbers.device, pages, numbers.limits.limit_pages);
    }
    /// No wall: who had to wait long enough goes on past the limit.
    fn pool_limit(&mut self, _now: Nanos, _numbers: &Numbers) -> u64 {
        u64::MAX
    }

    fn state(&self, _now: Nanos, numbers: &Numbers) -> ControlState {
        let device_setpoint_pages = self.completions.share(numbers.device, numbers.limits.limit_pages);
        ControlState { device_setpoint_pages, ..ControlState::default() }
    }
}
