//! CFQ's settings, in ticks.

use extant_rt::Nanos;

/// The tunables under `/sys/block/*/queue/iosched`, converted to ticks as the kernel does: by
/// integer division, so that with a coarse tick the short times round to one tick or none.
#[derive(Clone, Copy, Debug)]
pub struct Tunables {
    /// Ticks per second (the kernel's `HZ`), 1 to 10⁹.
    pub hz: i64,
    /// Maximum number of requests of one queue in the device while others wait (`quantum`).
    pub quantum: u32,
    /// A request that has waited this long is served next in its queue's slice, \[async, sync\].
    pub fifo_expire: [i64; 2],
    /// Longest backward seek considered, in sectors.
    pub back_seek_max: u64,
    /// Cost of a sector backward, in sectors forward.
    pub back_seek_penalty: u64,
    /// Time slice of a queue at level 4, \[async, sync\]; at least 1.
    pub slice: [i64; 2],
    /// Requests per asynchronous slice, scaled by level.
    pub slice_async_rq: u32,
    /// How long to wait for a queue's next request; 0 means never.
    pub slice_idle: i64,
    /// How long to wait for a group's next request; 0 means never.
    pub group_idle: i64,
    /// The time within which every queue of a class should get its slice.
    pub target_latency: i64,
    /// Whether to scale slices to `target_latency`, and to limit asynchronous depth after slow
    /// synchronous requests.
    pub low_latency: bool,
    /// Whether seeks cost time.
    pub rotational: bool,
}

impl Tunables {
    /// Linux 3.10's defaults for a kernel built with `HZ` = `hz`: 100, 250, 300 or 1000 on Linux.
    /// Higher values, up to 10⁹, give finer times.
    pub fn linux(hz: u32) -> Self {
        let hz = i64::from(hz.clamp(1, 1_000_000_000));
        Self {
            hz,
            quantum: 8,
            fifo_expire: [hz / 4, hz / 8],
            back_seek_max: 16 * 1024 * 2,
            back_seek_penalty: 2,
            slice: [(hz / 25).max(1), (hz / 10).max(1)],
            slice_async_rq: 2,
            slice_idle: (hz / 125).max(1),
            group_idle: (hz / 125).max(1),
            target_latency: hz * 3 / 10,
            low_latency: true,
            rotational: true,
        }
    }

    /// Length of a tick.
    pub(super) fn tick(&self) -> Tick {
        Tick(1_000_000_000 / self.hz as u64)
    }
}

/// The length of a tick in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick(u64);

impl Tick {
    pub(super) fn span(self) -> Nanos {
        Nanos(self.0)
    }

    /// The tick that contains `now`.
    pub(super) fn of(self, now: Nanos) -> i64 {
        (now.0 / self.0) as i64
    }

    /// The first instant of a tick.
    pub(super) fn start(self, tick: i64) -> Nanos {
        Nanos((tick as u64).saturating_mul(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_starts_in_itself() {
        for hz in [100, 250, 300, 1000, 10_000] {
            let t = Tunables::linux(hz).tick();
            for tick in [0, 1, 2, 7, 299, 300, 1001, 123_456_789] {
                let start = t.start(tick);
                assert_eq!(t.of(start), tick, "hz {hz}");
                if tick > 0 {
                    assert_eq!(t.of(Nanos(start.0 - 1)), tick - 1, "hz {hz}");
                }
            }
        }
    }

    #[test]
    fn short_times_round_as_in_the_kernel() {
        let t = Tunables::linux(100);
        assert_eq!((t.slice_idle, t.slice, t.target_latency), (1, [4, 10], 30));
        let t = Tunables::linux(250);
        assert_eq!((t.slice_idle, t.slice, t.target_latency), (2, [10, 25], 75));
    }
}
