//! `extant check --repair`, and `extant undo`.

use crate::check::{JsonFinding, line, place};
use crate::check_args::{CheckArgs, UndoArgs};
use crate::failure::{Exit, Failure};
use crate::image_path::ImagePath;
use crate::json::{self, Bytes};
use crate::output::outln;
use crate::session::{Access, Session};
use crate::undo_file;
use extant_block::{Claim, Device, IoErrorKind};
use extant_check::Options;
use extant_check::repair::{Plan, Policy, Step, UndoError, UndoFile, UndoState};
use extant_fs::quote;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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

fn failed(image: &str, error: UndoError) -> Failure {
    match error {
        UndoError::Io(error) => Failure::Volume { place: image.to_owned(), error: error.into() },
        error => Failure::Host { path: image.to_owned(), error: std::io::Error::other(error) },
    }
}

fn shown(path: &Path) -> String {
    quote(path.as_os_str().as_bytes())
}

/// Undoes a repair that was interrupted, if one of the files says so.
fn resume(session: &Session, image: &str, device: &dyn Device, names: &[PathBuf]) -> Result<(), Failure> {
    for name in names.iter().filter(|name| name.is_file()) {
        let Ok(undo) = undo_file::open(name) else { continue };
        let read = session.rt.block_on(UndoFile::read(&undo))?;
        let Ok(mut file) = read else { continue };
        let is_open = matches!(file.state(), UndoState::Open | UndoState::Undoing);
        if is_open && file.is_of(device) {
            let done = session.rt.block_on(file.undo(device, &undo))?;
            done.map_err(|error| failed(image, error))?;
            session.summary(&format!(
                "{image}: a repair had been interrupted; it was undone from {}",
                shown(name)
            ));
        }
    }
    Ok(())
}

pub(crate) fn run(
    session: &mut Session,
    args: &CheckArgs,
    policy: Policy,
    options: Options,
) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: b"/".to_vec() };
    let image = place.image_quoted();
    let names = match &args.undo {
        Some(name) => vec![name.clone()],
        None => undo_file::names(&args.image, std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME")),
    };
    let device = match args.dry_run {
        true => session.device(&place, Access::Metadata)?,
        false => session.device_to_change(&args.image, args.lock.foreign_locks())?,
    };
    let claim = if args.dry_run { None } else { Some(claim(session, &args.image, &*device)?) };
    if !args.dry_run {
        resume(session, &image, &*device, &names)?;
    }
    let planned =
        session.rt.block_on(extant_check::repair::plan(&session.rt, device.clone(), options, policy))?;
    let plan = planned.map_err(|error| crate::check::failure(session, args, error))?;
    let mut written = None;
    if !args.dry_run && plan.is_complete() && plan.blocks() > 0 {
        written = Some(apply(session, &image, &plan, &device, &names)?);
    }
    drop(claim);
    match args.json {
        true => json::print(&mut session.out, &JsonRepair::new(&plan, written.as_deref()))?,
        false => print(session, &image, args, &plan)?,
    }
    conclude(session, &image, args, &plan, policy, written.as_deref());
    Ok(())
}

/// Writes the plan's blocks behind an undo file.
fn apply(
    session: &Session,
    image: &str,
    plan: &Plan,
    device: &Arc<dyn Device>,
    names: &[PathBuf],
) -> Result<PathBuf, Failure> {
    let name = undo_file::create(names, plan.undo_bytes())
        .map_err(|error| Failure::host(names.first().map_or(Path::new("undo file"), |name| name), error))?;
    let undo = undo_file::open(&name).map_err(|error| Failure::host(&name, error))?;
    let done = session.rt.block_on(plan.apply(&**device, &undo))?;
    done.map_err(|error| {
        session.complain(&format!("{image}: the repair was interrupted; {} undoes it", shown(&name)));
        failed(image, error)
    })?;
    Ok(name)
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
    if !plan.is_complete() {
        let advice = match policy {
            Policy::Safe => "; --repair=all also repairs what loses something",
            Policy::All => "; e2fsck may repair it",
        };
        let left = plan.left().count();
        session.complain(&format!(
            "{image}: {left} findings would be left after {changes}, so nothing was written{advice}"
        ));
        return session.exit_with(match plan.after.incomplete {
            Some(_) => Exit::FindingsIncomplete,
            None => Exit::Findings,
        });
    }
    if let Some(undo) = written {
        let undo = shown(undo);
        session.summary(&format!(
            "{image}: {changes}; a check of the result finds nothing. `extant undo {undo} {image}` undoes them"
        ));
        return session.exit_with(Exit::Repaired);
    }
    if plan.blocks() == 0 {
        return session.summary(&format!("{image}: nothing to repair"));
    }
    session.summary(&format!("{image}: {changes} would leave nothing to find; nothing was written"));
    if args.dry_run {
        session.exit_with(Exit::Findings);
    }
}

/// `extant undo`.
pub(crate) fn undo(session: &mut Session, args: &UndoArgs) -> Result<(), Failure> {
    let image = ImagePath { image: args.image.clone(), path: Vec::new() }.image_quoted();
    let device = session.device_to_change(&args.image, args.lock.foreign_locks())?;
    let claim = claim(session, &args.image, &*device)?;
    let undo = undo_file::open(&args.undo).map_err(|error| Failure::host(&args.undo, error))?;
    let read = session.rt.block_on(UndoFile::read(&undo))?;
    let mut file = read.map_err(|error| failed(&shown(&args.undo), error))?;
    let was = file.state();
    let done = session.rt.block_on(file.undo(&*device, &undo))?;
    done.map_err(|error| failed(&image, error))?;
    drop(claim);
    session.summary(&match was {
        UndoState::Undone => format!("{image}: the repair had been undone already"),
        _ => format!("{image}: {} blocks are as before the repair", file.blocks()),
    });
    Ok(())
}

#[derive(Serialize)]
struct JsonRepair<'a> {
    complete: bool,
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
