//! Brings back deleted files that are still in reach, and writes them somewhere else.
//!
//! The journal's log keeps older versions of inodes, maps and directories until they are
//! overwritten by newer transactions, long after they were written home. An inode that has links in
//! such a version, but has none now or has another generation, was deleted. Its map leads to its
//! contents, except for blocks that are in use now, or were used by a file that was deleted later.
//! On ext2, maps are also left in the inode table.

mod deleted_inodes;
mod deleted_maps;
mod names;
mod unused_blocks;

use crate::export::{ExportError, OutPlace, Places};
use crate::rescue::{Destination, RescueOptions, Summary, Tally, Witness, open_damaged, patched};
use deleted_inodes::Deleted;
use deleted_maps::Maps;
use extant_block::{Device, Mended, Spans};
use extant_format::{FileKind, InodeNumber, VolumeBlock};
use extant_fs::{Damage, Error, OpenOptions, Volume};
use names::{Name, Names};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use unused_blocks::Space;

/// The reason reported for missing contents.
const USED_AGAIN: &str = "other files have used its blocks since";
/// Maximum number of directories above a deleted file to follow for its path.
const DEPTH_MAX: usize = 256;

/// Brings back files that were deleted from the volume on `device`, which is only read. A path that
/// is [`Lost`](crate::rescue::State::Lost) has been overwritten.
///
/// # Errors
/// The volume cannot be opened, or the destination fails.
pub async fn undelete(
    device: Arc<dyn Device>,
    options: &RescueOptions,
    destination: Destination<'_>,
    witness: &mut dyn Witness,
) -> Result<Summary, ExportError> {
    let mended = Mended::new(device, &options.holes);
    let (volume, mut notes) = open_damaged(&mended, options).await?;
    let history = match volume.journal_history().await {
        Ok(history) => history,
        Err(error) => {
            notes.push(format!("the journal has nothing to offer: {error}"));
            Vec::new()
        }
    };
    let space = Space::of(&volume).await;
    let deleted = deleted_inodes::deleted(&volume, &history).await;
    let names = Names::find(&volume, &history, &deleted, &space).await;
    let plans = plans(&space, &Maps::new(&volume, &space, &history), deleted, names).await;

    let past = Past::new(&mended, &volume, &space).await;
    let base = past.volume(&Plan::default()).await?;
    let mut tally = Tally::new(witness).with_reason_for_io(USED_AGAIN);
    let mut places = match destination {
        Destination::Directory(directory) => Places::in_directory(&base, directory, &mut tally)?,
        Destination::Archive(out) => Places::in_archive(&base, out, &mut tally),
    };
    let mut entered: Vec<Vec<u8>> = Vec::new();
    for plan in &plans {
        let Some(deleted) = &plan.deleted else { continue };
        let Some((name, above)) = plan.path.split_last() else { continue };
        let common = entered.iter().zip(above).take_while(|(a, b)| a == b).count();
        entered.truncate(common);
        for n in common..above.len() {
            let path = above[..=n].join(&b'/');
            places.enter(OutPlace { depth: n + 1, name: &above[n], path: &path }).await?;
            entered.push(above[n].clone());
        }
        if plan.is_plain() {
            places.read_from(&base);
        } else {
            places.read_from(&past.volume(plan).await?);
        }
        let path = plan.path.join(&b'/');
        places.add(OutPlace { depth: plan.path.len(), name, path: &path }, &deleted.inode).await?;
        if deleted.inode.kind() == Some(FileKind::Directory) {
            entered.push(name.clone());
        }
    }
    places.finish().await?;
    let mut summary = tally.finish();
    summary.notes = notes;
    summary.notes.extend(volume.problems().iter().map(ToString::to_string));
    Ok(summary)
}

/// A file to bring back.
#[derive(Debug, Default)]
struct Plan {
    deleted: Option<Deleted>,
    /// Components of the file's path.
    path: Vec<Vec<u8>>,
    /// Parts of the contents that were overwritten by files deleted later, in bytes of the volume.
    taken: Spans,
    /// Nodes of the file's map that are only in the log.
    nodes: Vec<(VolumeBlock, Vec<u8>)>,
}

impl Plan {
    fn is_plain(&self) -> bool {
        self.taken.is_empty() && self.nodes.is_empty()
    }
}

/// Plans the files to bring back, sorted by path.
async fn plans(space: &Space, maps: &Maps<'_>, deleted: Vec<Deleted>, mut names: Names) -> Vec<Plan> {
    let named: Vec<Option<Name>> = deleted.iter().map(|deleted| names.take(deleted)).collect();
    // The directory that was deleted last, for each inode number.
    let mut directories: BTreeMap<InodeNumber, usize> = BTreeMap::new();
    for (n, deleted) in deleted.iter().enumerate() {
        if deleted.inode.kind() == Some(FileKind::Directory) {
            directories.entry(deleted.inode.number).or_insert(n);
        }
    }
    let directory_of = |n: usize| named[n].as_ref().map(|name| name.directory);
    let has_names: BTreeSet<InodeNumber> = (0..deleted.len()).filter_map(directory_of).collect();
    let mut taken_paths: BTreeSet<Vec<Vec<u8>>> = BTreeSet::new();
    let mut claimed = Spans::default();
    let mut plans = Vec::new();
    for (n, deleted) in deleted.iter().enumerate() {
        let inode = &deleted.inode;
        let map = maps.of(inode).await;
        let mut plan = Plan { nodes: map.nodes, ..Plan::default() };
        let is_directory = inode.kind() == Some(FileKind::Directory);
        for range in map.blocks {
            let range = space.bytes(range);
            claimed.within(range.clone()).into_iter().for_each(|part| plan.taken.insert(part));
            claimed.insert(range);
        }
        let is_worth_it = match named[n] {
            Some(_) => true,
            None if is_directory => has_names.contains(&inode.number),
            None => inode.size() > 0,
        };
        if !is_worth_it {
            continue;
        }
        plan.path = path_of(n, &deleted.inode.number, &named, &directories, &names.paths);
        if !taken_paths.insert(plan.path.clone()) {
            if is_directory {
                continue;
            }
            // This is an older file of the same name.
            if let Some(name) = plan.path.last_mut() {
                name.extend_from_slice(format!(".#{}", inode.number).as_bytes());
            }
            if !taken_paths.insert(plan.path.clone()) {
                plan.path = vec![b"lost+found".to_vec(), format!("#{}.{n}", inode.number).into_bytes()];
            }
        }
        plan.deleted = Some(deleted.clone());
        plans.push(plan);
    }
    plans.sort_by(|a, b| a.path.cmp(&b.path));
    plans
}

/// Components of the path of the `n`th deleted inode.
fn path_of(
    n: usize,
    number: &InodeNumber,
    named: &[Option<Name>],
    directories: &BTreeMap<InodeNumber, usize>,
    present: &BTreeMap<InodeNumber, Vec<u8>>,
) -> Vec<Vec<u8>> {
    let mut path = Vec::new();
    let nameless = |number: &InodeNumber| format!("#{number}").into_bytes();
    let (mut at, mut number) = (Some(n), *number);
    for _ in 0..DEPTH_MAX {
        let Some(name) = at.and_then(|n| named[n].as_ref()) else { break };
        path.push(name.name.clone());
        number = name.directory;
        if let Some(above) = present.get(&number) {
            let above = above.split(|&b| b == b'/').filter(|name| !name.is_empty());
            path.extend(above.rev().map(<[u8]>::to_vec));
            path.reverse();
            return path;
        }
        at = directories.get(&number).copied();
    }
    path.push(nameless(&number));
    path.push(b"lost+found".to_vec());
    path.reverse();
    path
}

/// The volume as deleted files see it: blocks that are in use now cannot be read.
struct Past {
    device: Mended,
    block_bytes: usize,
    block_log2: u32,
    superblock: Vec<u8>,
}

impl Past {
    async fn new(device: &Mended, volume: &Volume, space: &Space) -> Self {
        let mut sb = volume.superblock().clone();
        sb.raw_mut().s_block_group_nr = 0.into();
        sb.update_checksum();
        // No file has blocks near the superblock, which is read together with its neighbours.
        let mut used = space.used.clone();
        used.remove(0..4096);
        Self {
            device: device.clone().with_holes(&used),
            block_bytes: space.block_bytes(),
            block_log2: sb.block_size().log2(),
            superblock: sb.as_bytes().to_vec(),
        }
    }

    /// Opens the volume with the nodes of a map from the log, and without blocks that later files
    /// have overwritten.
    async fn volume(&self, plan: &Plan) -> Result<Volume, Error> {
        let mut device = self.device.clone().with_holes(&plan.taken);
        device = patched(device, self.block_bytes, 1024, &self.superblock).await;
        for (at, bytes) in &plan.nodes {
            device = patched(device, self.block_bytes, at.0 << self.block_log2, bytes).await;
        }
        let options = OpenOptions { damage: Damage::Report, superblock_offset: None, ignore_journal: true };
        Volume::open(Arc::new(device), options).await
    }
}
