//! What a copy needs from the volume, read on another thread while earlier files are created.
//!
//! Creating a file is work of the host's kernel, and reading one that it has cached is work of this
//! process. Two processors do both at the same time.

use super::file_contents::{self, Pieces};
use extant_format::{FileKind, Inode, UintExt};
use extant_fs::{Attribute, Error, Volume, Walk, WalkEntry, WalkError, WalkOptions};
use extant_rt::{Rt, Task};
use std::vec::IntoIter;

/// Names that the calling thread reads before another thread starts. A few files are copied in less
/// time than a thread needs to start.
const FIRST_NAMES: usize = 32;
/// Maximum number of names in a batch. A batch also ends once it holds this many bytes.
const NAMES: usize = 256;
const BATCH_BYTES: u64 = 1 << 20;
/// Contents of larger files are read when they are written.
const FILE_BYTES: u64 = 64 << 10;

/// What a copy of an inode takes from the volume.
pub(super) struct Parts {
    /// Empty for a directory: its attributes are set last, and keeping those of all open
    /// directories until then would take much memory.
    pub(super) xattrs: Result<Vec<Attribute>, Error>,
    pub(super) contents: Contents,
    /// Problems that were met on another thread while they were read.
    pub(super) problems: Vec<Error>,
}

pub(super) enum Contents {
    /// There are no contents, or they are read when they are written.
    Later,
    /// The target of a symbolic link.
    Target(Result<Vec<u8>, Error>),
    /// The contents of a small file, and the number of bytes that the volume stores for them.
    Small { pieces: Result<Pieces, Error>, bytes: u64 },
}

impl Parts {
    /// Reads the parts of an inode. Contents of files with several names come later, as only the
    /// first name needs them.
    pub(super) async fn of(volume: &Volume, inode: &Inode) -> Self {
        let xattrs = match inode.kind() {
            Some(FileKind::Directory) => Ok(Vec::new()),
            _ => volume.xattrs(inode).await,
        };
        let contents = match inode.kind() {
            Some(FileKind::Symlink) => Contents::Target(volume.read_link(inode).await),
            Some(FileKind::Regular) if inode.size() <= FILE_BYTES && inode.links() < 2 => {
                match volume.stream(inode.clone()).await {
                    Ok(stream) => {
                        let bytes = file_contents::stored_bytes(volume, inode).await;
                        Contents::Small { pieces: Ok(Pieces::all_of(stream).await), bytes }
                    }
                    Err(error) => Contents::Small { pieces: Err(error), bytes: 0 },
                }
            }
            _ => Contents::Later,
        };
        Self { xattrs, contents, problems: Vec::new() }
    }

    /// Bytes that were read for them.
    fn bytes(&self) -> u64 {
        let contents = match self.contents {
            Contents::Small { bytes, .. } => bytes,
            _ => 0,
        };
        let xattrs = self.xattrs.iter().flatten().map(|attribute| attribute.value.len().to_u64());
        contents + xattrs.sum::<u64>()
    }
}

/// A name that a walk found.
pub(super) struct Found {
    pub(super) entry: WalkEntry,
    pub(super) path: Vec<u8>,
    /// The parts of its inode, if that was read.
    pub(super) parts: Option<Parts>,
}

/// What one step of the walk gave, `None` at its end, and the problems that it met.
type Step = (Vec<Error>, Option<Result<Found, WalkError>>);

/// A walk that reads ahead. Its names and failures come in the walk's order, and problems of the
/// volume are noted in that order, too.
pub(super) struct Ahead {
    rt: Rt,
    volume: Volume,
    now: IntoIter<Step>,
    next: Option<Next>,
}

enum Next {
    /// Nothing was read yet.
    First(Box<Reader>),
    Read(Task<Batch>),
}

/// The steps, and the reader unless the walk has ended.
type Batch = (Vec<Step>, Option<Box<Reader>>);

struct Reader {
    /// Notes its problems apart.
    volume: Volume,
    walk: Walk,
}

impl Ahead {
    /// Begins at a directory.
    ///
    /// # Errors
    /// As [`Volume::walk`].
    pub(super) async fn of(rt: &Rt, volume: &Volume, top: &Inode) -> Result<Self, Error> {
        let apart = volume.noting_apart();
        let walk = apart.walk(top, WalkOptions { inodes: true, ..Default::default() }).await?;
        let reader = Box::new(Reader { volume: apart, walk });
        let (now, next) = (Vec::new().into_iter(), Some(Next::First(reader)));
        Ok(Self { rt: rt.clone(), volume: volume.clone(), now, next })
    }

    /// The next name or failure; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Defect`]: the reader panicked.
    pub(super) async fn next(&mut self) -> Result<Option<Result<Found, WalkError>>, Error> {
        loop {
            if let Some((problems, found)) = self.now.next() {
                self.volume.add_problems(problems);
                return Ok(found);
            }
            let (steps, reader) = match self.next.take() {
                Some(Next::First(reader)) => reader.batch(FIRST_NAMES).await,
                Some(Next::Read(task)) => task.await.map_err(|_| Error::Defect)?,
                None => return Ok(None),
            };
            self.now = steps.into_iter();
            self.next = reader.map(|reader| {
                let rt = self.rt.clone();
                let read = move || rt.block_on(reader.batch(NAMES)).expect("this thread may wait");
                Next::Read(self.rt.spawn_blocking("read", read))
            });
        }
    }
}

impl Reader {
    /// Reads the next names.
    async fn batch(mut self: Box<Self>, names_max: usize) -> Batch {
        let (mut steps, mut bytes) = (Vec::with_capacity(names_max), 0);
        while steps.len() < names_max && bytes < BATCH_BYTES {
            let step = self.walk.next().await;
            let problems = self.volume.take_problems();
            let found = match step {
                None => {
                    steps.push((problems, None));
                    return (steps, None);
                }
                Some(Err(failure)) => Err(failure),
                Some(Ok(entry)) => {
                    let parts = match &entry.inode {
                        Some(inode) => {
                            let parts = Parts::of(&self.volume, inode).await;
                            Some(Parts { problems: self.volume.take_problems(), ..parts })
                        }
                        None => None,
                    };
                    bytes += parts.as_ref().map_or(0, Parts::bytes);
                    Ok(Found { path: self.walk.path().to_vec(), entry, parts })
                }
            };
            steps.push((problems, Some(found)));
        }
        (steps, Some(self))
    }
}
