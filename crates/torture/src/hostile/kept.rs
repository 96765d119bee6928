//! Files not named by any operation are preserved: files of a damaged volume that were readable
//! before a few changes are readable afterwards, with the same contents.

use super::forge::forge;
use crate::faults::caught;
use crate::{Image, ImageDevice};
use extant::{Error, FileOptions, FileType, OpenOptions, Volume};
use extant_format::{FileKind, Inode, InodeNumber, VolumeBlock};
use extant_fs::{Chunk, Damage};
use extant_rt::{Rng, Rt};
use extant_sim::{Machine, Preemption, Sim};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Limits on paths visited, and on their depth: on a damaged volume paths may never end.
const PATHS_MAX: usize = 3000;
const DEPTH_MAX: usize = 7;
/// Number of changes to a volume.
const OPERATIONS: u64 = 6;
/// Bytes read per file.
const BYTES_MAX: u64 = 4 << 20;

/// A path as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    inode: InodeNumber,
    kind: Option<FileKind>,
    mode: u16,
    size: u64,
    /// Hash of the contents or target; `None` if it cannot be read completely.
    sum: Option<u64>,
    /// Inodes of the directories on the path.
    above: Vec<InodeNumber>,
    /// Whether this directory, or one on the path, was reached by a name that is not its own.
    is_alias: bool,
    /// Whether it may change by itself: its inode has no links, or its blocks belong to the
    /// volume's own structures.
    is_unsteady: bool,
}

type Tree = BTreeMap<Vec<u8>, Seen>;

/// Damages a sound volume as determined by the seed, with valid checksums, then changes it and
/// compares its contents.
///
/// # Errors
/// A panic, a deadlock, or a file that differs although no change named it.
pub fn keeps(image: &Image, seed: u64) -> Result<bool, String> {
    let mut bytes = image.to_vec();
    let changes = forge(&mut bytes, seed);
    let image = image.holding(&bytes);
    let told = |words: String| format!("after {changes:#?}:\n{words}");
    let before = caught(|| look(&image, seed)).map_err(told)?;
    let disk = Arc::new(ImageDevice::new(image.clone()));
    let mut operations = Vec::new();
    let opened = caught(|| Ok(change(disk.clone(), seed, &before, &mut operations)));
    let told = |words: String| format!("after {changes:#?} and {operations:#?}:\n{words}");
    let is_opened = opened.map_err(told)?;
    let told = |words: String| format!("after {changes:#?} and {operations:#?}:\n{words}");
    let after = caught(|| look(&disk.image(), seed)).map_err(told)?;
    compare(&before, &after, &operations).map_err(told)?;
    Ok(is_opened)
}

fn compare(before: &Tree, after: &Tree, operations: &[Operation]) -> Result<(), String> {
    let named: BTreeSet<&[u8]> = operations.iter().flat_map(|operation| operation.paths()).collect();
    let is_below = |path: &[u8], above: &[u8]| {
        path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
    };
    // A path through a name that is not the directory's own does not count as naming anything below
    // it.
    let touched: BTreeSet<InodeNumber> = before
        .iter()
        .filter(|(path, seen)| {
            let is_dir = seen.kind == Some(FileKind::Directory);
            named.iter().any(|named| is_below(path, named) && (!seen.is_alias || (path == named && !is_dir)))
        })
        .map(|(_, seen)| seen.inode)
        .collect();
    for (path, seen) in before {
        let is_named = named.iter().any(|named| is_below(path, named))
            || touched.contains(&seen.inode)
            || seen.above.iter().any(|above| touched.contains(above));
        if is_named || seen.is_unsteady || seen.sum.is_none() {
            continue;
        }
        let now = after.get(path);
        let is_kept = now.is_some_and(|now| {
            (now.inode, now.kind, now.mode, now.sum) == (seen.inode, seen.kind, seen.mode, seen.sum)
                && (now.size == seen.size || now.kind == Some(FileKind::Directory))
        });
        if !is_kept {
            return Err(format!("/{} was {seen:?}, and is {now:?}", path.escape_ascii()));
        }
    }
    Ok(())
}

/// All paths of a volume, through every name of every directory.
fn look(image: &Image, seed: u64) -> Result<Tree, String> {
    let sim = Sim::new(Machine::free(1, Preemption::None), seed);
    let device = Arc::new(ImageDevice::new(image.clone()));
    let work = async {
        let mut tree = Tree::new();
        let open = |damage| {
            let options = extant_fs::OpenOptions { damage, ..Default::default() };
            extant_fs::Volume::open(device.clone(), options)
        };
        let (Ok(volume), Ok(strict)) = (open(Damage::Report).await, open(Damage::Fail).await) else {
            return tree;
        };
        let own = volume.own_structures().await.unwrap_or_default();
        let Ok(root) = volume.root().await else { return tree };
        let mut todo = vec![(Vec::new(), root, Vec::new(), false)];
        while let Some((path, dir, above, is_alias)) = todo.pop() {
            let Ok(items) = volume.list(&dir).await else { continue };
            let mut way = above.clone();
            way.push(dir.number);
            for item in items {
                let mut path: Vec<u8> = path.clone();
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(&item.name);
                let Ok(inode) = volume.inode(item.inode).await else { continue };
                let is_dir = inode.kind() == Some(FileKind::Directory);
                let parent = if is_dir { strict.lookup(&inode, b"..").await.ok().flatten() } else { None };
                let is_alias =
                    is_alias || (is_dir && parent != Some(dir.number)) || way.contains(&inode.number);
                let seen = Seen {
                    inode: inode.number,
                    kind: inode.kind(),
                    mode: inode.mode(),
                    size: inode.size(),
                    sum: sum(&strict, &inode).await,
                    above: way.clone(),
                    is_alias,
                    is_unsteady: is_unsteady(&volume, &inode, &own).await,
                };
                tree.insert(path.clone(), seen);
                if is_dir && way.len() < DEPTH_MAX && tree.len() < PATHS_MAX {
                    todo.push((path, inode, way.clone(), is_alias));
                }
            }
        }
        tree
    };
    sim.rt().block_on(work).map_err(|error| error.to_string())
}

async fn is_unsteady(volume: &extant_fs::Volume, inode: &Inode, own: &[Range<VolumeBlock>]) -> bool {
    if inode.links() == 0 || inode.number < volume.superblock().first_inode() {
        return true;
    }
    if inode.kind() != Some(FileKind::Regular) {
        return false;
    }
    let Ok(mut blocks) = volume.blocks_of(inode).await else { return true };
    let sb = volume.superblock();
    if let Some(journal) = sb.journal_inode()
        && let Ok(journal) = volume.inode(journal).await
        && let Ok(journal) = volume.blocks_of(&journal).await
        && overlap(&blocks, &journal)
    {
        return true;
    }
    blocks.push(VolumeBlock(u64::MAX - 1)..VolumeBlock(u64::MAX));
    overlap(&blocks, own)
}

fn overlap(a: &[Range<VolumeBlock>], b: &[Range<VolumeBlock>]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.start < b.end && b.start < a.end))
}

/// Hash of a file's contents, if it can be read without damage.
async fn sum(volume: &extant_fs::Volume, inode: &Inode) -> Option<u64> {
    let add = |sum: u64, bytes: &[u8]| {
        bytes
            .iter()
            .fold(sum, |sum, &byte| sum.rotate_left(5).wrapping_mul(0x2545_f491_4f6c_dd1d) ^ u64::from(byte))
    };
    match inode.kind()? {
        FileKind::Symlink => volume.read_link(inode).await.ok().map(|target| add(1, &target)),
        FileKind::Regular if inode.size() > BYTES_MAX => None,
        FileKind::Regular => {
            let mut stream = volume.stream(inode.clone()).await.ok()?;
            let (mut sum, mut at) = (2, 0);
            while let Some(chunk) = stream.next().await.ok()? {
                if let Chunk::Data { offset, bytes } = chunk {
                    // A hole has the same sum as the zeroes it stands for.
                    let gap = vec![0; (offset - at) as usize];
                    (sum, at) = (add(add(sum, &gap), &bytes), offset + bytes.len() as u64);
                }
            }
            let gap = vec![0; inode.size().saturating_sub(at) as usize];
            Some(add(sum, &gap))
        }
        _ => Some(0),
    }
}

/// A change, with the paths it names.
#[derive(Clone)]
enum Operation {
    Put(Vec<u8>),
    Overwrite(Vec<u8>),
    Truncate(Vec<u8>),
    Mkdir(Vec<u8>),
    Remove(Vec<u8>),
    RemoveAll(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>),
    Link(Vec<u8>, Vec<u8>),
    Symlink(Vec<u8>),
    ChmodAll(Vec<u8>),
}

impl fmt::Debug for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let call = match self {
            Self::Put(_) => "put",
            Self::Overwrite(_) => "overwrite",
            Self::Truncate(_) => "truncate",
            Self::Mkdir(_) => "mkdir",
            Self::Remove(_) => "rm",
            Self::RemoveAll(_) => "rm -r",
            Self::Rename(..) => "mv",
            Self::Link(..) => "ln",
            Self::Symlink(_) => "ln -s",
            Self::ChmodAll(_) => "chmod -R",
        };
        f.write_str(call)?;
        self.paths().iter().try_for_each(|path| write!(f, " /{}", path.escape_ascii()))
    }
}

impl Operation {
    fn paths(&self) -> Vec<&[u8]> {
        match self {
            Self::Put(path)
            | Self::Overwrite(path)
            | Self::Truncate(path)
            | Self::Mkdir(path)
            | Self::Remove(path)
            | Self::RemoveAll(path)
            | Self::Symlink(path)
            | Self::ChmodAll(path) => vec![path],
            Self::Rename(from, to) | Self::Link(from, to) => vec![from, to],
        }
    }

    /// A random operation for a volume with these paths.
    fn any(rng: &mut Rng, tree: &[(&Vec<u8>, &Seen)]) -> Option<Self> {
        let pick = |rng: &mut Rng| -> Option<Vec<u8>> {
            let n = rng.below(tree.len().max(1) as u64) as usize;
            tree.get(n).map(|(path, _)| (*path).clone())
        };
        let fresh = |rng: &mut Rng| -> Option<Vec<u8>> {
            // The new name is mostly in a directory, and sometimes an existing one.
            let dirs: Vec<_> =
                tree.iter().filter(|(_, seen)| seen.kind == Some(FileKind::Directory)).collect();
            let n = rng.below(dirs.len() as u64 + 1) as usize;
            let mut path = dirs.get(n).map_or(Vec::new(), |(path, _)| (*path).clone());
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(format!("new-{}", rng.below(40)).as_bytes());
            Some(path)
        };
        // Do not go through a symbolic link, since it refers to something else.
        let plain = |rng: &mut Rng| {
            let path = pick(rng)?;
            let is_plain = tree.iter().all(|(at, seen)| **at != path || seen.kind != Some(FileKind::Symlink));
            is_plain.then_some(path)
        };
        let target = |rng: &mut Rng| if rng.below(4) == 0 { pick(rng) } else { fresh(rng) };
        Some(match rng.below(16) {
            0..3 => Self::Put(target(rng)?),
            3 => Self::Overwrite(plain(rng)?),
            4 => Self::Truncate(plain(rng)?),
            5 | 6 => Self::Mkdir(target(rng)?),
            7 | 8 => Self::Remove(pick(rng)?),
            9..12 => Self::RemoveAll(pick(rng)?),
            12 | 13 => Self::Rename(pick(rng)?, target(rng)?),
            14 => match rng.below(2) {
                0 => Self::Link(pick(rng)?, target(rng)?),
                _ => Self::Symlink(target(rng)?),
            },
            _ => Self::ChmodAll(plain(rng)?),
        })
    }

    fn run(&self, volume: &Volume) -> Result<(), Error> {
        let root = volume.root();
        match self {
            // Like the put command: files are complete before they get the name.
            Self::Put(path) => {
                let beside = [path.as_slice(), b".part"].concat();
                root.open_with(&beside, FileOptions::new().write(true).create_new(true))?
                    .write_all_at(0, &[7; 5000])?;
                root.rename(&beside, path).inspect_err(|_| {
                    let _ = root.remove_file(&beside);
                })
            }
            Self::Overwrite(path) => {
                root.open_with(path, FileOptions::new().write(true))?.write_all_at(100, &[9; 3000])
            }
            Self::Truncate(path) => root.set_len(path, 700),
            Self::Mkdir(path) => root.create_dir(path),
            Self::Remove(path) => root.remove_file(path),
            Self::RemoveAll(path) => root.remove_dir_all(path),
            Self::Rename(from, to) => root.rename(from, to),
            Self::Link(from, to) => root.hard_link(from, to),
            Self::Symlink(path) => root.symlink("x/".repeat(40), path),
            Self::ChmodAll(path) => {
                root.set_mode(path, 0o711)?;
                for met in root.open_dir(path)?.walk() {
                    let (below, metadata) = met?;
                    if metadata.file_type() != FileType::Symlink {
                        root.set_mode([path, &b"/"[..], &below].concat(), 0o711)?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Opens the volume, changes it and closes it; returns whether it could be opened.
fn change(disk: Arc<ImageDevice>, seed: u64, tree: &Tree, done: &mut Vec<Operation>) -> bool {
    let sim = Sim::new(Machine::free(1, Preemption::None), seed);
    let rt: &Rt = sim.rt();
    let options = OpenOptions::new().write(true).offline(true).cache_bytes(4 << 20);
    let Ok(volume) = Volume::open_device(rt, disk, &options) else { return false };
    let mut rng = Rng::labelled(seed, "operations");
    let list: Vec<_> = tree.iter().collect();
    for _ in 0..1 + rng.below(OPERATIONS) {
        let Some(operation) = Operation::any(&mut rng, &list) else { continue };
        done.push(operation.clone());
        let _ = operation.run(&volume);
    }
    let _ = volume.close();
    true
}
