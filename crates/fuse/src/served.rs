//! The data that operations work on.

use crate::buffers::Buffers;
use crate::emulation::Identities;
use crate::groups::groups_of;
use crate::handles::Handles;
use crate::interrupts::{Interrupts, is_killed};
use crate::metrics::Metrics;
use crate::monitor::Monitor;
use crate::nodes::Nodes;
use crate::request_trace::RequestTrace;
use crate::settings::Settings;
use crate::shown_owners::ShownOwners;
use crate::volume::OpenVolume;
use extant_cache::{PAGE_BYTES, PageCache};
use extant_format::UintExt;
use extant_fs::Volume;
use extant_rt::{Rt, RwLock, WaitConfig, WaitTable};
use std::fmt::Write;
use std::sync::Arc;

/// Maximum length of the data of a write or a read.
pub(crate) const MAX_WRITE: u32 = 1 << 20;

/// The volume, with the inodes and handles that the kernel has.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) volume: Volume,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
    /// Buffers for the contents of reads.
    pub(crate) buffers: Buffers,
    pub(crate) shown: ShownOwners,
    /// The volume's page cache.
    pub(crate) cache: PageCache,
    pub(crate) metrics: Metrics,
    /// The newest commit before the first request was served.
    pub(crate) first_commit: Option<u64>,
    pub(crate) trace: Option<Arc<RequestTrace>>,
    /// The kernel keeps what is written, and with it sizes and times of files.
    pub(crate) writeback: bool,
    /// Programs see no access control lists.
    pub(crate) ignores_acls: bool,
    /// Reading changes times of access.
    pub(crate) relatime: bool,
    pub(crate) interrupts: Interrupts,
    /// Whom programs act as whose users are emulated.
    pub(crate) identities: Option<Identities>,
    /// The process that reads other processes' groups, if the server may not.
    monitor: Option<Arc<Monitor>>,
    /// Held while the monitor is asked, so that only one thread waits for it.
    asks: RwLock,
    rt: Rt,
}

impl Served {
    pub(crate) fn new(rt: &Rt, open: &OpenVolume, settings: Settings) -> Self {
        let Settings { ids, owners, monitor, trace, kernel_checks, relatime, writeback, supervisor } =
            settings;
        let (volume, cache) = (open.volume.clone(), open.cache.clone());
        let nodes = Nodes::new(volume.clone(), open.root.clone());
        let first_commit = volume.newest_commit();
        let (handles, buffers, metrics, interrupts) = Default::default();
        let (asks, rt) = (RwLock::new(&Arc::new(WaitTable::new(rt, WaitConfig::new("groups")))), rt.clone());
        Self {
            volume,
            nodes,
            handles,
            buffers,
            shown: ShownOwners { owners, ids, kernel_checks },
            cache,
            metrics,
            first_commit,
            trace,
            ignores_acls: open.ignores_acls,
            relatime,
            writeback,
            interrupts,
            identities: supervisor.map(Identities::new),
            monitor,
            asks,
            rt,
        }
    }

    /// The supplementary groups of a thread, as numbered in its own namespace.
    pub(crate) async fn groups_of(&self, thread: u32) -> Vec<u32> {
        let groups = match &self.monitor {
            Some(monitor) => {
                let monitor = monitor.clone();
                self.ask("groups", move || monitor.groups(thread)).await.unwrap_or_default()
            }
            None => groups_of(thread),
        };
        match &self.shown.ids {
            Some(ids) => groups.into_iter().filter_map(|group| ids.groups.inside(group)).collect(),
            None => groups,
        }
    }

    /// Whether a thread is being killed.
    pub(crate) async fn is_killed(&self, thread: u32) -> bool {
        match &self.monitor {
            Some(monitor) => {
                let monitor = monitor.clone();
                self.ask("killed", move || monitor.is_killed(thread)).await.unwrap_or_default()
            }
            None => is_killed(thread),
        }
    }

    /// Asks the monitor on a thread of its own. It does not answer while it unmounts, and
    /// unmounting may wait for this server to write a shared mapping. A serving thread that waited
    /// would deadlock.
    async fn ask<T: Send + 'static>(
        &self,
        name: &str,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let asks = self.asks.write().await;
        let asked = self.rt.spawn_blocking(name, question).await;
        drop(asks);
        asked.ok()
    }
}

impl Served {
    /// All counters.
    pub(crate) fn metrics_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.metrics.write_requests(&mut text);
        let pages = self.cache.usage();
        let bytes = |pages: u64| pages * PAGE_BYTES.to_u64();
        let limit = self.cache.limits().limit_pages;
        let used = pages.frames.saturating_sub(pages.free + pages.parked);
        let gauges = [
            ("known_inodes", "Inodes that the kernel knows.", self.nodes.count().to_u64()),
            ("known_inodes_bytes", "Memory for the inodes that the kernel knows.", self.nodes.bytes()),
            ("open_handles", "Files and directories that programs have open.", self.handles.count().to_u64()),
            ("cache_budget_bytes", "Memory that the cache may take.", self.cache.budget_bytes()),
            ("cache_used_bytes", "Memory of the cache that holds something.", bytes(used)),
            ("dirty_bytes", "What is to be written back.", bytes(pages.dirty)),
            ("writeback_bytes", "What is being written back.", bytes(pages.writeback)),
            (
                "dirty_limit_bytes",
                "Dirty bytes and those being written, together, at which writers wait.",
                bytes(limit),
            ),
        ];
        for (name, help, value) in gauges {
            let _ = writeln!(text, "# HELP extant_{name} {help}\n# TYPE extant_{name} gauge");
            let _ = writeln!(text, "extant_{name} {value}");
        }
        if let (Some(first), Some(newest)) = (self.first_commit, self.volume.newest_commit()) {
            let (name, help) = ("extant_journal_commits_total", "Transactions that were committed.");
            let _ = writeln!(
                text,
                "# HELP {name} {help}\n# TYPE {name} counter\n{name} {}",
                newest.saturating_sub(first)
            );
        }
        text
    }
}
