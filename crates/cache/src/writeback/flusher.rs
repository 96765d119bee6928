//! The write-back task, one for each device.

use crate::PageRange;
use crate::device::dirty_file_order::DirtySince;
use crate::dirty::control_interface::Background;
use crate::file::{CacheCore, CachedDevice, CachedFile};
use crate::waits::{Condition, Listener};
use crate::writeback::pass_yields::Visiting;
use crate::writeback::take_dirty::Taken;
use crate::writeback::window::Window;
use crate::writeback::write_back::write_back_all;
use extant_block::BioFlags;
use extant_rt::{Nanos, Sleep};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// Why a pass runs, which decides how far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Until the controller says stop, taking the files in turn.
    Background,
    /// Files that became dirty before this time. Writes at most as many pages as were dirty when
    /// the pass began.
    Expired(Nanos),
    /// One round, because a task waits for frames or room.
    Wanted,
}

/// Pages of one file written in one go, unless the controller says otherwise.
const CHUNK_PAGES: u64 = 4 << 20 >> 12;
/// Pages in flight at a time, unless the controller says otherwise.
const IN_FLIGHT_PAGES: u64 = 16 << 20 >> 12;

/// When to look again at pages that other tasks hold.
const RETRY: Nanos = Nanos::from_millis(10);

/// The flusher's hold on its device, created before its first step.
///
/// The device's list of dirty files keeps those files and the cache alive, and only the flusher
/// serves it. If the world ends first, the list ends with it and writers that wait for room are
/// notified.
pub(crate) struct Serving {
    core: Arc<CacheCore>,
    disk: Arc<CachedDevice>,
    is_over: bool,
}

impl Serving {
    pub(crate) fn new(core: &Arc<CacheCore>, disk: &Arc<CachedDevice>) -> Self {
        Self { core: core.clone(), disk: disk.clone(), is_over: false }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After a panic, syncs still need the list.
        if std::thread::panicking() {
            return;
        }
        self.disk.turns.close();
        if !self.is_over {
            self.core.forsake();
        }
    }
}

/// Runs until the cache is closed and clean, or the device is released.
pub(crate) async fn run(mut serving: Serving) {
    serve(&serving.core, &serving.disk).await;
    serving.is_over = true;
}

async fn serve(core: &Arc<CacheCore>, disk: &Arc<CachedDevice>) {
    let mut next_periodic = Nanos::MAX;
    let mut visiting = Visiting::new(&core.rt, &*core.pass);
    loop {
        let kicked = core.waits.listen(Condition::Flusher(disk.index.0));
        if core.is_closed() {
            return close_out(core, disk).await;
        }
        // Before the order is read: whatever enters it later finds no timer and kicks.
        let looks_at = Nanos(disk.looks_at.swap(CachedDevice::NEVER, Ordering::SeqCst));
        let dirty = disk.turns.len() > 0;
        let now = core.rt.now();
        let wanted = disk.wanted.swap(false, Ordering::SeqCst);
        // A failing device is retried when the next periodic pass is due, or on demand.
        let failing = disk.health.is_failing();
        if !dirty {
            if disk.is_left() && leave(core, disk).await {
                return;
            }
            // A file may become dirty again soon.
            if looks_at > now && looks_at < Nanos::MAX {
                sleep_until(core, disk, kicked, looks_at).await;
            } else {
                next_periodic = Nanos::MAX;
                kicked.await;
            }
            continue;
        }
        if next_periodic == Nanos::MAX {
            next_periodic = now.saturating_add(core.settings.periodic);
        }
        let pass = if now >= next_periodic {
            next_periodic = now.saturating_add(core.settings.periodic);
            Some(Pass::Expired(now.saturating_sub(core.settings.expire)))
        } else if wanted {
            Some(Pass::Wanted)
        } else if !failing && disk.orders(core, None).flusher != Background::Stop {
            Some(Pass::Background)
        } else if !failing && disk.is_waited_for(core) {
            Some(Pass::Wanted)
        } else {
            None
        };
        let progress = match pass {
            Some(Pass::Background) => background(core, disk, next_periodic, &mut visiting).await,
            Some(pass) => pass_over(core, disk, pass, &mut visiting).await,
            None => {
                sleep_until(core, disk, kicked, next_periodic).await;
                continue;
            }
        };
        if !progress {
            // All dirty pages are held by other tasks at the moment.
            first_of(kicked, core.rt.sleep(RETRY)).await;
        }
    }
}

/// Sleeps until a time or a kick. The first few files that become dirty meanwhile do not kick,
/// unless [`CacheConfig::wake_for_each_file`](crate::CacheConfig::wake_for_each_file) says so.
async fn sleep_until(core: &CacheCore, disk: &CachedDevice, kicked: Listener, at: Nanos) {
    if !core.settings.wake_for_each_file {
        disk.looks_at.store(at.0, Ordering::SeqCst);
    }
    first_of(kicked, core.rt.sleep_until(at)).await;
}

/// Releases a device that is no longer used, once everything written to it is durable.
async fn leave(core: &Arc<CacheCore>, disk: &Arc<CachedDevice>) -> bool {
    let is_durable = !disk.flushes.is_owed() || disk.flushes.flush().await.is_ok();
    is_durable && core.detach(disk)
}

/// Writes the files in turn until the controller says stop or something more urgent is due. Returns
/// whether it wrote anything.
async fn background(
    core: &Arc<CacheCore>,
    disk: &Arc<CachedDevice>,
    until: Nanos,
    visiting: &mut Visiting<'_>,
) -> bool {
    let mut progress = false;
    // Number of consecutive files from which nothing was written.
    let mut barren = 0;
    while let Background::Run { chunk_pages, in_flight_pages, least_pages } = disk.orders(core, None).flusher
    {
        let Some(file) = disk.next_in_turn(least_pages) else { break };
        let written = write_chunk(core, disk, &file, chunk_pages.max(1), in_flight_pages, visiting).await;
        progress |= written > 0;
        barren = if written > 0 { 0 } else { barren + 1 };
        if barren > disk.turns.len() || disk.health.is_failing() {
            break;
        }
        if disk.wanted.load(Ordering::SeqCst) || core.is_closed() || core.rt.now() >= until {
            break;
        }
        visiting.between_files().await;
    }
    progress
}

/// Goes over the dirty files, oldest first. Returns whether it wrote anything.
async fn pass_over(
    core: &Arc<CacheCore>,
    disk: &Arc<CachedDevice>,
    pass: Pass,
    visiting: &mut Visiting<'_>,
) -> bool {
    // Pages that others dirty meanwhile must not keep the pass going forever.
    let mut most = match pass {
        Pass::Expired(_) => disk.ledger.amounts().dirty_pages,
        _ => u64::MAX,
    };
    let (mut after, mut progress, mut in_round): (Option<DirtySince>, _, _) = (None, false, 0);
    loop {
        let (chunk, in_flight) = match disk.orders(core, None).flusher {
            Background::Run { chunk_pages, in_flight_pages, .. } => (chunk_pages.max(1), in_flight_pages),
            Background::Stop => (CHUNK_PAGES, IN_FLIGHT_PAGES),
        };
        if pass == Pass::Wanted && progress && disk.health.is_failing() {
            break;
        }
        let expired = |place: DirtySince| !matches!(pass, Pass::Expired(before) if place.at > before);
        let Some((place, file)) = disk.turns.next(after).filter(|(place, _)| expired(*place)) else {
            // One round is complete. A pass that must write everything goes on while there are
            // files that no task is writing. After a failure it stops here: each file has been
            // tried, and one that cannot be written must not delay the others.
            if in_round == 0 || pass == Pass::Wanted || disk.health.is_failing() {
                break;
            }
            (after, in_round) = (None, 0);
            continue;
        };
        let written = write_chunk(core, disk, &file, chunk.min(most), in_flight, visiting).await;
        in_round += written;
        progress |= written > 0;
        most -= written.min(most);
        if most == 0 {
            break;
        }
        after = Some(place);
        visiting.between_files().await;
    }
    progress
}

/// A visit to a file by the flusher, or by a writer that writes back; a file has one visit at a
/// time. The flusher is a task and always gets polled. Writers visit only under the controllers of
/// old kernels. A writer whose future is not polled keeps the flusher away from its file, but not
/// syncs.
struct Visit<'a>(&'a CachedFile);

impl<'a> Visit<'a> {
    fn begin(file: &'a CachedFile) -> Option<Self> {
        (!file.is_visited.swap(true, Ordering::Acquire)).then_some(Self(file))
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.is_visited.store(false, Ordering::Release);
    }
}

/// Puts up to `pages` pages of a file under write-back, starting with its lowest dirty page. At
/// most `in_flight` pages are on their way to the device, not counting the last run. Returns how
/// many pages it submitted; 0 if another task visits the file.
async fn write_chunk(
    core: &Arc<CacheCore>,
    disk: &Arc<CachedDevice>,
    file: &Arc<CachedFile>,
    pages: u64,
    in_flight: u64,
    visiting: &mut Visiting<'_>,
) -> u64 {
    let Some(_visit) = Visit::begin(file) else { return 0 };
    let (mut at, mut left, mut submitted) = (0, pages, 0);
    visiting.next(&*core.pass);
    let mut window = Window::new(core, disk, BioFlags::empty());
    while left > 0 {
        wait_for_queue(core, disk, in_flight.max(1), &window).await;
        window.submit_before_yield(visiting);
        match file.take_step(PageRange::new(at, u64::MAX), left, visiting, &window).await {
            Taken::Run(run) => {
                let taken = run.pages();
                at = taken.end;
                submitted += taken.end - taken.start;
                left = visiting.visit.left_pages(left.saturating_sub(taken.end - taken.start));
                window.push(run);
            }
            Taken::InFlight(page) | Taken::Busy(page) => at = page + 1,
            Taken::Clean => break,
        }
    }
    submitted
}

/// Writes back up to `pages` pages of a device on behalf of a writer, taking the files in turn.
/// Returns how many it submitted.
pub(crate) async fn write_back_some(
    core: &Arc<CacheCore>,
    disk: &Arc<CachedDevice>,
    pages: u64,
    chunk_pages: u64,
    in_flight_pages: u64,
) -> u64 {
    let (mut left, mut barren) = (pages, 0);
    let mut visiting = Visiting::new(&core.rt, &*core.pass);
    while left > 0 && barren <= disk.turns.len() {
        let Some(file) = disk.next_in_turn(1) else { break };
        let chunk_pages = left.min(chunk_pages.max(1));
        let written = write_chunk(core, disk, &file, chunk_pages, in_flight_pages, &mut visiting).await;
        left -= written.min(left);
        barren = if written > 0 { 0 } else { barren + 1 };
    }
    pages - left
}

/// Waits until the device has fewer than `pages` pages in flight, or than a smaller number while a
/// sync waits for it. Runs that have landed but not completed do not count: completing them may
/// require other write-back first.
async fn wait_for_queue(core: &CacheCore, disk: &CachedDevice, pages: u64, window: &Window) {
    let is_full = || disk.ledger.in_flight() >= disk.sync_priority.limit(core.rt.now(), pages);
    while is_full() {
        window.submit();
        let ended = core.waits.listen(Condition::Written(disk.index.0));
        if is_full() {
            ended.await;
        }
    }
}

/// Writes everything back and flushes the device, when the cache is being closed. A file is given
/// up only after one more failure.
async fn close_out(core: &Arc<CacheCore>, disk: &Arc<CachedDevice>) {
    loop {
        let files: Vec<_> =
            disk.turns.all().into_iter().flatten().map(|file| (file.errors.now(), file)).collect();
        write_back_all(core, disk).await;
        if disk.flushes.is_owed() {
            // Data dirtied after the last sync must become durable too. A failure is in the logs.
            let _ = disk.flushes.flush().await;
        }
        // Pages that could not be written are dirty again.
        if disk.turns.close_if_empty() {
            return;
        }
        for (mut since, file) in files {
            if file.errors.peek(&mut since).is_err() {
                disk.give_up(&file);
            }
        }
    }
}

/// Waits for whichever comes first.
pub(crate) async fn first_of(mut a: Listener, mut b: Sleep) {
    std::future::poll_fn(|cx| {
        if Pin::new(&mut a).poll(cx).is_ready() || Pin::new(&mut b).poll(cx).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

#[cfg(all(test, not(extant_loom)))]
mod tests {
    use super::*;
    use crate::{CacheConfig, FlatFile, Mapping, PAGE_BYTES, PageCache};
    use extant_block::{MemDevice, Sector};
    use extant_rt::{Class, Counter, RealConfig, Rt};

    fn one_file(rt: &Rt, periodic: Nanos, expire: Nanos) -> (PageCache, Mapping) {
        let config = CacheConfig { periodic, expire, ..CacheConfig::with_budget(64 << 20) };
        let cache = PageCache::new(rt, config).expect("memory");
        let disk = cache.attach(Arc::new(MemDevice::new(1 << 20)));
        (cache, disk.mapping(Arc::new(FlatFile::new(Sector(0), 1 << 20)), 1, 0))
    }

    fn write(rt: &Rt, file: &Mapping) {
        rt.block_on(file.open().write(0, &[1; PAGE_BYTES])).expect("no panic").expect("room");
    }

    fn wait(rt: &Rt, until: impl Fn() -> bool) {
        while !until() {
            rt.block_on(rt.yield_now()).expect("no panic");
        }
    }

    #[test]
    fn a_flusher_with_a_timer_sleeps_on_when_files_become_dirty() {
        let rt = Rt::real(RealConfig { worker_threads: Some(1), ..RealConfig::default() });
        let (_cache, file) = one_file(&rt, Nanos::from_secs(1000), Nanos::from_secs(1000));
        // The flusher arms a timer whenever it wakes and something is dirty. The only worker runs
        // it before a task that is spawned after its wake; the second round is for a wake during
        // its first step.
        let timers_armed = || {
            for _ in 0..2 {
                rt.block_on(rt.spawn("after it", Class::Normal, async {}))
                    .expect("no panic")
                    .expect("it ran");
            }
            rt.counter(Counter::TimersArmed)
        };
        write(&rt, &file);
        let armed = timers_armed();
        for _ in 0..10 {
            rt.block_on(file.write_back(..)).expect("no panic").expect("nothing fails");
            write(&rt, &file);
            assert_eq!(timers_armed(), armed);
        }
        assert!(armed > 0);
    }

    #[test]
    fn a_file_that_waiting_tasks_need_is_written_at_once() {
        let rt = Rt::real(RealConfig::default());
        let (_cache, file) = one_file(&rt, Nanos::from_secs(1000), Nanos::from_secs(1000));
        write(&rt, &file);
        wait(&rt, || file.0.disk.looks_at.load(Ordering::SeqCst) != CachedDevice::NEVER);
        rt.block_on(file.write_back(..)).expect("no panic").expect("nothing fails");
        let _waits = file.0.core.waits.listen(Condition::Frames);
        write(&rt, &file);
        wait(&rt, || file.is_settled());
    }

    #[test]
    fn a_file_is_written_in_time_whether_or_not_the_flusher_has_a_timer() {
        let rt = Rt::real(RealConfig::default());
        let (_cache, file) = one_file(&rt, Nanos::from_millis(2), Nanos::ZERO);
        for _ in 0..5 {
            write(&rt, &file);
            wait(&rt, || file.is_settled());
        }
        // Until the timer has run out, and nothing was dirty.
        wait(&rt, || file.0.disk.looks_at.load(Ordering::SeqCst) == CachedDevice::NEVER);
        write(&rt, &file);
        wait(&rt, || file.is_settled());
    }
}
