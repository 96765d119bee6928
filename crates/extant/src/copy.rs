//! Copies of whole trees from one volume to another.

use crate::{AclKind, Dir, Error, FileOptions, FileType, Metadata, Result, Special, XattrMode};
use std::collections::BTreeMap;

/// Bytes read at a time; a piece that holds zeroes only becomes a hole.
const PIECE_BYTES: usize = 64 << 10;

/// Lays everything in `from` over `to`: directories are merged, other files replace those of their names. Modes, owners,
/// times, extended attributes and hard links come along; runs of zeroes become holes.
///
/// # Errors
/// A file of `from` cannot be read, or not be made in `to`; a file and a directory have the same name. The files copied
/// before stay. `to` is `from`, or a directory below it.
pub fn copy_tree(from: &Dir, to: &Dir) -> Result<()> {
    if from.asynch().sys.is_same(&to.asynch().sys) {
        refuse_below(from, to)?;
    }
    let mut copy = Copy { from, to, links: BTreeMap::new(), piece: vec![0; PIECE_BYTES] };
    let root = from.metadata(".")?;
    // Directories get their times last: filling them changes those.
    let mut dirs = vec![(b".".to_vec(), root)];
    let mut todo = vec![b".".to_vec()];
    copy.attributes(b".", &root)?;
    while let Some(path) = todo.pop() {
        let mut entries = from.open_dir(&path)?.entries()?;
        entries.sort_by(|a, b| b.name.cmp(&a.name));
        let mut below = Vec::new();
        for entry in entries {
            let path = join(&path, &entry.name);
            let metadata = from.symlink_metadata(&path)?;
            if metadata.is_dir() {
                copy.dir(&path, &metadata)?;
                dirs.push((path.clone(), metadata));
                below.push(path);
            } else {
                copy.file(&path, &metadata)?;
            }
        }
        todo.extend(below);
    }
    dirs.iter().rev().try_for_each(|(path, metadata)| {
        if let Some(inherited) = from.acl(path, AclKind::Default)? {
            to.set_acl(path, AclKind::Default, Some(&inherited))?;
        }
        copy.times(path, metadata)
    })
}

/// Fails where `to` is `from` or lies below it.
fn refuse_below(from: &Dir, to: &Dir) -> Result<()> {
    let source = from.metadata(".")?.inode();
    let mut here = to.clone();
    loop {
        let (own, parent) = (here.metadata(".")?.inode(), here.metadata("..")?.inode());
        if own == source {
            return Err(Error::Invalid("a directory cannot be copied into itself".into()));
        }
        if parent == own {
            return Ok(());
        }
        here = here.open_dir("..")?;
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = if dir == b"." { Vec::new() } else { [dir, b"/"].concat() };
    path.extend_from_slice(name);
    path
}

struct Copy<'a> {
    from: &'a Dir,
    to: &'a Dir,
    /// The first path of each inode with several names.
    links: BTreeMap<u32, Vec<u8>>,
    piece: Vec<u8>,
}

impl Copy<'_> {
    fn dir(&self, path: &[u8], metadata: &Metadata) -> Result<()> {
        match self.to.create_dir_with(path, metadata.mode() & 0o777) {
            Err(Error::Exists(_)) if self.to.symlink_metadata(path)?.is_dir() => {}
            other => other?,
        }
        self.attributes(path, metadata)
    }

    fn file(&mut self, path: &[u8], metadata: &Metadata) -> Result<()> {
        match self.to.remove_file(path) {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => return Err(error),
        }
        if metadata.links() > 1 {
            if let Some(first) = self.links.get(&metadata.inode().0) {
                return self.to.hard_link(first, path);
            }
            self.links.insert(metadata.inode().0, path.to_vec());
        }
        let device = metadata.device().unwrap_or_default();
        let special = match metadata.file_type() {
            FileType::File => {
                self.contents(path)?;
                None
            }
            FileType::Symlink => {
                self.to.symlink(self.from.read_link(path)?, path)?;
                None
            }
            FileType::Fifo => Some(Special::Fifo),
            FileType::Socket => Some(Special::Socket),
            FileType::CharDevice => Some(Special::Char(device.0, device.1)),
            FileType::BlockDevice => Some(Special::Block(device.0, device.1)),
            FileType::Dir => unreachable!("directories are merged"),
        };
        if let Some(special) = special {
            self.to.create_special(path, special, metadata.mode())?;
        }
        self.attributes(path, metadata)?;
        self.times(path, metadata)
    }

    fn contents(&mut self, path: &[u8]) -> Result<()> {
        let from = self.from.open(path)?;
        let to = self.to.open_with(path, FileOptions::new().write(true).create_new(true).mode(0o600))?;
        let mut at = 0;
        while at < from.len() {
            let n = from.read_at(at, &mut self.piece)?;
            if n == 0 {
                break;
            }
            let piece = &self.piece[..n];
            if piece.iter().any(|&byte| byte != 0) {
                to.write_all_at(at, piece)?;
            }
            at += n as u64;
        }
        if to.len() < from.len() {
            to.set_len(from.len())?;
        }
        to.write_back()
    }

    /// Owner, extended attributes and mode. A change of owner takes set-ID bits away, so the mode comes after it.
    fn attributes(&self, path: &[u8], metadata: &Metadata) -> Result<()> {
        self.to.set_owner(path, Some(metadata.uid()), Some(metadata.gid()))?;
        // A new file inherits from its directory's list, which is not the source's. Default lists are copied last, so that a
        // directory has none while it is filled.
        let names = self.from.xattrs(path)?;
        for kind in [AclKind::Access, AclKind::Default] {
            let name = kind.attribute();
            if metadata.file_type() != FileType::Symlink && !names.iter().any(|n| n == name) {
                match self.to.remove_xattr(path, name) {
                    Ok(()) | Err(Error::NoData(_) | Error::NotSupported(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for name in names.into_iter().filter(|name| name != AclKind::Default.attribute()) {
            let value = self.from.xattr(path, &name)?;
            self.to.set_xattr(path, &name, value, XattrMode::Any)?;
        }
        match metadata.file_type() {
            FileType::Symlink => Ok(()),
            _ => self.to.set_mode(path, metadata.mode()),
        }
    }

    fn times(&self, path: &[u8], metadata: &Metadata) -> Result<()> {
        self.to.set_times(path, Some(metadata.accessed()), Some(metadata.modified()))
    }
}
