//! Time in ticks, as in the kernel: sleeps end at a tick.

use extant_rt::Nanos;

/// The ticks of a kernel built with some `CONFIG_HZ`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    hz: u64,
}

impl Ticks {
    /// `hz` ticks per second; 1 to 10⁹.
    pub(super) fn new(hz: u32) -> Self {
        Self { hz: u64::from(hz).clamp(1, 1_000_000_000) }
    }

    /// Ticks per second.
    pub(super) fn hz(self) -> u64 {
        self.hz
    }

    /// Ticks per second, rounded up to a power of two, as used in some formulas.
    pub(super) fn hz_power(self) -> u64 {
        self.hz.next_power_of_two()
    }

    /// The tick that contains `now` (kernel: `jiffies`).
    pub(super) fn at(self, now: Nanos) -> u64 {
        (u128::from(now.0) * u128::from(self.hz) / 1_000_000_000) as u64
    }

    /// End of a sleep of `ticks` that starts now: the start of the tick that many after the current
    /// one.
    pub(super) fn sleep(self, now: Nanos, ticks: u64) -> Nanos {
        self.start(self.at(now).saturating_add(ticks))
    }

    /// The first instant of a tick.
    pub(super) fn start(self, tick: u64) -> Nanos {
        Nanos((u128::from(tick) * 1_000_000_000).div_ceil(u128::from(self.hz)).min(u64::MAX.into()) as u64)
    }

    /// A writer's longest pause: 200 ms, at least a tick (kernel: `MAX_PAUSE`, and
    /// `BANDWIDTH_INTERVAL`).
    pub(super) fn most_pause(self) -> u64 {
        (self.hz / 5).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_of_one_tick_ends_with_the_tick_and_so_lasts_at_most_that_long() {
        for hz in [100, 250, 300, 1000] {
            let ticks = Ticks::new(hz);
            for now in [0, 1, 3_333_333, 3_333_334, 10_000_000, 123_456_789] {
                let until = ticks.sleep(Nanos(now), 1).0;
                assert!(
                    until > now && until - now <= 1_000_000_000 / u64::from(hz) + 1,
                    "{hz} {now} {until}"
                );
                assert_eq!(ticks.at(Nanos(until)), ticks.at(Nanos(now)) + 1);
            }
        }
        assert_eq!((Ticks::new(250).hz_power(), Ticks::new(1000).most_pause()), (256, 200));
    }
}
