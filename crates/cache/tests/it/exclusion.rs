//! Readers, writers and other exclusions against a task that excludes the same pages again and
//! again, in virtual worlds.

use extant_block::{Bio, Device, Limits, MemDevice, Sector};
use extant_cache::{
    Answer, Backing, ByteRange, CacheConfig, DirtyRun, FlatFile, Mapping, PAGE_BYTES, PageCache, Placed,
    ReadExtent, WrittenRun,
};
use extant_rt::{Class, Nanos, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

const PAGE: u64 = PAGE_BYTES as u64;
const PAGES: u64 = 4;
const MS: Nanos = Nanos::from_millis(1);

/// A disk whose bios take a while.
#[derive(Debug)]
struct SlowDisk {
    mem: Arc<MemDevice>,
    rt: Rt,
    takes: Nanos,
}

impl Device for SlowDisk {
    fn limits(&self) -> &Limits {
        self.mem.limits()
    }

    fn submit(&self, bio: Bio) {
        let (rt, mem, takes) = (self.rt.clone(), self.mem.clone(), self.takes);
        let bio = async move {
            rt.sleep(takes).await;
            mem.submit(bio);
        };
        drop(self.rt.spawn("disk", Class::Normal, bio));
    }
}

/// A file whose map takes a while to read.
#[derive(Debug)]
struct SlowMap {
    file: FlatFile,
    rt: Rt,
    takes: Nanos,
}

impl Backing for SlowMap {
    fn block_bytes(&self) -> u32 {
        self.file.block_bytes()
    }

    fn map_read(&self, range: ByteRange) -> Answer<'_, ReadExtent> {
        Answer::later(async move {
            self.rt.sleep(self.takes).await;
            self.file.map_read(range).await
        })
    }

    fn prepare_write<'a>(&'a self, run: DirtyRun<'a>) -> Answer<'a, Placed> {
        self.file.prepare_write(run)
    }

    fn finish_write<'a>(&'a self, run: &'a WrittenRun) -> Answer<'a, ()> {
        self.file.finish_write(run)
    }
}

/// Runs `work` with a file of some pages; a request to its disk takes `disk`, one to its map `map`.
fn in_world<W: Future<Output = ()>>(disk: Nanos, map: Nanos, work: impl FnOnce(Rt, Mapping) -> W) {
    let sim = Sim::new(Machine::free(2, Preemption::None), 1);
    let rt = sim.rt().clone();
    let config = CacheConfig { read_ahead_bytes: 0, ..CacheConfig::with_budget(1 << 20) };
    let cache = PageCache::new(&rt, config).unwrap();
    let mem = Arc::new(MemDevice::new(1 << 20));
    let disk = cache.attach(Arc::new(SlowDisk { mem, rt: rt.clone(), takes: disk }));
    let file = SlowMap { file: FlatFile::new(Sector(0), 1 << 20), rt: rt.clone(), takes: map };
    let mapping = disk.mapping(Arc::new(file), 1, PAGES * PAGE);
    let all = mapping.clone();
    let work = work(rt.clone(), mapping);
    let run = async move {
        work.await;
        // Wait for the direct writers' last rounds.
        drop(all.exclude(..).await);
        all.write_back(..).await.unwrap();
    };
    rt.block_on(run).unwrap();
    cache.audit();
}

/// Writes past the cache until it is stopped, with nothing between the end of one write and the
/// start of the next.
struct DirectWriter {
    rounds: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

impl DirectWriter {
    fn start(rt: &Rt, mapping: &Mapping, takes: Nanos) -> Self {
        let (rounds, is_stopped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let writer = Self { rounds: rounds.clone(), is_stopped: is_stopped.clone() };
        let (rt_, mapping) = (rt.clone(), mapping.clone());
        let writes = async move {
            while !is_stopped.load(Ordering::SeqCst) {
                let _exclusion = mapping.exclude(0..PAGES * PAGE).await;
                mapping.invalidate(0..PAGES * PAGE).await.unwrap();
                rt_.sleep(takes).await;
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        };
        drop(rt.spawn("direct writer", Class::Normal, writes));
        writer
    }

    fn rounds(&self) -> usize {
        self.rounds.load(Ordering::SeqCst)
    }
}

impl Drop for DirectWriter {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
    }
}

async fn is_pending<F: Future + ?Sized>(future: &mut Pin<Box<F>>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Whether `work` ends within a second.
async fn ends_soon(rt: &Rt, work: impl Future<Output = ()>) -> bool {
    let mut work = Box::pin(work);
    for _ in 0..1_000 {
        if !is_pending(&mut work).await {
            return true;
        }
        rt.sleep(MS).await;
    }
    false
}

/// Has `work` done while direct writers write; returns how many direct writes it took, or `None`
/// for very many.
async fn among_direct_writers<W>(rt: Rt, mapping: Mapping, writers: u64, work: W) -> Option<usize>
where
    W: Future<Output = ()> + Send + 'static,
{
    let writers: Vec<_> =
        (0..writers).map(|n| DirectWriter::start(&rt, &mapping, Nanos(MS.0 * (n + 1)))).collect();
    rt.sleep(Nanos(MS.0 / 2)).await;
    let before: usize = writers.iter().map(DirectWriter::rounds).sum();
    let task = rt.spawn("starved", Class::Normal, work);
    let has_ended = ends_soon(&rt, async { task.await.unwrap() }).await;
    has_ended.then(|| writers.iter().map(DirectWriter::rounds).sum::<usize>() - before)
}

#[test]
fn direct_writes_one_after_the_other_keep_no_one_else_from_the_pages() {
    let at_once = Nanos::ZERO;
    for (disk, map) in [(at_once, at_once), (Nanos(MS.0 * 3), at_once), (at_once, Nanos(MS.0 * 3))] {
        for writers in 1..=2 {
            for kind in ["read", "write to whole pages", "write to parts of pages", "exclusion"] {
                in_world(disk, map, |rt, mapping| async move {
                    let file = mapping.open();
                    let excluded = mapping.clone();
                    let work = async move {
                        match kind {
                            "read" => {
                                let mut buf = [1; (PAGES * PAGE) as usize];
                                assert_eq!(file.read(0, &mut buf).await.unwrap(), buf.len());
                            }
                            "write to whole pages" => {
                                file.write(0, &[1; (PAGES * PAGE) as usize]).await.unwrap();
                            }
                            "write to parts of pages" => file.write(PAGE - 5, &[1; 10]).await.unwrap(),
                            _ => drop(excluded.exclude(0..PAGE).await),
                        }
                    };
                    let took = among_direct_writers(rt, mapping, writers, work).await;
                    let case = format!("{kind}, {writers} writers, disk {disk:?}, map {map:?}");
                    assert!(took.is_some_and(|took| took <= 20), "{case}: {took:?} direct writes");
                });
            }
        }
    }
}

#[test]
fn a_future_in_the_line_that_is_not_polled_holds_up_others_for_a_moment_only() {
    // How often the reader is polled: it waits for the exclusion, or for the disk.
    for polls in 1..=2 {
        in_world(MS, Nanos::ZERO, |rt, mapping| async move {
            let file = mapping.open();
            let mut buf = [0; 8];
            let exclusion = mapping.exclude(0..PAGE).await;
            let mut reader = Box::pin(file.read(0, &mut buf));
            assert!(is_pending(&mut reader).await);
            let mut kept = Box::pin(mapping.exclude(0..PAGE));
            assert!(is_pending(&mut kept).await);
            drop(exclusion);
            for _ in 1..polls {
                assert!(is_pending(&mut reader).await);
            }
            let writer = DirectWriter::start(&rt, &mapping, MS);
            rt.sleep(Nanos::from_millis(250)).await;
            let rounds = writer.rounds();
            assert!(rounds > 50, "{rounds} direct writes");
            // When polled again, both have their old places in the line.
            let kept = async { drop(kept.await) };
            assert!(ends_soon(&rt, kept).await && ends_soon(&rt, async { drop(reader.await) }).await);
        });
    }
}
