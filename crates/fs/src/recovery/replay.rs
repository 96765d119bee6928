//! Replays the journal on disk.

use super::journal_file::Log;
use super::reader::Kept;
use super::{scan, sector};
use crate::journal::write_segments;
use crate::meta::Journaled;
use crate::view::{OpenOptions, View};
use crate::{Error, Result};
use extant_block::{Buf, Device, Segment};
use extant_format::{Compat, Incompat, STATE_ERROR, SUPERBLOCK_BYTES, Superblock, UintExt, VolumeBlock};
use std::pin::Pin;
use std::sync::Arc;

/// Memory for log blocks between reading them and writing them home. Blocks of a larger log are
/// read again.
const KEPT_BYTES: usize = 128 << 20;
/// Blocks written home at a time.
const WINDOW: usize = 4096;

/// The result of a recovery.
#[derive(Clone, Debug, Default)]
pub struct Recovery {
    /// The journal did not need a replay.
    pub was_clean: bool,
    /// Committed transactions in the log.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Copies voided by a revoke.
    pub revoked: u64,
    /// Inodes that had been deleted or truncated while open and have now been finished.
    pub orphans: u32,
    /// Some such inodes are left. e2fsck finishes them; so does a writable mount, unless they are
    /// damaged.
    pub has_orphans: bool,
    /// Damage that kept inodes from being finished.
    pub problems: Vec<Error>,
}

/// Replays a volume's dirty journal on disk and marks it clean, with recomputed free counts. It can
/// be interrupted anywhere and run again. The caller holds the volume's multiple-mount protection.
///
/// # Errors
/// The errors of [`recover`](crate::recover), which runs this first.
pub(crate) fn replay(
    device: Arc<dyn Device>,
    options: OpenOptions,
) -> Pin<Box<dyn Future<Output = Result<Recovery>> + Send>> {
    // Type-erased, so that its code is not generated again in each crate that opens a volume.
    Box::pin(replay_log(device, options))
}

async fn replay_log(device: Arc<dyn Device>, options: OpenOptions) -> Result<Recovery> {
    let raw = View::open(device.clone(), options).await?;
    if !raw.superblock().incompat().contains(Incompat::RECOVER) {
        return Ok(Recovery {
            was_clean: true,
            has_orphans: has_orphans(raw.superblock()),
            ..Recovery::default()
        });
    }
    let Some(log) = Log::open(&raw).await? else {
        return Err(Error::unsupported("a journal on another device"));
    };
    let found = scan::scan(&log, KEPT_BYTES, scan::OnReadError::Fail).await?;
    super::refuse_fast_commits(&log, found.next_sequence).await?;

    let block_bytes = raw.superblock().block_size().byte_len();
    let homes: Vec<(VolumeBlock, Journaled)> = found.copies.iter().map(|(&n, &copy)| (n, copy)).collect();
    for window in homes.chunks(WINDOW) {
        let segments = segments(&raw, &found.kept, window).await?;
        write_segments(&*device, block_bytes, segments.into_iter()).await?;
    }
    extant_block::flush(&*device).await?;

    let mut journal_sb = log.sb.clone();
    journal_sb.set_position(None, found.next_sequence);
    // As in Linux, an error that stopped the journal stays in its superblock until the volume's
    // superblock has it.
    let failed = journal_sb.errno() != 0;
    let mut block = Buf::from_slice(&log.block(0).await?);
    journal_sb.write_to(&mut block);
    let journal_at = sector(&raw, log.map.home(0)?);

    // Read the superblock again, as the replay left it.
    let home = VolumeBlock(1024 / block_bytes.to_u64());
    let at = 1024 % block_bytes;
    let mut bytes = extant_block::read(&*device, sector(&raw, home), block_bytes).await?;
    let mut sb = Superblock::parse(&bytes[at..])?;
    // The log may hold a copy from before an error that was recorded in place.
    sb.keep_errors_of(raw.superblock());
    let incompat = sb.incompat() - Incompat::RECOVER;
    sb.raw_mut().s_feature_incompat = incompat.bits().into();
    if failed {
        sb.raw_mut().s_state = (sb.raw().s_state.get() | STATE_ERROR).into();
    }
    super::sums::refresh(&device, options, &mut sb).await;
    sb.update_checksum();
    bytes[at..at + SUPERBLOCK_BYTES].copy_from_slice(sb.as_bytes());

    extant_block::write(&*device, journal_at, Buf::from_slice(&block)).await?;
    extant_block::flush(&*device).await?;
    extant_block::write(&*device, sector(&raw, home), bytes).await?;
    extant_block::flush(&*device).await?;
    if failed {
        journal_sb.set_errno(0);
        journal_sb.write_to(&mut block);
        extant_block::write(&*device, journal_at, block).await?;
        extant_block::flush(&*device).await?;
    }
    Ok(Recovery {
        was_clean: false,
        transactions: found.transactions,
        blocks: found.copies.len().to_u64(),
        revoked: found.revoked,
        has_orphans: has_orphans(&sb),
        ..Recovery::default()
    })
}

/// The newest copies of blocks, to be written home.
async fn segments(
    raw: &View,
    kept: &Kept,
    window: &[(VolumeBlock, Journaled)],
) -> Result<Vec<(u64, Segment)>> {
    let block_bytes = raw.superblock().block_size().byte_len();
    let missing = window.iter().map(|(_, copy)| copy.copy).filter(|&at| kept.find(at, block_bytes).is_none());
    raw.buffers().prefetch(missing).await;
    let mut segments = Vec::with_capacity(window.len());
    for &(home, Journaled { copy, escaped }) in window {
        let segment = match kept.find(copy, block_bytes) {
            Some((piece, at)) if !escaped => Segment::shared(piece.clone(), at, block_bytes),
            found => {
                let mut bytes = match found {
                    Some((piece, at)) => Buf::from_slice(&piece[at..at + block_bytes]),
                    None => Buf::from_slice(&raw.buffers().raw_block(copy).await?),
                };
                if escaped {
                    extant_format::jbd2::unescape(&mut bytes);
                }
                Segment::from(bytes)
            }
        };
        segments.push((home.0, segment));
    }
    Ok(segments)
}

fn has_orphans(sb: &Superblock) -> bool {
    sb.raw().s_last_orphan.get() != 0
        || (sb.compat().contains(Compat::ORPHAN_FILE)
            && sb.ro_compat().contains(extant_format::RoCompat::ORPHAN_PRESENT))
}
