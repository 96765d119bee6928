//! Flushes a device's volatile cache, and reports failures to the files written before.
//!
//! A device reports a failed flush only once, and what its cache held may be lost. So the error
//! goes into the log of every file written since the last successful flush, and each of their open
//! files reports it once. The device also counts failures, so that a file system can latch an
//! error.
//!
//! One flush per device is in flight at a time, and callers that arrive meanwhile share the next
//! one (as in Linux's `block/blk-flush.c`). With two in flight, the device might end them in one
//! order and we might reap them in the other: the successful flush would then vouch for data that
//! the failed one had lost. A file system's `PREFLUSH` write is also a flush, and takes its turn
//! among them.
//!
//! No waiter is appointed to flush next. All waiters are woken, and the first one polled begins the
//! flush and submits it in the same poll. A future that is dropped or no longer polled therefore
//! holds up no other waiter.

use crate::device::health::DeviceHealth;
use crate::page::FileId;
use crate::{CacheError, Result};
use extant_block::{Bio, Device, IoError, Op, Sector};
use extant_rt::{WaitKey, WaitTable};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

/// A file whose writes the flushes cover.
pub(crate) trait HearsOfFlush: Send + Sync + 'static {
    /// Its number. Another file may have had it before.
    fn number(&self) -> FileId;

    /// Its data may be lost.
    fn record_failed_flush(&self, error: &IoError);
}

/// The flushes of a device, and the writes that they must cover.
#[derive(Debug)]
pub(crate) struct DeviceFlush<F> {
    device: Arc<dyn Device>,
    health: Arc<DeviceHealth>,
    /// Where callers wait for a flush to end, and the key that they wait for.
    waits: Arc<WaitTable>,
    ended: WaitKey,
    record: Mutex<Record<F>>,
}

#[derive(Debug)]
struct Record<F> {
    /// Flushes begun, and flushes ended: equal, or `ended` is one less.
    begun: u64,
    ended: u64,
    /// Number and error of the last flush that failed.
    failed: Option<(u64, IoError)>,
    failures: u64,
    last_failure: Option<IoError>,
    /// Files written to the device since the last successful flush began.
    unflushed: BTreeMap<FileId, Unflushed<F>>,
}

#[derive(Debug)]
struct Unflushed<F> {
    file: Weak<F>,
    /// Flushes begun when the file was last written.
    written_at: u64,
    /// Failures up to this number are in the file's log.
    told: u64,
}

/// A caller's part in getting the device flushed.
enum Part {
    /// It begins this flush.
    Begins(u64),
    /// A flush that began after the caller arrived has ended with this result.
    Shares(std::result::Result<(), IoError>),
}

/// The outcome of a flush, once it has ended.
type Ended = Arc<OnceLock<std::result::Result<(), IoError>>>;

impl<F: HearsOfFlush> DeviceFlush<F> {
    /// For a device without unflushed writes. `ended` is the key for waiting in `waits`.
    pub(crate) fn new(
        device: Arc<dyn Device>,
        health: Arc<DeviceHealth>,
        waits: Arc<WaitTable>,
        ended: WaitKey,
    ) -> Arc<Self> {
        let (failed, last_failure, unflushed) = Default::default();
        let record = Record { begun: 0, ended: 0, failed, failures: 0, last_failure, unflushed };
        Arc::new(Self { device, health, waits, ended, record: Mutex::new(record) })
    }

    /// How many flushes have failed so far.
    pub(crate) fn failures(&self) -> u64 {
        self.record.lock().failures
    }

    /// Whether a write has reached the device since the last successful flush began.
    pub(crate) fn is_owed(&self) -> bool {
        !self.record.lock().unflushed.is_empty()
    }

    /// Notes that a write of `file` has reached the device, though perhaps only its cache.
    /// `failures` is the number of flushes that had failed when the write was submitted.
    pub(crate) fn note_write(&self, file: &Arc<F>, failures: u64) {
        if !self.device.limits().volatile_cache {
            return;
        }
        let error = self.record.lock().note_write(file, failures);
        if let Some(error) = error {
            file.record_failed_flush(&error);
        }
    }

    /// Flushes the device's cache, if it has one. When this returns, a flush that began after the
    /// call has ended. The outcome is recorded even if the caller goes away, because the device
    /// reports it only once.
    pub(crate) async fn flush(self: &Arc<Self>) -> Result<()> {
        if !self.device.limits().volatile_cache {
            return Ok(());
        }
        let since = self.record.lock().begun;
        loop {
            let mut part = None;
            let has_part = || {
                part = self.record.lock().part(since);
                part.is_some()
            };
            self.waits.wait_until(self.ended, has_part).await;
            match part.expect("the wait is over") {
                Part::Shares(result) => return result.map_err(CacheError::Io),
                Part::Begins(nth) => drop(self.submit(Bio::range(Op::Flush, Sector(0), 0), Some(nth))),
            }
        }
    }

    /// Runs a `PREFLUSH` write while no flush is in flight, unless more than `failures` flushes
    /// have failed by then. Callers that asked for a flush before it begins share its outcome.
    pub(crate) async fn write_behind(
        self: &Arc<Self>,
        bio: Bio,
        failures: u64,
    ) -> std::result::Result<(), IoError> {
        let mut begun = None;
        if self.device.limits().volatile_cache {
            let has_begun = || {
                begun = self.record.lock().begin_behind(failures);
                begun.is_some()
            };
            self.waits.wait_until(self.ended, has_begun).await;
        }
        let nth = begun.transpose()?;
        let ended = self.submit(bio, nth);
        self.waits.wait_until(self.ended, || ended.get().is_some()).await;
        ended.get().cloned().expect("the wait is over")
    }

    /// Submits flush number `nth`, or a write to a device without a volatile cache. The thread that
    /// reaps it records the outcome, even if the callers that wait for it go away.
    fn submit(self: &Arc<Self>, mut bio: Bio, nth: Option<u64>) -> Ended {
        let ended = Ended::default();
        let (flush, entry) = (self.clone(), ended.clone());
        bio.on_end(Box::new(move |_, result| {
            if let Err(error) = &result {
                flush.record_failure(error);
            }
            if let Some(nth) = nth {
                flush.record.lock().end(nth, &result);
            }
            entry.get_or_init(|| result);
            flush.waits.wake(flush.ended);
        }));
        self.device.submit(bio);
        ended
    }

    /// Records a failed flush everywhere it is to be reported.
    fn record_failure(&self, error: &IoError) {
        self.health.record(CacheError::Io(error.clone()));
        let files = self.record.lock().fail(error);
        files.iter().for_each(|file| file.record_failed_flush(error));
    }
}

impl<F: HearsOfFlush> Record<F> {
    fn begin(&mut self) -> Option<u64> {
        if self.begun > self.ended {
            return None;
        }
        self.begun += 1;
        Some(self.begun)
    }

    /// What a caller does next that arrived when `since` flushes had begun; `None` while it must
    /// wait.
    fn part(&mut self, since: u64) -> Option<Part> {
        match &self.failed {
            Some((nth, error)) if *nth > since => Some(Part::Shares(Err(error.clone()))),
            _ if self.ended > since => Some(Part::Shares(Ok(()))),
            _ => self.begin().map(Part::Begins),
        }
    }

    /// Begins a flush that its caller cannot share, because it is the first part of a write; `None`
    /// while another is in flight.
    ///
    /// # Errors
    /// The last failure, if more than `failures` flushes have failed: the write relies on data that
    /// may be lost.
    fn begin_behind(&mut self, failures: u64) -> Option<std::result::Result<u64, IoError>> {
        match &self.last_failure {
            Some(error) if self.failures > failures => Some(Err(error.clone())),
            _ => self.begin().map(Ok),
        }
    }

    /// Flush number `nth` has ended, and any failure has been recorded.
    fn end(&mut self, nth: u64, result: &std::result::Result<(), IoError>) {
        self.ended = nth;
        match result {
            Ok(()) => self.unflushed.retain(|_, entry| entry.written_at >= nth),
            Err(error) => self.failed = Some((nth, error.clone())),
        }
    }

    /// A write of `file` has reached the device; `failures` flushes had failed when it was
    /// submitted. Returns the error of a flush that has failed since, unless the file's log already
    /// includes it: the device may have dropped the write.
    fn note_write(&mut self, file: &Arc<F>, failures: u64) -> Option<IoError> {
        let Self { begun, failures: now, last_failure, unflushed, .. } = self;
        let fresh = || Unflushed { file: Arc::downgrade(file), written_at: *begun, told: failures };
        let entry = unflushed.entry(file.number()).or_insert_with(fresh);
        if entry.file.strong_count() == 0 {
            *entry = fresh();
        }
        entry.written_at = *begun;
        let is_told = entry.told.max(failures) >= *now;
        entry.told = *now;
        if is_told { None } else { last_failure.clone() }
    }

    /// A flush failed. Returns the files that may have lost data.
    fn fail(&mut self, error: &IoError) -> Vec<Arc<F>> {
        self.failures += 1;
        self.last_failure = Some(error.clone());
        let failures = self.failures;
        self.unflushed.values_mut().for_each(|entry| entry.told = failures);
        self.unflushed.values().filter_map(|entry| entry.file.upgrade()).collect()
    }
}
