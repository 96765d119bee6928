//! The walk over the log.
//!
//! Starting at the beginning of the log, the walk reads block by block and expects a certain
//! transaction number. The kind of block decides what to do:
//!
//! | row | block | action |
//! |-|-|-|
//! | @A | no magic, another number, or unknown kind | end; drop what has no commit block |
//! | @B | descriptor | remember its tags, skip their data blocks |
//! | @C | revoke | remember its records |
//! | @D | descriptor or revoke with a wrong checksum | as @B and @C, but suspect the transaction |
//! | @E | commit of a suspect transaction, older than the last one | end: left by an earlier lap |
//! | @F | commit of a suspect transaction, not older | report; end: the journal is damaged here |
//! | @G | commit with a wrong checksum | synchronous: report; end |
//! | @H | commit | apply its copies and revokes; expect the next number |
//! | @I | committed data that do not match their tag's checksum | report; skip that copy |
//! | @J | unreadable block | a replay fails; a reader reports it |
//!
//! *End* means that the log ends here. Row @G includes a wrong transaction checksum (version 1).
//! With asynchronous commits it means only that the transaction did not reach the disk, so it is
//! not reported. In row @J a reader skips an unreadable data block's copy; at any other unreadable
//! block the log ends.
//!
//! A revoke in transaction *n* voids every copy of its block in transactions up to *n*, but not in
//! later ones.

use super::journal_file::Log;
use super::reader::{Kept, Reader};
use crate::meta::Journaled;
use crate::view::View;
use crate::{Error, Result};
use extant_format::jbd2::{
    JournalBlockHeader, JournalBlockKind, JournalChecksums, JournalCommit, JournalIncompat, JournalRevokes,
    JournalTag, JournalTags, TagFlags, crc32_be,
};
use extant_format::{Corrupt, Place, UintExt, VolumeBlock};
use std::collections::BTreeMap;

/// Size in bytes of a device's smallest write. A commit block has only zeroes beyond it.
const COMMIT_SECTOR_BYTES: usize = 512;

/// The contents of the log.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    /// The newest copy of each block.
    pub(crate) copies: BTreeMap<VolumeBlock, Journaled>,
    /// Number of committed transactions.
    pub(crate) transactions: u32,
    /// Copies voided by a revoke.
    pub(crate) revoked: u64,
    /// The number that follows that of the last committed transaction.
    pub(crate) next_sequence: u32,
    /// The log's own blocks, as far as they were to be kept.
    pub(super) kept: Kept,
}

/// A transaction whose commit block has not been found yet.
#[derive(Default)]
struct Open {
    /// Each tag with the journal block of its data, and the damage of these data, if any (row @I).
    tags: Vec<(JournalTag, u32, Option<Corrupt>)>,
    revokes: Vec<VolumeBlock>,
    /// The error in one of its blocks (row @D).
    suspect: Option<Corrupt>,
    /// The version 1 checksum so far.
    crc: u32,
}

/// What the walk does about a block that the device cannot read.
#[derive(Clone, Copy, Debug)]
pub(super) enum OnReadError {
    /// Fail, since whatever the block holds would be lost.
    Fail,
    /// Continue, as for damage of the volume.
    Note,
}

impl OnReadError {
    fn take(self, view: &View, error: Error) -> Result<()> {
        match self {
            Self::Fail => Err(error),
            Self::Note => view.note_error(error),
        }
    }
}

/// Walks the log from start to end, keeping up to `keep_bytes` of it in memory.
pub(super) async fn scan(log: &Log, keep_bytes: usize, on_error: OnReadError) -> Result<Scan> {
    let view = &log.view;
    let layout = log.sb.layout();
    let ring = log.sb.log();
    let mut found = Scan { next_sequence: log.sb.sequence(), ..Scan::default() };
    let Some(start) = log.sb.start() else { return Ok(found) };
    let next = |n: u32| if n + 1 >= ring.end { ring.start } else { n + 1 };
    let fresh = || Open { crc: !0, ..Open::default() };

    let mut reader = Reader::new(log, start, Kept::new(keep_bytes));
    let mut at = start;
    let mut open = fresh();
    let mut last_commit_seconds = 0;
    // Even a completely full log is walked only once.
    let mut left = ring.len().fit_u32();
    while left > 0 {
        let here = at;
        let block = match reader.block(here).await {
            Ok(block) => block,
            Err(error) => {
                on_error.take(view, error)?; // @J
                break;
            }
        };
        let header = JournalBlockHeader::read(&block).filter(|h| h.sequence == found.next_sequence);
        let Some(kind) = header.and_then(|header| header.kind) else { break }; // @A
        (at, left) = (next(at), left - 1);
        match kind {
            JournalBlockKind::Descriptor => {
                open.suspect = open.suspect.or(layout.verify_tail(&block, here).err()); // @D
                if layout.checksums == JournalChecksums::Commit {
                    open.crc = crc32_be(open.crc, &block);
                }
                for tag in JournalTags::parse(&block, &layout, here)? {
                    if left == 0 {
                        break;
                    }
                    let data = match reader.block(at).await {
                        Ok(data) => data,
                        Err(error) => {
                            on_error.take(view, error)?; // @J
                            (at, left) = (next(at), left - 1);
                            continue;
                        }
                    };
                    if layout.checksums == JournalChecksums::Commit {
                        open.crc = crc32_be(open.crc, &data);
                    }
                    let damage = tag.verify_data(&layout, found.next_sequence, &data, at).err();
                    open.tags.push((tag, at, damage)); // @B
                    (at, left) = (next(at), left - 1);
                }
            }
            JournalBlockKind::Revoke => {
                open.suspect = open.suspect.or(layout.verify_tail(&block, here).err()); // @D
                match JournalRevokes::parse(&block, &layout, here) {
                    Ok(records) => open.revokes.extend(records), // @C
                    Err(corrupt) => open.suspect = open.suspect.or(Some(corrupt)),
                }
            }
            JournalBlockKind::Commit => {
                let commit = JournalCommit::parse(&block, &layout, here)?;
                if let Some(corrupt) = open.suspect {
                    if commit.seconds >= last_commit_seconds {
                        view.note(Err(corrupt))?; // @F
                    }
                    break; // @E
                }
                let whole = JournalCommit::verify_block(&block, &layout, here).or_else(|corrupt| {
                    // Power may have failed in the middle of the block. Its first sector has all
                    // the data; the rest is zeroes (as Linux since 6.12).
                    let mut torn = block.to_vec();
                    torn[COMMIT_SECTOR_BYTES..].fill(0);
                    JournalCommit::verify_block(&torn, &layout, here).map_err(|_| corrupt)
                });
                let checked = whole.and_then(|()| {
                    if layout.checksums == JournalChecksums::Commit {
                        commit.verify_transaction(open.crc, here)
                    } else {
                        Ok(())
                    }
                });
                if let Err(corrupt) = checked {
                    if !log.sb.incompat().contains(JournalIncompat::ASYNC_COMMIT) {
                        view.note(Err(corrupt))?;
                    }
                    break; // @G
                }
                last_commit_seconds = commit.seconds;
                apply(log, &mut found, std::mem::replace(&mut open, fresh()))?; // @H
            }
            JournalBlockKind::SuperblockV1 | JournalBlockKind::SuperblockV2 => break, // @A
        }
    }
    found.kept = reader.into_kept();
    Ok(found)
}

/// Applies a committed transaction to the result.
fn apply(log: &Log, found: &mut Scan, transaction: Open) -> Result<()> {
    let view = &log.view;
    for (tag, at, damage) in transaction.tags {
        let is_valid = view.superblock().is_valid_block(tag.block) || tag.block.0 == 0;
        // A copy of one of the log's own blocks would replace copies still to be read.
        if !is_valid || log.map.contains(tag.block) {
            let place = Place::JournalBlock(at);
            view.note(Err(Corrupt::field(
                place,
                "t_blocknr",
                tag.block.0,
                "a block of the volume and not of the log",
            )))?;
            continue;
        }
        if let Some(corrupt) = damage {
            view.note(Err(corrupt))?; // @I
            continue;
        }
        let journaled = Journaled { copy: log.map.home(at)?, escaped: tag.flags.contains(TagFlags::ESCAPE) };
        found.copies.insert(tag.block, journaled);
    }
    for block in transaction.revokes {
        found.revoked += u64::from(found.copies.remove(&block).is_some());
    }
    found.transactions += 1;
    found.next_sequence = found.next_sequence.wrapping_add(1);
    Ok(())
}
