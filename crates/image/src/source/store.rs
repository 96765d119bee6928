//! Stores from which file contents are read when the volume is written.

use super::layer_name::may_be_layer;
use super::owners::Owners;
use crate::tree::{NodeId, Payload, Tree};
use crate::{BuildError, quoted, quoted_path};
use extant_format::UintExt;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory source.
#[derive(Debug)]
pub(crate) struct HostRoot {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
}

/// A file that contains contents: a plain tar, an OCI blob, or the spool.
#[derive(Debug)]
pub(crate) struct Archive {
    pub(crate) file: Arc<File>,
    /// Name for messages.
    pub(crate) name: String,
}

/// All sources of contents.
#[derive(Debug)]
pub(crate) struct Stores {
    pub(crate) roots: Vec<HostRoot>,
    pub(crate) archives: Vec<Archive>,
    /// Names of owners that archives contain, with their numbers.
    pub(crate) owners: Owners,
    spool: Option<Spool>,
    spool_dir: PathBuf,
    room: Room,
}

/// Images with several layers, or for several platforms, may spool up to this many times the
/// volume's size.
const MOST_VOLUMES: u64 = 8;

/// Limits on spooling: a small archive may claim to contain petabytes.
#[derive(Debug)]
struct Room {
    /// Largest possible volume in bytes.
    volume: Option<u64>,
    /// Total bytes spooled.
    spooled: u64,
    /// Whether no source follows.
    is_last_source: bool,
    /// Whether nothing follows that could remove contents of the current tree.
    is_last: bool,
    /// Upper bound for the bytes that the current tree has in the spool.
    tree: u64,
    /// Upper bound for how many of those bytes may be image layers.
    layers: u64,
}

#[derive(Debug)]
struct Spool {
    archive: u16,
    out: BufWriter<SpoolFile>,
    len: u64,
}

/// Appends to a file that others read at offsets.
#[derive(Debug)]
struct SpoolFile {
    file: Arc<File>,
    at: u64,
}

impl Write for SpoolFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.file.write_at(bytes, self.at)?;
        self.at += n.to_u64();
        Ok(n)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const SPOOL_BUFFER: usize = 1 << 20;

impl Stores {
    /// `volume` is the largest possible volume in bytes, if limited.
    pub(crate) fn new(spool_dir: PathBuf, volume: Option<u64>) -> Self {
        let room = Room { volume, spooled: 0, is_last_source: true, is_last: true, tree: 0, layers: 0 };
        Self {
            roots: Vec::new(),
            archives: Vec::new(),
            owners: Owners::default(),
            spool: None,
            spool_dir,
            room,
        }
    }

    /// Starts another source.
    pub(crate) fn begin_source(&mut self, is_last: bool) {
        self.room.is_last_source = is_last;
        self.begin_tree(is_last);
    }

    /// Starts another tree of a source.
    pub(crate) fn begin_tree(&mut self, is_last: bool) {
        self.room.is_last = is_last && self.room.is_last_source;
        (self.room.tree, self.room.layers) = (0, 0);
    }

    /// Refuses contents that the volume cannot hold, before spooling any of them. `tree` holds the
    /// earlier entries.
    pub(crate) fn check_room(
        &mut self,
        tree: &Tree,
        archive: &str,
        path: &[u8],
        bytes: u64,
    ) -> Result<(), BuildError> {
        let Some(given) = self.room.volume else { return Ok(()) };
        let room = &mut self.room;
        let overfull =
            |limit| BuildError::Overfull { archive: archive.into(), path: quoted(path), limit, given };
        if may_be_layer(path) {
            room.layers += bytes;
        }
        let limit = given.saturating_add(room.layers);
        if room.is_last && room.tree.saturating_add(bytes) > limit {
            // Some of the counted contents may have been replaced; count again.
            room.tree = stored_bytes(tree);
            if room.tree.saturating_add(bytes) > limit {
                return Err(overfull(given));
            }
        }
        let most = given.saturating_mul(MOST_VOLUMES);
        if room.spooled.saturating_add(bytes) > most {
            return Err(overfull(most));
        }
        room.tree += bytes;
        room.spooled += bytes;
        Ok(())
    }

    pub(crate) fn add_root(&mut self, path: &Path) -> Result<u16, BuildError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| BuildError::Source {
            action: "open directory",
            path: quoted_path(path),
            error: e.into(),
        })?;
        let id = index(self.roots.len())?;
        self.roots.push(HostRoot { fd, path: path.to_path_buf() });
        Ok(id)
    }

    pub(crate) fn add_archive(&mut self, file: Arc<File>, name: String) -> Result<u16, BuildError> {
        let id = index(self.archives.len())?;
        self.archives.push(Archive { file, name });
        Ok(id)
    }

    /// Copies `len` bytes of `from` to the spool; returns the archive, the offset there, and the
    /// number of bytes copied.
    pub(crate) fn spool(&mut self, from: &mut dyn Read, len: u64) -> Result<(u16, u64, u64), SpoolError> {
        if self.spool.is_none() {
            let file = Arc::new(unnamed_file(&self.spool_dir).map_err(|e| self.spool_error("create", e))?);
            let name = format!("a spool file in {}", quoted_path(&self.spool_dir));
            let archive = self.add_archive(file.clone(), name).map_err(SpoolError::Write)?;
            let out = BufWriter::with_capacity(SPOOL_BUFFER, SpoolFile { file, at: 0 });
            self.spool = Some(Spool { archive, out, len: 0 });
        }
        let spool = self.spool.as_mut().expect("made above");
        let offset = spool.len;
        let mut done = 0;
        let mut buf = vec![0; (64 << 10).min(len.to_usize())];
        while done < len {
            let want = buf.len().min((len - done).to_usize());
            let n = match from.read(&mut buf[..want]) {
                Ok(0) => break,
                Ok(n) => n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(SpoolError::Read(e)),
            };
            spool.out.write_all(&buf[..n]).map_err(|e| {
                SpoolError::Write(BuildError::output("write a spool file in", &self.spool_dir, e))
            })?;
            done += n.to_u64();
            spool.len += n.to_u64();
        }
        Ok((spool.archive, offset, done))
    }

    /// Flushes buffered bytes to the spool file so that they can be read.
    pub(crate) fn finish(&mut self) -> Result<(), BuildError> {
        if let Some(spool) = &mut self.spool {
            spool.out.flush().map_err(|e| BuildError::output("write a spool file in", &self.spool_dir, e))?;
        }
        Ok(())
    }

    fn spool_error(&self, action: &'static str, error: std::io::Error) -> SpoolError {
        let action = if action == "create" { "create a spool file in" } else { action };
        SpoolError::Write(BuildError::output(action, &self.spool_dir, error))
    }
}

/// Bytes of archives referenced by a tree's files.
fn stored_bytes(tree: &Tree) -> u64 {
    let stored = |id: NodeId| {
        let node = tree.node(id);
        let is_stored = node.names > 0 && matches!(node.payload, Payload::Stored { .. });
        let len = || tree.sparse_map(id).map_or(node.size, |map| map.iter().map(|range| range.len).sum());
        if is_stored { len() } else { 0 }
    };
    (0..tree.node_slots().fit_u32()).map(NodeId).map(stored).sum()
}

/// Which side of the copy failed.
pub(crate) enum SpoolError {
    Read(std::io::Error),
    Write(BuildError),
}

fn index(len: usize) -> Result<u16, BuildError> {
    u16::try_from(len).map_err(|_| BuildError::Options("at most 65,535 sources fit one build".into()))
}

/// Creates an unnamed file, which vanishes with the process.
pub(crate) fn unnamed_file(dir: &Path) -> std::io::Result<File> {
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    tempfile::tempfile_in(dir)
}
