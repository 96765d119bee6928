//! What a copy needs from the volume, read on another thread while earlier files are created.
//!
//! Creating a file is work of the host's kernel, and reading one that it has cached is work of this
//! process. Two processors do both at the same time.

use super::file_contents::{self, Pieces};
use extant_format::{FileKind, Inode, UintExt};
use extant_fs::{Attribute, Error, Volume, Walk, WalkEntry, WalkError, WalkOptions};
use extant_rt::{Rt, Task};
use std::vec::IntoIter;

/// Names that the caller's thread reads before another one begins: few files are copied sooner than
/// a thread starts.
const FIRST_NAMES: usize = 32;
/// Most names that are read at a time, and the bytes of contents with which a batch ends early.
const NAMES: usize = 256;
const BATCH_BYTES: u64 = 1 << 20;
/// Contents of larger files are read when they are written.
const FILE_BYTES: u64 = 64 << 10;

/// What a copy of an inode takes from the volume.
pub(super) struct Parts {
    /// None for a directory. Its attributes are set last, and those of many open directories would
    /// take much memory until then.
    pub(super) xattrs: Result<Vec<Attribute>, Error>,
    pub(super) contents: Contents,
    /// Problems that were met on another thread while they were read.
    pub(super) problems: Vec<Error>,
}

pub(super) enum Contents {
    /// There are none, or they are read when they are written.
    Later,
    /// The target of a symbolic link.
    Target(Result<Vec<u8>, Error>),
    /// Those of a small file, and how many bytes of the volume they are.
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

/// A step of the walk, and the problems that were met in it.
type Step = (Vec<Error>, Result<Found, WalkError>);

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
    /// The walk has ended, with these problems.
    End(Vec<Error>),
}

/// The steps, and the reader or, at the end of the walk, the last problems.
type Batch = (Vec<Step>, Result<Box<Reader>, Vec<Error>>);

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
                return Ok(Some(found));
            }
            let (steps, reader) = match self.next.take() {
                Some(Next::First(reader)) => reader.batch(FIRST_NAMES).await,
                Some(Next::Read(task)) => task.await.map_err(|_| Error::Defect)?,
                Some(Next::End(problems)) => (Vec::new(), Err(problems)),
                None => return Ok(None),
            };
            self.now = steps.into_iter();
            self.next = match reader {
                Ok(reader) => {
                    let rt = self.rt.clone();
                    let read = move || rt.block_on(reader.batch(NAMES)).expect("this thread may wait");
                    Some(Next::Read(self.rt.spawn_blocking("read", read)))
                }
                Err(problems) if self.now.len() == 0 => {
                    self.volume.add_problems(problems);
                    None
                }
                Err(problems) => Some(Next::End(problems)),
            };
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
                None => return (steps, Err(problems)),
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
            steps.push((problems, found));
        }
        (steps, Ok(self))
    }
}
