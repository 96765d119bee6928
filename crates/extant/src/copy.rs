//! Copies of whole trees from one volume to another.

use crate::{AclKind, Dir, Error, FileOptions, FileType, Metadata, Result, Special, XattrMode};
use extant_fs::quote;
use std::collections::BTreeMap;

/// Bytes read at a time; a piece that holds zeroes only becomes a hole.
const PIECE_BYTES: usize = 64 << 10;

/// Lays everything in `from` over `to`: directories are merged, other files replace those of their names. Modes, owners,
/// times, extended attributes and hard links come along; runs of zeroes become holes. A file takes its name when it is whole:
/// until then, and after an error, the name keeps the file that it had.
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
    copy.attributes(b".", b".", &root)?;
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
        self.attributes(path, path, metadata)
    }

    fn file(&mut self, path: &[u8], metadata: &Metadata) -> Result<()> {
        let aside = match self.to.symlink_metadata(path) {
            Ok(found) if found.is_dir() => return Err(Error::IsADirectory(quote(path))),
            Ok(_) => Some(self.unused_beside(path)?),
            Err(Error::NotFound(_)) => None,
            Err(error) => return Err(error),
        };
        let place = aside.as_deref().unwrap_or(path);
        let placed = self.file_at(place, path, metadata).and_then(|()| match &aside {
            Some(aside) => self.to.rename(aside, path),
            None => Ok(()),
        });
        // A rename between two names of one inode changes nothing and leaves both (POSIX, rename).
        if aside.is_some() || placed.is_err() {
            match self.to.remove_file(place) {
                Ok(()) | Err(Error::NotFound(_)) => {}
                Err(error) => return placed.and(Err(error)),
            }
        }
        placed?;
        if metadata.links() > 1 {
            self.links.entry(metadata.inode().0).or_insert_with(|| path.to_vec());
        }
        Ok(())
    }

    /// A name beside `path` that nothing has.
    fn unused_beside(&self, path: &[u8]) -> Result<Vec<u8>> {
        let dir = &path[..path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1)];
        let mut n = 0_u32;
        loop {
            let name = [dir, format!(".copy-{n}~").as_bytes()].concat();
            match self.to.symlink_metadata(&name) {
                Err(Error::NotFound(_)) => return Ok(name),
                Err(error) => return Err(error),
                Ok(_) => n += 1,
            }
        }
    }

    /// Makes at `place`, a name that nothing has, what `path` is in the source.
    fn file_at(&mut self, place: &[u8], path: &[u8], metadata: &Metadata) -> Result<()> {
        if let Some(first) = self.links.get(&metadata.inode().0) {
            return self.to.hard_link(first, place);
        }
        let device = metadata.device().unwrap_or_default();
        let special = match metadata.file_type() {
            FileType::File => {
                self.contents(path, place)?;
                None
            }
            FileType::Symlink => {
                self.to.symlink(self.from.read_link(path)?, place)?;
                None
            }
            FileType::Fifo => Some(Special::Fifo),
            FileType::Socket => Some(Special::Socket),
            FileType::CharDevice => Some(Special::Char(device.0, device.1)),
            FileType::BlockDevice => Some(Special::Block(device.0, device.1)),
            FileType::Dir => unreachable!("directories are merged"),
        };
        if let Some(special) = special {
            self.to.create_special(place, special, metadata.mode())?;
        }
        self.attributes(path, place, metadata)?;
        self.times(place, metadata)
    }

    fn contents(&mut self, path: &[u8], place: &[u8]) -> Result<()> {
        let from = self.from.open(path)?;
        let to = self.to.open_with(place, FileOptions::new().write(true).create_new(true).mode(0o600))?;
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
    fn attributes(&self, path: &[u8], place: &[u8], metadata: &Metadata) -> Result<()> {
        self.to.set_owner(place, Some(metadata.uid()), Some(metadata.gid()))?;
        // A new file inherits from its directory's list, which is not the source's. Default lists are copied last, so that a
        // directory has none while it is filled.
        let names = self.from.xattrs(path)?;
        for kind in [AclKind::Access, AclKind::Default] {
            let name = kind.attribute();
            if metadata.file_type() != FileType::Symlink && !names.iter().any(|n| n == name) {
                match self.to.remove_xattr(place, name) {
                    Ok(()) | Err(Error::NoData(_) | Error::NotSupported(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for name in names.into_iter().filter(|name| name != AclKind::Default.attribute()) {
            let value = self.from.xattr(path, &name)?;
            self.to.set_xattr(place, &name, value, XattrMode::Any)?;
        }
        match metadata.file_type() {
            FileType::Symlink => Ok(()),
            _ => self.to.set_mode(place, metadata.mode()),
        }
    }

    fn times(&self, place: &[u8], metadata: &Metadata) -> Result<()> {
        self.to.set_times(place, Some(metadata.accessed()), Some(metadata.modified()))
    }
}
