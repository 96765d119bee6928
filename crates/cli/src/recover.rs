//! `extant recover`.

use crate::args::RecoverArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json;
use crate::parts;
use crate::session::Session;
use extant_block::Device;
use extant_format::Compat;
use extant_fs::{OpenOptions, Recovery, Restored};
use serde::Serialize;
use std::sync::Arc;

pub(crate) fn run(session: &mut Session, args: &RecoverArgs) -> Result<(), Failure> {
    let device = session.device_to_change(&args.image, args.lock.foreign_locks())?;
    let image = ImagePath { image: args.image.clone(), path: Vec::new() }.image_quoted();
    let restored = match args.superblock {
        Some(at) => {
            let at = session.superblock_byte(&device, &args.image, Some(at))?;
            let restored = session.rt.block_on(extant_fs::restore(&session.rt, device.clone(), at))?;
            Some(restored.map_err(|error| session.not_opened(&args.image, at, error))?)
        }
        None => None,
    };
    let was_restored = restored.as_ref().is_some_and(|restored| !restored.is_nothing());
    // Without a journal there is nothing to replay.
    let is_all = was_restored && !has_journal(session, &device)?;
    let done = match is_all {
        true => Recovery { was_clean: true, ..Recovery::default() },
        false => {
            // Stop at the first problem: damage to the superblock or journal must not get worse.
            let options = OpenOptions::default();
            let done = session.rt.block_on(extant_fs::recover(&session.rt, device, options))?;
            done.map_err(|error| session.not_opened_to_change(&args.image, error))?
        }
    };
    if args.json {
        json::print(&mut session.out, &JsonRecovery::new(&done, restored.as_ref()))?;
    } else {
        if let Some(restored) = &restored {
            session.summary(&format!("{image}: {}", put_back(restored)));
        }
        if !is_all {
            session.summary(&format!("{image}: {}", describe(&done)));
        }
    }
    if was_restored {
        let name = parts::described(&args.image, &session.part);
        session.summary(&format!("{name}: the counts are old; `extant check --repair` puts them right"));
    }
    session.problems(&image, done.problems);
    Ok(())
}

fn has_journal(session: &Session, device: &Arc<dyn Device>) -> Result<bool, Failure> {
    let found = session.rt.block_on(extant_fs::read_superblock(&**device, 1024))?;
    Ok(found.is_ok_and(|sb| sb.compat().contains(Compat::HAS_JOURNAL)))
}

fn put_back(restored: &Restored) -> String {
    let mut text = match (restored.superblock_from, restored.descriptors) {
        (None, 0) => "the first superblock and the descriptors are sound; nothing was put back".to_string(),
        (None, groups) => format!("put back the descriptors of {groups} groups from copies"),
        (Some(at), 0) => format!("put back the first superblock from the backup at byte {at}"),
        (Some(at), groups) => {
            format!(
                "put back the first superblock from the backup at byte {at}, and the descriptors of {groups} groups"
            )
        }
    };
    if restored.lost_descriptors > 0 {
        let groups = restored.lost_descriptors;
        text.push_str(&format!("; those of {groups} groups are damaged in all copies"));
    }
    text
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
    /// With `--superblock`.
    #[serde(skip_serializing_if = "Option::is_none")]
    restored: Option<JsonRestored>,
}

#[derive(Serialize)]
struct JsonRestored {
    superblock_from: Option<u64>,
    descriptors: u32,
    lost_descriptors: u32,
}

impl JsonRecovery {
    fn new(done: &Recovery, restored: Option<&Restored>) -> Self {
        let restored = restored.map(|&Restored { superblock_from, descriptors, lost_descriptors }| {
            JsonRestored { superblock_from, descriptors, lost_descriptors }
        });
        let &Recovery { was_clean, transactions, blocks, revoked, orphans, has_orphans, ref problems } = done;
        let problems = problems.iter().map(ToString::to_string).collect();
        Self { was_clean, transactions, blocks, revoked, orphans, has_orphans, problems, restored }
    }
}
