//! Committing a transaction.

use super::accounts::Accounts;
use super::state::Running;
use super::{Inner, LatchOnPanic, Tid};
use crate::meta::{MetaBlock, MetaStore};
use crate::{Cost, Result};
use extant_cache::blocks::{BlockEdit, BlockRef, Durable, EditToken, Frozen};
use extant_format::{FileKind, GroupDescriptor, Inode, InodeFlags, InodeNumber, Superblock, UintExt};
use extant_rt::{Nanos, Rt};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How long encoding a transaction runs before it yields to other tasks.
pub(crate) const STINT: Nanos = Nanos::from_micros(100);

/// The blocks of a transaction, as written to the device.
pub(super) struct Versions {
    pub(super) tid: Tid,
    /// In block order.
    pub(super) blocks: Vec<(MetaBlock, Frozen)>,
    /// Records of inodes without links, as the table held them before. Only on a volume without a
    /// journal.
    pub(super) deleted: Vec<Before>,
    /// Directories whose names were in their inodes. Only on a volume without a journal.
    pub(super) inline: Vec<Before>,
    /// Files and directories whose size changed. Only on a volume without a journal.
    pub(super) resized: Resized,
}

/// Files and directories whose size a transaction changed.
#[derive(Default)]
pub(super) struct Resized {
    pub(super) files: FxHashSet<InodeNumber>,
    /// Those that shrank, with their new record but the old size.
    pub(super) shrunk: Vec<Before>,
}

/// An inode record as the previous transaction left it.
pub(super) struct Before {
    pub(super) number: InodeNumber,
    /// The block of the inode table.
    pub(super) table: u64,
    /// Offset of the record in it.
    pub(super) at: usize,
    pub(super) record: Vec<u8>,
}

/// Offset of `i_size_lo` in a record, in bytes.
const SIZE_LOW_AT: usize = 0x4;
/// Offset of `i_size_high` in a record, in bytes.
const SIZE_HIGH_AT: usize = 0x6c;
/// Offset of `i_links_count` in a record, in bytes.
const LINKS_AT: usize = 0x1a;
/// Offset of `i_flags` in a record, in bytes.
const FLAGS_AT: usize = 0x20;

/// Whether the record is that of a directory in use with inline names.
fn is_inline_directory(record: &[u8]) -> bool {
    const KIND: u16 = 0xf000;
    let mode = u16::from_le_bytes([record[0], record[1]]);
    let flags = u32::from_le_bytes([
        record[FLAGS_AT],
        record[FLAGS_AT + 1],
        record[FLAGS_AT + 2],
        record[FLAGS_AT + 3],
    ]);
    mode & KIND == FileKind::Directory.mode_bits()
        && InodeFlags::from_bits_retain(flags).contains(InodeFlags::INLINE_DATA)
        && record[LINKS_AT..LINKS_AT + 2] != [0, 0]
}

/// The size in the record, if it is that of a file or directory in use.
fn file_bytes(record: &[u8]) -> Option<u64> {
    const KIND: u16 = 0xf000;
    let mode = u16::from_le_bytes([record[0], record[1]]);
    let is_mapped =
        [FileKind::Regular, FileKind::Directory].map(FileKind::mode_bits).contains(&(mode & KIND));
    let is_in_use = record[LINKS_AT..LINKS_AT + 2] != [0, 0];
    let half = |at: usize| {
        let bytes = [record[at], record[at + 1], record[at + 2], record[at + 3]];
        u64::from(u32::from_le_bytes(bytes))
    };
    (is_mapped && is_in_use).then(|| half(SIZE_HIGH_AT) << 32 | half(SIZE_LOW_AT))
}

impl Resized {
    fn note(
        &mut self,
        before: &[u8],
        record: &[u8],
        number: InodeNumber,
        home: (u64, usize),
        sb: &Superblock,
    ) {
        let (Some(old), Some(new)) = (file_bytes(before), file_bytes(record)) else { return };
        if old == new {
            return;
        }
        self.files.insert(number);
        if let Some(mut inode) = Inode::parse_unchecked(record, sb, number).ok().filter(|_| new < old) {
            let mut longer = record.to_vec();
            inode.set_size(old);
            inode.write_to(&mut longer, sb);
            self.shrunk.push(Before { number, table: home.0, at: home.1, record: longer });
        }
    }
}

/// Commits the transaction that was closed to new operations. Driven by its waiters.
pub(super) async fn run(inner: Arc<Inner>) {
    let _latch = LatchOnPanic(inner.clone());
    let Some(mut transaction) = inner.wait_until(|state| state.drained()).await else {
        inner.notify();
        return;
    };
    // From here, operations continue in the next transaction.
    inner.notify();
    let accounts = inner.accounts.get().map(|accounts| &**accounts);
    let versions = encode(&inner.rt, &inner.store, &mut transaction, inner.log.is_none(), accounts).await;
    // The mark writes an older superblock, which must not overwrite the record of an error.
    let alive = inner.lock().check_alive();
    let marked = match (alive, inner.opening.get()) {
        (Ok(()), Some(opening)) => opening.mark().await,
        (alive, _) => alive,
    };
    let written = match (marked, &inner.log) {
        (Err(cause), _) => Err(cause),
        (Ok(()), Some(_)) => inner.write_log(&transaction, &versions).await.map(Some),
        (Ok(()), None) => inner.write_phases(&transaction, &versions).await.map(|()| None),
    };
    let durable = match written {
        Ok(durable) => durable,
        Err(cause) => {
            // Keep the blocks in memory: the device has older versions, which must not be read.
            *inner.lost.lock() = Some((transaction, versions));
            return inner.give_up(cause).await;
        }
    };
    let tid = versions.tid;
    let (freed, checkpoint) = {
        let mut state = inner.lock();
        // Without a log, the blocks are already home.
        let homes = durable.map_or_else(Vec::new, |durable| {
            versions.blocks.into_iter().map(|(_, version)| version.committed(&durable)).collect()
        });
        let freed = state.finish(homes, transaction.freed);
        (freed, state.wants_checkpoint())
    };
    inner.commits.reach(tid.0);
    inner.release(tid, freed);
    inner.notify();
    inner.store.blocks().settle_charge();
    if checkpoint {
        inner.background.checkpoint();
    }
}

/// Edits blocks that only commits write.
struct Encoder<'t> {
    tid: Tid,
    blocks: &'t mut BTreeMap<u64, MetaBlock>,
}

struct Token<'f>(Tid, &'f mut bool);

impl EditToken for Token<'_> {
    fn epoch(&self) -> u64 {
        self.0.0
    }
    fn first_touch(&mut self, _: &BlockRef) {
        *self.1 = true;
    }
}

impl Encoder<'_> {
    fn edit<'b>(&mut self, block: &'b MetaBlock) -> BlockEdit<'b> {
        let mut first = false;
        let edit = block.block().edit(&mut Token(self.tid, &mut first));
        if first {
            self.blocks.insert(block.number().0, block.clone());
        }
        edit
    }
}

/// Encodes the transaction's changes to decoded structures, then takes each block's version with
/// its checksum. Later operations may change the live versions meanwhile.
async fn encode(
    rt: &Rt,
    store: &MetaStore,
    transaction: &mut Running,
    keeps_deleted: bool,
    accounts: Option<&dyn Accounts>,
) -> Versions {
    let tid = transaction.tid;
    let shape = store.shape();
    let mut budget = rt.budget(STINT);
    let (mut deleted, mut inline, mut resized) = (Vec::new(), Vec::new(), Resized::default());
    let mut encoder = Encoder { tid, blocks: &mut transaction.blocks };
    for inodes in transaction.inodes.chunks(16) {
        for inode in inodes {
            let (table, at) = inode.home();
            let end = at + usize::from(shape.inode_size());
            let mut edit = encoder.edit(table);
            let record = &mut edit[at..end];
            let before = if keeps_deleted { record.to_vec() } else { Vec::new() };
            inode.encode(tid, record, shape);
            let (number, table) = (inode.number(), table.number().0);
            if keeps_deleted && record[LINKS_AT..LINKS_AT + 2] == [0, 0] {
                deleted.push(Before { number, table, at, record: before });
            } else if keeps_deleted && is_inline_directory(&before) {
                inline.push(Before { number, table, at, record: before });
            } else if keeps_deleted {
                resized.note(&before, record, number, (table, at), shape);
            }
        }
        budget.resched().await;
    }
    if let Some(accounts) = accounts {
        let charges = std::mem::take(&mut transaction.charges);
        for (block, bytes) in accounts.settle(&mut charges.into_owners()) {
            encoder.edit(&block).copy_from_slice(&bytes);
        }
    }
    // Take bitmaps before the descriptors that hold their checksums.
    let mut taken: BTreeMap<u64, Frozen> = BTreeMap::new();
    for (&n, block) in &*encoder.blocks {
        if let Some(group) = block.kind().bitmap_of() {
            debug_assert!(transaction.groups.contains(&group), "a bitmap changes with its group's counts");
            taken.insert(n, store.take(block, tid));
            budget.resched().await;
        }
    }
    let groups = store.groups();
    for &group in &transaction.groups {
        let descriptor = groups.take(group, tid);
        let (table, at) = groups.home(group);
        let mut edit = encoder.edit(table);
        let bytes = &mut edit[at..at + groups.descriptor_bytes()];
        descriptor.write_to(bytes, shape, group);
        debug_assert!(
            GroupDescriptor::verify_checksum(bytes, shape, group).is_ok(),
            "the descriptor of group {group} is written with its checksum"
        );
    }
    if transaction.superblock {
        let mut superblock = store.take_superblock(tid);
        superblock.update_checksum();
        debug_assert!(Superblock::parse(superblock.as_bytes()).is_ok(), "the superblock can be read again");
        let (block, range) = store.superblock_home();
        encoder.edit(block)[range].copy_from_slice(superblock.as_bytes());
    }
    let mut blocks = Vec::with_capacity(transaction.blocks.len());
    for (n, block) in &transaction.blocks {
        let version = match taken.remove(n) {
            Some(version) => version,
            None => store.take(block, tid),
        };
        rt.charge(Cost::ChecksumKib((store.blocks().block_bytes() >> 10).to_u64()));
        blocks.push((block.clone(), version));
        budget.resched().await;
    }
    Versions { tid, blocks, deleted, inline, resized }
}

impl Inner {
    /// Writes the transaction to the log; it is durable when this returns.
    async fn write_log(&self, transaction: &Running, versions: &Versions) -> Result<Durable> {
        let log = self.log.as_ref().expect("a volume with a journal");
        debug_assert!(
            versions.blocks.iter().all(|(block, _)| !transaction.revokes.contains(&block.number().0)),
            "a block is logged or revoked"
        );
        let image = log.image(versions.tid.sequence(), &transaction.revokes, &versions.blocks);
        let count = image.blocks.len().fit_u32() + 1;
        let (start, ring) = {
            let mut state = self.lock();
            let start = state.take_log(count)?;
            (start, state.log.as_ref().expect("a volume with a journal").ring.clone())
        };
        if !log.superblock.lock().started {
            // The commit block's preflush makes this durable; until then the log is empty.
            log.write_superblock(Some(start), versions.tid.sequence(), None, None).await?;
        }
        log.write(&image.blocks, |i| ring.step(start, i.fit_u32())).await?;
        self.lock().check_alive()?;
        let commit = log.commit_block(&image, self.wall_clock());
        let at = ring.step(start, count - 1);
        self.behind_flush(log.write_commit(&self.disk, versions.tid, commit, at)).await
    }
}
