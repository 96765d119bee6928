//! A run's page cache: settings and defaults.

use super::RunError;
use crate::defaults;
use extant_cache::{CacheConfig, PageCache};
use extant_history::{Choice, MakeDirtyControl, MakePass};
use extant_rt::{Nanos, Rt};
use extant_sim::{Knobs, MemorySpec};

/// Page cache settings of a run; missing ones come from the machine or are defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Memory for cached pages, in bytes.
    pub cache_bytes: Option<u64>,
    /// Limit on dirty bytes, including those under write-back.
    pub dirty_limit_bytes: Option<u64>,
    /// Flushers run while more than this many bytes are dirty.
    pub dirty_background_bytes: Option<u64>,
    /// Contiguous pages leave write-back together in runs of this many bytes, like file systems
    /// that end a whole mapped run at once (xfs: an `ioend`). If not given, the pages of one bio
    /// do.
    pub run_bytes: Option<u64>,
    /// Controller of dirty memory; ours if not given.
    pub control: Option<Choice<MakeDirtyControl>>,
    /// Pass of write-back; ours if not given.
    pub pass: Option<Choice<MakePass>>,
}

/// Properties of the kernel that dirty controllers depend on.
#[derive(Clone, Copy, Debug)]
pub(super) struct KernelParameters {
    /// Number of processors.
    pub(super) cpus: u32,
    /// Ticks per second.
    pub(super) hz: u32,
}

impl Memory {
    /// The controller of dirty memory.
    pub(crate) fn control(&self) -> Choice<MakeDirtyControl> {
        self.control.unwrap_or_else(defaults::ours)
    }

    /// The settings in effect.
    fn spec(&self, machine: Option<MemorySpec>, knobs: &Knobs) -> Result<MemorySpec, RunError> {
        let cache_bytes =
            self.cache_bytes.or(machine.map(|spec| spec.cache_bytes)).unwrap_or(defaults::CACHE_BYTES);
        // The machine's limits apply only to a cache of the machine's size.
        let machine = machine.filter(|spec| spec.cache_bytes == cache_bytes);
        let share = |ratio: Option<u32>| ratio.map(|ratio| cache_bytes / 100 * u64::from(ratio));
        let set_limit = self.dirty_limit_bytes.or(knobs.dirty_bytes).or(share(knobs.dirty_ratio));
        let limit = set_limit.or(machine.map(|spec| spec.dirty_limit_bytes));
        let dirty_limit_bytes = limit.unwrap_or(defaults::dirty_limit_bytes(cache_bytes));
        let background = machine.filter(|_| set_limit.is_none());
        let set_background = knobs.dirty_background_bytes.or(share(knobs.dirty_background_ratio));
        let set_background = self.dirty_background_bytes.or(set_background);
        let background = set_background.or(background.map(|spec| spec.dirty_background_bytes));
        let dirty_background_bytes =
            background.unwrap_or(defaults::dirty_background_bytes(dirty_limit_bytes));
        let spec = MemorySpec { cache_bytes, dirty_limit_bytes, dirty_background_bytes };
        match spec.fault() {
            None => Ok(spec),
            Some((key, problem)) => Err(RunError::Memory { key, problem }),
        }
    }

    /// Creates the page cache.
    pub(super) fn cache(
        &self,
        rt: &Rt,
        machine: Option<MemorySpec>,
        kernel: KernelParameters,
    ) -> Result<PageCache, RunError> {
        self.cache_with(rt, machine, kernel, &Knobs::default())
    }

    /// Like [`Memory::cache`], with an administrator's settings.
    pub(super) fn cache_with(
        &self,
        rt: &Rt,
        machine: Option<MemorySpec>,
        kernel: KernelParameters,
        knobs: &Knobs,
    ) -> Result<PageCache, RunError> {
        let spec = self.spec(machine, knobs)?;
        let default = CacheConfig::with_budget(spec.cache_bytes);
        let time = |set: Option<u32>, default| {
            set.map_or(default, |centisecs| Nanos::from_millis(u64::from(centisecs) * 10))
        };
        let host = extant_history::Host { cpus: kernel.cpus, memory_bytes: spec.cache_bytes, hz: kernel.hz };
        let config = CacheConfig {
            pass: self.pass.unwrap_or_else(defaults::ours).make()(),
            // A modelled disk holds no user data.
            phantom_frames: rt.is_virtual(),
            // The costs of the experiments' machines include these wakes, which Linux makes.
            wake_for_each_file: true,
            dirty_bytes: Some(spec.dirty_limit_bytes),
            background_bytes: Some(spec.dirty_background_bytes),
            run_bytes: self.run_bytes,
            control: self.control().make()(&host),
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
        // Knobs take precedence over the machine, and options over knobs.
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
