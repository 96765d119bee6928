//! Adds sources to an existing volume, through its journal.

mod adder;
mod ahead;
mod nodes;
mod small;
mod waiting;

use crate::build::identity_of;
use crate::source::{Below, LoadOptions, load};
use crate::tree::{EntryId, Kind, NodeId, Tree};
use crate::write::{Progress, directory_of};
use crate::{BuildError, Note, Overrides, Ownership, Selection, Source, Timestamp, owner, quoted, settle};
use adder::Adder;
use ahead::{Ahead, Sources};
use extant_block::Device;
use extant_cache::{CacheConfig, PageCache};
use extant_format::UintExt;
use extant_fs::{Volume, WriteOptions};
use extant_rt::Rt;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// Memory for file contents and metadata, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// How to add sources to a volume.
#[derive(Clone, Debug)]
pub struct AddOptions {
    /// The image's path: for messages, to leave the image out if it lies within a source, and to
    /// spool a compressed archive next to it.
    pub image: PathBuf,
    /// Directory of the volume to merge the sources into; created if missing.
    pub directory: Vec<u8>,
    /// Owners.
    pub ownership: Ownership,
    /// `SOURCE_DATE_EPOCH`: later source times are clamped to it, and it replaces the current time
    /// in everything the volume records.
    pub clamp_time: Option<Timestamp>,
    /// Same as [`crate::BuildOptions::one_file_system`].
    pub one_file_system: bool,
    /// Same as [`crate::BuildOptions::selection`].
    pub selection: Selection,
    /// Same as [`crate::BuildOptions::platform`].
    pub platform: Option<String>,
    /// Same as [`crate::BuildOptions::image_name`].
    pub image_name: Option<String>,
    /// Same as [`crate::BuildOptions::layers`]; whiteouts also remove files of the volume.
    pub layers: bool,
    /// Same as [`crate::BuildOptions::overrides`], for files of the sources. Paths of a device
    /// table begin at the directory; labels follow the paths on the volume.
    pub overrides: Overrides,
}

impl AddOptions {
    /// Adds to the root of the volume, with the sources' owners and times.
    pub fn new(image: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            directory: b"/".to_vec(),
            ownership: Ownership::Source,
            clamp_time: None,
            one_file_system: false,
            selection: Selection::default(),
            platform: None,
            image_name: None,
            layers: false,
            overrides: Overrides::default(),
        }
    }
}

/// Counts and notes of an addition.
#[derive(Clone, Debug)]
pub struct AddReport {
    /// Regular files, symbolic links, devices and so on.
    pub files: u32,
    /// Directories, including those that already existed.
    pub directories: u32,
    /// Free space on the volume in bytes.
    pub free_bytes: u64,
    /// Free inodes.
    pub free_inodes: u32,
    /// Differences between volume and sources.
    pub notes: Vec<Note>,
    /// Damage to the volume that did not stop the addition; see [`Volume::problems`].
    pub problems: Vec<extant_fs::Error>,
}

/// Merges the sources into a directory of the volume on `device`, as one batch.
///
/// The result is what [`crate::build`] would create from the volume's own tree and the sources.
/// Directories are merged and take the attributes of the last source that lists them; anything else
/// replaces the file of the same name once it is complete. If the volume has a symbolic link to a
/// directory where a source has a directory, the link's target is used, except when the source is a
/// layer of an image and lists the directory. A path of a layer through a link that leads to
/// nothing creates the directory where the link leads, as containerd and umoci do. With
/// `clamp_time`, the same additions to the same volume give the same bytes.
///
/// # Errors
/// Those of [`crate::build`]; [`BuildError::Volume`] if the volume cannot be opened for writing or
/// changed. Files added before the error stay, and the volume is closed cleanly unless the device
/// failed.
pub fn add(
    options: &AddOptions,
    sources: &[Source],
    device: Arc<dyn Device>,
    rt: &Rt,
    progress: Progress,
) -> Result<AddReport, BuildError> {
    let replaced = identity_of(&options.image);
    // If the image is a disk in /dev, there is no room for a spool next to it.
    let spool_dir = if replaced.is_some() { directory_of(&options.image) } else { std::env::temp_dir() };
    let image = crate::quoted_path(&options.image);
    let load_options = LoadOptions {
        spool_dir: &spool_dir,
        one_file_system: options.one_file_system,
        selection: &options.selection,
        replaced,
        platform: options.platform.as_deref(),
        image: options.image_name.as_deref(),
        volume_bytes: Some(device.limits().capacity_bytes),
        layers: options.layers,
        no_acls: options.overrides.no_acls,
        no_xattrs: options.overrides.no_xattrs,
        below: Some(Below::new(rt, &device, &options.directory, &image)),
    };
    let mut notes = Vec::new();
    let (mut tree, mut stores) = load(sources, &load_options, rt, &mut notes)?;
    owner::apply(&mut tree, &options.ownership)?;
    let place = (&options.directory[..], options.clamp_time);
    let below = load_options.below.as_ref();
    options.overrides.apply(&mut tree, &mut stores, below, place, &mut notes)?;
    drop(load_options);
    let failed = |error| BuildError::Volume { path: image.clone(), error };
    let cache = PageCache::new(rt, CacheConfig::with_budget(CACHE_BYTES))
        .map_err(|error| BuildError::Options(format!("the cache cannot be set up: {error}")))?;
    let write = WriteOptions {
        commit_interval: None,
        fixed_time: options.clamp_time.map(|time| time.seconds),
        ..WriteOptions::default()
    };
    let volume = {
        let disk = cache.attach(device);
        rt.block_on(Volume::open_writable(rt, &disk, write))?.map_err(failed)?
    };
    let time_range = extant_format::Timestamp::seconds_range(volume.superblock().inode_size());
    settle(&mut tree, time_range, options.clamp_time, &mut notes);
    let sources_read = Arc::new(Sources { tree, stores, clamp: options.clamp_time, time_range });
    let ahead = Ahead::of(rt, &sources_read);
    let added = rt.block_on(async {
        let mut adder = Adder::new(&volume, sources_read.origin(), ahead, progress).await?;
        let added = adder.add(&options.directory).await;
        // Those before an error stay.
        let made = adder.make_small().await;
        adder.ahead.end().await;
        made?;
        let (files, directories) = added?;
        Ok::<_, BuildError>((files, directories, adder.lost.note(&named(sources))))
    });
    let space = volume.space();
    let closed = rt.block_on(async {
        let closed = volume.clone().close().await.map_err(failed);
        // The cache's errors were already returned when the volume was closed.
        let _ = cache.close().await;
        closed
    })?;
    let (files, directories, lost) = added??;
    closed?;
    notes.extend(lost);
    Ok(AddReport {
        files,
        directories,
        free_bytes: space.blocks_free * u64::from(space.block_bytes),
        free_inodes: u32::try_from(space.inodes_free).unwrap_or(u32::MAX),
        notes,
        problems: volume.problems(),
    })
}

/// The sources, for notes.
fn named(sources: &[Source]) -> String {
    match sources {
        [
            Source::Guess(path)
            | Source::Directory(path)
            | Source::Tar(path)
            | Source::Oci(path)
            | Source::Manifest(path),
        ] => crate::quoted_path(path),
        _ => "the sources".into(),
    }
}

/// Reduces the tree to what a volume can store.
fn settle(tree: &mut Tree, time_range: (i64, i64), clamp: Option<Timestamp>, notes: &mut Vec<Note>) {
    let names = first_names(tree);
    let places: BTreeMap<NodeId, usize> =
        names.iter().enumerate().map(|(at, &(node, _))| (node, at)).collect();
    let path =
        |tree: &Tree, at: usize| quoted(&names[at].1.map_or_else(|| b"/".to_vec(), |e| tree.entry_path(e)));
    let clamped = settle::clamp_times(tree, time_range, clamp);
    if let Some(first) = clamped.iter().filter_map(|node| places.get(node)).min() {
        let files = clamped.len().to_u64();
        notes.push(Note::TimeClamped { path: path(tree, *first), files, range: time_range });
    }
    for left in settle::leave_out_xattrs(tree, names.iter().map(|&(node, _)| node)) {
        let path = path(tree, places[&left.first]);
        notes.push(left.note(path));
    }
}

/// Nodes of a tree in path order, each with the first name that leads to it; the root has none.
fn first_names(tree: &Tree) -> Vec<(NodeId, Option<EntryId>)> {
    let mut names = vec![(NodeId::ROOT, None)];
    let mut seen = vec![false; tree.node_slots()];
    let mut todo = vec![NodeId::ROOT];
    while let Some(dir) = todo.pop() {
        let children = tree.sorted_children(dir);
        for &entry in &children {
            let node = tree.entry_node(entry);
            if !std::mem::replace(&mut seen[node.index()], true) {
                names.push((node, Some(entry)));
            }
        }
        let below = children.iter().rev().map(|&entry| tree.entry_node(entry));
        todo.extend(below.filter(|&node| tree.node(node).kind == Kind::Directory));
    }
    names
}
