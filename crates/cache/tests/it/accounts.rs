//! Tests of memory outside frames.

use crate::common::{one_file, run, sleep, virtual_world, world};
use extant_cache::accounts::{Account, AccountConfig, Charge, Shrink};
use extant_cache::{CacheConfig, PAGE_BYTES};
use extant_rt::Rt;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};

const MIB: u64 = 1 << 20;

/// A client that holds charges and can give all of them back.
#[derive(Debug)]
struct Client {
    account: Account,
    holds: Mutex<Vec<Charge>>,
    asked: Mutex<Vec<u64>>,
}

impl Client {
    fn new(account: Account) -> Arc<Self> {
        let client = Arc::new(Self { account, holds: Mutex::default(), asked: Mutex::default() });
        client.account.set_shrinker(Arc::downgrade(&client) as Weak<dyn Shrink>);
        client
    }

    fn take(&self, bytes: u64) {
        let charge = self.account.charge(bytes);
        self.holds.lock().push(charge);
    }
}

impl Shrink for Client {
    fn shrink(&self, bytes: u64) -> u64 {
        self.asked.lock().push(bytes);
        let mut freed = 0;
        while freed < bytes {
            // Drop the charge outside the lock: the drop may ask for more.
            let Some(charge) = self.holds.lock().pop() else { break };
            freed += charge.bytes();
        }
        freed
    }
}

fn until(rt: &Rt, what: impl Fn() -> bool) {
    while !what() {
        sleep(rt, 1);
    }
}

#[test]
fn charges_are_taken_from_the_frames_and_come_back() {
    let rt = world();
    let (cache, _disk, _gate, mapping) = one_file(&rt, CacheConfig::with_budget(4 * MIB), 8 << 20, 8 * MIB);
    let file = mapping.open();
    let mut buf = vec![0; 8 << 20];
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert_eq!(mapping.cached_pages(), 1024);
    let account = cache.account(AccountConfig::new("test", &cache));
    let charge = account.charge(MIB);
    let usage = cache.usage();
    assert!(usage.parked >= 256 && mapping.cached_pages() <= 768, "{usage:?}");
    assert_eq!(cache.budget_bytes(), 4 * MIB, "the budget itself is as it was");
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert!(mapping.cached_pages() <= 768);
    drop(charge);
    run(&rt, file.read(0, &mut buf)).unwrap();
    assert!(mapping.cached_pages() >= 1000, "{:?}", cache.usage());
    cache.audit();
}

#[test]
fn dirty_memory_never_takes_all_frames_that_accounts_leave() {
    let rt = world();
    let config = CacheConfig { dirty_bytes: Some(3 * MIB), ..CacheConfig::with_budget(4 * MIB) };
    let (cache, _disk, _gate, mapping) = one_file(&rt, config, 8 << 20, 0);
    let account = cache.account(AccountConfig::new("test", &cache));
    let _charge = account.charge(2 * MIB);
    let file = mapping.open();
    for at in 0..8 {
        run(&rt, file.write(at * MIB, &vec![1; MIB as usize])).unwrap();
        let usage = cache.usage();
        assert!(usage.charged * 4096 <= 3 * MIB / 2, "{usage:?}");
    }
    run(&rt, cache.sync()).unwrap();
    cache.audit();
}

#[test]
fn an_account_over_its_limit_is_asked_for_the_difference() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let (cache, ..) = one_file(&rt, CacheConfig::with_budget(4 * MIB), 8 << 20, 0);
    let config = AccountConfig { limit_bytes: 100_000, ..AccountConfig::new("test", &cache) };
    let client = Client::new(cache.account(config));
    (0..100).for_each(|_| client.take(1_000));
    assert!(client.asked.lock().is_empty());
    (0..50).for_each(|_| client.take(1_000));
    until(&rt, || client.account.charged_bytes() <= 100_000);
    assert!(!client.asked.lock().is_empty());
    run(&rt, async {
        (0..50).for_each(|_| client.take(1_000));
        client.account.settle().await;
        assert!(client.account.charged_bytes() <= 100_000);
    });
}

#[test]
fn a_reader_that_finds_no_frame_has_clients_shrink() {
    let sim = virtual_world();
    let rt = sim.rt().clone();
    let config =
        CacheConfig { dirty_bytes: Some(u64::MAX), ..CacheConfig::with_budget(64 * PAGE_BYTES as u64) };
    let (cache, _disk, gate, mapping) = one_file(&rt, config, 8 << 20, 8 * MIB);
    let config = AccountConfig { limit_bytes: MIB, ..AccountConfig::new("test", &cache) };
    let client = Client::new(cache.account(config));
    // Charges three quarters of all frames.
    (0..48).for_each(|_| client.take(PAGE_BYTES as u64));
    gate.hold();
    let file = mapping.open();
    let readers: Vec<_> = (0..40_u64)
        .map(|n| {
            let file = mapping.open();
            rt.spawn("reader", Default::default(), async move { file.read(n * 200_000, &mut [0; 10]).await })
        })
        .collect();
    until(&rt, || client.account.charged_bytes() == 0 || gate.held() >= 40);
    assert!(!client.asked.lock().is_empty(), "memory was short");
    gate.release();
    for reader in readers {
        assert_eq!(run(&rt, reader).unwrap().unwrap(), 10);
    }
    drop(file);
    cache.audit();
}

#[test]
fn pins_have_a_cap_that_completions_may_pass() {
    let rt = world();
    let (cache, ..) = one_file(&rt, CacheConfig::with_budget(4 * MIB), 8 << 20, 0);
    let account = cache.account(AccountConfig { pinned_bytes: 10_000, ..AccountConfig::new("test", &cache) });
    let first = account.pin(8_000).unwrap();
    let refused = account.pin(2_001).unwrap_err();
    assert_eq!((refused.pinned_bytes, refused.cap_bytes), (8_000, 10_000));
    let exempt = account.pin_exempt(5_000);
    assert_eq!(account.pinned_bytes(), 13_000);
    drop(first);
    assert!(account.pin(5_001).is_err());
    drop(account.pin(5_000).unwrap());
    drop(exempt);
    assert_eq!(account.pinned_bytes(), 0);
}
