//! How much a device may hold: its share of the pool, and what other devices do not use. Also how
//! fast it must give memory back.

use crate::dirty::control_interface::{Amounts, Numbers};
use crate::dirty::{BusyRate, MAX_PAUSE, pages_in};
use extant_rt::Nanos;

/// Work kept in flight on a device: as much as it writes in this time.
pub(super) const IN_FLIGHT: Nanos = Nanos::from_millis(100);
/// A device that shares the pool may hold as much as it writes in this time. So others can get its
/// memory back within this time, and a device that writes nothing holds next to nothing. With a
/// lower value, a disk with a hundred files writes short runs.
const HOLD: Nanos = Nanos::from_secs(10);
/// A device may hold at most as much as it has written so far. It may always hold 64 MiB, which is
/// more than the caches of disks, or, in a smaller pool, its share by number. Before the rate of a
/// device is known, it is a guess, and the first measurement is that of the device's cache. If the
/// device then held much, it might need seconds to give it back. Meanwhile its writers would stall,
/// and on a shared link it would hold up later devices.
const UNPROVEN_PAGES: u64 = 64 << 20 >> 12;
/// If writing back what a device holds over its limit takes longer than this, the device gives back
/// only half of what it writes. Its writers use the other half, so a faster newcomer does not stall
/// them for seconds.
const STANDSTILL: Nanos = Nanos::from_millis(500);
/// The longest time to give back memory, in seconds, however slow the device is. A device that
/// completes nothing must not keep what it holds.
const GIVEN_BACK_S: u64 = 100;
/// A device that had nothing dirty for this long does not count for the shares.
const IDLE: Nanos = Nanos::from_secs(1);
/// Any device may hold this much, so that it can start.
const FLOOR_PAGES: u64 = 16;

/// A device's use of the pool.
#[derive(Debug, Default)]
pub(super) struct DeviceLoad {
    pub(super) busy: BusyRate,
    /// The device's amounts at the last call.
    amounts: Amounts,
    /// The last limit it got, and when.
    given: (Nanos, u64),
    /// Whether that limit was falling.
    is_easing: bool,
    /// When something was last dirty or in flight.
    active_at: Nanos,
    /// Since when something has been in flight without a break.
    in_flight_since: Nanos,
}

impl DeviceLoad {
    pub(super) fn rate(&self, now: Nanos) -> u64 {
        self.busy.rate(now, self.amounts.writeback_pages, self.in_flight_since)
    }

    fn is_active(&self, now: Nanos) -> bool {
        self.amounts.total() > 0 || now.saturating_sub(self.active_at) < IDLE && self.active_at > Nanos::ZERO
    }

    /// Records the device's new limit; `is_easing` says whether it is falling.
    pub(super) fn gets(&mut self, now: Nanos, limit: u64, is_easing: bool) {
        (self.given, self.is_easing) = ((now, limit), is_easing);
    }
}

/// The devices' use of the pool, by device.
#[derive(Debug, Default)]
pub(super) struct DeviceLoads(pub(super) Vec<DeviceLoad>);

impl DeviceLoads {
    /// Updates a device's state from `numbers`.
    pub(super) fn note(&mut self, now: Nanos, numbers: &Numbers) -> &mut DeviceLoad {
        let at = numbers.device.0 as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, DeviceLoad::default);
        }
        let device = &mut self.0[at];
        if device.amounts.writeback_pages == 0 {
            device.in_flight_since = now;
        }
        if numbers.on_device.total() > 0 {
            device.active_at = now;
        }
        device.amounts = numbers.on_device;
        device
    }

    /// The sum of the write rates of the devices in use, and their number.
    pub(super) fn in_use(&self, now: Nanos) -> (u128, u64) {
        let active = self.0.iter().filter(|device| device.is_active(now));
        active.fold((0, 0), |(rates, count), device| (rates + u128::from(device.rate(now)), count + 1))
    }

    /// Likewise, counting device `at` even if it is not in use.
    fn with(&self, now: Nanos, at: usize, (rates, count): (u128, u64)) -> (u128, u64) {
        let device = &self.0[at];
        let added = !device.is_active(now);
        (rates + if added { device.rate(now).into() } else { 0 }, count + u64::from(added))
    }

    /// The device's share of `of` pages, without loans: half by number, half by rate, among the
    /// devices in use and itself.
    pub(super) fn part(&self, now: Nanos, at: usize, of: u64, in_use: (u128, u64)) -> u64 {
        let (rates, count) = self.with(now, at, in_use);
        let by_rate = u128::from(of / 2) * u128::from(self.0[at].rate(now)) / rates.max(1);
        of / 2 / count + by_rate as u64
    }

    fn limit_of(&self, now: Nanos, numbers: &Numbers) -> u64 {
        let at = numbers.device.0 as usize;
        let limit = numbers.limits.limit_pages;
        if numbers.devices <= 1 {
            return limit.max(1);
        }
        let device = &self.0[at];
        let in_use = self.in_use(now);
        let mut wanted = 0;
        for (other, device) in self.0.iter().enumerate() {
            if other != at && device.is_active(now) {
                let credit = pages_in(device.rate(now), IN_FLIGHT).min(self.part(now, other, limit, in_use));
                wanted += credit.saturating_sub(device.amounts.total());
            }
        }
        // Keep an eighth for devices not in use.
        let free = limit.saturating_sub(numbers.global.total()).saturating_sub(wanted.max(limit / 8));
        let lent = numbers.on_device.total() + free;
        let proven = numbers.written_total.max(UNPROVEN_PAGES.min(limit / u64::from(numbers.devices)));
        let hold = pages_in(device.rate(now), HOLD).min(proven);
        self.part(now, at, limit, in_use).max(lent).min(hold).clamp(FLOOR_PAGES.min(limit), limit).max(1)
    }

    /// The limit for a device that may have to give back much memory: it falls gradually. Also
    /// whether it is falling.
    pub(super) fn eased_limit(&self, now: Nanos, numbers: &Numbers) -> (u64, bool) {
        let limit = self.limit_of(now, numbers);
        let device = &self.0[numbers.device.0 as usize];
        let (rate, held, (at, before)) = (device.rate(now), numbers.on_device.total(), device.given);
        // If other devices are in use, a device's share depends on its rate. Once that rate is
        // known, the share may be far less than the device holds.
        let (_, in_use) = self.with(now, numbers.device.0 as usize, self.in_use(now));
        let is_alone = in_use <= 1;
        // Writers resume an eighth below the limit.
        let resumes = if is_alone { limit } else { limit - limit / 8 };
        if held <= resumes.saturating_add(pages_in(rate, STANDSTILL)) {
            return (limit, false);
        }
        let pause = if is_alone { MAX_PAUSE } else { STANDSTILL };
        let most = held.saturating_add(held / 7).saturating_add(pages_in(rate, pause));
        // Let the limit fall from a value at which writers can go on. If the device turned out to
        // be slow while they waited at the last limit, they would otherwise wait until it has
        // written an eighth.
        let before = if is_alone || device.is_easing { before } else { before.max(most) };
        let passed = now.saturating_sub(at);
        let given_back = (pages_in(rate, passed) / 2).max(pages_in(before, passed) / GIVEN_BACK_S);
        let eased = limit.max(before.saturating_sub(given_back).min(most));
        (eased.min(numbers.limits.limit_pages), true)
    }

    /// The rate at which work is issued to the device. On a shared link, a device's share is its
    /// share of all work in flight. If work in flight followed each device's past rate, a device
    /// that has fallen behind would stay behind. So a device that writes less than the average gets
    /// as much work as an average one, but at most twice what its own rate needs.
    pub(super) fn credit_rate(&self, now: Nanos, numbers: &Numbers) -> u64 {
        let at = numbers.device.0 as usize;
        let rate = self.0[at].rate(now);
        let (sum, count) = self.with(now, at, self.in_use(now));
        rate.max(((sum / u128::from(count)) as u64).min(2 * rate))
    }
}
