//! Opening for writing: mount state, sync, close.

use super::marks::Marks;
use super::mmp::Protection;
use super::orphan_file::orphan_file_blocks;
use super::own_blocks::own_blocks;
use super::owners::{self, Findings};
use super::{OpenOptions, Volume};
use crate::file::FilesInMemory;
use crate::journal::{Journal, JournalOptions, LOG_BLOCKS_MIN, LogDevice};
use crate::meta::{Buffers, MetaStore, RemovalStep, Tid};
use crate::names::Namespace;
use crate::quota::Quotas;
use crate::recovery::{Log, replay};
use crate::view::{Live, View, check_readable, check_whole, check_writable, read_superblock};
use crate::writer::{ErrorPolicy, Errors, MountFlags, Synchronous, Writer};
use crate::{Error, Result};
use extant_block::{Claim, Device, IoErrorKind};
use extant_cache::Disk;
use extant_cache::accounts::AccountConfig;
use extant_cache::blocks::Blocks;
use extant_format::jbd2::{JournalCompat, JournalIncompat, JournalSuperblock};
use extant_format::{
    Compat, Corrupt, Group, GroupDescriptor, Incompat, Inode, InodeNumber, Place, RoCompat, STATE_ERROR,
    Superblock, UintExt,
};
use extant_rt::{Nanos, Rt};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::sync::Arc;

/// How to open a volume for writing.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// Age at which changes are committed without a sync; 5 s by default, as on Linux. `None` for
    /// an offline batch: there is no background work, and mount time and count are not updated, so
    /// that the same edits produce the same bytes, and a batch without changes writes nothing.
    pub commit_interval: Option<Nanos>,
    /// A fixed value for all time stamps, in seconds since 1970.
    pub fixed_time: Option<i64>,
    /// What to do about damaged structures; by default what the superblock says (`s_errors`).
    pub errors: Option<ErrorPolicy>,
    /// Which changes are durable when the call that makes them returns.
    pub synchronous: Synchronous,
    /// Access control lists are neither honoured nor shown, nor can they be set; those that are
    /// stored stay as they are (mount option `noacl`).
    pub ignores_acls: bool,
    /// Discard freed space once its transaction is durable (mount option `discard`). If the device
    /// is a file, this punches holes. Runs in the background; no caller waits for it.
    pub discard: bool,
    /// Whether a task deletes inodes that have neither names nor holders. If not, the next
    /// operation does.
    pub reaps: bool,
    /// Memory for metadata blocks, in bytes. Up to half of it may wait to be written home.
    pub metadata_bytes: u64,
    /// Limits for one step of freeing a file's blocks. Smaller ones are for tests with small files.
    pub removal_step: RemovalStep,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            commit_interval: Some(Nanos::from_secs(5)),
            fixed_time: None,
            errors: None,
            synchronous: Synchronous::default(),
            ignores_acls: false,
            discard: false,
            reaps: false,
            metadata_bytes: 64 << 20,
            removal_step: RemovalStep::default(),
        }
    }
}

/// A volume open for writing.
#[derive(Debug)]
pub(super) struct Mounted {
    pub(super) namespace: Arc<Namespace>,
    mount: Mount,
}

impl Live for Mounted {
    fn group(&self, group: Group) -> GroupDescriptor {
        self.namespace.writer.store.groups().get(group)
    }

    fn inode(&self, number: InodeNumber) -> Option<Inode> {
        let live = self.namespace.writer.inodes.cached(number)?;
        let mut inode = live.read(Inode::clone);
        if let Some((size, _)) = self.namespace.files.live_size(&live) {
            inode.set_size(size);
        }
        Some(inode)
    }
}

impl Drop for Mounted {
    /// Without [`Volume::close`] this is like a crash: nothing more is written.
    fn drop(&mut self) {
        self.mount.journal.abandon();
        self.namespace.files.clear();
    }
}

/// How a volume is mounted for writing.
#[derive(Debug)]
struct Mount {
    /// `s_state` as found in the volume and its journal.
    state: u16,
    /// Set once all checks that may refuse the volume have passed.
    marks: Option<Arc<Marks>>,
    /// How many orphans were finished when the volume was opened.
    orphans: u32,
    /// Only for a volume with multiple-mount protection.
    protection: Option<Protection>,
    journal: Journal,
    /// Writes to the device are tied to it: [`extant_block::Exclusive`].
    claim: Mutex<Option<Arc<Claim>>>,
}

impl Drop for Mount {
    /// Also when opening did not complete.
    fn drop(&mut self) {
        self.journal.abandon();
    }
}

impl Volume {
    /// Opens the volume on `disk` for reading and writing.
    ///
    /// Replays a dirty journal first. The volume is marked as in use until [`Volume::close`]; an
    /// offline batch marks it at its first commit. Dropping the volume instead is like a crash.
    ///
    /// # Errors
    /// [`Error::Busy`] while another writer claims the device, [`Error::Locked`] if another program
    /// has locked it, [`Error::InUse`] if another host has the volume mounted (multiple-mount
    /// protection). Also, by name: features that cannot be written; a damaged superblock, group
    /// descriptor or journal; a volume without a journal that was not closed cleanly.
    pub async fn open_writable(rt: &Rt, disk: &Disk, options: WriteOptions) -> Result<Self> {
        if disk.device().limits().read_only {
            return Err(Error::ReadOnly);
        }
        let claim = claim(&**disk.device())?;
        Self::open_claimed(rt, disk, options, claim).await
    }

    /// Like [`Self::open_writable`], for a device that is already claimed.
    pub(super) async fn open_claimed(
        rt: &Rt,
        disk: &Disk,
        options: WriteOptions,
        claim: Claim,
    ) -> Result<Self> {
        let device = disk.device().clone();
        if device.limits().read_only {
            return Err(Error::ReadOnly);
        }
        let found = read_superblock(&*device, 1024).await?;
        found.verify_checksum()?;
        check_readable(&found)?;
        check_writable(&found)?;
        check_whole(&*device, &found)?;
        let wall_clock = options.fixed_time.unwrap_or_else(|| rt.wall_clock());
        let protection = Protection::hold(rt, &device, &found, wall_clock).await?;
        // Keep the claim until the protection is released: releasing it writes to the device.
        let claim = Arc::new(claim);
        let opened = Self::open_untyped(rt, disk, &found, options, claim.clone(), protection.clone()).await;
        if let (Err(_), Some(protection)) = (&opened, &protection) {
            // Return the error that kept the volume from being opened.
            let _ = protection.release(wall_clock).await;
        }
        opened
    }

    /// Like [`Self::open_protected`], but boxed: otherwise the future's code would be compiled into
    /// every crate that opens a volume.
    fn open_untyped<'a>(
        rt: &'a Rt,
        disk: &'a Disk,
        found: &'a Superblock,
        options: WriteOptions,
        claim: Arc<Claim>,
        protection: Option<Protection>,
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(Self::open_protected(rt, disk, found, options, claim, protection))
    }

    /// Continues [`Self::open_writable`] once no other host can write the volume.
    async fn open_protected(
        rt: &Rt,
        disk: &Disk,
        found: &Superblock,
        options: WriteOptions,
        claim: Arc<Claim>,
        protection: Option<Protection>,
    ) -> Result<Self> {
        let device = disk.device().clone();
        let needs_recovery = found.incompat().contains(Incompat::RECOVER);
        if needs_recovery {
            replay(device.clone(), OpenOptions::default()).await?;
        }
        let raw = View::open(device.clone(), OpenOptions::default()).await?;
        let sb = raw.superblock().clone();
        check_writable(&sb)?;
        let (log, next, failed) = match open_log(&raw).await? {
            Some((log, next, failed)) => (Some(log), next, failed),
            None => (None, Tid::first(1), false),
        };
        // A journal keeps the error that made Linux abort it until the volume's superblock has it.
        let state = sb.raw().s_state.get() | if failed { STATE_ERROR } else { 0 };
        let block_bytes = sb.block_size().byte_len();
        let blocks = Blocks::new(device, block_bytes, options.metadata_bytes.to_usize());
        blocks.charge_to(&disk.account(AccountConfig {
            name: "metadata blocks",
            limit_bytes: options.metadata_bytes,
            pinned_bytes: options.metadata_bytes,
        }));
        let store = MetaStore::load(rt, blocks.clone(), &sb).await?;
        let store = Arc::new(store.with_removal_step(options.removal_step));
        let journal_options = JournalOptions {
            pinned_bytes_max: options.metadata_bytes,
            commit_interval: options.commit_interval,
            fixed_time: options.fixed_time,
        };
        let journal = Journal::new(rt, store.clone(), disk, log, next, journal_options);
        if options.discard {
            journal.discard_freed();
        }
        // From here on, `Mount` ends the journal however this function ends; its tasks and parked
        // commits would keep it alive.
        let claim = Mutex::new(Some(claim));
        let mount = Mount { state, marks: None, orphans: 0, protection, journal: journal.clone(), claim };
        // Checks that may refuse the volume come before it is marked as in use.
        let root = raw.root().await?;
        let own = Box::pin(own_blocks(&raw)).await?;
        let is_damaged = state & STATE_ERROR != 0 || sb.raw().s_error_count.get() > 0;
        let found = Box::pin(owners::look(&raw, &store, &own, is_damaged)).await?;
        let Findings { contested, distrusted, unmarked } = found;
        let orphan_file = orphan_file_blocks(&raw).await?;
        let errors = Errors::new(options.errors.unwrap_or(ErrorPolicy::of(&sb)));
        let flags = MountFlags { synchronous: options.synchronous, ignores_acls: options.ignores_acls };
        let time = options.fixed_time;
        let (writer, orphans) =
            Writer::new(rt, store, journal, disk, own, &orphan_file, time, errors, flags).await?;
        writer.alloc.distrust(contested, distrusted, unmarked);
        // The descriptor's flags may say that no inode of its group was ever in use.
        writer.inodes.check_live(&root, Place::Superblock)?;
        let namespace = Namespace::new(&writer, FilesInMemory::new(&writer, disk), disk);
        if let Some(quotas) = Quotas::load(&raw, &writer).await? {
            namespace.keep_quotas(&quotas);
        }
        let mut mounted = Mounted { namespace, mount };
        if let Some(protection) = &mounted.mount.protection {
            // In this order, because a round that finds the block lost latches only a volume it
            // knows.
            protection.tell(&mounted.namespace);
            protection.check()?;
        }
        let is_mount = options.commit_interval.is_some();
        let mounted_at = is_mount.then(|| writer.journal.wall_clock());
        let marks = Marks::new(&writer.store, disk, state, mounted_at);
        mounted.mount.marks = Some(marks.clone());
        writer.journal.set_opening(marks.clone());
        // Closing also clears what an earlier writer left.
        if is_mount || failed || needs_recovery || sb.ro_compat().contains(RoCompat::ORPHAN_PRESENT) {
            marks.write().await?;
        }
        // As on Linux, known errors leave the orphans to e2fsck.
        if mounted.mount.state & STATE_ERROR == 0 {
            mounted.mount.orphans = Self::finish_orphans(&mounted.namespace, orphans).await?;
        } else if !orphans.is_empty() {
            writer.keep_problem(known_errors(mounted.mount.state));
            // A number that its bitmap says is free must not be given out. Its group is then no
            // longer used, and the reason is recorded.
            for cell in &orphans {
                let _ = writer.alloc.pin_inode(cell.number()).await;
            }
        }
        if options.reaps {
            mounted.namespace.start_reaper();
        }
        let mounted = Arc::new(mounted);
        Ok(Self {
            view: raw.over(Buffers::over(blocks), mounted.clone()),
            mounted: Some(mounted),
            stored: None,
            ignores_acls: options.ignores_acls,
        })
    }

    /// How many orphans were finished when the volume was opened for writing, and whether there are
    /// any now.
    pub(super) fn orphans(&self) -> (u32, bool) {
        let finished = self.mounted.as_ref().map_or(0, |mounted| mounted.mount.orphans);
        (finished, self.writer().is_some_and(|writer| !writer.orphans.is_empty()))
    }

    /// Makes everything done so far durable.
    ///
    /// # Errors
    /// Why the journal was aborted; or a file's data could not be written, although everything else
    /// is durable.
    pub fn sync(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            match self.namespace() {
                Some(namespace) => sync(namespace).await,
                None => Ok(()),
            }
        })
    }

    /// Whether this is an offline batch that has changed nothing so far, in memory or on the
    /// device.
    pub fn is_unchanged(&self) -> bool {
        self.mounted.as_ref().is_none_or(|mounted| {
            mounted.is_unmarked() && mounted.mount.journal.is_empty() && mounted.namespace.files.is_empty()
        })
    }

    /// Closes the volume without the changes of an offline batch, which are in memory only until
    /// its first commit: every structure then stays as it was. After a commit this is
    /// [`Volume::close`].
    ///
    /// # Errors
    /// As [`Volume::close`].
    pub fn give_up(self) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            match &self.mounted {
                Some(mounted) => mounted.give_up().await,
                None => Ok(()),
            }
        })
    }

    /// Makes everything durable, writes the log home and leaves the volume clean: an empty journal,
    /// correct free counts, not marked as in use.
    ///
    /// A concurrent write is either included or fails. Nothing is written afterwards, even if nodes
    /// and files of the volume are still open, and another writer may claim the device.
    ///
    /// # Errors
    /// Why the journal was aborted, now or earlier; the volume is then left as after a crash. Also
    /// if a file's data could not be written, although the volume is clean.
    pub fn close(self) -> BoxFuture<'static, Result<()>> {
        Box::pin(async move {
            match &self.mounted {
                Some(mounted) => mounted.close().await,
                None => Ok(()),
            }
        })
    }
}

/// See [`Volume::sync`].
async fn sync(namespace: &Namespace) -> Result<()> {
    let Namespace { writer, files, .. } = namespace;
    // Errors noted earlier are recorded in the transaction that this commits.
    writer.heed_noted().await;
    let synced = writer.guarded(async {
        let sizes = files.sizes();
        let written = files.write_back().await;
        let written = written.and(files.record_sizes(&sizes).await);
        let flushes = writer.journal.flushes_begun();
        writer.journal.commit(writer.journal.running()).await?;
        writer.journal.flush_since(flushes).await?;
        written
    });
    synced.await
}

impl Mounted {
    /// Whether no commit of an offline batch has written anything yet. Multiple-mount protection
    /// writes when the volume is opened.
    fn is_unmarked(&self) -> bool {
        let Mount { marks, protection, journal, .. } = &self.mount;
        let are_written = marks.as_ref().is_none_or(|marks| marks.are_written());
        !are_written && protection.is_none() && !journal.has_background()
    }

    /// See [`Volume::give_up`].
    async fn give_up(&self) -> Result<()> {
        if !self.is_unmarked() {
            return self.close().await;
        }
        self.mount.journal.abandon();
        self.namespace.files.clear();
        drop(self.mount.claim.lock().take());
        Ok(())
    }

    /// See [`Volume::close`].
    async fn close(&self) -> Result<()> {
        let Self { namespace, mount } = self;
        let writer = &*namespace.writer;
        let closed = writer.guarded(async {
            // Acknowledged writes come before this, so their data are dirty by now.
            writer.end_data_changes();
            namespace.files.wait_for_changes().await;
            // Data that cannot be written are lost, but the volume can still be closed.
            let sizes = namespace.files.sizes();
            let written = namespace.files.write_back().await;
            let written = written.and(namespace.files.record_sizes(&sizes).await);
            namespace.delete_doomed_at_last().await;
            if let Err(error) = &written {
                writer.heed(error).await;
            }
            writer.heed_noted().await;
            writer.journal.close().await?;
            if let Some(marks) = &mount.marks {
                marks.close(writer).await?;
            }
            if let Some(protection) = &mount.protection {
                protection.release(writer.journal.wall_clock()).await?;
            }
            written
        });
        let closed = closed.await;
        drop(mount.claim.lock().take());
        closed
    }
}

/// Claims a device for one writer.
pub(super) fn claim(device: &dyn Device) -> Result<Claim> {
    device.claim().map_err(|error| match error.kind {
        IoErrorKind::Claimed => Error::Busy(crate::quote(error.device.as_bytes())),
        IoErrorKind::Locked { by } => Error::Locked { place: crate::quote(error.device.as_bytes()), by },
        _ => error.into(),
    })
}

/// The problem to report if the volume is marked as having errors.
pub(super) fn known_errors(state: u16) -> Error {
    let rule = "without the mark of errors (2): run e2fsck, which also finishes deleted files";
    Corrupt::field(Place::Superblock, "s_state", state.into(), rule).into()
}

/// Opens the journal of a volume that needs no recovery and sets the features used for writing.
/// Also returns its first transaction, and whether Linux aborted the journal (`s_errno`): the next
/// write of the log's superblock clears that.
async fn open_log(raw: &View) -> Result<Option<(LogDevice, Tid, bool)>> {
    let sb = raw.superblock();
    if !sb.compat().contains(Compat::HAS_JOURNAL) {
        return Ok(None);
    }
    let Some(log) = Log::open(raw).await? else {
        return Err(Error::unsupported("a journal on another device"));
    };
    let mut journal = log.sb.clone();
    if journal.is_v1() {
        let hint = "; it can be opened for reading only";
        return Err(Error::Unsupported { feature: "a journal of version 1".into(), hint });
    }
    if journal.start().is_some() {
        let feature = "a journal that holds changes that the superblock does not mention".into();
        return Err(Error::Unsupported { feature, hint: "; run e2fsck first" });
    }
    if journal.ro_compat() != 0 || journal.users().len() > 1 {
        return Err(Error::unsupported("a journal of several volumes"));
    }
    set_features(&mut journal, sb);
    let failed = journal.errno() != 0;
    journal.set_errno(0);
    if journal.log().len() < LOG_BLOCKS_MIN.to_usize() {
        let feature =
            format!("a log of {} blocks, less than the {LOG_BLOCKS_MIN} of Linux", journal.log().len());
        let hint = "; it can be opened for reading only, or made anew with `tune2fs -O ^has_journal` and `tune2fs -j`";
        return Err(Error::Unsupported { feature, hint });
    }
    // The number in an empty journal was never committed, but a torn transaction may have used it.
    let next = Tid::first(journal.sequence().wrapping_add(1));
    let block = raw.buffers().raw_block(log.map.home(0)?).await?.to_vec();
    Ok(Some((LogDevice::new(raw.device().clone(), log.map.clone(), journal, block)?, next, failed)))
}

/// Sets the features of an empty journal as Linux does: revokes, wide block numbers on `64bit`
/// volumes, and version 3 checksums on `metadata_csum` volumes whose journal does not checksum
/// every block. Fast commits are never written.
fn set_features(journal: &mut JournalSuperblock, sb: &Superblock) {
    let every_block = JournalIncompat::CHECKSUM_V2 | JournalIncompat::CHECKSUM_V3;
    let mut incompat = journal.incompat() | JournalIncompat::REVOKE;
    incompat -= JournalIncompat::FAST_COMMIT | JournalIncompat::ASYNC_COMMIT;
    if sb.incompat().contains(Incompat::BIT64) {
        incompat |= JournalIncompat::WIDE;
    }
    if sb.has_metadata_csum() && !incompat.intersects(every_block) {
        journal.set_compat(journal.compat() - JournalCompat::CHECKSUM);
        incompat |= JournalIncompat::CHECKSUM_V3;
    }
    journal.set_incompat(incompat);
}
