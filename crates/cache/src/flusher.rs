//! The task that writes back, one for each device.

use crate::control::Background;
use crate::disk::DiskState;
use crate::shared::Shared;
use crate::waits::Key;
use crate::writeback::{Taken, Window};
use extant_rt::{Nanos, Sleep};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// Why a pass is made, and so how far it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// As long as the controller says.
    Background,
    /// Files that became dirty before this.
    Expired(Nanos),
    /// Somebody waits for frames or room: one round.
    Wanted,
    /// The cache is being closed.
    All,
}

/// Pages of one file in one go, where the controller does not say.
const CHUNK_PAGES: u64 = 4 << 20 >> 12;
/// Pages on their way at a time, likewise.
const IN_FLIGHT_PAGES: u64 = 16 << 20 >> 12;

/// When to look again at what others have in their hands.
const RETRY: Nanos = Nanos::from_millis(10);

/// Runs until the cache is closed and clean.
pub(crate) async fn run(shared: Arc<Shared>, disk: Arc<DiskState>) {
    let mut cursor = Cursor::default();
    let mut next_periodic = Nanos::MAX;
    loop {
        let kicked = shared.waits.listen(Key::Flusher(disk.index.0));
        let closing = shared.closed.load(Ordering::SeqCst);
        let dirty = disk.next_file(None).is_some();
        if closing && (!dirty || disk.is_failing()) {
            return;
        }
        let now = shared.rt.now();
        let wanted = disk.wanted.swap(false, Ordering::SeqCst);
        // A device that fails is tried again when the next periodic pass is due, or on demand.
        let failing = disk.is_failing();
        if !dirty {
            next_periodic = Nanos::MAX;
            kicked.await;
            continue;
        }
        if next_periodic == Nanos::MAX {
            next_periodic = now.saturating_add(shared.settings.periodic);
        }
        let pass = if closing {
            Some(Pass::All)
        } else if now >= next_periodic {
            next_periodic = now.saturating_add(shared.settings.periodic);
            Some(Pass::Expired(now.saturating_sub(shared.settings.expire)))
        } else if wanted {
            Some(Pass::Wanted)
        } else if !failing && disk.background(&shared) != Background::Stop {
            Some(Pass::Background)
        } else {
            None
        };
        match pass {
            Some(pass) => {
                let progress = pass_over(&shared, &disk, pass, &mut cursor).await;
                if !progress {
                    // All that is dirty is in others' hands at the moment.
                    first_of(kicked, shared.rt.sleep(RETRY)).await;
                }
            }
            None => first_of(kicked, shared.rt.sleep_until(next_periodic)).await,
        }
    }
}

/// Where the flusher is in the round of dirty files.
#[derive(Debug, Default)]
struct Cursor {
    after: Option<crate::disk::Listed>,
    /// The page of the file after that to go on with.
    page: u64,
}

/// Says whether it wrote anything.
async fn pass_over(shared: &Arc<Shared>, disk: &Arc<DiskState>, pass: Pass, cursor: &mut Cursor) -> bool {
    if pass != Pass::Background {
        *cursor = Cursor::default();
    }
    let mut window = Window::new(shared);
    let mut wrapped = false;
    let (mut written, mut progress) = (0, false);
    loop {
        let (chunk, in_flight) = match (pass, disk.background(shared)) {
            (Pass::Background, Background::Stop) => break,
            (_, Background::Run { chunk_pages, in_flight_pages }) => {
                (chunk_pages.max(1), in_flight_pages.max(1))
            }
            (_, Background::Stop) => (CHUNK_PAGES, IN_FLIGHT_PAGES),
        };
        if disk.is_failing() && written > 0 {
            break;
        }
        let Some((place, file)) = disk.next_file(cursor.after) else {
            // Once around; a background pass goes on while the controller wants it to and something is dirty.
            let idle = wrapped && written == 0;
            *cursor = Cursor::default();
            if idle || disk.next_file(None).is_none() || !matches!(pass, Pass::Background | Pass::All) {
                break;
            }
            (wrapped, written) = (true, 0);
            // What is dirty but in flight becomes available when that ends.
            window.drain_to(window.pages() / 2).await;
            continue;
        };
        if let Pass::Expired(before) = pass
            && place.0 > before
        {
            *cursor = Cursor::default();
            break;
        }
        let mut left = chunk;
        while left > 0 {
            match file.take_dirty(cursor.page..u64::MAX, left.min(shared.settings.bio_pages)) {
                Taken::Run(run) => {
                    let pages = run.pages();
                    cursor.page = pages.end;
                    left -= (pages.end - pages.start).min(left);
                    written += pages.end - pages.start;
                    progress = true;
                    window.push(run);
                    window.drain_to(in_flight).await;
                }
                Taken::InFlight(page) | Taken::Busy(page) => cursor.page = page + 1,
                Taken::Clean => {
                    (cursor.after, cursor.page) = (Some(place), 0);
                    break;
                }
            }
        }
        if left == 0 && pass != Pass::All {
            // The chunk is used up: the next file's turn; this one goes on where it was when its turn comes again, by
            // its lowest dirty page.
            (cursor.after, cursor.page) = (Some(place), 0);
        }
        shared.rt.resched().await;
    }
    // Errors are in the files' logs.
    let _ = window.finish().await;
    progress
}

/// Waits for either.
pub(crate) async fn first_of(mut a: crate::waits::Listener, mut b: Sleep) {
    std::future::poll_fn(|cx| {
        if Pin::new(&mut a).poll(cx).is_ready() || Pin::new(&mut b).poll(cx).is_ready() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}
