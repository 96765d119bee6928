//! Writers over the limit write back themselves: Linux up to 3.1.

use super::share::Completions;
use super::{CHUNK_UNIT, QUEUE_PAGES};
use extant_cache::control::{
    Asking, Background, ControlState, DeviceIndex, DirtyControl, Numbers, Orders, Verdict, WriterId,
};
use extant_rt::Nanos;
use std::collections::BTreeMap;

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
    writers: BTreeMap<WriterId, Writer>,
}

/// The state of one task.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    /// Pages dirtied since it last went on (kernel: `nr_dirtied`).
    dirtied_pages: u64,
    /// Pages that it wrote back since.
    written_pages: u64,
    /// Steps that it took since.
    steps: u32,
    /// When it was first over the limit.
    paused_at: Nanos,
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
            writers: BTreeMap::new(),
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
        *writer = Writer::default();
        let exceeded = *self.exceeded(numbers);
        Verdict::Go { pages: if exceeded { ASK_WHEN_EXCEEDED } else { self.ratelimit } }
    }

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
        // It looks again after the sleep.
        let until = now.saturating_add(Nanos::from_millis(sleep_ms));
        Verdict::Pause { until, pages: 0, rule: "linux-3.1: sleep" }
    }
}

impl DirtyControl for Linux31 {
    fn orders(&mut self, now: Nanos, numbers: &Numbers, asking: Option<Asking>) -> Orders {
        // No wall: a writer that had to wait long enough goes on past the limit.
        let mut orders = Orders { pool_limit_pages: u64::MAX, ..Orders::none(numbers) };
        if let Some(Asking { writer: id, dirtied_pages, written_pages }) = asking {
            let mut writer = self.writers.remove(&id).unwrap_or_default();
            writer.dirtied_pages += dirtied_pages;
            writer.written_pages += written_pages;
            orders.writer = self.balance(now, numbers, &mut writer);
            self.writers.insert(id, writer);
        }
        if numbers.global.dirty_pages > numbers.limits.background_pages {
            let (chunk_pages, in_flight_pages) = (CHUNK_UNIT, QUEUE_PAGES);
            orders.flusher = Background::Run { chunk_pages, in_flight_pages, least_pages: 1 };
        }
        orders
    }

    fn forget(&mut self, _device: DeviceIndex, writer: WriterId) {
        self.writers.remove(&writer);
    }

    fn written(&mut self, _now: Nanos, numbers: &Numbers, pages: u64, _took: Nanos) {
        self.completions.add(numbers.device, pages, numbers.limits.limit_pages);
    }

    fn state(&self, _now: Nanos, numbers: &Numbers) -> ControlState {
        let device_setpoint_pages = self.completions.share(numbers.device, numbers.limits.limit_pages);
        ControlState { device_setpoint_pages, ..ControlState::default() }
    }
}
