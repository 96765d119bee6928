//! Repairs: a plan that is made and checked in memory before anything is written.
//!
//! [`plan`] checks the volume, repairs what the lowest stage of the findings asks for in an overlay
//! in memory, and checks the overlay, until a check finds nothing or no repair changes anything any
//! more. Superblock, journal and descriptors come first, because everything else is found through
//! them; then single flipped bits, which checksums name; then inodes and maps, blocks with several
//! owners, directories, the tree, link counts; bitmaps and counts come last. Each change is a
//! [`Step`] with the finding that asked for it.
//!
//! [`Plan::prepare`] keeps the blocks that differ in an undo file ([`UndoFile`]), and
//! [`Plan::apply`] writes them. The undo file identifies the volume by its UUID, place, size and
//! the contents of its blocks, so that neither another volume nor one that was used since then is
//! rolled back. [`Guard`] keeps other hosts off a volume with multiple-mount protection meanwhile.

mod below;
mod bits;
mod clusters;
mod contested;
mod counts;
mod dir_blocks;
mod dirs;
mod editor;
mod flips;
mod guard;
mod index;
mod inodes;
mod lost_blocks;
mod maps;
mod own;
mod plan;
mod stages;
mod tree;
mod unclaimed;
mod undo;
mod undoing;
mod volume;
mod xattrs;

pub use guard::Guard;
pub use plan::{Plan, Policy, Step};
pub use undo::{Target, UndoError, UndoFile, UndoState};
pub use undoing::Resumed;

use crate::sweeps::survey;
use crate::{CheckError, Checked, Code, Finding, Options};
use below::Below;
use editor::Editor;
use extant_block::{Buf, Deferred, Device, Sector, read, write};
use extant_format::{Compat, Incompat, InodeNumber, Mmp, Superblock, VolumeBlock, crc32c};
use extant_rt::Rt;
use plan::Change;
use stages::{Stage, is_safe, is_told_only, stage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Memory for changed blocks in bytes, including every version of a block that changes repeatedly.
const MOST_BYTES: u64 = 1 << 30;
/// Maximum number of checks for one plan. Each check must lead to a change, but a hostile volume
/// may need any number of them.
const CHECKS: u32 = 60;
/// Maximum number of findings of each code that one round repairs.
const FINDINGS: usize = 200_000;

/// Plans the repair of the volume on `device`. Nothing is written.
///
/// The caller claims the device, and holds a [`Guard`], until the plan has been carried out or
/// given up.
///
/// # Errors
/// The errors of [`crate::check`]. Also if the plan takes too much memory, or if the journal is on
/// another device, or only Linux can replay it.
pub async fn plan(
    rt: &Rt,
    device: Arc<dyn Device>,
    options: Options,
    policy: Policy,
) -> Result<Plan, CheckError> {
    assert!(!options.ignore_journal && options.superblock_offset.is_none(), "repairs are of all of a volume");
    let below: Arc<dyn Device> = Arc::new(Below::new(device.clone()));
    let overlay = Arc::new(Deferred::new(below, MOST_BYTES));
    let options = Options {
        // Reads past the page cache would miss the plan's changes.
        uncached: None,
        most_per_code: options.most_per_code.max(FINDINGS),
        most_findings: options.most_findings.max(10 * FINDINGS),
        on_finding: None,
        ..options
    };
    let mut made = Made::default();
    let mut before: Option<Checked> = None;
    let mut checks = 0;
    // The block that the guard counts in, which is not part of the plan.
    let mut counter = None;
    let (after, known) = loop {
        let (checked, survey) = survey(rt, overlay.clone(), &options).await?;
        checks += 1;
        if checked.is_stale {
            // A later replay would undo any repair.
            let feature = "a journal with changes that only Linux can replay, or on another device";
            return Err(CheckError::Unsupported(feature.into()));
        }
        before.get_or_insert_with(|| checked.clone());
        let Some(survey) = survey else { break (checked, None) };
        if survey.from_backup && has_external_journal(&survey.ctx.sb) {
            // A backup superblock does not say whether the journal is dirty.
            return Err(CheckError::Unsupported(
                "a journal on another device, and a damaged superblock".into(),
            ));
        }
        if checks == 1 {
            counter = hide_counter(&survey, &overlay).await?;
        }
        let known = Known::of(&survey).await;
        if checks >= CHECKS {
            break (checked, Some(known));
        }
        let mut editor = Editor::new(rt, &survey, &overlay, policy, options.now, &mut made.steps);
        lost_blocks::survey(&mut editor, &checked.findings).await;
        let mut changed = round(&mut editor, &checked.findings).await;
        made.obstacle = editor.obstacle.take();
        made.unindexed.append(&mut editor.unindexed);
        let is_left = checked.findings.iter().any(|finding| !is_told_only(finding.code));
        if !changed && !is_left {
            let dirs = &std::mem::take(&mut made.unindexed) - &made.indexed;
            changed = index::build_all(&mut editor, &dirs).await;
            made.indexed.extend(dirs);
        }
        if !changed && !is_left && !editor.steps.is_empty() {
            changed = counts::finish(&mut editor).await;
        }
        if let Some(error) = editor.failed.take() {
            return Err(if overlay.is_full() { CheckError::TooMuch } else { CheckError::Device(error) });
        }
        if !changed && checked.orphans > 0 && !made.is_recovered && made.obstacle.is_none() {
            // The volume is sound enough to do what the next mount would do.
            changed = made.finish_orphans(rt, &overlay).await;
        }
        if !changed {
            break (checked, Some(known));
        }
    };
    let known =
        known.unwrap_or(Known { block_bytes: 1024, witnesses: BTreeSet::new(), last: BTreeSet::from([1]) });
    let block_bytes = u64::try_from(known.block_bytes).unwrap_or(u64::MAX);
    let unit = block_bytes.max(device.limits().block_bytes.into());
    let counter = counter.map(|at| at * block_bytes..(at + 1) * block_bytes);
    let (edits, is_beside) = edits(&*device, &overlay, unit, counter).await?;
    if is_beside {
        let why = "blocks change that the device writes only together with that of multiple-mount protection";
        made.obstacle.get_or_insert(why.into());
    }
    let last = known.last.iter().map(|at| at * block_bytes / unit).collect();
    let mut witnesses = BTreeMap::new();
    for at in known.witnesses.into_iter().map(|at| at * block_bytes / unit) {
        if !edits.contains_key(&at) {
            witnesses.insert(at, crc32c(!0, &unit_at(&*device, at, unit).await?));
        }
    }
    Ok(Plan {
        before: before.unwrap_or_else(|| after.clone()),
        after,
        steps: made.steps,
        checks,
        notes: made.notes,
        obstacle: made.obstacle,
        unit_bytes: usize::try_from(unit).unwrap_or(usize::MAX),
        edits,
        last,
        witnesses,
    })
}

/// Whether a volume's journal is a device of its own.
fn has_external_journal(sb: &Superblock) -> bool {
    sb.compat().contains(Compat::HAS_JOURNAL) && sb.journal_inode().is_none()
}

/// What a plan must know of the volume at the end.
struct Known {
    block_bytes: usize,
    /// Blocks that every use of the volume changes: the superblocks of the volume and of its
    /// journal.
    witnesses: BTreeSet<u64>,
    /// The blocks of the superblock and of multiple-mount protection.
    last: BTreeSet<u64>,
}

impl Known {
    async fn of(survey: &crate::sweeps::Survey) -> Self {
        let sb = &survey.ctx.sb;
        let mut witnesses = BTreeSet::from([1024 / u64::from(sb.block_size().bytes())]);
        let last = witnesses.iter().copied().chain([sb.raw().s_mmp_block.get()]).collect();
        if let Some(number) = sb.journal_inode()
            && let Some(inode) = crate::own_files::read_inode(&survey.ctx, number).await
            && let Some(&(0, at, _)) = crate::own_files::runs(&survey.ctx, &inode).await.first()
            && at < survey.ctx.source.device_blocks()
        {
            witnesses.insert(at);
        }
        Self { block_bytes: survey.ctx.source.block_bytes(), witnesses, last }
    }
}

/// Marks the protection block clean in the overlay, because the mark in it is this repair's own.
/// Returns the block, or `None` if it is damaged and the plan has to repair it.
async fn hide_counter(survey: &crate::sweeps::Survey, overlay: &Deferred) -> Result<Option<u64>, CheckError> {
    let sb = &survey.ctx.sb;
    let at = VolumeBlock(sb.raw().s_mmp_block.get());
    if !sb.incompat().contains(Incompat::MMP) || at.0 == 0 || !sb.is_valid_block(at) {
        return Ok(None);
    }
    let Some(piece) = survey.ctx.source.one(at.0).await else { return Ok(None) };
    let Ok(found) = Mmp::parse(piece.bytes(), at) else { return Ok(None) };
    if sb.checksum_seed().is_some_and(|seed| found.verify_checksum(seed).is_err()) {
        return Ok(None);
    }
    let mut block = Buf::zeroed(sb.block_size().byte_len());
    Mmp::clean(at, found.check_interval_s()).write_to(&mut block, sb.checksum_seed());
    let start = Sector::containing(at.0 << sb.block_size().log2());
    write(overlay, start, block).await.map_err(CheckError::Device)?;
    Ok(Some(at.0))
}

#[derive(Default)]
struct Made {
    steps: Vec<Step>,
    notes: Vec<String>,
    is_recovered: bool,
    obstacle: Option<String>,
    /// Directories whose index was dropped, and those whose index was built again. The latter are
    /// not built a second time.
    unindexed: BTreeSet<InodeNumber>,
    indexed: BTreeSet<InodeNumber>,
}

impl Made {
    /// Deletes and truncates the files for which that was pending when the volume was last in use.
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

/// Repairs the findings of the first stage that has something to repair; returns whether anything
/// changed.
async fn round(editor: &mut Editor<'_>, findings: &[Finding]) -> bool {
    if editor.survey.replayed && !editor.survey.from_backup {
        let damage = findings.iter().find(|finding| finding.code == Code::JournalLog);
        if let Some(damage) = damage.filter(|_| editor.policy == Policy::Safe) {
            // Replaying the sound part would lose the rest.
            editor.obstacle = Some(format!("the journal is damaged and holds changes: {}", damage.found));
            return false;
        }
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
                let garbage = match stage {
                    Stage::Inodes => {
                        editor.named = inodes::names(editor, &mine).await;
                        inodes::garbage(editor, &mine).await
                    }
                    _ => BTreeSet::new(),
                };
                // With the root directory, names may come back that the rest of the tree lacks.
                let lacks_root = mine.iter().any(|finding| finding.code == Code::RootMissing);
                for finding in mine {
                    let waits = lacks_root && stage == Stage::Tree && finding.code != Code::RootMissing;
                    if waits || editor.policy == Policy::Safe && !is_safe(finding.code) {
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

async fn unit_at(device: &dyn Device, at: u64, unit: u64) -> Result<Buf, CheckError> {
    let len = usize::try_from(unit).unwrap_or(usize::MAX);
    read(device, Sector::containing(at * unit), len).await.map_err(CheckError::Device)
}

/// Returns the blocks of `unit` bytes that differ from the device. Blocks that overlap `counter`
/// are left out, because other hosts may write there; the flag says whether such a block differs
/// outside the counter.
async fn edits(
    device: &dyn Device,
    overlay: &Deferred,
    unit: u64,
    counter: Option<Range<u64>>,
) -> Result<(BTreeMap<u64, Change>, bool), CheckError> {
    let (mut edits, mut is_beside) = (BTreeMap::new(), false);
    for range in overlay.changed() {
        for block in range.start / unit..range.end.div_ceil(unit) {
            let new = unit_at(overlay, block, unit).await?;
            let old = unit_at(device, block, unit).await?;
            let bytes = block * unit..(block + 1) * unit;
            if let Some(counter) = counter.as_ref().filter(|at| at.start < bytes.end && bytes.start < at.end)
            {
                let differs = |(at, (new, old)): (u64, (&u8, &u8))| new != old && !counter.contains(&at);
                is_beside |= (bytes.start..).zip(new.iter().zip(&old[..])).any(differs);
            } else if new[..] != old[..] {
                edits.insert(block, Change { old: crc32c(!0, &old), new: new.to_vec() });
            }
        }
    }
    Ok((edits, is_beside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::MemDevice;

    /// With blocks of 4 KiB, the device writes the counter's block and its neighbours at once.
    #[test]
    fn what_lies_beside_the_counter_is_not_left_out_silently() {
        let counter = Some(5 * 1024..6 * 1024);
        for (changed, wanted) in [(5, (vec![], false)), (6, (vec![], true)), (9, (vec![2], false))] {
            let device = Arc::new(MemDevice::new(16 << 10));
            let overlay = Deferred::new(device.clone(), MOST_BYTES);
            let found = Rt::real(Default::default()).block_on(async {
                write(&overlay, Sector::containing(changed * 1024), Buf::from_slice(&[7; 1024])).await?;
                Ok::<_, extant_block::IoError>(edits(&*device, &overlay, 4096, counter.clone()).await)
            });
            let (edits, is_beside) = found.unwrap().unwrap().unwrap();
            assert_eq!((edits.into_keys().collect::<Vec<_>>(), is_beside), wanted, "block {changed}");
        }
    }
}
