//! The order of the sweeps.

use crate::context::Context;
use crate::dir_block::Scratch;
use crate::dir_sweep;
use crate::finding::{Finding, Listener, Report, Spot};
use crate::found::{Found, GroupTotals};
use crate::limits::Limits;
use crate::listing::{Directories, DirsFound};
use crate::map::Files;
use crate::open::{self, Opened};
use crate::owners::Contested;
use crate::source::Feed;
use crate::state::{Claims, Inodes};
use crate::stored_sums::StoredSums;
use crate::tables::{self, Tables};
use crate::usage::Usage;
use crate::{CheckError, Checked, Code, Cost, Options, groups, htree, layout, own_files, paths};
use crate::{backups, connectivity, quota_files, shared, xattr_checks};
use extant_block::Device;
use extant_format::{CharSign, Incompat, Inode, InodeNumber, STATE_VALID, UintExt, VolumeBlock};
use extant_rt::{Class, Rt};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Checks the volume on `device`. Nothing is written.
///
/// If the check reaches one of its limits, it starts anew with a single task, so that what it finds
/// before the limit does not depend on the number of tasks.
///
/// # Errors
/// There is no volume, or it has a feature that is not supported; or the check was cancelled.
pub async fn check(rt: &Rt, device: Arc<dyn Device>, options: Options) -> Result<Checked, CheckError> {
    let listener = options.on_finding.clone().map(|tell| Arc::new(Listener::new(tell)));
    let may_advance = options.tasks > 1;
    let first = attempt(rt, device.clone(), &options, listener.clone(), may_advance).await?;
    if first.0.incomplete.is_none() || options.tasks <= 1 {
        return Ok(first.0);
    }
    Ok(attempt(rt, device, &Options { tasks: 1, ..options }, listener, false).await?.0)
}

/// What a check knows at its end. Repairs are based on it.
pub(crate) struct Survey {
    pub(crate) ctx: Arc<Context>,
    pub(crate) all: Directories,
    pub(crate) totals: Vec<GroupTotals>,
    pub(crate) usage: Usage,
    pub(crate) contested: Vec<Contested>,
    /// The superblock is a backup.
    pub(crate) from_backup: bool,
    /// Newer blocks were read from the journal.
    pub(crate) replayed: bool,
}

/// Checks a volume for repairs. Returns no survey if the check did not see everything.
pub(crate) async fn survey(
    rt: &Rt,
    device: Arc<dyn Device>,
    options: &Options,
) -> Result<(Checked, Option<Survey>), CheckError> {
    attempt(rt, device, options, None, false).await
}

async fn attempt(
    rt: &Rt,
    device: Arc<dyn Device>,
    options: &Options,
    listener: Option<Arc<Listener>>,
    may_advance: bool,
) -> Result<(Checked, Option<Survey>), CheckError> {
    let limits = Limits::new(options.memory_bytes, options.cancel.clone());
    let limits = Arc::new(if may_advance { limits.with_advances() } else { limits });
    let mut report = Report::new(options, limits.clone(), listener);
    let opened = open::open(device, options, &limits, &mut report).await?;
    if opened.stale {
        report.be_unsure();
    }
    if options.in_use && opened.replayed {
        // The log's blocks may be reused while they are being read.
        report.be_unsure_of_all();
    }
    open::check_fields(&opened.sb, opened.from_backup, options, &mut report);
    let mut totals = Totals::default();
    if let Some(ctx) = context(rt, &opened, options, &limits, &mut report).await {
        totals = sweeps(rt, Arc::new(ctx), &opened, options, &report).await?;
    }
    if limits.is_cancelled() {
        return Err(CheckError::Cancelled);
    }
    let survey = totals.survey.take();
    Ok((conclude(&opened, options, &limits, &report, totals), survey))
}

/// Counts made by a check.
#[derive(Default)]
struct Totals {
    inodes: u64,
    directories: u64,
    blocks: u64,
    orphans: usize,
    /// With paths; if the check ended early, the report has them.
    findings: Option<Vec<Finding>>,
    counts: BTreeMap<Code, u64>,
    survey: Option<Survey>,
}

/// Runs all sweeps. Ends early when a limit is reached.
async fn sweeps(
    rt: &Rt,
    ctx: Arc<Context>,
    opened: &Opened,
    options: &Options,
    report: &Report,
) -> Result<Totals, CheckError> {
    let work = Work::new(options);
    let mut totals = Totals { orphans: ctx.orphans.len(), ..Totals::default() };
    let mut found = sweep_inodes(rt, &ctx, &work, options).await?;
    totals.inodes = found.totals.iter().map(|totals| u64::from(totals.used)).sum();
    totals.directories = found.totals.iter().map(|totals| u64::from(totals.directories)).sum();
    xattr_checks::blocks(&ctx, &mut found).await;
    xattr_checks::values(&ctx, &mut found).await;
    symlinks(&ctx, &mut found).await;

    let dirs = std::mem::take(&mut found.dirs);
    let runs = std::mem::take(&mut found.dir_runs);
    let mut all = dir_sweep::list(&ctx, dirs, &runs, report);
    drop(runs);
    dir_sweep::read_roots(&ctx, &mut all, &mut found.report).await;
    if ctx.limits.stopped() {
        return Ok(totals);
    }
    let (all, mut in_dirs) = sweep_dirs(rt, &ctx, all, &work, options).await?;
    htree::check(&all, &mut in_dirs);
    let names = std::mem::take(&mut in_dirs.names);
    dir_sweep::duplicates_across(&ctx, &all, names, report).await;
    if ctx.limits.stopped() {
        return Ok(totals);
    }
    connectivity::parents(&ctx, &all, &mut in_dirs).await;
    connectivity::reachability(&ctx, &all, &mut in_dirs.report);
    rt.charge(Cost::Directory(all.dirs.len().to_u64()));
    drop(in_dirs);
    connectivity::links(&ctx, report).await;
    let contested = shared::name_owners(&ctx, &found.xattr_uses).await;
    if ctx.limits.stopped() {
        return Ok(totals);
    }
    let counted = groups::sweep(&ctx, &found.totals, &mut found.report).await;
    rt.charge(Cost::Group(ctx.groups.len().to_u64()));
    let clean = ctx.sb.raw().s_state.get() & STATE_VALID != 0
        && !opened.replayed
        && !opened.from_backup
        && !ctx.sb.incompat().contains(Incompat::RECOVER)
        && ctx.groups.len().fit_u32() == ctx.sb.group_count();
    groups::superblock(&ctx, counted, clean, &mut found.report);
    quota_files::quota(&ctx, &found.usage, &mut found.report).await;
    let used = counted.free_clusters * u64::from(ctx.sb.blocks_per_cluster());
    totals.blocks = ctx.sb.blocks_count().saturating_sub(used);
    if !ctx.limits.stopped() {
        let (counts, mut findings) = report.take();
        paths::add(&ctx, &all, &mut findings).await;
        (totals.counts, totals.findings) = (counts, Some(findings));
        totals.survey = Some(Survey {
            ctx,
            all,
            totals: found.totals,
            usage: found.usage,
            contested,
            from_backup: opened.from_backup,
            replayed: opened.replayed,
        });
    }
    Ok(totals)
}

/// Reads what all sweeps need; `None` if a limit is reached.
async fn context(
    rt: &Rt,
    opened: &Opened,
    options: &Options,
    limits: &Arc<Limits>,
    report: &mut Report,
) -> Option<Context> {
    let sb = opened.sb.clone();
    let there = layout::groups_there(opened);
    if sb.blocks_count() > opened.source.device_blocks() {
        let text = format!("{} blocks", sb.blocks_count());
        let expected = format!("at most {}, as the device has", opened.source.device_blocks());
        report.add(Code::VolumeTruncated, Spot::default(), text, expected);
    }
    let said = sb.inodes_count().saturating_sub(sb.raw().s_free_inodes_count.get());
    limits.set(options.memory_bytes, &sb, there, said.into(), 0);
    if !limits.take_groups(there) {
        return None;
    }
    let groups = layout::read_groups(opened, there, report).await;
    rt.charge(Cost::Group(there.into()));
    if limits.stopped() {
        return None;
    }
    // While a volume is in use, the superblock's own count is not kept up to date.
    let in_groups = groups.iter().map(|info| sb.inodes_per_group().saturating_sub(info.gd.free_inodes));
    let in_groups = in_groups.map(u64::from).sum::<u64>();
    let dirs = groups.iter().map(|info| u64::from(info.gd.used_dirs.min(sb.inodes_per_group()))).sum();
    limits.set(options.memory_bytes, &sb, there, in_groups.max(said.into()), dirs);
    let own = layout::own_blocks(opened, &groups, report);
    let claims = Claims::new(&sb, there, limits.clone());
    // One cluster may contain several of the volume's own structures.
    let mut next = 0;
    for &(start, end) in own.ranges() {
        let from = claims.cluster(VolumeBlock(start)).max(next);
        next = claims.cluster(VolumeBlock(end - 1)) + 1;
        claims.claim(from, next.saturating_sub(from));
    }
    let inodes = sb.inodes_count();
    let is_time = |seconds: u32| seconds == 0 || seconds > inodes;
    let low_dtimes = is_time(sb.raw().s_mtime.get())
        && is_time(sb.raw().s_wtime.get())
        && is_time(sb.raw().s_mkfs_time.get());
    let mut ctx = Context {
        rt: rt.clone(),
        seed: sb.checksum_seed(),
        stored_sums: StoredSums::new(sb.inode_size().into()),
        source: opened.source.clone(),
        groups,
        own,
        claims,
        inodes: Inodes::new(&sb, there, limits.clone()),
        orphans: BTreeSet::new(),
        report: report.clone(),
        limits: limits.clone(),
        low_dtimes,
        journal_blocks: AtomicU64::new(0),
        sb,
    };
    backups::check(opened, &ctx.groups, report).await;
    ctx.orphans = own_files::orphans(&ctx, opened.replayed, report).await;
    own_files::journal(&ctx, opened.replayed, report).await;
    own_files::resize_inode(&ctx, report).await;
    own_files::mmp(&ctx, report).await;
    (!limits.stopped()).then_some(ctx)
}

/// The work of all sweeps, to report progress.
struct Work {
    done: Arc<AtomicU64>,
    progress: Option<crate::Progress>,
}

impl Work {
    fn new(options: &Options) -> Self {
        Self { done: Arc::default(), progress: options.progress.clone() }
    }

    /// Returns a callback that reports additional work done, starting at `base`.
    fn step(&self, base: u64, total: u64) -> impl Fn(u64) + Send + use<> {
        self.done.store(base, Ordering::Relaxed);
        let (done, progress) = (self.done.clone(), self.progress.clone());
        move |more| {
            let now = done.fetch_add(more, Ordering::Relaxed) + more;
            if let Some(progress) = &progress {
                progress(now, total);
            }
        }
    }
}

/// Runs one future on each of several tasks, and collects their results.
async fn on_tasks<T, F>(rt: &Rt, tasks: usize, make: impl Fn() -> F) -> Result<Vec<T>, CheckError>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = (0..tasks.max(1)).map(|_| rt.spawn("check", Class::Normal, make())).collect();
    let mut results = Vec::with_capacity(tasks.len());
    for task in tasks {
        results.push(task.await?);
    }
    Ok(results)
}

async fn sweep_inodes(
    rt: &Rt,
    ctx: &Arc<Context>,
    work: &Work,
    options: &Options,
) -> Result<Found, CheckError> {
    let tables = Arc::new(Tables::new(ctx));
    let feed = Arc::new(Feed::new(ctx.source.clone(), tables::parts(ctx.clone())));
    let parts = tables.parts();
    let may_mix = options.tasks > 1;
    let results = on_tasks(rt, options.tasks, || {
        let (ctx, tables, feed, step) = (ctx.clone(), tables.clone(), feed.clone(), work.step(0, 2 * parts));
        async move {
            let mut found = Found::new(&ctx);
            let mut files = Files::default();
            let mut inode = Inode::new(InodeNumber::ROOT, &ctx.sb);
            while let Some((part, piece)) = feed.next_of(may_mix).await {
                tables.look(&ctx, part, &piece, &mut inode, &mut files, &mut found);
                drop(piece);
                if files.is_full() {
                    files.drain(&ctx, &mut found).await;
                }
                step(1);
            }
            files.drain(&ctx, &mut found).await;
            found.claiming.finish(&ctx.claims);
            found.sort_dirs();
            found
        }
    })
    .await?;
    let mut merged = Found::new(ctx);
    let tables = Arc::into_inner(tables).expect("all tasks have ended");
    tables.late(ctx, &mut Files::default(), &mut merged).await;
    merged.sort_dirs();
    for found in results {
        merged.merge(found);
    }
    merged.sort(ctx.groups.len());
    Ok(merged)
}

async fn sweep_dirs(
    rt: &Rt,
    ctx: &Arc<Context>,
    all: Directories,
    work: &Work,
    options: &Options,
) -> Result<(Directories, DirsFound), CheckError> {
    let all = Arc::new(all);
    let sign = if ctx.sb.unsigned_dir_hash() { CharSign::Unsigned } else { CharSign::Signed };
    let total = all.items.len();
    let may_mix = options.tasks > 1;
    let feed = Arc::new(Feed::new(ctx.source.clone(), dir_sweep::runs(ctx.source.clone(), all.clone())));
    let results = on_tasks(rt, options.tasks, || {
        let (ctx, feed, all) = (ctx.clone(), feed.clone(), all.clone());
        let step = work.step(total.to_u64(), 2 * total.to_u64());
        async move {
            let mut found = DirsFound::new(&ctx);
            let mut scratch = Scratch::default();
            while let Some((items, piece)) = feed.next_of(may_mix).await {
                let count = items.len();
                dir_sweep::look(&ctx, &all, &all.items[items], &piece, sign, &mut scratch, &mut found);
                step(count.to_u64());
            }
            found.named.count(&ctx.inodes);
            found
        }
    })
    .await?;
    drop(feed);
    let mut merged = DirsFound::new(ctx);
    for found in results {
        merged.merge(found);
    }
    let all = Arc::into_inner(all).expect("all tasks have ended");
    Ok((all, merged))
}

/// Checks targets of symbolic links that are in blocks.
async fn symlinks(ctx: &Context, found: &mut Found) {
    let mut targets = std::mem::take(&mut found.targets);
    targets.sort_unstable();
    let blocks: Vec<u64> = targets.iter().map(|target| target.block).collect();
    let report = &mut found.report;
    ctx.source
        .scattered(&blocks, |n, block| {
            let target = targets[n];
            let spot = Spot::inode(target.number).at_block(target.block);
            let Some(block) = block else {
                return report.add(Code::ReadError, spot, "unreadable", "a link's target");
            };
            let end = block.iter().position(|&byte| byte == 0).unwrap_or(block.len()).to_u64();
            let fits = target.size > 0 && target.size < block.len().to_u64();
            if !fits || (!target.encrypted && end != target.size) {
                let text = format!("i_size is {}", target.size);
                report.add(Code::Symlink, spot, text, format!("{end}, where its target ends"));
            }
        })
        .await;
}

fn conclude(opened: &Opened, options: &Options, limits: &Limits, report: &Report, totals: Totals) -> Checked {
    let (counts, findings) = match totals.findings {
        Some(findings) => (totals.counts, findings),
        None => report.take(),
    };
    let mut notes = Vec::new();
    if opened.replayed {
        notes.push("the journal is dirty; the volume was checked as replaying it would leave it".to_owned());
    }
    if opened.stale {
        let why = "the journal is dirty and was not applied; structures that contradict each other are suspected only";
        notes.push(why.to_owned());
    }
    if options.in_use {
        let why = match opened.replayed {
            true => "the volume is in use and its journal is dirty; everything is suspected only",
            false => "the volume is in use; structures that contradict each other are suspected only",
        };
        notes.push(why.to_owned());
    }
    if totals.orphans > 0 {
        notes.push(format!(
            "{} files that were deleted or truncated while open are to be finished by the next mount",
            totals.orphans
        ));
    }
    Checked {
        counts,
        findings,
        notes,
        incomplete: limits.incomplete(),
        inodes: totals.inodes,
        directories: totals.directories,
        blocks: totals.blocks,
        orphans: totals.orphans as u64,
        is_stale: opened.pending,
    }
}
