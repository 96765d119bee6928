//! Repairs: a plan that is made and checked in memory before anything is written.
//!
//! [`plan`] checks the volume, repairs what the lowest stage of the findings asks for in an overlay
//! in memory, and checks the overlay, until a check finds nothing or no repair changes anything any
//! more. Superblock, journal and descriptors come first, because everything else is found through
//! them; then single flipped bits, which checksums name; then inodes and maps, blocks with several
//! owners, directories, the tree, link counts; bitmaps and counts come last. Each change is a
//! [`Step`] with the finding that asked for it. [`Plan::apply`] writes the blocks that differ,
//! behind an undo file ([`UndoFile`]).
//!
//! **Unfinished: do not use it on data that matters.** After an interruption, an undo file is
//! matched to a volume by its size only, and what was changed meanwhile is overwritten.
//! Multiple-mount protection is not asked. [`Policy::Safe`] replays a damaged journal as far as it
//! can be read.

mod bits;
mod contested;
mod counts;
mod dir_blocks;
mod dirs;
mod editor;
mod flips;
mod index;
mod inodes;
mod maps;
mod own;
mod plan;
mod tree;
mod undo;
mod volume;
mod xattrs;

pub use plan::{Plan, Policy, Step};
pub use undo::{UndoError, UndoFile, UndoState};

use crate::sweeps::survey;
use crate::{CheckError, Checked, Code, Finding, Options};
use editor::{Editor, Granting};
use extant_block::{Deferred, Device, Sector, read};
use extant_rt::Rt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Memory for changed blocks in bytes, with every version of a block that is changed repeatedly.
const MOST_BYTES: u64 = 1 << 30;
/// Checks until a plan is given up. Each has to change something, but a hostile volume may need any
/// number.
const CHECKS: u32 = 60;
/// Findings of each code that one round repairs.
const FINDINGS: usize = 200_000;

/// In which order findings are repaired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Superblock,
    Journal,
    Descriptors,
    /// Single flipped bits of everything that has a 32-bit checksum.
    Bits,
    Inodes,
    /// Sizes and counts of blocks, which follow from maps.
    Sizes,
    Contested,
    Directories,
    Tree,
    Links,
    Counts,
    /// It is reported, and no repair changes it.
    Told,
}

fn stage(code: Code) -> Stage {
    use Code as C;
    match code {
        C::SuperblockDamaged | C::SuperblockChecksum | C::SuperblockInodes | C::SuperblockField => {
            Stage::Superblock
        }
        C::JournalLog | C::JournalState | C::JournalSuperblock | C::JournalInode => Stage::Journal,
        C::DescriptorChecksum | C::DescriptorPlace | C::DescriptorFlags => Stage::Descriptors,
        C::SuperblockFeatures
        | C::FeatureMissing
        | C::SuperblockUuid
        | C::SuperblockHint
        | C::InodeChecksum
        | C::InodeMode
        | C::InodeSpecial
        | C::InodeDtime
        | C::InodeObsolete
        | C::InodeFlags
        | C::InodeUnknownFlags
        | C::InodeExtraSize
        | C::InodeTime
        | C::InodeTimeRange
        | C::InodeReserved
        | C::ResizeInode
        | C::BadBlocks
        | C::ExtentHeader
        | C::ExtentChecksum
        | C::ExtentEntry
        | C::ExtentIndex
        | C::ExtentUnwritten
        | C::MapForm
        | C::MapPointer
        | C::MapCluster
        | C::InlineData
        | C::InlineSize
        | C::Symlink
        | C::XattrBlock
        | C::XattrPointer
        | C::XattrChecksum
        | C::XattrReferences
        | C::XattrEntry
        | C::XattrName
        | C::XattrHash
        | C::XattrBlockHash
        | C::XattrOrder
        | C::XattrDuplicate
        | C::XattrIndex
        | C::XattrAcl
        | C::XattrCapability
        | C::XattrInode
        | C::XattrInodeReferences
        | C::OrphanList
        | C::OrphanFile
        | C::Mmp
        | C::QuotaInode
        | C::JournalErrno => Stage::Inodes,
        C::InodeSize | C::InodeBlocks => Stage::Sizes,
        C::BlockOverlap | C::BlockShared => Stage::Contested,
        C::DirectoryHole
        | C::DirectoryBlock
        | C::DirectoryChecksum
        | C::DirectoryDot
        | C::DirectoryDuplicateDot
        | C::EntryInode
        | C::EntryUnused
        | C::EntryName
        | C::EntryKind
        | C::EntryNoKind
        | C::EntryDuplicate
        | C::EntryDuplicateAcross
        | C::EntryDirectoryLink
        | C::EntryValueInode
        | C::HtreeRoot
        | C::HtreeNode
        | C::HtreeReference
        | C::HtreeRange => Stage::Directories,
        C::RootMissing
        | C::LostFound
        | C::DirectoryUnreachable
        | C::DirectoryLoop
        | C::DirectoryDotDot
        | C::InodeUnattached => Stage::Tree,
        C::LinkCount => Stage::Links,
        C::SuperblockOverhead
        | C::SuperblockFreeBlocks
        | C::SuperblockFreeInodes
        | C::SuperblockFuture
        | C::ErrorRecord
        | C::BackupSuperblock
        | C::BackupDescriptors
        | C::DescriptorUnused
        | C::DescriptorFreeBlocks
        | C::DescriptorFreeInodes
        | C::DescriptorDirectories
        | C::BlockBitmapChecksum
        | C::BlockBitmapPadding
        | C::BlockBitmapFree
        | C::BlockBitmapLeaked
        | C::InodeBitmapChecksum
        | C::InodeBitmapPadding
        | C::InodeBitmapFree
        | C::InodeBitmapLeaked
        | C::QuotaFile
        | C::QuotaUsage => Stage::Counts,
        C::VolumeTruncated | C::ReadError | C::SuperblockHashSeed | C::Encryption | C::EncryptionPolicy => {
            Stage::Told
        }
    }
}

/// Whether findings of a kind do not keep a plan from being carried out: nothing that this crate
/// can do makes them better, and repairs beside them make nothing worse.
fn is_told_only(code: Code) -> bool {
    matches!(code, Code::SuperblockHashSeed | Code::Encryption | Code::EncryptionPolicy)
}

/// Whether the usual repair of a finding loses nothing that can be read, and follows from other
/// structures.
fn is_safe(code: Code) -> bool {
    use Code as C;
    !matches!(
        code,
        C::SuperblockDamaged
            | C::JournalLog
            | C::JournalState
            | C::JournalSuperblock
            | C::JournalInode
            | C::DescriptorPlace
            | C::InodeMode
            | C::InodeExtraSize
            | C::InodeReserved
            | C::RootMissing
            | C::BadBlocks
            | C::ExtentHeader
            | C::ExtentEntry
            | C::MapForm
            | C::MapPointer
            | C::MapCluster
            | C::BlockOverlap
            | C::BlockShared
            | C::InlineData
            | C::Symlink
            | C::XattrBlock
            | C::XattrPointer
            | C::XattrEntry
            | C::XattrName
            | C::XattrDuplicate
            | C::XattrIndex
            | C::XattrAcl
            | C::XattrCapability
            | C::XattrInode
            | C::DirectoryHole
            | C::DirectoryBlock
            | C::EntryInode
            | C::EntryUnused
            | C::EntryName
            | C::EntryDirectoryLink
            | C::EntryValueInode
            | C::DirectoryLoop
            | C::QuotaInode
            | C::QuotaFile
    )
}

/// Plans the repair of the volume on `device`. Nothing is written.
///
/// The caller claims the device until the plan has been carried out or given up.
///
/// # Errors
/// As [`crate::check`]. Also if the plan takes too much memory.
pub async fn plan(
    rt: &Rt,
    device: Arc<dyn Device>,
    options: Options,
    policy: Policy,
) -> Result<Plan, CheckError> {
    let below: Arc<dyn Device> = Arc::new(Granting(device.clone()));
    let overlay = Arc::new(Deferred::new(below, MOST_BYTES));
    let options = Options {
        most_per_code: options.most_per_code.max(FINDINGS),
        most_findings: options.most_findings.max(10 * FINDINGS),
        on_finding: None,
        ..options
    };
    let mut made = Made { steps: Vec::new(), notes: Vec::new(), is_recovered: false };
    let mut before: Option<Checked> = None;
    let mut checks = 0;
    let (after, known) = loop {
        let (checked, survey) = survey(rt, overlay.clone(), &options).await?;
        checks += 1;
        if checked.is_stale {
            // Whatever was repaired, replaying it afterwards would undo.
            return Err(CheckError::Unsupported("a journal with changes that only Linux can replay".into()));
        }
        before.get_or_insert_with(|| checked.clone());
        let Some(survey) = survey else { break (checked, None) };
        let known = (survey.ctx.sb.uuid(), survey.ctx.source.block_bytes());
        if checks >= CHECKS {
            break (checked, Some(known));
        }
        let mut editor = Editor::new(rt, &survey, &overlay, policy, options.now, &mut made.steps);
        let mut changed = round(&mut editor, &checked.findings).await;
        let is_left = checked.findings.iter().any(|finding| !is_told_only(finding.code));
        if !changed && !is_left && !editor.steps.is_empty() {
            changed = counts::finish(&mut editor).await;
        }
        if let Some(error) = editor.failed.take() {
            return Err(CheckError::Device(error));
        }
        if !changed && checked.orphans > 0 && !made.is_recovered {
            // The volume is sound enough for what the next mount would do.
            changed = made.finish_orphans(rt, &overlay).await;
        }
        if !changed {
            break (checked, Some(known));
        }
    };
    let (uuid, block_bytes) = known.unwrap_or(([0; 16], 1024));
    Ok(Plan {
        before: before.unwrap_or_else(|| after.clone()),
        after,
        steps: made.steps,
        checks,
        notes: made.notes,
        uuid,
        block_bytes,
        edits: edits(&*device, &overlay, block_bytes).await?,
    })
}

struct Made {
    steps: Vec<Step>,
    notes: Vec<String>,
    is_recovered: bool,
}

impl Made {
    /// Deletes and truncates what was to be when the volume was last in use.
    async fn finish_orphans(&mut self, rt: &Rt, overlay: &Arc<Deferred>) -> bool {
        self.is_recovered = true;
        match extant_fs::recover(rt, overlay.clone(), extant_fs::OpenOptions::default()).await {
            Ok(done) => {
                if done.orphans > 0 {
                    let text =
                        format!("finished {} files that were deleted or truncated while open", done.orphans);
                    self.notes.push(text);
                }
                true
            }
            Err(error) => {
                self.notes.push(format!("files that were deleted while open remain: {error}"));
                false
            }
        }
    }
}

/// Repairs what the first stage with something to repair asks for; whether that changed anything.
async fn round(editor: &mut Editor<'_>, findings: &[Finding]) -> bool {
    if editor.survey.replayed && !editor.survey.from_backup {
        return volume::replay(editor).await;
    }
    let mut by_stage: BTreeMap<Stage, Vec<&Finding>> = BTreeMap::new();
    for finding in findings {
        by_stage.entry(stage(finding.code)).or_default().push(finding);
    }
    by_stage.entry(Stage::Bits).or_default();
    for (stage, mine) in by_stage {
        let mut changed = false;
        match stage {
            Stage::Bits => changed = bits::repair(editor, findings).await,
            Stage::Told => {}
            Stage::Contested => changed = contested::repair(editor, &mine).await,
            Stage::Directories => changed = dirs::repair(editor, &mine).await,
            Stage::Counts => changed = counts::repair(editor, &mine).await,
            _ => {
                let garbage = if stage == Stage::Inodes { inodes::garbage(&mine) } else { BTreeSet::new() };
                for finding in mine {
                    if editor.policy == Policy::Safe && !is_safe(finding.code) {
                        continue;
                    }
                    if finding.spot.inode.is_some_and(|number| garbage.contains(&number)) {
                        if editor.policy == Policy::All {
                            inodes::discard(editor, finding).await;
                            changed |= editor.end_step(finding);
                        }
                        continue;
                    }
                    match stage {
                        Stage::Superblock => volume::superblock(editor, finding).await,
                        Stage::Journal => volume::journal(editor, finding).await,
                        Stage::Descriptors => volume::descriptor(editor, finding).await,
                        Stage::Inodes => inodes::repair(editor, finding).await,
                        Stage::Sizes => inodes::size(editor, finding).await,
                        Stage::Tree => tree::repair(editor, finding).await,
                        _ => inodes::links(editor, finding).await,
                    }
                    changed |= editor.end_step(finding);
                }
            }
        }
        if changed {
            return true;
        }
    }
    false
}

/// Blocks whose contents differ from what is on the device.
async fn edits(
    device: &dyn Device,
    overlay: &Deferred,
    block_bytes: usize,
) -> Result<BTreeMap<u64, Vec<u8>>, CheckError> {
    let unit = u64::try_from(block_bytes).unwrap_or(u64::MAX);
    let mut edits = BTreeMap::new();
    for range in overlay.changed() {
        for block in range.start / unit..range.end.div_ceil(unit) {
            let start = Sector::containing(block * unit);
            let new = read(overlay, start, block_bytes).await.map_err(CheckError::Device)?;
            let old = read(device, start, block_bytes).await.map_err(CheckError::Device)?;
            if new[..] != old[..] {
                edits.insert(block, new.to_vec());
            }
        }
    }
    Ok(edits)
}
