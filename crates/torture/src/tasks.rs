//! Concurrent tasks on one volume, and what a power cut may leave of their work.
//!
//! Each task works in its own directory, with its own [`Model`]: the directory matches the state
//! after some prefix of the task's operations that includes everything it synced. A whole-volume
//! sync by one task counts for all. In addition, the prefixes must be consistent: if an operation
//! survives, so does every operation of any task that had returned before it began.

use crate::campaign::Base;
use crate::check::Fsck;
use crate::check::Verdict;
use crate::diff::Generator;
use crate::ours::{SHORT_STEP, at, errno, mode_of, online};
use crate::states::{self, Options};
use crate::subject::FLAGS;
use crate::{
    Durability, Errno, Filesystem, Image, ImageDevice, Model, Op, OurVolume, Ours, Outcome, SlowDevice,
    Subject, Tree, apply,
};
use extant::{Buf, Error, FileOptions, InodeFlags, asynch};
use extant_block::{Log, Record};
use extant_rt::{Class, Nanos, Rng, Rt};
use extant_sim::{Machine, Preemption, Sim};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Operations of several tasks, with paths below each one's directory.
#[derive(Clone, Debug)]
pub struct Crew {
    /// Run before the volume is opened for the tasks; paths are relative to the volume's root.
    prepared: Vec<Op>,
    tasks: Vec<Vec<Op>>,
    seed: u64,
    short_steps: bool,
    lingers: bool,
}

/// An operation of a task.
#[derive(Clone, Debug)]
struct Mark {
    op: Op,
    /// Number of events in the log when the operation began, and when it had returned.
    events: (usize, usize),
    /// The operation's position among all begins and returns; `None` for another task's operation.
    turns: Option<(usize, usize)>,
    result: Outcome<u64>,
}

/// A task's operations, including other tasks' syncs, and the model of its directory.
struct Lane {
    marks: Vec<Mark>,
    model: Model,
}

fn home(task: usize) -> String {
    format!("task{task}")
}

impl Crew {
    /// `tasks` tasks with `ops` random operations each, including syncs and sleeps.
    pub fn random(tasks: usize, ops: usize, seed: u64) -> Self {
        let mut rng = Rng::labelled(seed, "tasks");
        let mut task = |number: usize| {
            let mut generator = Generator::new(seed.wrapping_mul(31).wrapping_add(number as u64));
            (generator.names, generator.sleeps, generator.longest_write) = (5, true, 6_000);
            let mut list = Vec::new();
            for op in generator.take(ops) {
                let path = op.paths().next().map(str::to_owned);
                list.push(op);
                match (rng.below(8), path) {
                    (0 | 1, Some(path)) => list.push(Op::Fsync { path }),
                    (2, Some(path)) => list.push(Op::Fdatasync { path }),
                    (3, _) => list.push(Op::Sync),
                    _ => {}
                }
            }
            list
        };
        Self::of(Vec::new(), (0..tasks).map(&mut task).collect(), seed)
    }

    /// Tasks with these operations; the first one works in `task0`.
    ///
    /// The `prepared` operations run first, after the tasks' directories have been created. When
    /// the tasks begin, they are durable and not cached.
    pub fn of(prepared: Vec<Op>, tasks: Vec<Vec<Op>>, seed: u64) -> Self {
        Self { prepared, tasks, seed, short_steps: false, lingers: false }
    }

    /// Blocks are freed a few at a time, as with [`Ours::short_steps`].
    #[must_use]
    pub fn short_steps(mut self) -> Self {
        self.short_steps = true;
        self
    }

    /// Runs on a disk on which some bios take much longer than others: [`SlowDevice::lingering`].
    #[must_use]
    pub fn lingering(mut self) -> Self {
        self.lingers = true;
        self
    }

    /// Runs the tasks on `processors` virtual processors on this fresh volume, and checks what
    /// every power cut may leave. Returns the number of disks checked.
    ///
    /// # Errors
    /// The first broken promise.
    pub fn check(
        &self,
        fresh: &Base,
        processors: usize,
        options: Options,
        fsck: Option<&Fsck>,
    ) -> Result<u64, String> {
        let base = self.with_homes(&fresh.image)?;
        let ours = Ours::new(self.seed).short_steps(self.short_steps);
        let before = ours.recover(&base)?.tree;
        let (log, marks) = self.run(&base, processors)?;
        let lanes = self.lanes(&before, marks, fresh.block_bytes)?;
        let mut promises: Vec<usize> =
            lanes.iter().flat_map(|lane| &lane.marks).map(|mark| mark.events.1).collect();
        promises.sort_unstable();
        promises.dedup();
        let mut seen = FxHashSet::default();
        let mut trees: FxHashMap<u128, Tree> = FxHashMap::default();
        let (mut contents, mut found) = (FxHashSet::default(), None);
        states::each(&log, &base, &promises, options, None, &mut |state| {
            let progress: Vec<_> = lanes.iter().map(|lane| lane.progress(state.cut)).collect();
            if !seen.insert((state.image.hash(), progress.clone())) {
                return true;
            }
            let looked = trees.len() as u64 + 1;
            let tree = match trees.entry(state.image.hash()) {
                Entry::Occupied(seen) => Ok(seen.into_mut()),
                Entry::Vacant(new) => self.look(&ours, &state.image, fsck, looked).map(|mut tree| {
                    share(&mut tree, &mut contents);
                    new.insert(tree)
                }),
            };
            let explained = tree.and_then(|tree| explain(&lanes, tree, &progress));
            found =
                explained.err().map(|words| format!("{state}, {progress:?}: {words}\n{}", self.list(&lanes)));
            found.is_none()
        });
        found.map_or(Ok(trees.len() as u64), Err)
    }

    /// Reads the tree on a disk, the `nth` of a run.
    fn look(&self, ours: &Ours, image: &Image, fsck: Option<&Fsck>, nth: u64) -> Result<Tree, String> {
        let recovered = ours.recover(image)?;
        if nth.is_multiple_of(ENDS_EVERY) {
            ours.check_ends(&recovered)?;
        }
        if let Some(fsck) = fsck.filter(|_| nth.is_multiple_of(FSCK_EVERY))
            && let Verdict::Complains(words) =
                fsck.check(&recovered.image).map_err(|error| error.to_string())?
        {
            return Err(words);
        }
        Ok(recovered.tree)
    }

    fn list(&self, lanes: &[Lane]) -> String {
        let line = |mark: &Mark| format!("  {:?} {} {:?}\n", mark.events, mark.op, mark.result);
        let lane = |(n, lane): (usize, &Lane)| {
            format!("{}:\n{}", home(n), lane.marks.iter().map(line).collect::<String>())
        };
        format!("seed {}\n{}", self.seed, lanes.iter().enumerate().map(lane).collect::<String>())
    }

    /// The volume with a directory for each task, after the prepared operations.
    fn with_homes(&self, base: &Image) -> Result<Image, String> {
        let sim = Sim::new(Machine::free(1, Preemption::None), self.seed);
        let disk = Arc::new(ImageDevice::new(base.clone()));
        let mut volume = OurVolume::open(sim.rt(), disk.clone()).map_err(|error| error.to_string())?;
        for task in 0..self.tasks.len() {
            volume.mkdir(&home(task), 0o755).map_err(|errno| errno.to_string())?;
        }
        for op in &self.prepared {
            apply(&mut volume, op).map_err(|errno| format!("{op}: {errno}"))?;
        }
        volume.close().map_err(|error| error.to_string())?;
        Ok(disk.image())
    }

    fn run(&self, base: &Image, processors: usize) -> Result<(Log, Vec<Vec<Mark>>), String> {
        let sim = Sim::new(Machine::free(processors, Preemption::Full), self.seed);
        let disk = SlowDevice::new(&sim, Arc::new(ImageDevice::new(base.clone())), self.seed);
        let disk = if self.lingers { disk.lingering() } else { disk };
        let record = Arc::new(Record::new(Arc::new(disk)));
        let options = if self.short_steps { online().removal_step(SHORT_STEP) } else { online() };
        let rt = sim.rt();
        let turns = Arc::new(AtomicUsize::new(0));
        let ran = rt.block_on(async {
            let volume = asynch::Volume::open_device(rt, record.clone(), &options).await?;
            let mut running = Vec::new();
            for (number, ops) in self.tasks.iter().enumerate() {
                let mut task = Task {
                    rt: rt.clone(),
                    dir: volume.root().open_dir(home(number)).await?,
                    volume: volume.clone(),
                    held: BTreeMap::new(),
                };
                let (ops, record, turns) = (ops.clone(), record.clone(), turns.clone());
                running.push(rt.spawn("worker", Class::Normal, async move {
                    let mut marks = Vec::with_capacity(ops.len());
                    for op in ops {
                        let (began, turn) = (record.position(), turns.fetch_add(1, Relaxed));
                        let result = task.apply(&op).await;
                        let turns = Some((turn, turns.fetch_add(1, Relaxed)));
                        marks.push(Mark { op, events: (began, record.position()), turns, result });
                    }
                    marks
                }));
            }
            let mut marks = Vec::new();
            for task in running {
                marks.push(task.await.map_err(|error| error.to_string()));
            }
            let log = record.log();
            // The writes of closing are not in the log. A volume that is only dropped would keep
            // its cache.
            let _ = volume.close().await;
            Ok::<_, Error>((log, marks))
        });
        let (log, marks) = ran.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        Ok((log, marks.into_iter().collect::<Result<_, String>>()?))
    }

    fn lanes(&self, before: &Tree, marks: Vec<Vec<Mark>>, block_bytes: u64) -> Result<Vec<Lane>, String> {
        let syncs: Vec<(usize, Mark)> = marks
            .iter()
            .enumerate()
            .flat_map(|(task, marks)| {
                let syncs = marks.iter().filter(|mark| mark.op == Op::Sync && mark.result.is_ok());
                syncs.map(move |mark| (task, mark.clone()))
            })
            .collect();
        let mut lanes = Vec::new();
        for (task, own) in marks.into_iter().enumerate() {
            let mut marks = own.clone();
            for (_, sync) in syncs.iter().filter(|(of, _)| *of != task) {
                let began = |mark: &Mark| mark.turns.map_or(0, |(began, _)| began);
                // Insert it after the operations that had returned before it began.
                let returned = |mark: &&Mark| mark.turns.is_none_or(|(_, returned)| returned < began(sync));
                let place = marks.iter().take_while(returned).count();
                let next = marks.get(place).map_or(usize::MAX, |mark| mark.events.0);
                let events = (sync.events.0.min(next), sync.events.1);
                marks.insert(place, Mark { events, turns: None, ..sync.clone() });
            }
            let mut model = Model::new(&below(before, &home(task)))
                .commits_within_millis(Some(COMMIT_MILLIS))
                .in_blocks_of(Some(block_bytes));
            for mark in &marks {
                model.record(&mark.op, mark.result)?;
            }
            lanes.push(Lane { marks, model });
        }
        Ok(lanes)
    }
}

/// e2fsck checks one in this many disks.
const FSCK_EVERY: u64 = 16;
/// Files are grown on one in this many disks.
const ENDS_EVERY: u64 = 4;
/// Same as in campaigns.
const COMMIT_MILLIS: u64 = 5_500;

/// Makes a tree share file contents with earlier trees.
fn share(tree: &mut Tree, contents: &mut FxHashSet<Arc<[u8]>>) {
    for found in tree.nodes.values_mut().filter(|found| !found.data.is_empty()) {
        match contents.get(&found.data) {
            Some(known) => found.data = known.clone(),
            None => drop(contents.insert(found.data.clone())),
        }
    }
}

/// The tree below a directory, with that as its root.
fn below(tree: &Tree, dir: &str) -> Tree {
    let prefix = format!("{dir}/");
    let inner = |path: &str| match path == dir {
        true => Some(String::new()),
        false => path.strip_prefix(&prefix).map(str::to_owned),
    };
    let nodes = tree.nodes.iter().filter_map(|(path, found)| Some((inner(path)?, found.clone()))).collect();
    Tree { nodes }
}

impl Lane {
    /// How many operations had returned, and how many had begun, after this many events.
    fn progress(&self, events: usize) -> (usize, usize) {
        let completed = self.marks.iter().take_while(|mark| mark.events.1 <= events).count();
        let started = self.marks.iter().take_while(|mark| mark.events.0 <= events).count();
        (completed, started)
    }

    /// The turn in which the last of the first `prefix` operations began.
    fn began(&self, prefix: usize) -> Option<usize> {
        self.marks[..prefix].iter().rev().find_map(|mark| mark.turns).map(|(began, _)| began)
    }

    /// The shortest prefix that includes everything that had returned by this turn.
    fn returned_by(&self, turn: usize) -> usize {
        let last = self.marks.iter().rposition(|mark| mark.turns.is_some_and(|(_, end)| end < turn));
        last.map_or(0, |last| last + 1)
    }
}

/// Finds a prefix for each task such that all are consistent.
fn explain(lanes: &[Lane], tree: &Tree, progress: &[(usize, usize)]) -> Result<(), String> {
    let mut allowed = Vec::with_capacity(lanes.len());
    for (task, (lane, &(completed, started))) in lanes.iter().zip(progress).enumerate() {
        let tree = below(tree, &home(task));
        let prefixes = lane.model.prefixes(&tree, completed, started);
        if prefixes.is_empty() {
            let violation = lane.model.explain(&tree, completed, started).err();
            return Err(format!("{}: {}", home(task), violation.map_or_else(String::new, |v| v.to_string())));
        }
        allowed.push(prefixes);
    }
    // Start with the shortest prefixes. Each may require longer prefixes of other tasks; lengthen
    // those until all are consistent.
    let mut chosen: Vec<usize> = allowed.iter().map(|prefixes| prefixes[0]).collect();
    loop {
        let begun = lanes.iter().zip(&chosen).filter_map(|(lane, &prefix)| lane.began(prefix)).max();
        let needed = |lane: &Lane| begun.map_or(0, |turn| lane.returned_by(turn));
        let mut is_settled = true;
        for (task, lane) in lanes.iter().enumerate() {
            let needed = needed(lane);
            if chosen[task] >= needed {
                continue;
            }
            let Some(&more) = allowed[task].iter().find(|&&prefix| prefix >= needed) else {
                return Err(format!(
                    "{} has {} operations at most, and {needed} had returned before another task's began \
                     that is there; allowed are {allowed:?}",
                    home(task),
                    allowed[task].last().expect("not empty"),
                ));
            };
            (chosen[task], is_settled) = (more, false);
        }
        if is_settled {
            return Ok(());
        }
    }
}

/// The state of one task.
struct Task {
    rt: Rt,
    volume: asynch::Volume,
    dir: asynch::Dir,
    held: BTreeMap<u8, asynch::File>,
}

impl Task {
    async fn apply(&mut self, op: &Op) -> Outcome<u64> {
        match op {
            Op::Write { .. } | Op::WriteHeld { .. } => self.write(op).await,
            Op::Hold { .. }
            | Op::Tmpfile { .. }
            | Op::LinkHeld { .. }
            | Op::LinkHeldOver { .. }
            | Op::Release { .. } => self.held(op).await.map(|()| 0),
            op => self.names(op).await.map(|()| 0).map_err(errno),
        }
    }

    async fn write(&mut self, op: &Op) -> Outcome<u64> {
        let data = op.data().expect("a write");
        let (file, offset, direct) = match op {
            Op::Write { path, offset, direct, durability, .. } => {
                let mut options = FileOptions::new();
                options.write(true).sync(*durability == Durability::All);
                options.datasync(*durability == Durability::Data);
                (self.dir.open_with(at(path), &options).await.map_err(errno)?, *offset, *direct)
            }
            Op::WriteHeld { slot, offset, .. } => {
                (self.held.get(slot).ok_or(Errno::BADF)?.clone(), *offset, false)
            }
            _ => return Err(Errno::INVAL),
        };
        let written = match direct {
            true => file.write_direct(offset, Buf::from_slice(&data)).await.1,
            false => file.write_at(offset, &data).await,
        };
        written.map(|n| n as u64).map_err(errno)
    }

    async fn held(&mut self, op: &Op) -> Outcome<()> {
        match op {
            Op::Hold { slot, path } => {
                let options = *FileOptions::new().read(true).write(true);
                let file = self.dir.open_with(at(path), &options).await.map_err(errno)?;
                self.held.insert(*slot, file);
            }
            Op::Tmpfile { slot, dir, mode } => {
                let dir = self.dir.open_dir(at(dir)).await.map_err(errno)?;
                self.held.insert(*slot, dir.tempfile(*mode).await.map_err(errno)?);
            }
            Op::LinkHeld { slot, to } => {
                let file = self.held.get(slot).ok_or(Errno::BADF)?;
                self.dir.link_file(file, at(to)).await.map_err(errno)?;
            }
            Op::LinkHeldOver { slot, to } => {
                let file = self.held.get(slot).ok_or(Errno::BADF)?;
                self.dir.link_file_over(file, at(to)).await.map_err(errno)?;
            }
            Op::Release { slot } => drop(self.held.remove(slot).ok_or(Errno::BADF)?),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    async fn names(&self, op: &Op) -> Result<(), Error> {
        let dir = &self.dir;
        match op {
            Op::Create { path, mode, exclusive } => {
                let mut options = FileOptions::new();
                options.read(true).write(true).create(true).create_new(*exclusive).mode(*mode);
                dir.open_with(at(path), &options).await.map(drop)
            }
            Op::Mkdir { path, mode } => dir.create_dir_with(at(path), *mode).await,
            Op::Symlink { target, path } => dir.symlink(target, at(path)).await,
            Op::Link { from, to } => dir.hard_link(at(from), at(to)).await,
            Op::Unlink { path } => dir.remove_file(at(path)).await,
            Op::Rmdir { path } => dir.remove_dir(at(path)).await,
            Op::Rename { from, to, mode } => dir.rename_with(at(from), at(to), *mode).await,
            Op::Chmod { path, mode } => dir.set_mode(at(path), *mode).await,
            Op::Chown { path, uid, gid } => dir.set_owner(at(path), Some(*uid), Some(*gid)).await,
            Op::SetXattr { path, name, value, mode } => dir.set_xattr(at(path), name, value, *mode).await,
            Op::RemoveXattr { path, name } => dir.remove_xattr(at(path), name).await,
            Op::SetFlags { path, flags } => {
                let old = dir.metadata(at(path)).await?.flags().bits();
                dir.set_flags(at(path), InodeFlags::from_bits_retain(old & !FLAGS | flags & FLAGS)).await
            }
            Op::Fallocate { path, mode, offset, len } => {
                let file = dir.open_with(at(path), FileOptions::new().write(true)).await?;
                file.fallocate(mode_of(*mode), *offset, *len).await
            }
            Op::Truncate { path, size } => dir.set_len(at(path), *size).await,
            Op::OpenTruncated { path } => {
                dir.open_with(at(path), FileOptions::new().write(true).truncate(true)).await.map(drop)
            }
            Op::Fsync { path } | Op::Fdatasync { path } => {
                if dir.metadata(at(path)).await?.is_dir() {
                    return dir.open_dir(at(path)).await?.sync().await;
                }
                let file = dir.open_with(at(path), FileOptions::new().read(true)).await?;
                if matches!(op, Op::Fsync { .. }) { file.sync_all().await } else { file.sync_data().await }
            }
            Op::Sync => self.volume.sync().await,
            Op::Sleep { millis } => {
                self.rt.sleep(Nanos::from_millis(*millis)).await;
                Ok(())
            }
            op => Err(Error::NotSupported(op.to_string())),
        }
    }
}
