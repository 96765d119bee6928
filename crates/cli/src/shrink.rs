//! `extant shrink`.

use crate::args::ShrinkArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json;
use crate::own_image;
use crate::progress::Progress;
use crate::session::{Access, Session};
use crate::target;
use extant::Part;
use extant_block::{Claim, FileDevice};
use extant_fs::{OpenOptions, Volume};
use extant_image::{BuildError, ShrinkReport};
use serde::Serialize;

pub(crate) fn run(session: &mut Session, args: &ShrinkArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: Vec::new() };
    let is_address = extant::is_address(&args.image);
    if is_address && args.output.is_none() {
        return Err(Failure::Usage(
            "shrink replaces an image by a smaller file, and an export cannot be replaced; name a file with -o".into(),
        ));
    }
    let output = args.output.as_ref().unwrap_or(&args.image);
    if session.part != Part::Whole && own_image::is_same(output, &args.image) {
        return Err(Failure::Usage("the volume cannot be written over the disk that it is read from".into()));
    }
    // From here on no other command may write to the image, because parts of it are read twice and
    // must not change.
    let claim = match is_address {
        true => Claim::default(),
        false => FileDevice::claim_to_replace(&args.image, args.target.foreign_locks())
            .map_err(|error| Failure::to_claim(&args.image, error))?,
    };
    let in_place = match &args.output {
        Some(output) if !own_image::is_same(output, &args.image) => {
            target::in_place(session, output, &Part::Whole, true, &args.target)?
        }
        _ => None,
    };
    let is_in_place = in_place.is_some();
    let device = session.device(&place, Access::Contents)?;
    // Any damage is fatal: whatever cannot be read completely must not be lost.
    let opened = session
        .rt
        .block_on(Volume::open(device, OpenOptions { ignore_journal: true, ..Default::default() }))?;
    let volume = opened.map_err(|error| session.not_opened(&place.image, None, error))?;
    let progress = Progress::new(0, session.quiet);
    let told = progress.to_callback();
    let target = target::of(output, in_place, &args.target);
    let done = extant_image::shrink(&volume, &args.image, claim, target, &session.rt, told);
    progress.finish();
    let report = done.map_err(|error| match error {
        BuildError::Volume { path, error } => Failure::Volume { place: path, error },
        error => target::failure(error, is_in_place),
    })?;
    if args.json {
        return json::print(&mut session.out, &JsonShrink::from(&report));
    }
    let output = ImagePath { image: output.clone(), path: Vec::new() }.image_quoted();
    session.summary(&format!("{output}: {}", describe(&report)));
    Ok(())
}

fn describe(report: &ShrinkReport) -> String {
    let ShrinkReport { before_bytes, after_bytes, free_bytes, journal_blocks: [before, after], .. } = report;
    if !report.is_written {
        return format!("{before_bytes} bytes; the volume is as small as it gets");
    }
    let mut text = format!("{before_bytes} bytes became {after_bytes}, of which {free_bytes} are free");
    if before != after {
        text.push_str(&format!("; the journal has {after} blocks instead of {before}"));
    }
    if report.renumbered_inodes > 0 {
        text.push_str(&format!("; {} inodes have new numbers", report.renumbered_inodes));
    }
    text
}

#[derive(Serialize)]
struct JsonShrink {
    written: bool,
    before_bytes: u64,
    after_bytes: u64,
    free_bytes: u64,
    journal_blocks_before: u32,
    journal_blocks_after: u32,
    renumbered_inodes: u32,
}

impl From<&ShrinkReport> for JsonShrink {
    fn from(report: &ShrinkReport) -> Self {
        let &ShrinkReport { before_bytes, after_bytes, free_bytes, renumbered_inodes, is_written, .. } =
            report;
        let [journal_blocks_before, journal_blocks_after] = report.journal_blocks;
        Self {
            written: is_written,
            before_bytes,
            after_bytes,
            free_bytes,
            journal_blocks_before,
            journal_blocks_after,
            renumbered_inodes,
        }
    }
}
