//! `extant shrink`.

use crate::args::ShrinkArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json;
use crate::progress::Progress;
use crate::session::{Access, Session};
use extant_block::FileDevice;
use extant_fs::{OpenOptions, Volume};
use extant_image::{BuildError, ShrinkReport};
use serde::Serialize;

pub(crate) fn run(session: &mut Session, args: &ShrinkArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: Vec::new() };
    if extant::is_address(&args.image) {
        return Err(Failure::Usage(
            "shrink replaces an image by a smaller file; an export cannot be replaced".into(),
        ));
    }
    // From here on no other command may write to it: what is read twice must not change.
    let foreign = args.lock.foreign_locks();
    let claim = FileDevice::claim_to_replace(&args.image, foreign)
        .map_err(|error| Failure::to_claim(&args.image, error))?;
    let device = session.device(&place, Access::Contents)?;
    // Any damage is fatal: whatever cannot be read completely must not be lost.
    let opened = session
        .rt
        .block_on(Volume::open(device, OpenOptions { ignore_journal: true, ..Default::default() }))?;
    let volume = opened.map_err(|error| session.not_opened(&place.image, None, error))?;
    let output = args.output.as_ref().unwrap_or(&args.image);
    let progress = Progress::new(0, session.quiet);
    let told = progress.to_callback();
    let done = extant_image::shrink(&volume, &args.image, claim, output, foreign, &session.rt, told);
    progress.finish();
    let report = done.map_err(|error| match error {
        BuildError::Volume { path, error } => Failure::Volume { place: path, error },
        error => error.into(),
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
