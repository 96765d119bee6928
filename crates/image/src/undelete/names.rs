//! Names of deleted inodes, from older versions of directory blocks, and from the free space behind
//! present entries.

use super::deleted_inodes::{Deleted, bytes_of};
use super::unused_blocks::Space;
use extant_format::{
    DIRENT_HEADER_BYTES, DirEntries, FileBlock, FileKind, Incompat, InodeNumber, Superblock, UintExt,
    VolumeBlock, dirent_bytes, is_dx_block,
};
use extant_fs::{OldCopy, RunState, Volume, WalkOptions};
use std::collections::{BTreeMap, BTreeSet};

/// Age of names that are not in any version in the log.
const OLDEST: i32 = i32::MAX;

/// A name that an inode once had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) directory: InodeNumber,
    pub(super) name: Vec<u8>,
    kind: Option<FileKind>,
    age: i32,
}

/// Names of deleted inodes, and paths of directories.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Paths of existing directories.
    pub(super) paths: BTreeMap<InodeNumber, Vec<u8>>,
    /// Names that lead to deleted inodes, the newest first.
    of: BTreeMap<InodeNumber, Vec<Name>>,
    /// Names that now lead to an inode of the same number.
    present: BTreeSet<(InodeNumber, Vec<u8>)>,
    wanted: BTreeSet<InodeNumber>,
    /// Inodes that are known to have been used more than once. It is unknown which file had which
    /// of their names.
    reused: BTreeSet<InodeNumber>,
}

impl Names {
    /// Finds the names of `deleted` inodes.
    pub(super) async fn find(
        volume: &Volume,
        history: &[OldCopy],
        deleted: &[Deleted],
        space: &Space,
    ) -> Self {
        let mut names = Self::default();
        for deleted in deleted {
            if !names.wanted.insert(deleted.inode.number) {
                names.reused.insert(deleted.inode.number);
            }
        }
        names.paths.insert(InodeNumber::ROOT, Vec::new());
        names.walk(volume).await;
        // Which directory each block belongs to, and whether the directory exists.
        let mut owners: BTreeMap<VolumeBlock, (InodeNumber, bool)> = BTreeMap::new();
        for number in names.paths.keys() {
            let Ok(inode) = volume.inode(*number).await else { continue };
            for block in blocks(volume, &inode).await {
                owners.insert(block, (*number, true));
            }
        }
        for deleted in deleted.iter().filter(|deleted| deleted.inode.kind() == Some(FileKind::Directory)) {
            for block in blocks(volume, &deleted.inode).await {
                owners.entry(block).or_insert((deleted.inode.number, false));
            }
        }
        let sb = volume.superblock();
        for copy in history {
            if let Some((directory, _)) = owners.get(&copy.home)
                && let Some(bytes) = bytes_of(volume, copy).await
            {
                names.read(sb, *directory, &bytes, copy.age, true);
            }
        }
        for (block, (directory, is_there)) in &owners {
            if (*is_there || space.is_free(*block))
                && let Ok(bytes) = volume.block(*block).await
            {
                names.read(sb, *directory, &bytes, OLDEST, !is_there);
            }
        }
        for list in names.of.values_mut() {
            list.sort_by_key(|name| name.age);
        }
        names
    }

    /// Records the paths of all directories.
    async fn walk(&mut self, volume: &Volume) {
        let Ok(root) = volume.root().await else { return };
        let Ok(mut walk) = volume.walk(&root, WalkOptions::default()).await else { return };
        while let Some(next) = walk.next().await {
            let Ok(entry) = next else { continue };
            if entry.kind == Some(FileKind::Directory) {
                self.paths.insert(entry.number, walk.path().to_vec());
            }
            if self.wanted.contains(&entry.number) {
                self.reused.insert(entry.number);
                self.present.insert((entry.number, entry.name));
            }
        }
    }

    /// Records names in a version of a directory block: those in the free space behind entries, and
    /// with `all` also those of the entries.
    fn read(&mut self, sb: &Superblock, directory: InodeNumber, block: &[u8], age: i32, all: bool) {
        if is_dx_block(block) {
            return;
        }
        let has_types = sb.incompat().contains(Incompat::FILETYPE);
        let entries = DirEntries::new(block, has_types, sb.inodes_count(), directory, FileBlock(0));
        for entry in entries.flatten() {
            if all && entry.inode.0 != 0 {
                self.note(directory, entry.inode, entry.name, entry.kind, age);
            }
            // A removed entry is merged with the previous one; only the first entry of a block
            // stays, with inode number 0.
            let used = if entry.inode.0 == 0 { DIRENT_HEADER_BYTES } else { dirent_bytes(entry.name.len()) };
            let (mut at, end) = (entry.offset + used, entry.offset + entry.record_bytes);
            while at + DIRENT_HEADER_BYTES < end {
                match stale(&block[at..end], sb.inodes_count(), has_types) {
                    Some((inode, name, kind)) => {
                        self.note(directory, inode, name, kind, age);
                        at += dirent_bytes(name.len());
                    }
                    None => at += 4,
                }
            }
        }
    }

    fn note(
        &mut self,
        directory: InodeNumber,
        inode: InodeNumber,
        name: &[u8],
        kind: Option<FileKind>,
        age: i32,
    ) {
        let is_plain = !matches!(name, b"" | b"." | b"..") && !name.iter().any(|&b| b == b'/' || b == 0);
        if !is_plain || !self.wanted.contains(&inode) || self.present.contains(&(inode, name.to_vec())) {
            return;
        }
        let list = self.of.entry(inode).or_default();
        if !list.iter().any(|known| known.directory == directory && known.name == name && known.age == age) {
            list.push(Name { directory, name: name.to_vec(), kind, age });
        }
    }

    /// Takes the last name of a deleted inode, unless the name may belong to another file that used
    /// the inode before or after. Each name is taken only once.
    pub(super) fn take(&mut self, deleted: &Deleted) -> Option<Name> {
        if self.reused.contains(&deleted.inode.number) {
            return None;
        }
        let list = self.of.get_mut(&deleted.inode.number)?;
        let fits = |name: &Name| name.kind.is_none_or(|kind| deleted.inode.kind() == Some(kind));
        // If inodes with this number were deleted several times, names of the same age belong to
        // this one.
        let age = deleted.age.unwrap_or(OLDEST);
        let (n, _) = list
            .iter()
            .enumerate()
            .filter(|(_, name)| fits(name))
            .min_by_key(|(n, name)| ((i64::from(name.age) - i64::from(age)).abs(), *n))?;
        let taken = list[n].clone();
        list.retain(|name| (name.directory, &name.name) != (taken.directory, &taken.name));
        Some(taken)
    }
}

/// Blocks of a directory.
async fn blocks(volume: &Volume, inode: &extant_format::Inode) -> Vec<VolumeBlock> {
    let mut blocks = Vec::new();
    if inode.flags().contains(extant_format::InodeFlags::INLINE_DATA) {
        return blocks;
    }
    let mut runs = volume.runs(inode);
    loop {
        match runs.next().await {
            Ok(Some(run)) => {
                if let RunState::Written(first) = run.state {
                    blocks.extend((first.0..first.0 + run.blocks).map(VolumeBlock));
                }
            }
            Ok(None) => return blocks,
            Err(_) => {}
        }
    }
}

/// Parses an entry that was removed from a directory, but not overwritten.
fn stale(bytes: &[u8], inodes: u32, has_types: bool) -> Option<(InodeNumber, &[u8], Option<FileKind>)> {
    let inode = u32::from_le_bytes(*bytes.first_chunk()?);
    let record = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
    let len = bytes[6].to_usize();
    let kind = if has_types { FileKind::from_dirent(bytes[7]) } else { None };
    let is_one = (1..=inodes).contains(&inode)
        && len > 0
        && record >= dirent_bytes(len)
        && record.is_multiple_of(4)
        && (kind.is_some() || !has_types);
    let name = bytes.get(DIRENT_HEADER_BYTES..DIRENT_HEADER_BYTES + len)?;
    is_one.then_some((InodeNumber(inode), name, kind))
}
