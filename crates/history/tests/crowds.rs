//! Many writers in little memory, with every dirty controller. All of them make progress, even if
//! writes fail.

use extant_block::{MemDevice, Sector};
use extant_cache::control::DirtyControl;
use extant_cache::{CacheConfig, FlatFile, PageCache};
use extant_history::{DIRTY_CONTROLS, Host, dirty_control};
use extant_sim::{Jitter, Machine, Preemption, Sim};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A thousand writers in 8 MiB on a slow device in a virtual world, where some writes fail: all
/// make progress.
fn crowd(name: &str, control: Box<dyn DirtyControl>, fails_in_1000: u64) {
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let rt = sim.rt().clone();
    let mut config = CacheConfig::with_budget(8 * MIB);
    config.control = control;
    let cache = PageCache::new(&rt, config).unwrap();
    let mem = Arc::new(MemDevice::new(64 << 20));
    let disk = cache.attach(Arc::new(Jitter::new(&sim, mem.clone(), fails_in_1000)));
    let mappings: Vec<_> = (0..1_000_u64)
        .map(|n| disk.mapping(Arc::new(FlatFile::new(Sector(n * 65_536 / 512), 65_536)), n, 0))
        .collect();
    let ended = rt.block_on(async {
        let writers: Vec<_> = mappings
            .iter()
            .enumerate()
            .map(|(n, mapping)| {
                let file = mapping.open();
                rt.spawn("writer", Default::default(), async move {
                    for turn in 0..4 {
                        // The error may be from any file's writeback; the bytes were not accepted,
                        // or stay dirty.
                        while file.write(turn * 10_001, &vec![(n + 1) as u8; 30_000]).await.is_err() {}
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.await.unwrap();
            let usage = cache.usage();
            assert!(usage.dirty + usage.writeback <= usage.frames * 3 / 4, "{name}: {usage:?}");
        }
        while cache.sync().await.is_err() {}
        cache.audit();
    });
    ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    let bytes = mem.to_bytes();
    let whole = |n: usize| [0, 33_333, 60_002].iter().all(|at| bytes[n * 65_536 + at] == (n + 1) as u8);
    assert!((0..1_000).all(whole), "{name}: all of it is on the device");
}

#[test]
fn a_thousand_writers_get_on_in_eight_megabytes_under_every_controller() {
    let host = Host { cpus: 24, memory_bytes: 16 << 30, hz: 1000 };
    for name in DIRTY_CONTROLS.iter().map(|policy| policy.name) {
        for fails_in_1000 in [0, 20] {
            crowd(name, dirty_control(name, &host).expect("in the table"), fails_in_1000);
        }
    }
}
