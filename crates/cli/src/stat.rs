//! `extant stat`.

use crate::args::StatArgs;
use crate::failure::Failure;
use crate::globs;
use crate::image_path::ImagePath;
use crate::json::{self, Bytes, JsonLost, Time, kind_name};
use crate::ls::{JsonAttributes, mode_string};
use crate::output::outln;
use crate::session::{Access, Session};
use extant_format::{FileKind, Inode, InodeFlags};
use extant_fs::{Attribute, Follow, Lost, Run, RunState, Volume, quote};
use serde::Serialize;

/// Maximum number of runs of a file to show.
const RUNS_MAX: usize = 1000;

pub(crate) fn run(session: &mut Session, args: &StatArgs) -> Result<(), Failure> {
    for (n, place) in globs::expanded(session, &args.places, &args.open)?.iter().enumerate() {
        let volume = match session.volume(place, &args.open, Access::Metadata) {
            Ok(volume) => volume,
            Err(failure) => {
                session.fail(failure);
                continue;
            }
        };
        let rt = session.rt.clone();
        match rt.block_on(examine(session, place, &volume))? {
            Ok(file) if args.json => json::print(&mut session.out, &file.to_json(place, &volume))?,
            Ok(file) => {
                if n > 0 {
                    session.out.write(b"\n")?;
                }
                file.print(session, place, &volume)?;
            }
            Err(failure) => session.fail(failure),
        }
    }
    Ok(())
}

/// Everything that `stat` shows about a file.
struct Examined {
    inode: Inode,
    target: Option<Vec<u8>>,
    xattrs: Vec<Attribute>,
    runs: Vec<Run>,
    more_runs: bool,
    /// Parts of the file that the map does not describe because of damage.
    lost: Vec<Lost>,
}

async fn examine(session: &mut Session, place: &ImagePath, volume: &Volume) -> Result<Examined, Failure> {
    let inode = place.resolve(volume, Follow::No).await.map_err(|error| Failure::at(place, error))?;
    let (runs, lost) = (Vec::new(), Vec::new());
    let mut file = Examined { inode, target: None, xattrs: Vec::new(), runs, more_runs: false, lost };
    if file.inode.kind() == Some(FileKind::Symlink) {
        match volume.read_link(&file.inode).await {
            Ok(target) => file.target = Some(target),
            Err(error) => session.fail(Failure::at(place, error)),
        }
    }
    match volume.xattrs(&file.inode).await {
        Ok(xattrs) => file.xattrs = xattrs,
        Err(error) => session.fail(Failure::at(place, error)),
    }
    let mapped = match file.inode.kind() {
        Some(FileKind::Regular | FileKind::Directory) => true,
        Some(FileKind::Symlink) => !file.inode.is_fast_symlink(volume.superblock()),
        _ => false,
    };
    if mapped {
        file.read_runs(volume).await;
    }
    for lost in &file.lost {
        session.fail(Failure::at(place, lost.clone().into()));
    }
    Ok(file)
}

impl Examined {
    async fn read_runs(&mut self, volume: &Volume) {
        let mut runs = volume.runs(&self.inode);
        loop {
            let next = runs.next().await;
            if matches!(next, Ok(None)) {
                return;
            }
            if self.runs.len() + self.lost.len() == RUNS_MAX {
                self.more_runs = true;
                return;
            }
            match next {
                Ok(run) => self.runs.extend(run),
                Err(lost) => self.lost.push(lost),
            }
        }
    }

    fn print(&self, session: &mut Session, place: &ImagePath, volume: &Volume) -> Result<(), Failure> {
        let out = &mut session.out;
        outln!(out, "path:       {}", quote(&place.path))?;
        outln!(out, "kind:       {} ({})", kind_name(self.inode.kind()), mode_string(&self.inode))?;
        if let Some(target) = &self.target {
            outln!(out, "target:     {}", quote(target))?;
        }
        outln!(out, "{}", self.inode)?;
        let allocated = self.inode.blocks_512(volume.superblock()).saturating_mul(512);
        outln!(out, "allocated:  {allocated} bytes")?;
        for attribute in &self.xattrs {
            outln!(out, "attribute:  {} = {}", quote(&attribute.name), quote(&attribute.value))?;
        }
        if self.inode.flags().contains(InodeFlags::INLINE_DATA) {
            outln!(out, "data:       in the inode")?;
        }
        for run in &self.runs {
            let (first, last) = (run.logical, run.logical + run.blocks - 1);
            let to = |at: u64| format!("{at} to {}", at + run.blocks - 1);
            match run.state {
                RunState::Hole => {}
                RunState::Written(at) => outln!(out, "blocks:     {first} to {last} at {}", to(at.0))?,
                RunState::Unwritten(at) => {
                    outln!(out, "blocks:     {first} to {last} at {}, unwritten", to(at.0))?;
                }
            }
        }
        if self.more_runs {
            outln!(out, "blocks:     more than {RUNS_MAX} runs")?;
        }
        Ok(())
    }

    fn to_json<'a>(&'a self, place: &'a ImagePath, volume: &Volume) -> JsonFile<'a> {
        let flags = self.inode.flags();
        JsonFile {
            path: Bytes(&place.path),
            inode: self.inode.number.0,
            kind: kind_name(self.inode.kind()),
            attributes: JsonAttributes::new(volume, &self.inode),
            accessed: self.inode.accessed().into(),
            changed: self.inode.changed().into(),
            created: self.inode.created().map(Time::from),
            generation: self.inode.raw.i_generation.get(),
            flags: flags.iter_names().map(|(name, _)| name.to_lowercase()).collect(),
            project: self.inode.project(),
            target: self.target.as_deref().map(Bytes),
            xattrs: self
                .xattrs
                .iter()
                .map(|a| JsonXattr { name: Bytes(&a.name), value: Bytes(&a.value) })
                .collect(),
            runs: self.runs.iter().filter_map(JsonRun::new).collect(),
            runs_complete: !self.more_runs,
            lost: self.lost.iter().map(JsonLost::new).collect(),
        }
    }
}

#[derive(Serialize)]
struct JsonFile<'a> {
    path: Bytes<'a>,
    inode: u32,
    kind: &'static str,
    #[serde(flatten)]
    attributes: JsonAttributes,
    accessed: Time,
    changed: Time,
    created: Option<Time>,
    generation: u32,
    flags: Vec<String>,
    project: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Bytes<'a>>,
    xattrs: Vec<JsonXattr<'a>>,
    /// Runs of blocks, without holes.
    runs: Vec<JsonRun>,
    runs_complete: bool,
    /// Parts of the file that its map does not describe because of damage.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lost: Vec<JsonLost>,
}

#[derive(Serialize)]
struct JsonXattr<'a> {
    name: Bytes<'a>,
    value: Bytes<'a>,
}

#[derive(Serialize)]
struct JsonRun {
    logical: u64,
    physical: u64,
    blocks: u64,
    written: bool,
}

impl JsonRun {
    fn new(run: &Run) -> Option<Self> {
        let (physical, written) = match run.state {
            RunState::Hole => return None,
            RunState::Written(at) => (at.0, true),
            RunState::Unwritten(at) => (at.0, false),
        };
        Some(Self { logical: run.logical, physical, blocks: run.blocks, written })
    }
}
