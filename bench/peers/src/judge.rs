//! What e2fsck says of a peer's volume, and what is left of it after a kill.

use crate::Result;
use crate::bed::{forget, text, tool};
use crate::peer::Kind;
use crate::steps::{self, KILL_DIR};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// `valid`, or the first complaint.
pub(crate) fn e2fsck(image: &Path) -> Result<String> {
    let checked = tool("e2fsck", &["-fn", text(image)])?;
    if checked.status.code() == Some(0) {
        return Ok(VALID.to_owned());
    }
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    let is_progress = |line: &str| line.is_empty() || line.starts_with("Pass ") || line.contains("Optimize?");
    Ok(said.lines().find(|line| !is_progress(line)).unwrap_or("damaged").trim().to_owned())
}

pub(crate) const VALID: &str = "valid";

/// Kills a writer that syncs as it goes; says whether the volume recovers, and whether everything
/// synced is there. The host's page cache survives a kill, so this shows nothing of flushes.
pub(crate) fn killed(kind: &Kind, image: &Path, dir: &Path) -> Result<Option<String>> {
    forget(image)?;
    let mut child = steps::spawn(steps::KILL, kind, image)?;
    let said = BufReader::new(child.stdout.take().expect("piped"));
    let mut synced: u64 = 0;
    for line in said.lines() {
        let line = line?;
        if let Some(files) = line.strip_prefix("synced ") {
            synced = files.parse()?;
            if synced >= steps::KILL_FILES {
                break;
            }
        }
    }
    child.kill()?;
    child.wait()?;
    if synced < steps::KILL_FILES {
        return Err(format!("it ended after {synced} files").into());
    }
    // As at boot: the journal is replayed, and damage is not repaired without asking.
    let recovers = tool("e2fsck", &["-p", text(image)])?.status.code().is_some_and(|code| code <= 1);
    let found = e2fsck(image)?;
    let state = match found.as_str() {
        VALID if recovers => VALID.to_owned(),
        VALID => "needs e2fsck".to_owned(),
        complaint => {
            let complaint = format!("damaged ({complaint})");
            tool("e2fsck", &["-fy", text(image)])?;
            complaint
        }
    };
    let lost = lost(image, dir, synced)?;
    let kept =
        if lost == 0 { "all synced kept".to_owned() } else { format!("{lost} of {synced} synced lost") };
    Ok(Some(format!("{state}; {kept}")))
}

/// How many of the first files are missing or wrong, as debugfs reads them.
fn lost(image: &Path, dir: &Path, files: u64) -> Result<u64> {
    let out = dir.join("dumped");
    let _ = fs::remove_dir_all(&out);
    fs::create_dir_all(&out)?;
    tool("debugfs", &["-R", &format!("rdump /{KILL_DIR} {}", text(&out)), text(image)])?;
    let is_there = |n: u64| {
        let read = fs::read(out.join(KILL_DIR).join(steps::small_name(n)));
        read.is_ok_and(|bytes| bytes == steps::small_contents(n))
    };
    let lost = (0..files).filter(|&n| !is_there(n)).count();
    fs::remove_dir_all(&out)?;
    Ok(lost.try_into()?)
}
