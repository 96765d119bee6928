//! Limits on dirty pages, and write-back by pdflush (kernel: `balance_dirty_pages`,
//! `background_writeout`, `wb_kupdate`).

use crate::disks::Submitter;
use crate::host::ModelledHost;
use crate::writeback_control::WritebackControl;
use extant_rt::{Class, Nanos};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A processor checks the limits once per this many bytes of pages, counting one page per write
/// (kernel: `ratelimit_pages`, at most 4 MiB). While the limit is exceeded, it checks after
/// `RATELIMIT_EXCEEDED` writes.
const RATELIMIT_BYTES: u64 = 4 << 20;
const RATELIMIT_EXCEEDED: u64 = 8;

/// Pages that pdflush writes at a time (kernel: `MAX_WRITEBACK_PAGES`).
const TURN: i64 = 1024;

/// How often old pages are looked for, and the age at which they are written (kernel:
/// `dirty_writeback_centisecs`, `dirty_expire_centisecs`).
const KUPDATE_EVERY: Nanos = Nanos::from_secs(5);
const KUPDATE_AGE: Nanos = Nanos::from_secs(30);

impl ModelledHost {
    /// Called after every write (kernel: `balance_dirty_pages_ratelimited`).
    pub(crate) async fn balance(self: &Arc<Self>, file: u32) {
        let lane = self.rt.lane() as usize % self.dirtied.len();
        let ratelimit = RATELIMIT_BYTES / self.shape.page_bytes;
        let before = self.dirtied[lane].fetch_add(1, Relaxed);
        let is_exceeded = self.cache.lock().dirty_exceeded;
        if before < if is_exceeded { RATELIMIT_EXCEEDED } else { ratelimit } {
            return;
        }
        self.dirtied[lane].store(0, Relaxed);
        self.throttle(file, (ratelimit + ratelimit / 2) as i64).await;
        let starts = {
            let pdflush = self.pdflush.load(Relaxed);
            let mut cache = self.cache.lock();
            let starts = !pdflush && cache.dirty_pages > cache.background && !cache.background_runs;
            cache.background_runs |= starts;
            starts
        };
        if starts {
            let host = self.clone();
            drop(self.rt.spawn("pdflush", Class::Normal, async move { host.write_background().await }));
        }
    }

    /// Throttles a writer while the limit is exceeded, until it has written its share.
    async fn throttle(self: &Arc<Self>, file: u32, chunk: i64) {
        let mut written = 0;
        while self.cache.lock().check_limit() {
            if self.cache.lock().dirty_pages > 0 {
                let mut control = WritebackControl::throttled(Submitter::throttled(file), chunk);
                self.write_inodes(&mut control).await;
                written += chunk - control.left;
                if !self.cache.lock().check_limit() || written >= chunk {
                    return;
                }
            }
            self.stripe.congestion_wait().await;
        }
    }

    async fn write_background(self: Arc<Self>) {
        while self.cache.lock().wants_background() {
            let mut control = WritebackControl::background(TURN);
            self.write_inodes(&mut control).await;
            if control.left > 0 {
                self.stripe.congestion_wait().await;
                if !control.encountered_congestion {
                    break;
                }
            }
        }
        self.cache.lock().background_runs = false;
    }

    /// Periodically writes pages that have reached a certain age; never returns.
    pub(crate) async fn write_old(self: Arc<Self>) {
        loop {
            let began = self.rt.now();
            let age = KUPDATE_AGE.0 / 1_000_000_000 * u64::from(self.hz);
            let older = self.tick().checked_sub(age);
            let mut left = self.cache.lock().dirty_pages as i64 + self.shape.files as i64;
            while let Some(older) = older.filter(|_| left > 0) {
                let mut control = WritebackControl::kupdate(TURN, older);
                self.write_inodes(&mut control).await;
                if control.left > 0 {
                    if !control.encountered_congestion {
                        break;
                    }
                    self.stripe.congestion_wait().await;
                }
                left -= TURN - control.left;
            }
            let next = (began + KUPDATE_EVERY).max(self.rt.now() + Nanos::from_secs(1));
            self.rt.sleep_until(next).await;
        }
    }
}
