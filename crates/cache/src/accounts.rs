//! Memory outside frames that is charged to the cache's budget: metadata blocks, inodes, extent
//! caches, directory indexes.
//!
//! A client opens an [`Account`] and charges it for what it holds. Frames make room: free ones are
//! parked, clean pages are evicted, and the limit on dirty memory falls with the number of frames
//! left. Conversely, when an account is over its limit or the cache runs out of frames, clients are
//! asked to shrink, through a callback on a task of its own.
//!
//! ```
//! use extant_cache::accounts::{AccountConfig, Shrink};
//! use extant_cache::{CacheConfig, PageCache};
//! use std::sync::{Arc, Weak};
//!
//! #[derive(Debug)]
//! struct Inodes;
//! impl Shrink for Inodes {
//!     fn shrink(&self, _bytes: u64) -> u64 {
//!         0 // bytes of clean inodes that were dropped, with their charges
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rt = extant_rt::Rt::real(Default::default());
//! let cache = PageCache::new(&rt, CacheConfig::with_budget(8 << 20))?;
//! let inodes = Arc::new(Inodes);
//! let config = AccountConfig { limit_bytes: 1 << 20, ..AccountConfig::new("inodes", &cache) };
//! let account = cache.account(config);
//! account.set_shrinker(Arc::downgrade(&inodes) as Weak<dyn Shrink>);
//! let charge = account.charge(300); // one inode
//! assert_eq!(account.charged_bytes(), 300);
//! drop(charge);
//! assert_eq!(account.charged_bytes(), 0);
//! # rt.block_on(cache.close())??;
//! # Ok(())
//! # }
//! ```

use crate::caught::shielded;
use crate::file::CacheCore;
use crate::page::PAGE;
use crate::registry::Member;
use crate::waits;
use extant_rt::{Class, Nanos};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Gives memory back on request.
pub trait Shrink: Send + Sync {
    /// Drops up to about `bytes` bytes of what can be rebuilt. Returns how many bytes of charges it
    /// released: fewer, even 0, if the rest is in use. Called on a task of the cache, with no lock
    /// held. It should run for at most some 100 µs, and is called again for the rest.
    fn shrink(&self, bytes: u64) -> u64;
}

/// Settings of an [`Account`].
#[derive(Clone, Debug)]
pub struct AccountConfig {
    /// The account's name in errors and reports.
    pub name: &'static str,
    /// Above this the account is asked to shrink, however much memory is available.
    pub limit_bytes: u64,
    /// Maximum number of bytes that may be pinned at a time.
    pub pinned_bytes: u64,
}

/// The memory of one client. Cheap to clone. Dropping a [`Charge`] returns its bytes.
#[derive(Clone)]
pub struct Account {
    inner: Arc<AccountState>,
}

struct AccountState {
    core: Arc<CacheCore>,
    config: AccountConfig,
    charged: AtomicU64,
    pinned: AtomicU64,
    shrinker: Mutex<Option<Weak<dyn Shrink>>>,
}

/// A charge, in bytes, until it is dropped.
#[must_use = "dropping it returns the charge"]
pub struct Charge {
    account: Arc<AccountState>,
    bytes: u64,
}

/// Bytes that cannot be given back, until the pin is dropped. They are charged separately.
#[must_use = "dropping it unpins"]
pub struct Pin {
    account: Arc<AccountState>,
    bytes: u64,
}

/// A pin would exceed its account's cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name}: {asked_bytes} bytes more than the {pinned_bytes} that are pinned exceed the cap of {cap_bytes}"
)]
pub struct PinnedFull {
    /// The account.
    pub name: &'static str,
    /// Bytes the caller wanted to pin.
    pub asked_bytes: u64,
    /// Bytes already pinned.
    pub pinned_bytes: u64,
    /// The cap.
    pub cap_bytes: u64,
}

impl Account {
    pub(crate) fn open(core: &Arc<CacheCore>, config: AccountConfig) -> Self {
        let inner = Arc::new(AccountState {
            core: core.clone(),
            config,
            charged: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            shrinker: Mutex::default(),
        });
        let mut all = core.accounts.all.lock();
        all.retain(|account| account.strong_count() > 0);
        let member: Arc<dyn Member> = inner.clone();
        all.push(Arc::downgrade(&member));
        Self { inner }
    }

    /// Sets the callback for giving memory back. It is weak, so that the account does not keep its
    /// client alive.
    pub fn set_shrinker(&self, shrinker: Weak<dyn Shrink>) {
        *self.inner.shrinker.lock() = Some(shrinker);
    }

    /// Charges `bytes`.
    ///
    /// Never waits and never fails: if frames cannot make room at once, they are freed as they are
    /// written back, and meanwhile clients are asked to shrink. The client may hold its own locks.
    pub fn charge(&self, bytes: u64) -> Charge {
        self.inner.add(bytes);
        Charge { account: self.inner.clone(), bytes }
    }

    /// Waits until the account has shrunk to its limit, or as far as its client can shrink now.
    ///
    /// For loops that take memory faster than the shrinking task gives it back. Call it with no
    /// lock held.
    pub async fn settle(&self) {
        let core = &self.inner.core;
        while self.inner.excess() > 0 {
            if self.inner.shrink(self.inner.excess()) == 0 {
                return;
            }
            core.rt.resched().await;
        }
    }

    /// Pins `bytes` of the charged bytes: they cannot be given back until the pin is dropped.
    ///
    /// # Errors
    /// The cap would be exceeded.
    pub fn pin(&self, bytes: u64) -> Result<Pin, PinnedFull> {
        let AccountConfig { name, pinned_bytes: cap_bytes, .. } = self.inner.config;
        let within = |pinned: u64| pinned.checked_add(bytes).filter(|sum| *sum <= cap_bytes);
        match self.inner.pinned.fetch_update(Ordering::AcqRel, Ordering::Relaxed, within) {
            Ok(_) => Ok(Pin { account: self.inner.clone(), bytes }),
            Err(pinned_bytes) => Err(PinnedFull { name, asked_bytes: bytes, pinned_bytes, cap_bytes }),
        }
    }

    /// Like [`Account::pin`], but ignores the cap: for completions, which must not wait for pins
    /// that only they can release.
    pub fn pin_exempt(&self, bytes: u64) -> Pin {
        self.inner.pinned.fetch_add(bytes, Ordering::AcqRel);
        Pin { account: self.inner.clone(), bytes }
    }

    /// Bytes charged now.
    pub fn charged_bytes(&self) -> u64 {
        self.inner.charged.load(Ordering::Acquire)
    }

    /// Bytes pinned now.
    pub fn pinned_bytes(&self) -> u64 {
        self.inner.pinned.load(Ordering::Acquire)
    }

    /// The settings it was opened with.
    pub fn config(&self) -> &AccountConfig {
        &self.inner.config
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}, {} bytes)", self.inner.config.name, self.charged_bytes())
    }
}

impl AccountState {
    fn add(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::AcqRel);
        let accounts = &self.core.accounts;
        let sum = accounts.charged.fetch_add(bytes, Ordering::AcqRel) + bytes;
        if sum > accounts.granted_bytes.load(Ordering::Acquire) {
            self.core.grant_accounts();
        }
        if self.excess() > 0 {
            self.core.shrink_accounts(0);
        }
    }

    fn sub(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::AcqRel);
        let accounts = &self.core.accounts;
        let sum = accounts.charged.fetch_sub(bytes, Ordering::AcqRel) - bytes;
        if accounts.granted_bytes.load(Ordering::Acquire) > sum + 3 * self.core.grant_step() * PAGE {
            self.core.grant_accounts();
        }
    }
}

impl Member for AccountState {
    fn charged(&self) -> u64 {
        self.charged.load(Ordering::Acquire)
    }

    fn excess(&self) -> u64 {
        self.charged().saturating_sub(self.config.limit_bytes)
    }

    fn shrink(&self, bytes: u64) -> u64 {
        let shrinker = self.shrinker.lock().as_ref().and_then(Weak::upgrade);
        let mut freed = 0;
        if let Some(shrinker) = shrinker {
            // A client that panics has freed nothing; the others are still asked.
            shielded(|| freed = shrinker.shrink(bytes));
        }
        freed
    }
}

impl Charge {
    /// Bytes charged.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the charge to `bytes`, what its memory takes now.
    pub fn resize(&mut self, bytes: u64) {
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes);
        } else {
            self.account.sub(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.sub(self.bytes);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({}, {} bytes)", self.account.config.name, self.bytes)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.account.pinned.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pin({}, {} bytes)", self.account.config.name, self.bytes)
    }
}

impl CacheCore {
    /// Granularity, in pages, of granting budget to accounts and returning it to frames.
    fn grant_step(&self) -> u64 {
        u64::from(self.pool.capacity() / 256).clamp(8, 1024)
    }

    /// Reserves budget for the charged bytes, in steps. Frames that the remaining budget does not
    /// cover are parked or evicted.
    fn grant_accounts(self: &Arc<Self>) {
        let step = self.grant_step();
        let grew = {
            let mut granted = self.accounts.granted_pages.lock();
            let pages =
                self.accounts.charged.load(Ordering::Acquire).div_ceil(PAGE).next_multiple_of(step) + step;
            let grew = pages > *granted;
            if pages == *granted {
                return;
            }
            *granted = pages;
            self.accounts.granted_bytes.store((pages - step / 2) * PAGE, Ordering::Release);
            self.pool.set_apart(pages);
            grew
        };
        if grew && self.fit_budget() > 0 {
            // Frames cannot make room right now.
            self.shrink_accounts(step * PAGE);
        }
    }

    /// Asks clients to shrink: those over their limits and, if frames are short, all of them by
    /// `bytes` in total.
    pub(crate) fn shrink_accounts(self: &Arc<Self>, bytes: u64) {
        if self.accounts.charged.load(Ordering::Acquire) == 0 {
            return;
        }
        // At least 1, so that the task sees the request.
        self.accounts.wanted.fetch_max(bytes.max(1), Ordering::AcqRel);
        if !self.accounts.is_shrinking.swap(true, Ordering::AcqRel) {
            let shrinking = Shrinking { core: self.clone(), is_over: false };
            drop(self.rt.spawn("memory", Class::Normal, shrink(shrinking)));
        }
    }
}

/// The shrinking task's hold on the cache, created before the task. If the world ends first, or
/// accepts no more tasks, callers that wait for frames are notified.
struct Shrinking {
    core: Arc<CacheCore>,
    is_over: bool,
}

impl Drop for Shrinking {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.core.accounts.is_shrinking.store(false, Ordering::SeqCst);
        // After a panic the next request starts another task.
        if !std::thread::panicking() {
            self.core.forsake();
        }
    }
}

/// The shrinking task. Runs until no account is over its limit and frames are not short, or until
/// no client can give more.
async fn shrink(mut shrinking: Shrinking) {
    let core = shrinking.core.clone();
    let accounts = &core.accounts;
    let mut budget = core.rt.budget(Nanos::from_micros(100));
    let mut freed_since_wake = 0;
    loop {
        let all: Vec<Arc<dyn Member>> = accounts.all.lock().iter().filter_map(Weak::upgrade).collect();
        let mut wanted = accounts.wanted.swap(0, Ordering::AcqRel);
        let mut freed = 0;
        for account in &all {
            let excess = account.excess();
            if excess > 0 {
                freed += account.shrink(excess);
                budget.resched().await;
            }
        }
        wanted = wanted.saturating_sub(freed);
        // Each account gives in proportion to what it holds.
        let sum = accounts.charged.load(Ordering::Acquire).max(1);
        for account in &all {
            let holds = account.charged();
            let share = (u128::from(wanted) * u128::from(holds) / u128::from(sum)) as u64;
            if wanted > 0 && holds > 0 {
                freed += account.shrink(share.max(1));
                budget.resched().await;
            }
        }
        freed_since_wake += freed;
        let goes_on = freed > 0 && all.iter().any(|account| account.excess() > 0);
        if goes_on {
            continue;
        }
        accounts.is_shrinking.store(false, Ordering::SeqCst);
        // A spuriously woken waiter would ask again, and keep itself and this task busy.
        if std::mem::take(&mut freed_since_wake) > 0 {
            core.waits.wake_all(waits::Condition::Frames);
        }
        // No other task would serve a request made after the last look and before the flag was
        // cleared.
        let is_missed = accounts.wanted.load(Ordering::SeqCst) > 0;
        if !is_missed || accounts.is_shrinking.swap(true, Ordering::AcqRel) {
            shrinking.is_over = true;
            return;
        }
    }
}
