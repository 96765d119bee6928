use super::*;
use crate::accounts::AccountConfig;
use crate::{CacheConfig, PageCache};
use extant_block::{Bio, IoErrorKind, Limits, MemDevice, Sector};
use extant_rt::Rt;
use std::convert::Infallible;
use std::future::Future;
use std::task::{Context, Poll, Waker};

const BLOCK: usize = 4096;

fn rt() -> Rt {
    Rt::real(Default::default())
}

/// A device of 64 blocks, each filled with its number.
fn numbered(rt: &Rt) -> Arc<dyn Device> {
    let device = Arc::new(MemDevice::new(64 * BLOCK));
    for n in 0..64u8 {
        let at = Sector(u64::from(n) * 8);
        rt.block_on(extant_block::write(&*device, at, Buf::from_slice(&[n; BLOCK]))).unwrap().unwrap();
    }
    device
}

struct Epoch(u64, Vec<u64>);

impl EditToken for Epoch {
    fn epoch(&self) -> u64 {
        self.0
    }
    fn first_touch(&mut self, block: &BlockRef) {
        self.1.push(block.number());
    }
}

/// A device that cannot read one of its sectors.
#[derive(Debug)]
struct BadSector(Arc<dyn Device>, Sector);

impl Device for BadSector {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn submit(&self, bio: Bio) {
        let sectors = bio.start..Sector(bio.start.0 + bio.bytes / Sector::BYTES);
        if sectors.contains(&self.1) {
            bio.end_as("bad", Err(IoErrorKind::Os(5)))
        } else {
            self.0.submit(bio)
        }
    }
}

#[test]
fn a_reader_keeps_the_version_that_it_took() {
    let rt = rt();
    let blocks = Blocks::new(numbered(&rt), BLOCK, 1 << 20);
    let block = rt.block_on(blocks.read(7)).unwrap().unwrap();
    let before = block.bytes();
    block.edit(&mut Epoch(1, vec![]))[0] = 99;
    assert_eq!((before[0], block.bytes()[0], block.bytes()[1]), (7, 99, 7));
}

#[test]
fn an_epoch_is_taken_as_it_was_left_though_a_later_one_goes_on() {
    let rt = rt();
    let blocks = Blocks::new(numbered(&rt), BLOCK, 1 << 20);
    let block = blocks.create(3);
    let mut first = Epoch(1, vec![]);
    block.edit(&mut first)[0] = 1;
    block.edit(&mut first)[1] = 1;
    assert_eq!(first.1, [3], "each block is touched first once in an epoch");
    let mut second = Epoch(2, vec![]);
    block.edit(&mut second)[0] = 2;
    let frozen = block.take(1, |bytes| bytes[9] = 0xcc);
    let taken = frozen.bytes();
    assert_eq!((taken[0], taken[1], taken[9]), (1, 1, 0xcc));
    assert_eq!(
        (block.bytes()[0], block.bytes()[1], block.bytes()[9]),
        (2, 1, 0),
        "a seal is seen by no other holder"
    );
    block.edit(&mut second)[1] = 2;
    let frozen = block.take(2, |_| {});
    let newer = frozen.bytes();
    assert_eq!((taken[1], newer[0], newer[1]), (1, 2, 2));
    block.edit(&mut Epoch(3, vec![]))[0] = 3;
    assert_eq!(newer[0], 2, "a version that was taken never changes");
}

#[test]
fn neighbours_come_together_and_are_read_once() {
    let rt = rt();
    let blocks = Blocks::new(numbered(&rt), BLOCK, 1 << 20);
    assert!(blocks.get(5).is_none());
    rt.block_on(blocks.read(5)).unwrap().unwrap();
    for n in 0..16 {
        assert_eq!(blocks.get(n).unwrap().bytes()[0], n as u8);
    }
    assert!(blocks.get(16).is_none(), "64 KiB are one neighbourhood");
    rt.block_on(blocks.prefetch([20, 21, 40, 41, 20, 99].into_iter())).unwrap();
    assert_eq!([20, 21, 40, 41].map(|n| blocks.get(n).unwrap().bytes()[5]), [20, 21, 40, 41]);
    assert!(blocks.get(22).is_none(), "a prefetch brings what it was asked for");
}

#[test]
fn a_block_made_anew_is_not_overwritten_by_a_read_that_began_before() {
    let rt = rt();
    let blocks = Blocks::new(numbered(&rt), BLOCK, 1 << 20);
    let mut reading = Box::pin(blocks.read(1));
    // Memory answers at once. So the neighbours are loaded, and then block 2 is created again.
    let _ = rt.block_on(&mut reading).unwrap();
    let made = blocks.create(2);
    assert_eq!(made.bytes()[0], 0);
    assert!(blocks.get(2).unwrap().is_same(&made));
    blocks.forget(2);
    assert!(blocks.get(2).is_none());
    assert_eq!(rt.block_on(blocks.read(2)).unwrap().unwrap().bytes()[0], 2);
}

#[test]
fn pinned_blocks_stay_and_the_rest_is_bounded() {
    let rt = rt();
    let device = Arc::new(MemDevice::new(1 << 24));
    let blocks = Blocks::new(device, BLOCK, 64 * BLOCK);
    let pinned: Vec<_> = (0..32).map(|n| blocks.create(n)).collect();
    pinned[9].edit(&mut Epoch(1, vec![]))[0] = 1;
    for n in 100..4000 {
        rt.block_on(blocks.read(n)).unwrap().unwrap();
    }
    for (n, pin) in pinned.iter().enumerate() {
        assert!(blocks.get(n as u64).unwrap().is_same(pin));
    }
    // Each of the 16 shards keeps what it has just read.
    let most = (64 + 32 + 16 * 16) * BLOCK;
    assert!(blocks.resident_bytes() <= most, "{} bytes resident", blocks.resident_bytes());
    for n in 0..100_000 {
        blocks.create(5000);
        blocks.forget(5000 + n % 2);
    }
    let queued: usize = blocks.shared.shards.iter().map(|shard| shard.lock().queue.len()).sum();
    assert!(queued < 2000, "{queued} places in the eviction queues");
}

/// An account is charged for all memory, in steps: 128 blocks of 4 KiB make two steps.
#[test]
fn versions_that_the_log_holds_are_charged_as_long_as_it_holds_them() {
    let rt = rt();
    let cache = PageCache::new(&rt, CacheConfig::with_budget(16 << 20)).unwrap();
    let account = cache.account(AccountConfig::new("blocks", &cache));
    let blocks = Blocks::new(numbered(&rt), BLOCK, 4 << 20);
    blocks.charge_to(&account);
    let all: Vec<BlockRef> = (0..128).map(|n| blocks.create(n)).collect();
    let once = 128 * BLOCK as u64;
    assert_eq!(account.charged_bytes(), once);
    let frozen: Vec<Frozen> = all
        .iter()
        .map(|block| {
            block.edit(&mut Epoch(1, vec![]))[0] = 1;
            block.take(1, |_| {})
        })
        .collect();
    blocks.settle_charge();
    assert_eq!(account.charged_bytes(), once, "a version that is live as well is there once");
    all.iter().for_each(|block| block.edit(&mut Epoch(2, vec![]))[0] = 2);
    blocks.settle_charge();
    assert_eq!((account.charged_bytes(), blocks.resident_bytes() as u64), (2 * once, once));
    drop(frozen);
    blocks.settle_charge();
    assert_eq!(account.charged_bytes(), once);
    drop(all);
    (0..128).for_each(|n| blocks.forget(n));
    assert_eq!(account.charged_bytes(), 0, "forgotten blocks are not charged");
}

#[test]
fn a_bad_neighbour_fails_no_other_block() {
    let rt = rt();
    let blocks = Blocks::new(Arc::new(BadSector(numbered(&rt), Sector(49))), BLOCK, 1 << 20);
    assert_eq!(rt.block_on(blocks.read(5)).unwrap().unwrap().bytes()[0], 5);
    let error = rt.block_on(blocks.read(6)).unwrap().unwrap_err();
    assert_eq!(error.start, Sector(48));
    let beyond = rt.block_on(blocks.read(64)).unwrap().unwrap_err();
    assert_eq!(beyond.kind, IoErrorKind::OutOfRange);
}

/// A device whose bios wait until the test releases them.
#[derive(Debug)]
struct Patient(BadSector, Mutex<Vec<Bio>>);

impl Device for Patient {
    fn limits(&self) -> &Limits {
        self.0.limits()
    }
    fn submit(&self, bio: Bio) {
        self.1.lock().push(bio);
    }
}

impl Patient {
    fn let_go(&self) {
        let held = std::mem::take(&mut *self.1.lock());
        held.into_iter().for_each(|bio| self.0.submit(bio));
    }
}

#[test]
fn a_bad_neighbour_in_the_run_of_another_reader_fails_no_other_block() {
    let rt = rt();
    let device = Arc::new(Patient(BadSector(numbered(&rt), Sector(49)), Mutex::default()));
    let blocks = Blocks::new(device.clone(), BLOCK, 1 << 20);
    let (mut first, mut second) = (Box::pin(blocks.read(5)), Box::pin(blocks.read(7)));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    device.let_go();
    // Block 6 made both reads fail, and the second reader reads the same run again before the first
    // retries.
    assert!(second.as_mut().poll(&mut cx).is_pending());
    for _ in 0..2 {
        assert!(first.as_mut().poll(&mut cx).is_pending());
        device.let_go();
    }
    let Poll::Ready(Ok(block)) = first.as_mut().poll(&mut cx) else { panic!("a neighbour's error") };
    assert_eq!(block.bytes()[0], 5);
}

#[test]
fn contents_are_verified_once_for_each_role() {
    let rt = rt();
    let blocks = Blocks::new(numbered(&rt), BLOCK, 1 << 20);
    let block = rt.block_on(blocks.read(5)).unwrap().unwrap();
    assert_eq!(block.verify_as(1, |_| Err("no")), Err("no"));
    assert_eq!(block.verify_as(1, |bytes| if bytes[0] == 5 { Ok(()) } else { Err("no") }), Ok(()));
    assert_eq!(block.verify_as(1, |_| Err("again")), Ok(()));
    assert_eq!(block.verify_as(2, |_| Err("another role")), Err("another role"));
    assert_eq!(block.verify_as::<Infallible>(2, |_| Ok(())), Ok(()));
}

#[test]
fn concurrent_readers_share_one_read() {
    let rt = rt();
    let blocks = Blocks::new(numbered(&rt), BLOCK, 1 << 20);
    let tasks: Vec<_> = (0..32)
        .map(|n| {
            let blocks = blocks.clone();
            rt.spawn("reader", extant_rt::Class::Normal, async move {
                blocks.read(n % 16).await.unwrap().bytes()[0]
            })
        })
        .collect();
    for (n, task) in tasks.into_iter().enumerate() {
        assert_eq!(rt.block_on(task).unwrap().unwrap(), (n % 16) as u8);
    }
    assert_eq!(blocks.resident_bytes(), 16 * BLOCK);
}

/// A version of block 7 that epoch 1 left, and the evidence from writing the commit block of
/// `epoch`.
fn frozen_and_durable(epoch: u64) -> (Frozen, Durable) {
    let rt = rt();
    let device = numbered(&rt);
    let blocks = Blocks::new(device.clone(), BLOCK, 1 << 20);
    let block = rt.block_on(blocks.read(7)).unwrap().unwrap();
    block.edit(&mut Epoch(1, vec![]))[0] = 99;
    let commit = Buf::from_slice(&[200; BLOCK]);
    let cache = PageCache::new(&rt, CacheConfig::with_budget(1 << 20)).unwrap();
    let disk = cache.attach(device.clone());
    let durable = rt.block_on(disk.write_commit(epoch, Sector(40 * 8), commit, 0)).unwrap().unwrap();
    let written = rt.block_on(extant_block::read(&*device, Sector(40 * 8), BLOCK)).unwrap().unwrap();
    assert_eq!(written[..], [200; BLOCK]);
    (block.take(1, |_| ()), durable)
}

#[test]
fn a_version_is_committed_by_the_write_of_its_epochs_commit_block() {
    let (frozen, durable) = frozen_and_durable(1);
    assert_eq!(frozen.committed(&durable).bytes()[0], 99);
}

#[test]
#[should_panic(expected = "its own epoch is durable")]
fn a_version_is_not_committed_by_another_epoch() {
    let (frozen, durable) = frozen_and_durable(2);
    let _ = frozen.committed(&durable);
}
