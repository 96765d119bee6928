//! Older versions of blocks, which stay in the log until it comes round again.

use super::journal_file::Log;
use super::reader::{Kept, Reader};
use crate::view::View;
use crate::{Error, Result};
use extant_format::VolumeBlock;
use extant_format::jbd2::{JournalBlockHeader, JournalBlockKind, JournalTag, JournalTags, TagFlags};
use std::collections::VecDeque;

/// A version of a block in the journal's log, whether or not it is the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldCopy {
    /// Where the block belongs.
    pub home: VolumeBlock,
    /// By how many transactions it precedes the one at which replay would start: smaller is newer.
    /// Versions still to be replayed have 0 or less.
    pub age: i32,
    /// Volume block that holds the copy.
    pub block: VolumeBlock,
    /// The copy's first four bytes were zeroed because they matched the journal's magic number.
    pub escaped: bool,
}

/// All versions of blocks that the log still holds, newest first: those of transactions still to be
/// replayed, and what remains of earlier ones. Copies with a wrong checksum are left out.
///
/// # Errors
/// The journal cannot be opened.
pub(crate) async fn history(view: &View) -> Result<Vec<OldCopy>> {
    let Some(log) = Log::open(view).await? else { return Ok(Vec::new()) };
    let layout = log.sb.layout();
    let ring = log.sb.log();
    let mut copies = Vec::new();
    let mut reader = Reader::new(&log, ring.start, Kept::new(0));
    let mut tags: VecDeque<JournalTag> = VecDeque::new();
    let mut sequence = 0;
    let age = |sequence: u32| log.sb.sequence().wrapping_sub(sequence).cast_signed();
    let mut take = |tag: JournalTag, sequence: u32, n: u32, data: &[u8]| -> Result<()> {
        let is_valid = view.superblock().is_valid_block(tag.block) || tag.block.0 == 0;
        if is_valid && tag.verify_data(&layout, sequence, data, n).is_ok() {
            copies.push(OldCopy {
                home: tag.block,
                age: age(sequence),
                block: log.map.home(n)?,
                escaped: tag.flags.contains(TagFlags::ESCAPE),
            });
        }
        Ok(())
    };
    for n in ring.clone() {
        let Ok(block) = reader.block(n).await else {
            // Either a data block, whose tag is skipped, or a descriptor, whose data blocks then
            // have no tags.
            tags.pop_front();
            continue;
        };
        match JournalBlockHeader::read(&block) {
            Some(header) => {
                // Data blocks still expected here were overwritten by a later transaction.
                tags.clear();
                if header.kind == Some(JournalBlockKind::Descriptor)
                    && layout.verify_tail(&block, n).is_ok()
                    && let Ok(parsed) = JournalTags::parse(&block, &layout, n)
                {
                    sequence = header.sequence;
                    tags.extend(parsed);
                }
            }
            None => {
                if let Some(tag) = tags.pop_front() {
                    take(tag, sequence, n, &block)?;
                }
            }
        }
    }
    // The data blocks of the last descriptor continue at the start of the ring.
    for n in ring {
        let Some(tag) = tags.pop_front() else { break };
        match log.block(n).await {
            Ok(block) if JournalBlockHeader::read(&block).is_some() => break,
            Ok(block) => take(tag, sequence, n, &block)?,
            Err(Error::Io(_)) => {}
            Err(other) => return Err(other),
        }
    }
    // In the order of the log within a transaction, where a later copy of a block is newer.
    copies.reverse();
    copies.sort_by_key(|copy| copy.age);
    Ok(copies)
}
