//! Copies of whole trees from one volume to another.

use crate::asynch::Visited;
use crate::{
    AclKind, Dir, Error, FileOptions, FileType, Inode, Metadata, NewFile, Result, Special, XattrMode,
};
use extant_format::UintExt;
use extant_fs::quote;
use std::collections::BTreeMap;

/// Bytes read at a time.
const PIECE_BYTES: usize = 64 << 10;

/// Copies everything in `from` into `to`: directories are merged, other files replace those of the
/// same name.
///
/// Modes, owners, times, extended attributes, hard links and holes are kept. A file gets its name
/// once it is complete: until then, and after an error or a power cut, the name refers to the old
/// file.
///
/// # Errors
/// A file of `from` cannot be read, or cannot be created in `to`; a name is a file in one and a
/// directory in the other. Files already copied stay. `to` is `from`, or a directory below it.
pub fn copy_tree(from: &Dir, to: &Dir) -> Result<()> {
    if from.asynch().sys.is_same(&to.asynch().sys) {
        refuse_below(from, to)?;
    }
    let mut copy = Copy { from, to, links: BTreeMap::new(), piece: vec![0; PIECE_BYTES] };
    let root = from.metadata(".")?;
    // Directories get their times last, because filling them changes those.
    let mut dirs = vec![(b".".to_vec(), root)];
    let mut todo = vec![b".".to_vec()];
    let mut visited = Visited::default();
    visited.enter(root.inode())?;
    copy.attributes(b".", &to.inode(b".")?, &root)?;
    while let Some(path) = todo.pop() {
        let mut entries = from.open_dir(&path)?.entries()?;
        entries.sort_by(|a, b| b.name.cmp(&a.name));
        let mut below = Vec::new();
        for entry in entries {
            let path = join(&path, &entry.name);
            let metadata = from.symlink_metadata(&path)?;
            if metadata.is_dir() {
                visited.enter(metadata.inode())?;
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
        to.inode(path)?.set_times(Some(metadata.accessed()), Some(metadata.modified()))
    })
}

/// Fails if `to` is `from` or lies below it.
fn refuse_below(from: &Dir, to: &Dir) -> Result<()> {
    let source = from.metadata(".")?.inode();
    let (mut here, mut visited) = (to.clone(), Visited::default());
    loop {
        let (own, parent) = (here.metadata(".")?.inode(), here.metadata("..")?.inode());
        if own == source {
            return Err(Error::Invalid("a directory cannot be copied into itself".into()));
        }
        if parent == own {
            return Ok(());
        }
        visited.enter(own)?;
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
    /// The first path of each inode that has several names.
    links: BTreeMap<u32, Vec<u8>>,
    piece: Vec<u8>,
}

impl Copy<'_> {
    fn dir(&self, path: &[u8], metadata: &Metadata) -> Result<()> {
        match self.to.create_dir_with(path, metadata.mode() & 0o777) {
            Err(Error::Exists(_)) if self.to.symlink_metadata(path)?.is_dir() => {}
            other => other?,
        }
        self.attributes(path, &self.to.inode(path)?, metadata)
    }

    fn file(&mut self, path: &[u8], metadata: &Metadata) -> Result<()> {
        if let Ok(found) = self.to.symlink_metadata(path)
            && found.is_dir()
        {
            return Err(Error::IsADirectory(quote(path)));
        }
        if let Some(first) = self.links.get(&metadata.inode().0) {
            return self.to.inode(first)?.link_over(self.to, path);
        }
        let target;
        let device = metadata.device().unwrap_or_default();
        let new = match metadata.file_type() {
            FileType::File => NewFile::Regular,
            FileType::Symlink => {
                target = self.from.read_link(path)?;
                NewFile::Symlink(&target)
            }
            FileType::Fifo => NewFile::Special(Special::Fifo),
            FileType::Socket => NewFile::Special(Special::Socket),
            FileType::CharDevice => NewFile::Special(Special::Char(device.0, device.1)),
            FileType::BlockDevice => NewFile::Special(Special::Block(device.0, device.1)),
            FileType::Dir => unreachable!("directories are merged"),
        };
        let dir = path.iter().rposition(|&byte| byte == b'/').map_or(&b"."[..], |slash| &path[..slash]);
        let made = self.to.unnamed(dir, new, 0o600)?;
        if new == NewFile::Regular {
            self.contents(path, &made)?;
        }
        self.attributes(path, &made, metadata)?;
        made.set_times(Some(metadata.accessed()), Some(metadata.modified()))?;
        made.link_over(self.to, path)?;
        if metadata.links() > 1 {
            self.links.insert(metadata.inode().0, path.to_vec());
        }
        Ok(())
    }

    fn contents(&mut self, path: &[u8], made: &Inode) -> Result<()> {
        let from = self.from.open(path)?;
        let to = made.open(FileOptions::new().write(true))?;
        let mut end = 0;
        while let Some(mut at) = from.seek_data(end)? {
            end = from.seek_hole(at)?.unwrap_or(from.len());
            while at < end {
                let wanted = PIECE_BYTES.min((end - at).to_usize());
                let n = from.read_at(at, &mut self.piece[..wanted])?;
                if n == 0 {
                    end = from.len();
                    break;
                }
                to.write_all_at(at, &self.piece[..n])?;
                at += n.to_u64();
            }
        }
        if to.len() < from.len() {
            to.set_len(from.len())?;
        }
        to.write_back()
    }

    /// Copies owner, extended attributes and mode. Changing the owner clears the set-ID bits, so
    /// the mode comes after it.
    fn attributes(&self, path: &[u8], made: &Inode, metadata: &Metadata) -> Result<()> {
        made.set_owner(Some(metadata.uid()), Some(metadata.gid()))?;
        // A new file inherits its directory's default list, which the source may not have. Default
        // lists are copied last, so a directory has none while it is being filled.
        let names = self.from.xattrs(path)?;
        for kind in [AclKind::Access, AclKind::Default] {
            let name = kind.attribute();
            if metadata.file_type() != FileType::Symlink && !names.iter().any(|n| n == name) {
                match made.remove_xattr(name) {
                    Ok(()) | Err(Error::NoData(_) | Error::NotSupported(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        for name in names.into_iter().filter(|name| name != AclKind::Default.attribute()) {
            let value = self.from.xattr(path, &name)?;
            made.set_xattr(&name, value, XattrMode::Any)?;
        }
        match metadata.file_type() {
            FileType::Symlink => Ok(()),
            _ => made.set_mode(metadata.mode()),
        }
    }
}
