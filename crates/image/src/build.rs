//! Builds an image from sources: load, plan, write, rename.

use crate::devices::Surroundings;
use crate::layout::{self, Contents, Params};
use crate::source::{Below, FileIdentity, KnownOwners, LoadOptions, NameOf, Stores, find_followed, load};
use crate::tree::{NodeId, Tree};
use crate::write::{Claimed, Image, Progress, directory_of};
use crate::{BuildError, BuildOptions, Note, Overrides, SizePolicy, Source, Target, VolumeOptions, owner};
use extant_block::ForeignLocks;
use extant_format::{Timestamp, UintExt};
use extant_rt::{Rng, Rt};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// Size, counts and notes of a finished volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildReport {
    /// Length of the image in bytes.
    pub image_bytes: u64,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Free space on the volume in bytes.
    pub free_bytes: u64,
    /// Inodes in use.
    pub used_inodes: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Regular files, symbolic links, devices and so on.
    pub files: u32,
    /// Directories, including the root and lost+found.
    pub directories: u32,
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// Differences between volume and sources.
    pub notes: Vec<Note>,
}

/// Builds a volume from the sources, merged over each other in order, and places it under the
/// output's name, or in place in [`BuildOptions::in_place`].
///
/// If a source contains an earlier build under the output's name, that file is left out. The image
/// is durable when this returns. On error the name is absent, or still refers to the previous file;
/// a device that is written in place keeps its old contents, or contains no volume.
///
/// # Errors
/// The output is in use, contains something else or cannot be written; a source cannot be read, is
/// malformed, or contains something that the volume cannot store; or the options contradict each
/// other.
pub fn build(
    options: &BuildOptions,
    sources: &[Source],
    rt: &Rt,
    progress: Progress,
) -> Result<BuildReport, BuildError> {
    // Claim it before reading the sources, which may take long.
    let target = match &options.in_place {
        Some(place) => Target::Place(place.clone()),
        None => Target::File { path: options.output.clone(), foreign: options.foreign_locks },
    };
    let target = Claimed::claim(target, rt)?;
    let replaced = identity_of(&options.output);
    // Next to a disk in /dev there is no room for a spool.
    let spool_dir = match options.in_place.is_some() && replaced.is_none() {
        true => std::env::temp_dir(),
        false => directory_of(&options.output),
    };
    let load_options = LoadOptions {
        spool_dir: &spool_dir,
        one_file_system: options.one_file_system,
        selection: &options.selection,
        replaced,
        platform: options.platform.as_deref(),
        image: options.image_name.as_deref(),
        volume_bytes: match options.volume.size {
            SizePolicy::Fixed(bytes) => Some(bytes),
            SizePolicy::Exact | SizePolicy::PlusPercent(_) | SizePolicy::PlusBytes(_) => None,
        },
        layers: options.layers,
        no_acls: options.overrides.no_acls,
        no_xattrs: options.overrides.no_xattrs,
        below: None,
    };
    let mut notes = Vec::new();
    let (mut tree, mut stores) = load(sources, &load_options, rt, &mut notes)?;
    owner::apply(&mut tree, &options.ownership)?;
    options.overrides.apply(&mut tree, &mut stores, None, (b"/", options.clamp_time), &mut notes)?;
    let source = Loaded { tree, stores, notes, clamp: options.clamp_time };
    write(target, &options.volume, source, rt, progress)
}

impl Overrides {
    /// Changes the merged sources, whose root lies at `top` on the volume.
    pub(crate) fn apply(
        &self,
        tree: &mut Tree,
        stores: &mut Stores,
        below: Option<&Below<'_>>,
        (top, clamp): (&[u8], Option<Timestamp>),
        notes: &mut Vec<Note>,
    ) -> Result<(), BuildError> {
        if let Some(table) = &self.device_table {
            // Files without a time in the sources get the sources' latest time.
            let times = (0..tree.node_slots().fit_u32()).map(|id| tree.node(NodeId(id)).mtime);
            let latest = times.max().unwrap_or_default();
            let mut around = Around(KnownOwners::default());
            if table.has_names() {
                stores.finish()?;
                around = Around(KnownOwners::of(tree, stores, below)?);
            }
            table.apply(tree, clamp.unwrap_or(latest), &mut around)?;
            notes.extend(around.0.note());
        }
        match &self.file_contexts {
            Some(contexts) => contexts.apply(tree, top),
            None => Ok(()),
        }
    }
}

/// What surrounds a device table.
struct Around(KnownOwners);

impl Surroundings for Around {
    fn user(&mut self, name: &[u8]) -> Result<u32, String> {
        self.0.number_of(NameOf::User, name)
    }

    fn group(&mut self, name: &[u8]) -> Result<u32, String> {
        self.0.number_of(NameOf::Group, name)
    }

    fn follow(&self, tree: &Tree, path: &[u8]) -> Result<Option<NodeId>, BuildError> {
        find_followed(tree, path)
    }
}

/// The identity of the regular file with this name, if there is one.
pub(crate) fn identity_of(path: &Path) -> Option<FileIdentity> {
    let meta = path.symlink_metadata().ok().filter(|meta| meta.is_file())?;
    Some((rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()), meta.ino()))
}

/// Creates an empty volume of fixed size at `path`. `created` is recorded as its creation time.
///
/// Otherwise like [`build`], except that the UUID is random if not given.
///
/// # Errors
/// The errors of [`build`], except those of sources.
pub fn mkfs(
    path: &Path,
    volume: &VolumeOptions,
    created: Timestamp,
    rt: &Rt,
    progress: Progress,
) -> Result<BuildReport, BuildError> {
    let target = Target::File { path: path.to_owned(), foreign: ForeignLocks::Honour };
    mkfs_on(target, volume, created, rt, progress)
}

/// Like [`mkfs`], but for any target. A volume that is written in place must fit into the target;
/// its size is that of [`SizePolicy::Fixed`].
///
/// # Errors
/// The errors of [`mkfs`].
pub fn mkfs_on(
    target: Target,
    volume: &VolumeOptions,
    created: Timestamp,
    rt: &Rt,
    progress: Progress,
) -> Result<BuildReport, BuildError> {
    let spool_dir = match &target {
        Target::File { path, .. } | Target::New(path) => directory_of(path),
        Target::Place(_) => std::env::temp_dir(),
    };
    let target = Claimed::claim(target, rt)?;
    let mut volume = volume.clone();
    let mut rng = rt.rng("mkfs");
    let mut random = || random_uuid(&mut rng);
    volume.uuid.get_or_insert_with(&mut random);
    volume.hash_seed.get_or_insert_with(&mut random);
    let stores = Stores::new(spool_dir, None);
    let source = Loaded { tree: Tree::new(), stores, notes: Vec::new(), clamp: Some(created) };
    write(target, &volume, source, rt, progress)
}

/// A new UUID: version 4 (random), variant 1 of RFC 9562.
pub fn random_uuid(rng: &mut Rng) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// Makes an empty volume in a temporary file that disappears when its handle is dropped. Its
/// creation time is fixed, so that the same options give the same bytes.
///
/// # Errors
/// The errors of [`mkfs`], for a file in the system's temporary folder.
pub fn mkfs_temporary(volume: &VolumeOptions) -> Result<File, BuildError> {
    let failed =
        |error| BuildError::Output { action: "create", path: "a temporary volume".to_owned(), error };
    let dir = tempfile::tempdir().map_err(failed)?;
    let path = dir.path().join("volume");
    let created = Timestamp { seconds: 1_163_116_800, nanos: 0 };
    mkfs(&path, volume, created, &Rt::real(Default::default()), Arc::new(|_, _| {}))?;
    File::open(&path).map_err(failed)
}

/// The sources after loading.
struct Loaded {
    tree: Tree,
    stores: Stores,
    notes: Vec<Note>,
    clamp: Option<Timestamp>,
}

fn write(
    target: Claimed,
    volume: &VolumeOptions,
    source: Loaded,
    rt: &Rt,
    progress: Progress,
) -> Result<BuildReport, BuildError> {
    let Loaded { tree, stores, mut notes, clamp } = source;
    let mut params = Params::resolve(&target.fitted(volume)?)?;
    let (seconds, nanos) = rt.wall_time();
    let contents = Contents::new(tree, &mut params, (clamp, Timestamp { seconds, nanos }), &mut notes)?;
    let plan = layout::plan(&contents, &params)?;
    let image = Arc::new(Image::new(contents, params, plan, stores, clamp));
    if target.write(&image, rt, progress)? {
        notes.push(Note::NoDiscard);
    }
    let sb = image.superblock();
    let used_inodes = sb.inodes_count() - sb.raw().s_free_inodes_count.get();
    let directories = image.contents.inodes.directories;
    Ok(BuildReport {
        image_bytes: image.bytes(),
        block_bytes: image.params.block.bytes(),
        free_bytes: sb.free_blocks() << image.params.block.log2(),
        used_inodes,
        free_inodes: sb.raw().s_free_inodes_count.get(),
        files: image.contents.inodes.all().count().fit_u32() - directories,
        directories,
        uuid: sb.uuid(),
        notes,
    })
}
