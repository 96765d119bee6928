//! The keyed wait table: many objects to wait for, few buckets, and no spurious wake-ups.
//!
//! A waiter names its [`WaitKey`]. A wake-up visits only the waiters of its key, however many
//! others share the bucket. A waiter occupies a node in its bucket's slab, so a wait does not
//! allocate once the slab has grown to the largest number of concurrent waiters (some 80 bytes
//! each). Futures may be dropped at any time.
//!
//! ```
//! use extant_rt::{Flag, WaitKey, Rt, WaitConfig, WaitTable};
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! const LOCKED: Flag = Flag::new(0, 1); // bit 0 is the lock, bit 1 says that it has waiters
//! let rt = Rt::real(Default::default());
//! let table = WaitTable::new(&rt, WaitConfig::new("pages"));
//! let page = AtomicU32::new(0);
//! rt.block_on(table.lock(4711, &page, LOCKED)).unwrap();
//! assert!(!table.try_lock(&page, LOCKED));
//! table.unlock(4711, &page, LOCKED);
//! assert_eq!(page.load(Ordering::Relaxed), 0);
//! ```
//!
//! Loom checks the protocol in every interleaving of small cases:
//! `RUSTFLAGS="--cfg extant_loom" cargo test -p extant-rt --release --test loom`. The crate has no
//! `unsafe` code, so there is nothing for Miri to check.

mod bucket;
mod future;
mod key;
mod mutex;
mod rwlock;
mod table;
mod wait_config;
mod watch;

pub use future::{Lock, Wait, WaitWhile};
pub use key::{Flag, WaitKey};
pub use mutex::{TaskMutex, TaskMutexGuard};
pub use rwlock::{ReadGuard, RwLock, WriteGuard};
pub use table::{WaitStats, WaitTable, WakeBatch};
pub use wait_config::{Discipline, Hash, WaitConfig};
