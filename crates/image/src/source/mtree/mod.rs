//! A manifest as a source: owners, modes and times of files of earlier sources, and new files.
//!
//! The format is that of mtree(5). `bsdtar --format=mtree` writes it, and makefs(8) of the BSDs
//! reads it to build volumes without root.

mod parse;

use super::acl_text::NameOf;
use super::known_owners::KnownOwners;
use super::{LoadOptions, Stores, tree_paths};
use crate::tree::{Kind, Meta, NodeId, Payload, Tree, XattrSetId};
use crate::{BuildError, Note, quoted_path};
use extant_format::{Timestamp, UintExt};
use extant_fs::quote;
use parse::{Entry, parse};
use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Maximum length of a manifest to read, in bytes.
const MOST_BYTES: u64 = 256 << 20;

/// Whether a file is a manifest, by its name or its first line.
pub(super) fn is_manifest(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut start = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(6).read_to_end(&mut start));
    read.is_ok()
        && (start.starts_with(b"#mtree")
            || start.starts_with(b"/set ")
            || path.extension() == Some(OsStr::new("mtree")))
}

/// Creates and changes the files that the manifest lists.
///
/// A file without `contents=` must come from an earlier source. If there is no earlier source, it
/// is the file at that path below the current directory, as with bsdtar. `contents=` is relative to
/// the current directory, too.
pub(super) fn load(
    tree: &mut Tree,
    stores: &mut Stores,
    path: &Path,
    options: &LoadOptions<'_>,
    notes: &mut Vec<Note>,
) -> Result<(), BuildError> {
    let fail = |error| BuildError::Source { action: "read", path: quoted_path(path), error };
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(fail)?;
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(fail)?;
    if text.len().to_u64() > MOST_BYTES {
        return Err(fail(std::io::Error::other(format!("a manifest has at most {MOST_BYTES} bytes"))));
    }
    let name = quoted_path(path);
    let wrong = |line, problem| BuildError::Line { file: name.clone(), line, problem };
    let entries = parse(&text).map_err(|(line, problem)| wrong(line, problem))?;
    drop(text);
    stores.finish()?;
    let names = KnownOwners::of(tree, stores, options.below.as_ref())?;
    let mut manifest = Manifest { is_first: tree.is_blank(), host: None, names };
    for entry in &entries {
        manifest.apply(tree, stores, entry).map_err(|problem| match problem {
            Problem::Of(problem) => wrong(entry.line, problem),
            Problem::Build(error) => error,
        })?;
    }
    notes.extend(manifest.names.note());
    Ok(())
}

/// Why a line cannot be applied.
enum Problem {
    Of(String),
    Build(BuildError),
}

impl From<String> for Problem {
    fn from(problem: String) -> Self {
        Self::Of(problem)
    }
}

impl From<BuildError> for Problem {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

struct Manifest {
    /// Whether no source precedes the manifest.
    is_first: bool,
    /// The host's root directory as a store, once a file of the host is needed.
    host: Option<u16>,
    names: KnownOwners,
}

impl Manifest {
    fn apply(&mut self, tree: &mut Tree, stores: &mut Stores, entry: &Entry) -> Result<(), Problem> {
        let keys = &entry.keys;
        let shown = || format!("/{}", quote(&entry.path));
        let there = tree_paths::find(tree, &entry.path)?;
        if keys.nochange {
            return match there {
                Some(_) => Ok(()),
                None if keys.optional => Ok(()),
                None => Err(format!("there is no {}", shown()).into()),
            };
        }
        let old = there.map(|node| tree.node(node).kind);
        let Some(kind) = keys.kind.or(old) else {
            return Err(format!("there is no {}, and no type= to make one", shown()).into());
        };
        if old.is_some_and(|old| (old == Kind::Directory) != (kind == Kind::Directory)) {
            let what = if kind == Kind::Directory { "no directory" } else { "a directory" };
            return Err(format!("{} is {what} in the sources before", shown()).into());
        }
        let is_kept = old == Some(kind)
            && match kind {
                Kind::Directory | Kind::Fifo | Kind::Socket => true,
                Kind::File => keys.contents.is_none(),
                Kind::Symlink => keys.link.is_none(),
                Kind::CharDevice | Kind::BlockDevice => keys.device.is_none(),
            };
        let meta = self.meta(tree, there, kind, entry)?;
        if let Some(node) = there.filter(|_| is_kept) {
            if keys.time.is_some() {
                tree.retime(node, meta.mtime);
            }
            let was_implied = tree.node(node).implied && keys.time.is_none();
            tree.set_meta(node, meta);
            tree.node_mut(node).implied = was_implied;
            return Ok(());
        }
        let (above, name) =
            tree_paths::split(&entry.path).ok_or_else(|| "the root is a directory".to_string())?;
        if kind == Kind::Directory {
            let dir = tree_paths::directory_or_make(tree, &above)?;
            tree.put_directory(dir, &name, meta)?;
            return Ok(());
        }
        // Find errors before anything is replaced.
        let Some(made) = self.made(stores, kind, entry)? else { return Ok(()) };
        let dir = tree_paths::directory_or_make(tree, &above)?;
        match made {
            Made::Link => {
                tree.put_symlink(dir, &name, meta, keys.link.as_deref().unwrap_or_default())?;
            }
            Made::File { host, path, size, time } => {
                let payload = if size == 0 { Payload::None } else { tree.host_at(host, path) };
                let node = tree.put(dir, &name, kind, Meta { mtime: time, ..meta }, payload, size, None)?;
                if let Some(wanted) = keys.time {
                    tree.retime(node, wanted);
                }
            }
            Made::Node(payload) => {
                tree.put(dir, &name, kind, meta, payload, 0, None)?;
            }
        }
        Ok(())
    }

    /// Returns a file's attributes: those in the manifest, or else the ones that the file already
    /// has.
    fn meta(
        &mut self,
        tree: &Tree,
        there: Option<NodeId>,
        kind: Kind,
        entry: &Entry,
    ) -> Result<Meta, Problem> {
        let keys = &entry.keys;
        let old = there.map(|node| tree.node(node));
        let of_kind = match kind {
            Kind::Directory => 0o755,
            Kind::Symlink => 0o777,
            _ => 0o644,
        };
        let mode = keys.mode.or(old.map(|node| node.mode)).unwrap_or(of_kind);
        let uid = match (keys.uid, &keys.uname) {
            (Some(uid), _) => Some(uid),
            (None, Some(name)) => Some(self.names.number_of(NameOf::User, name)?),
            (None, None) => old.map(|node| node.uid),
        };
        let gid = match (keys.gid, &keys.gname) {
            (Some(gid), _) => Some(gid),
            (None, Some(name)) => Some(self.names.number_of(NameOf::Group, name)?),
            (None, None) => old.map(|node| node.gid),
        };
        let mtime = keys.time.or(old.map(|node| node.mtime)).unwrap_or_default();
        let xattrs = old.map_or(XattrSetId::EMPTY, |node| node.xattrs);
        // Linux does not change the mode of a symbolic link.
        let mode = if kind == Kind::Symlink { 0o777 } else { mode };
        Ok(Meta { mode, uid: uid.unwrap_or(0), gid: gid.unwrap_or(0), mtime, xattrs })
    }

    /// Returns what an entry creates; `None` for an optional file that does not exist.
    fn made(&mut self, stores: &mut Stores, kind: Kind, entry: &Entry) -> Result<Option<Made>, Problem> {
        let keys = &entry.keys;
        Ok(Some(match kind {
            Kind::Symlink if keys.link.as_ref().is_none_or(Vec::is_empty) => {
                return Err("a link needs link=TARGET".to_string().into());
            }
            Kind::Symlink => Made::Link,
            Kind::CharDevice | Kind::BlockDevice => match keys.device {
                Some((major, minor)) => Made::Node(Payload::Device { major, minor }),
                None => return Err("a device needs device=native,MAJOR,MINOR".to_string().into()),
            },
            Kind::Fifo | Kind::Socket => Made::Node(Payload::None),
            Kind::Directory => unreachable!("directories are made before"),
            Kind::File => {
                let shown = quote(&entry.path);
                let from = match &keys.contents {
                    Some(contents) => PathBuf::from(OsStr::from_bytes(contents)),
                    None if self.is_first => PathBuf::from(OsStr::from_bytes(&entry.path)),
                    None if keys.optional => return Ok(None),
                    None => {
                        return Err(
                            format!("there is no /{shown} in the sources before, and no contents=").into()
                        );
                    }
                };
                let failed = |error: std::io::Error| format!("{}: {error}", quoted_path(&from));
                let whole = match from.canonicalize() {
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound && keys.optional => {
                        return Ok(None);
                    }
                    whole => whole.map_err(failed)?,
                };
                let found = whole.metadata().map_err(failed)?;
                if !found.is_file() {
                    return Err(format!("{} is no regular file", quoted_path(&from)).into());
                }
                if let Some(size) = keys.size.filter(|size| *size != found.len()) {
                    let len = found.len();
                    return Err(format!("{} has {len} bytes, not {size}", quoted_path(&from)).into());
                }
                let host = match self.host {
                    Some(host) => host,
                    None => *self.host.insert(stores.add_root(Path::new("/"))?),
                };
                let nanos = u32::try_from(found.mtime_nsec()).unwrap_or(0);
                let time = Timestamp { seconds: found.mtime(), nanos };
                Made::File { host, path: whole.as_os_str().as_bytes().to_vec(), size: found.len(), time }
            }
        }))
    }
}

/// What an entry creates.
enum Made {
    Link,
    /// A file with the contents of a file of the host.
    File {
        host: u16,
        path: Vec<u8>,
        size: u64,
        time: Timestamp,
    },
    Node(Payload),
}
