//! `extant check`, and `fsck.extant`.

use crate::check_args::CheckArgs;
use crate::failure::{EXIT_CANCELLED, Exit, Failure};
use crate::findings::{JsonFinding, failure, line};
use crate::image_path::ImagePath;
use crate::json;
use crate::output::outln;
use crate::progress::Progress;
use crate::session::{Access, Session};
use extant_block::{FileDevice, ForeignLocks};
use extant_check::{Checked, Incomplete, Options};
use serde::Serialize;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_shutdown;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The smallest accepted memory limit; buffers take most of it.
const MEMORY_MIN: u64 = 25 << 20;

pub(crate) fn run(session: &mut Session, args: &CheckArgs) -> Result<(), Failure> {
    check(session, args).map_err(|failure| match failure {
        Failure::Closed => failure,
        failure => Failure::Check(Box::new(failure)),
    })
}

fn check(session: &mut Session, args: &CheckArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: b"/".to_vec() };
    let image = place.image_quoted();
    if args.memory.is_some_and(|bytes| bytes < MEMORY_MIN) {
        return Err(Failure::Usage(format!("--memory must be at least {}M", MEMORY_MIN >> 20)));
    }
    if args.undo.is_some() && args.policy().is_none() {
        return Err(Failure::Usage("--undo says where a repair keeps what it changes: add --repair".into()));
    }
    // A successful claim is dropped at once: it only shows whether the image is in use, and readers
    // hold no locks.
    let in_use = args.policy().is_none()
        && FileDevice::claim_to_replace(&args.image, ForeignLocks::Honour)
            .is_err_and(|error| error.kind() == std::io::ErrorKind::ResourceBusy);
    let progress = Progress::of_steps(session.quiet || args.json);
    // A signal may end a check anywhere; a repair clears this flag while it writes.
    let may_end = Arc::new(AtomicBool::new(true));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        register_conditional_shutdown(signal, EXIT_CANCELLED.into(), may_end.clone())
            .map_err(|error| Failure::host(Path::new("signals"), error))?;
    }
    let device = session.device(&place, Access::Metadata)?;
    let superblock_offset = session.superblock_byte(&device, &args.image, args.open.superblock)?;
    let options = Options {
        superblock_offset,
        ignore_journal: args.open.ignore_journal,
        now: Some(session.rt.wall_time().0),
        in_use,
        most_per_code: args.max_per_class,
        most_findings: args.max_per_class.max(Options::default().most_findings),
        memory_bytes: args.memory,
        progress: Some(progress.to_callback()),
        ..Options::default()
    };
    if let Some(policy) = args.policy() {
        drop(device);
        let done = crate::repair::run(session, args, policy, options, &may_end);
        progress.finish();
        return done;
    }
    // Blocks of an NBD server are not cached by this host.
    let is_of_host = args.image.exists();
    let uncached = (!in_use && is_of_host).then(|| session.device(&place, Access::Contents)).transpose()?;
    let options = Options { uncached, ..options };
    let checked = session.rt.block_on(extant_check::check(&session.rt, device, options))?;
    progress.finish();
    let checked = checked.map_err(|error| failure(session, args, error))?;
    match args.json {
        true => json::print(&mut session.out, &JsonChecked::new(&checked))?,
        false => print(session, &image, &checked)?,
    }
    let certain = checked.findings.iter().any(|finding| !finding.suspected);
    if let Some(why) = checked.incomplete {
        session.complain(&format!("{image}: not everything was checked: {}", words(why)));
    }
    match (certain, checked.incomplete.is_some()) {
        (true, true) => session.exit_with(Exit::FindingsIncomplete),
        (true, false) => session.exit_with(Exit::Findings),
        (false, true) => session.exit_with(Exit::CheckFailed),
        (false, false) => {}
    }
    Ok(())
}

/// Says why not everything was checked, and what to do.
fn words(why: Incomplete) -> String {
    match why {
        Incomplete::Memory { limit_bytes } => {
            let limit = limit_bytes.div_ceil(1 << 20);
            format!("that would take more than {limit} MiB of memory; --memory allows for more")
        }
        Incomplete::Repeats { limit } => {
            format!("blocks are shared between files or directories more than {limit} times")
        }
        _ => "a limit was reached".into(),
    }
}

fn print(session: &mut Session, image: &str, checked: &Checked) -> Result<(), Failure> {
    for finding in &checked.findings {
        outln!(session.out, "{}", line(finding))?;
    }
    for note in &checked.notes {
        session.summary(&format!("{image}: {note}"));
    }
    if checked.counts.is_empty() {
        if checked.incomplete.is_some() {
            return Ok(());
        }
        session.summary(&format!(
            "{image}: nothing is wrong; {} inodes ({} directories) and {} blocks are in use",
            checked.inodes, checked.directories, checked.blocks
        ));
        return Ok(());
    }
    outln!(session.out, "")?;
    for (code, count) in &checked.counts {
        let lost = match code.lost() {
            "" => String::new(),
            lost => format!("; that loses {lost}"),
        };
        outln!(
            session.out,
            "{count} {code} ({}, {}): {}. Repair: {}{lost}.",
            code.structure(),
            code.severity(),
            code.meaning(),
            code.repair()
        )?;
    }
    Ok(())
}

#[derive(Serialize)]
struct JsonChecked<'a> {
    clean: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    incomplete: Option<String>,
    inodes: u64,
    directories: u64,
    blocks: u64,
    counts: BTreeMap<&'static str, u64>,
    notes: &'a [String],
    findings: Vec<JsonFinding<'a>>,
}

impl<'a> JsonChecked<'a> {
    fn new(checked: &'a Checked) -> Self {
        Self {
            clean: checked.is_clean(),
            incomplete: checked.incomplete.map(words),
            inodes: checked.inodes,
            directories: checked.directories,
            blocks: checked.blocks,
            counts: checked.counts.iter().map(|(code, count)| (code.as_str(), *count)).collect(),
            notes: &checked.notes,
            findings: checked.findings.iter().map(JsonFinding::new).collect(),
        }
    }
}
