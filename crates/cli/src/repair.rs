//! `extant check --repair`, and `extant undo`.

use crate::check_args::{CheckArgs, UndoArgs};
use crate::edit_args::LockArgs;
use crate::failure::{Exit, Failure};
use crate::findings::{JsonFinding, failure, line, place};
use crate::json::{self, Bytes};
use crate::output::outln;
use crate::session::Session;
use crate::shell_word;
use crate::undo_file;
use extant::Part;
use extant_block::{Claim, Device, FileDevice, IoErrorKind};
use extant_check::Options;
use extant_check::repair::{Guard, Plan, Policy, Resumed, Step, Target, UndoError, UndoFile, UndoState};
use extant_fs::quote;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A volume that is to be repaired, or whose repair is to be undone.
struct Patient<'a> {
    image: &'a Path,
    /// Name of the image, for messages.
    name: String,
    device: Arc<dyn Device>,
    /// Keeps other programs off the image.
    claim: Claim,
    guard: Guard,
    target: Target,
}

impl<'a> Patient<'a> {
    /// Opens a volume for exclusive use. `writes` says whether it may be changed.
    fn open(session: &Session, image: &'a Path, lock: LockArgs, writes: bool) -> Result<Self, Failure> {
        let name = quote(image.as_os_str().as_bytes());
        let refused = |error| session.not_opened_to_change(image, error);
        let own = |claimed: std::io::Result<Claim>| claimed.map_err(|error| Failure::to_claim(image, error));
        // A dry run refuses what a repair would refuse, but opens nothing for writing.
        let looks = match writes {
            true => None,
            false => Some(own(FileDevice::claim_to_replace(image, lock.foreign_locks()))?),
        };
        let (device, offset_bytes) = session.device_and_place(image, writes, lock.foreign_locks())?;
        if writes && device.limits().read_only {
            return Err(refused(extant_fs::Error::ReadOnly));
        }
        let claim = match looks {
            Some(claim) => claim,
            None => claim(session, image, &*device)?,
        };
        let guard = session.rt.block_on(Guard::take(&session.rt, &device, writes))?.map_err(refused)?;
        let target = Target { offset_bytes, counter_at: guard.counter_at() };
        Ok(Self { image, name, device, claim, guard, target })
    }

    /// Releases the volume.
    fn close(self, session: &Session) -> Result<(), Failure> {
        self.close_after(session, |_, _| Ok(()))
    }

    /// Lets other hosts use the volume again, calls `last`, and then ends the claim.
    fn close_after<T>(
        self,
        session: &Session,
        last: impl FnOnce(&dyn Device, Target) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let Self { image, guard, claim, device, target, .. } = self;
        let released = session.rt.block_on(guard.release())?;
        released.map_err(|error| session.not_opened_to_change(image, error))?;
        let done = last(&*device, target);
        drop(claim);
        done
    }

    /// Undoes an interrupted repair, if one of the files records one.
    fn resume(&self, session: &Session, names: &[PathBuf], named: Option<&PathBuf>) -> Result<(), Failure> {
        for name in names {
            let found = undo_file::find(name, self.image).map_err(|error| Failure::host(name, error))?;
            let Some(undo) = found else { continue };
            let mut file = match session.rt.block_on(UndoFile::read(&undo))? {
                Ok(file) => file,
                // The interrupted repair had not written anything yet.
                Err(UndoError::Empty) => continue,
                // The user named this file, and it is not an undo file: do not advise removing it.
                Err(_) if named == Some(name) => continue,
                Err(error) => {
                    let advice = "a repair may have been interrupted; to go on all the same, remove the file";
                    return Err(told(&shown(name), format!("{error}; {advice}")));
                }
            };
            match session.rt.block_on(file.resume(&*self.device, &undo, self.target, &self.guard))? {
                Ok(Resumed::Whole) => {}
                Ok(Resumed::Finished) => session.summary(&format!(
                    "{}: a repair had been interrupted after its last block; {} undoes it",
                    self.name,
                    undo_command(session, name, self.image)
                )),
                Ok(Resumed::Undone) => session.summary(&format!(
                    "{}: a repair had been interrupted; it was undone from {}",
                    self.name,
                    shown(name)
                )),
                Err(UndoError::Foreign(why)) => session.summary(&format!(
                    "{}: is of a repair that was interrupted, but of another volume: {why}; it is left alone",
                    shown(name)
                )),
                Err(UndoError::Changed(block)) => {
                    return Err(told(
                        &self.name,
                        format!(
                            "a repair was interrupted, and block {block} was changed since then, so it cannot be \
                             undone; to repair the volume as it is, remove {}",
                            shown(name)
                        ),
                    ));
                }
                Err(error) => return Err(failed(&self.name, error)),
            }
        }
        Ok(())
    }

    /// Reports an interrupted repair; the next repair would undo it first.
    fn warn(&self, session: &Session, names: &[PathBuf]) -> Result<(), Failure> {
        for name in names {
            let found = undo_file::find(name, self.image).map_err(|error| Failure::host(name, error))?;
            let Some(undo) = found else { continue };
            let Ok(file) = session.rt.block_on(UndoFile::read(&undo))? else { continue };
            let is_open = matches!(file.state(), UndoState::Open | UndoState::Undoing);
            let belongs = session.rt.block_on(file.belongs_to(&*self.device, self.target))?;
            if is_open && belongs.is_ok() {
                session.summary(&format!(
                    "{}: a repair was interrupted; the next one undoes it from {} first, and may then do something else",
                    self.name,
                    shown(name)
                ));
            }
        }
        Ok(())
    }

    /// Saves old contents in an undo file, then writes the plan's blocks.
    fn apply(&self, session: &Session, plan: &Plan, names: &[PathBuf]) -> Result<PathBuf, Failure> {
        let name = undo_file::create(names, plan.undo_bytes()).map_err(|(name, error)| {
            let advice = "the volume was not changed; --undo FILE keeps its old blocks elsewhere";
            told(&shown(&name), format!("{error}; {advice}"))
        })?;
        let undo = undo_file::open(&name).map_err(|error| Failure::host(&name, error))?;
        let prepared = session.rt.block_on(plan.prepare(&*self.device, self.target, &undo))?;
        let owned = self.guard.check().map_err(|error| session.not_opened_to_change(self.image, error));
        let mut file = match (prepared, owned) {
            (Ok(file), Ok(())) => file,
            (prepared, owned) => {
                undo_file::remove(&name);
                prepared.map_err(|error| failed(&self.name, error))?;
                return Err(owned.err().unwrap_or(Failure::Closed));
            }
        };
        let done = session.rt.block_on(plan.apply(&*self.device, &mut file, &undo, &self.guard))?;
        done.map_err(|error| {
            let undo = undo_command(session, &name, self.image);
            session.complain(&format!("{}: the repair was interrupted; {undo} undoes it", self.name));
            failed(&self.name, error)
        })?;
        Ok(name)
    }
}

/// Claims a device for writing.
fn claim(session: &Session, image: &Path, device: &dyn Device) -> Result<Claim, Failure> {
    device.claim().map_err(|error| {
        let place = quote(error.device.as_bytes());
        let error = match error.kind {
            IoErrorKind::Claimed => extant_fs::Error::Busy(place),
            IoErrorKind::Locked { by } => extant_fs::Error::Locked { place, by },
            _ => error.into(),
        };
        session.not_opened_to_change(image, error)
    })
}

fn told(place: &str, text: String) -> Failure {
    Failure::Host { path: place.to_owned(), error: std::io::Error::other(text) }
}

fn failed(image: &str, error: UndoError) -> Failure {
    match error {
        UndoError::Io(error) => Failure::Volume { place: image.to_owned(), error: error.into() },
        error => told(image, error.to_string()),
    }
}

fn shown(path: &Path) -> String {
    quote(path.as_os_str().as_bytes())
}

/// Returns the command that undoes a repair.
fn undo_command(session: &Session, undo: &Path, image: &Path) -> String {
    let part = match &session.part {
        Part::Whole => String::new(),
        Part::Partition(name) => format!(" --partition {}", shell_word::quoted(name.as_bytes())),
        Part::Bytes { offset_bytes, limit_bytes } => {
            let limit = limit_bytes.map(|limit| format!(" --size-limit {limit}")).unwrap_or_default();
            format!(" --offset {offset_bytes}{limit}")
        }
    };
    let word = |path: &Path| {
        let bytes = path.as_os_str().as_bytes();
        // Keep the name from being taken for an option.
        let place = if bytes.starts_with(b"-") { &b"./"[..] } else { b"" };
        shell_word::quoted(&[place, bytes].concat())
    };
    format!("`extant undo{part} {} {}`", word(undo), word(image))
}

/// Plans a repair and, unless it is a dry run, carries it out. While `may_end` is false, a signal
/// does not end the program.
pub(crate) fn run(
    session: &mut Session,
    args: &CheckArgs,
    policy: Policy,
    options: Options,
    may_end: &AtomicBool,
) -> Result<(), Failure> {
    let patient = Patient::open(session, &args.image, args.lock, !args.dry_run)?;
    let done = repair(session, args, policy, options, may_end, &patient);
    let (name, closed) = (patient.name.clone(), patient.close(session));
    let (plan, written) = done?;
    if let (Err(_), Some(undo)) = (&closed, &written) {
        let undo = undo_command(session, undo, &args.image);
        session.complain(&format!("{name}: was repaired; {undo} undoes it"));
    }
    closed?;
    match args.json {
        true => json::print(&mut session.out, &JsonRepair::new(&plan, written.as_deref()))?,
        false => print(session, &name, args, &plan)?,
    }
    conclude(session, &name, args, &plan, policy, written.as_deref());
    Ok(())
}

/// The plan, and the undo file if it was carried out.
fn repair(
    session: &Session,
    args: &CheckArgs,
    policy: Policy,
    options: Options,
    may_end: &AtomicBool,
    patient: &Patient<'_>,
) -> Result<(Plan, Option<PathBuf>), Failure> {
    let (state, home) = (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    let names = undo_file::names(&args.image, &session.part, patient.target.offset_bytes, state, home);
    if args.dry_run {
        patient.warn(session, args.undo.as_slice())?;
        patient.warn(session, &names)?;
    } else {
        may_end.store(false, Ordering::SeqCst);
        let own = args.undo.as_slice();
        let resumed = patient
            .resume(session, own, args.undo.as_ref())
            .and_then(|()| patient.resume(session, &names, None));
        may_end.store(true, Ordering::SeqCst);
        resumed?;
        if let Some(undo) = args.undo.as_ref().filter(|undo| undo.symlink_metadata().is_ok()) {
            return Err(told(&shown(undo), "exists; name a new file for what the repair changes".into()));
        }
    }
    let (rt, device) = (&session.rt, patient.device.clone());
    let planned = rt.block_on(extant_check::repair::plan(rt, device, options, policy))?;
    let plan = planned.map_err(|error| failure(session, args, error))?;
    if args.dry_run || !plan.is_complete() || plan.blocks() == 0 {
        return Ok((plan, None));
    }
    let names = args.undo.as_ref().map_or(names, |undo| vec![undo.clone()]);
    may_end.store(false, Ordering::SeqCst);
    let applied = patient.apply(session, &plan, &names);
    may_end.store(true, Ordering::SeqCst);
    Ok((plan, Some(applied?)))
}

fn step_line(step: &Step) -> String {
    let mut text = format!("{}: {}", step.code, place(&step.spot));
    if let Some(path) = &step.path {
        text.push_str(&format!(" ({})", quote(path)));
    }
    if let Some(name) = &step.name {
        text.push_str(&format!(", entry {}", quote(name)));
    }
    text.push_str(&format!(": {}: {}", step.found, step.action));
    if !step.lost.is_empty() {
        text.push_str(&format!("; loses {}", step.lost));
    }
    extant_fs::printable(&text).into_owned()
}

fn print(session: &mut Session, image: &str, args: &CheckArgs, plan: &Plan) -> Result<(), Failure> {
    for step in plan.steps.iter().take(args.max_per_class) {
        outln!(session.out, "{}", step_line(step))?;
    }
    if plan.steps.len() > args.max_per_class {
        outln!(session.out, "... {} more repairs", plan.steps.len() - args.max_per_class)?;
    }
    let left: Vec<_> = plan.after.findings.iter().take(args.max_per_class).collect();
    if !left.is_empty() {
        outln!(session.out, "\nleft:")?;
        for finding in left {
            outln!(session.out, "{}", line(finding))?;
        }
    }
    for note in &plan.notes {
        session.summary(&format!("{image}: {note}"));
    }
    Ok(())
}

fn conclude(
    session: &mut Session,
    image: &str,
    args: &CheckArgs,
    plan: &Plan,
    policy: Policy,
    written: Option<&Path>,
) {
    let changes = format!("{} repairs in {} blocks", plan.steps.len(), plan.blocks());
    let is_left = !plan.after.findings.is_empty();
    if !plan.is_complete() {
        let advice = match policy {
            Policy::Safe => "; --repair=all also repairs what loses something",
            Policy::All => "; e2fsck may repair it",
        };
        let why = match &plan.obstacle {
            Some(obstacle) => obstacle.clone(),
            None => format!("{} findings would be left after {changes}", plan.left().count()),
        };
        session.complain(&format!("{image}: {why}, so nothing was written{advice}"));
        return session.exit_with(match plan.after.incomplete {
            Some(_) => Exit::FindingsIncomplete,
            None => Exit::Findings,
        });
    }
    if let Some(undo) = written {
        let undo = undo_command(session, undo, &args.image);
        let found = if is_left { "only what no repair changes" } else { "nothing" };
        session
            .summary(&format!("{image}: {changes}; a check of the result finds {found}. {undo} undoes them"));
        return session.exit_with(if is_left { Exit::RepairedSome } else { Exit::Repaired });
    }
    if plan.blocks() == 0 {
        session.summary(&match is_left {
            true => format!("{image}: no repair changes what was found"),
            false => format!("{image}: nothing to repair"),
        });
    } else {
        session.summary(&format!("{image}: {changes} would leave nothing to find; nothing was written"));
    }
    if plan.blocks() > 0 || is_left {
        session.exit_with(Exit::Findings);
    }
}

/// `extant undo`.
pub(crate) fn undo(session: &mut Session, args: &UndoArgs) -> Result<(), Failure> {
    let patient = Patient::open(session, &args.image, args.lock, true)?;
    let name = patient.name.clone();
    let (undo, file, mut is_changed) = match put_back(session, args, &patient) {
        Ok(done) => done,
        Err(failure) => {
            // Ignore an error here: the first failure says more.
            let _ = patient.close(session);
            return Err(failure);
        }
    };
    is_changed |= patient.close_after(session, |device, target| {
        let done = session.rt.block_on(file.put_counter_back(device, &undo, target))?;
        done.map_err(|error| failed(&name, error))
    })?;
    session.summary(&match is_changed {
        true => format!("{name}: {} blocks are as before the repair", file.blocks()),
        false => format!("{name}: is as before the repair; nothing was written"),
    });
    Ok(())
}

/// The undo file, and whether blocks were put back.
fn put_back(
    session: &Session,
    args: &UndoArgs,
    patient: &Patient<'_>,
) -> Result<(FileDevice, UndoFile, bool), Failure> {
    let undo = undo_file::open(&args.undo).map_err(|error| Failure::host(&args.undo, error))?;
    let read = session.rt.block_on(UndoFile::read(&undo))?;
    let mut file = read.map_err(|error| failed(&shown(&args.undo), error))?;
    let done = session.rt.block_on(file.undo(&*patient.device, &undo, patient.target, &patient.guard))?;
    let is_changed = done.map_err(|error| failed(&patient.name, error))?;
    Ok((undo, file, is_changed))
}

#[derive(Serialize)]
struct JsonRepair<'a> {
    complete: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    obstacle: Option<&'a str>,
    written: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    undo: Option<Bytes<'a>>,
    blocks: usize,
    checks: u32,
    notes: &'a [String],
    repairs: Vec<JsonStep<'a>>,
    left: Vec<JsonFinding<'a>>,
}

#[derive(Serialize)]
struct JsonStep<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<Bytes<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Bytes<'a>>,
    found: &'a str,
    action: &'a str,
    lost: &'a str,
    blocks: Vec<u64>,
}

impl<'a> JsonRepair<'a> {
    fn new(plan: &'a Plan, written: Option<&'a Path>) -> Self {
        Self {
            complete: plan.is_complete(),
            obstacle: plan.obstacle.as_deref(),
            written: written.is_some(),
            undo: written.map(|undo| Bytes(undo.as_os_str().as_bytes())),
            blocks: plan.blocks(),
            checks: plan.checks,
            notes: &plan.notes,
            repairs: plan.steps.iter().map(JsonStep::new).collect(),
            left: plan.after.findings.iter().map(JsonFinding::new).collect(),
        }
    }
}

impl<'a> JsonStep<'a> {
    fn new(step: &'a Step) -> Self {
        Self {
            code: step.code.as_str(),
            group: step.spot.group,
            inode: step.spot.inode,
            path: step.path.as_deref().map(Bytes),
            name: step.name.as_deref().map(Bytes),
            found: &step.found,
            action: &step.action,
            lost: &step.lost,
            blocks: step.blocks.iter().copied().collect(),
        }
    }
}
