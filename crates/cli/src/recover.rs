//! `extant recover`.

use crate::args::RecoverArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json;
use crate::session::Session;
use extant_fs::{OpenOptions, Recovery};
use serde::Serialize;

pub(crate) fn run(session: &mut Session, args: &RecoverArgs) -> Result<(), Failure> {
    let device = session.device_to_change(&args.image, args.lock.foreign_locks())?;
    let image = ImagePath { image: args.image.clone(), path: Vec::new() }.image_quoted();
    // Stop at the first problem: damage to the superblock or journal must not get worse.
    let done = session.rt.block_on(extant_fs::recover(&session.rt, device, OpenOptions::default()))?;
    let done = done.map_err(|error| session.not_opened_to_change(&args.image, error))?;
    if args.json {
        json::print(&mut session.out, &JsonRecovery::from(&done))?;
    } else {
        session.summary(&format!("{image}: {}", describe(&done)));
    }
    session.problems(&image, done.problems);
    Ok(())
}

fn describe(done: &Recovery) -> String {
    let mut text = match done.was_clean {
        true if done.orphans == 0 && done.problems.is_empty() => {
            "the journal is clean; nothing was written".to_string()
        }
        true => "the journal is clean".to_string(),
        false => format!(
            "replayed {} transactions: {} blocks written, {} revoked",
            done.transactions, done.blocks, done.revoked
        ),
    };
    if done.orphans > 0 {
        text.push_str(&format!(
            "; finished {} files that were deleted or truncated while open",
            done.orphans
        ));
    }
    if done.has_orphans {
        text.push_str("; files deleted or truncated while open remain: ");
        text.push_str(match done.problems.is_empty() {
            true => "e2fsck or a writable mount finishes them",
            false => "the volume is damaged: `extant check` says how, and e2fsck finishes them",
        });
    }
    text
}

#[derive(Serialize)]
struct JsonRecovery {
    was_clean: bool,
    transactions: u32,
    blocks: u64,
    revoked: u64,
    orphans: u32,
    has_orphans: bool,
    /// Human-readable descriptions of damage that kept such files from being finished.
    problems: Vec<String>,
}

impl From<&Recovery> for JsonRecovery {
    fn from(done: &Recovery) -> Self {
        let &Recovery { was_clean, transactions, blocks, revoked, orphans, has_orphans, ref problems } = done;
        let problems = problems.iter().map(ToString::to_string).collect();
        Self { was_clean, transactions, blocks, revoked, orphans, has_orphans, problems }
    }
}
