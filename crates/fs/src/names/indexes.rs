//! Memory of directory indexes. It is charged to the page cache's budget and given back under
//! pressure.

use super::dir_state::state;
use crate::dir::linear_index::NameIndex;
use crate::inode::InodeCell;
use extant_cache::Disk;
use extant_cache::accounts::{Account, AccountConfig, Shrink};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Total index memory; above this, indexes not used recently are dropped even if memory is
/// plentiful.
const LIMIT_BYTES: u64 = 32 << 20;
/// Maximum number of directories examined by one call to `shrink`.
const SHRINK_LOOKS: usize = 128;
/// Directories examined on each insertion, to drop those no longer in memory.
const PRUNED: usize = 2;

/// The directories that have an index in memory.
#[derive(Debug)]
pub(super) struct Indexes {
    account: Account,
    /// Second-chance order. Each directory is listed once, possibly after it or its index has gone.
    dirs: Mutex<VecDeque<Weak<InodeCell>>>,
}

impl Indexes {
    /// Creates an empty list whose memory is charged to the cache of `disk`.
    pub(super) fn new(disk: &Disk) -> Arc<Self> {
        let account = disk.account(AccountConfig {
            name: "directory indexes",
            limit_bytes: LIMIT_BYTES,
            pinned_bytes: LIMIT_BYTES,
        });
        let indexes = Arc::new(Self { account, dirs: Mutex::default() });
        indexes.account.set_shrinker(Arc::downgrade(&indexes) as Weak<dyn Shrink>);
        indexes
    }

    /// Bytes currently charged.
    #[cfg(test)]
    pub(super) fn charged_bytes(&self) -> u64 {
        self.account.charged_bytes()
    }

    /// Keeps the index of a directory, memory permitting. The caller holds the directory's lock.
    pub(super) fn keep(&self, dir: &Arc<InodeCell>, mut index: NameIndex) {
        index.charge_to(&self.account);
        let (replaced, is_listed) = {
            let mut state = state(dir);
            (state.index.replace(index), std::mem::replace(&mut state.index_listed, true))
        };
        drop(replaced);
        if is_listed {
            return;
        }
        let mut dirs = self.dirs.lock();
        for _ in 0..PRUNED {
            let Some(oldest) = dirs.pop_front() else { break };
            if oldest.strong_count() > 0 {
                dirs.push_back(oldest);
            }
        }
        dirs.push_back(Arc::downgrade(dir));
    }
}

impl Shrink for Indexes {
    fn shrink(&self, bytes: u64) -> u64 {
        let mut freed = 0;
        // Each directory at most once: one used recently is spared until the next call.
        let looks = self.dirs.lock().len().min(SHRINK_LOOKS);
        for _ in 0..looks {
            if freed >= bytes {
                break;
            }
            let Some(oldest) = self.dirs.lock().pop_front() else { break };
            let Some(dir) = oldest.upgrade() else { continue };
            let dropped = {
                let mut state = state(&dir);
                if std::mem::take(&mut state.index_used) {
                    None
                } else {
                    // If the index is not here, an operation has taken it out for a lookup.
                    let index = state.index.take();
                    state.index_listed = index.is_none();
                    index
                }
            };
            match dropped {
                Some(index) => freed += index.charged_bytes(),
                None => self.dirs.lock().push_back(oldest),
            }
        }
        freed
    }
}
