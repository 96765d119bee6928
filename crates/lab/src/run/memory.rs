//! The page cache of a run: its settings and their defaults.

use super::RunError;
use extant_cache::{CacheConfig, PageCache};
use extant_rt::{Nanos, Rt};
use extant_sim::{Knobs, MemorySpec};

/// Memory for pages where neither the machine's file nor an option says how much.
const CACHE_BYTES: u64 = 256 << 20;

/// Settings of a run's page cache; those not given are the machine's, or the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory for cached pages, in bytes.
    pub cache_bytes: Option<u64>,
    /// Most that may be dirty or under write-back, in bytes.
    pub dirty_limit_bytes: Option<u64>,
    /// Flushers work while more than this is dirty, in bytes.
    pub dirty_background_bytes: Option<u64>,
    /// Pages of so many bytes in a row leave write-back together, as file systems do it that end a whole mapped run at once
    /// (xfs: an `ioend`); those of a bio if not given.
    pub run_bytes: Option<u64>,
    /// One of [`extant_history::DIRTY_CONTROLS`]; ours if not given.
    pub control: Option<String>,
    /// One of [`extant_history::PASSES`]; ours if not given.
    pub pass: Option<String>,
}

/// Properties of the kernel that dirty controllers run in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    /// Processors.
    pub(super) cpus: u32,
    /// Ticks per second.
    pub(super) hz: u32,
}

impl Memory {
    /// The settings in effect. The default limits are Linux's 20 % and 10 % (kernel: `vm.dirty_ratio`,
    /// `vm.dirty_background_ratio`).
    fn spec(&self, machine: Option<MemorySpec>, knobs: &Knobs) -> Result<MemorySpec, RunError> {
        let cache_bytes = self.cache_bytes.or(machine.map(|spec| spec.cache_bytes)).unwrap_or(CACHE_BYTES);
        // A cache of another size has limits of its own.
        let machine = machine.filter(|spec| spec.cache_bytes == cache_bytes);
        let share = |ratio: Option<u32>| ratio.map(|ratio| cache_bytes / 100 * u64::from(ratio));
        let set_limit = self.dirty_limit_bytes.or(knobs.dirty_bytes).or(share(knobs.dirty_ratio));
        let limit = set_limit.or(machine.map(|spec| spec.dirty_limit_bytes));
        let dirty_limit_bytes = limit.unwrap_or(cache_bytes / 5);
        let background = machine.filter(|_| set_limit.is_none());
        let set_background = knobs.dirty_background_bytes.or(share(knobs.dirty_background_ratio));
        let set_background = self.dirty_background_bytes.or(set_background);
        let background = set_background.or(background.map(|spec| spec.dirty_background_bytes));
        let dirty_background_bytes = background.unwrap_or(dirty_limit_bytes / 2);
        let spec = MemorySpec { cache_bytes, dirty_limit_bytes, dirty_background_bytes };
        match spec.fault() {
            None => Ok(spec),
            Some((key, problem)) => Err(RunError::Memory { key, problem }),
        }
    }

    /// Sets the cache up.
    pub(super) fn cache(
        &self,
        rt: &Rt,
        machine: Option<MemorySpec>,
        kernel: Kernel,
    ) -> Result<PageCache, RunError> {
        self.cache_with(rt, machine, kernel, &Knobs::default())
    }

    /// The same as an administrator has set it.
    pub(super) fn cache_with(
        &self,
        rt: &Rt,
        machine: Option<MemorySpec>,
        kernel: Kernel,
        knobs: &Knobs,
    ) -> Result<PageCache, RunError> {
        let spec = self.spec(machine, knobs)?;
        let default = CacheConfig::with_budget(spec.cache_bytes);
        let time = |set: Option<u32>, default| {
            set.map_or(default, |centisecs| Nanos::from_millis(u64::from(centisecs) * 10))
        };
        let name = self.control.as_deref().unwrap_or(extant_history::OUR_DIRTY_CONTROL);
        let pass = self.pass.as_deref().unwrap_or(extant_history::OUR_PASS);
        let config = CacheConfig {
            pass: extant_history::pass(pass)?,
            // A modelled disk holds no user's data.
            phantom_frames: rt.is_virtual(),
            dirty_bytes: Some(spec.dirty_limit_bytes),
            background_bytes: Some(spec.dirty_background_bytes),
            run_bytes: self.run_bytes,
            control: extant_history::dirty_control(
                name,
                &extant_history::Host { cpus: kernel.cpus, memory_bytes: spec.cache_bytes, hz: kernel.hz },
            )?,
            periodic: time(knobs.dirty_writeback_centisecs, default.periodic),
            expire: time(knobs.dirty_expire_centisecs, default.expire),
            read_ahead_bytes: knobs
                .read_ahead_kb
                .map_or(default.read_ahead_bytes, |kib| u64::from(kib) << 10),
            ..default
        };
        PageCache::new(rt, config).map_err(|error| RunError::Memory {
            key: "cache_bytes",
            problem: format!("the host has no room for {} bytes: {error}", spec.cache_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_come_before_the_machine_and_that_before_the_default() {
        const MIB: u64 = 1 << 20;
        let of = |memory: &Memory, machine| {
            let spec = memory.spec(machine, &Knobs::default()).unwrap();
            [spec.cache_bytes, spec.dirty_limit_bytes, spec.dirty_background_bytes]
        };
        let machine = Some(MemorySpec {
            cache_bytes: 100 * MIB,
            dirty_limit_bytes: 50 * MIB,
            dirty_background_bytes: MIB,
        });
        let none = Memory::default();
        assert_eq!(of(&none, None), [256 * MIB, 256 * MIB / 5, 256 * MIB / 10]);
        assert_eq!(of(&none, machine), [100 * MIB, 50 * MIB, MIB]);
        let limit = Memory { dirty_limit_bytes: Some(8 * MIB), ..Memory::default() };
        assert_eq!(of(&limit, machine), [100 * MIB, 8 * MIB, 4 * MIB]);
        let cache = Memory { cache_bytes: Some(10 * MIB), ..Memory::default() };
        assert_eq!(of(&cache, machine), [10 * MIB, 2 * MIB, MIB]);
        // Knobs are between options and the machine.
        let knobs = Knobs { dirty_ratio: Some(40), dirty_background_ratio: Some(5), ..Knobs::default() };
        let spec = none.spec(machine, &knobs).unwrap();
        assert_eq!([spec.dirty_limit_bytes, spec.dirty_background_bytes], [40 * MIB, 5 * MIB]);
        assert_eq!(limit.spec(machine, &knobs).unwrap().dirty_limit_bytes, 8 * MIB);
    }

    #[test]
    fn limits_that_do_not_fit_are_refused() {
        let memory =
            Memory { cache_bytes: Some(8 << 20), dirty_limit_bytes: Some(8 << 20), ..Memory::default() };
        let error = memory.spec(None, &Knobs::default()).unwrap_err().to_string();
        assert_eq!(
            error,
            "dirty_limit_bytes: 8388608 does not fit a cache of 8388608 bytes; give 4096 to 6291456, three quarters of it"
        );
    }
}
