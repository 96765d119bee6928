//! Reading a volume. One that is open for writing is read as it was changed last.

use super::Volume;
use crate::alloc::Layout;
use crate::names::{Want, check_stored};
use crate::{
    Attribute, Caller, DirItem, DirReader, Dump, File, FileOptions, FileStream, Follow, Result, Runs, Walk,
    WalkOptions,
};
use extant_block::Device;
use extant_format::{FileKind, Group, GroupDescriptor, Inode, InodeNumber, Superblock, VolumeBlock};
use std::ops::Range;
use std::sync::Arc;

impl Volume {
    /// The superblock, as the journal leaves it.
    pub fn superblock(&self) -> &Superblock {
        self.view.superblock()
    }

    /// The device that the volume lies on.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.view.device()
    }

    /// The descriptor of a group.
    ///
    /// # Errors
    /// A group that the volume does not have; a damaged descriptor.
    pub async fn group(&self, group: Group) -> Result<GroupDescriptor> {
        self.view.group(group).await
    }

    /// Reads an inode; one in use on a volume that is open for writing is as it was changed last. Of a free inode,
    /// the bytes on the disk are decoded.
    pub async fn inode(&self, number: InodeNumber) -> Result<Inode> {
        self.view.inode(number).await
    }

    /// The root directory.
    ///
    /// # Errors
    /// Damage of its inode is named: without it, everything below would be missing without a word.
    pub async fn root(&self) -> Result<Inode> {
        self.view.root().await
    }

    /// Brings the blocks of these inodes into the cache, many reads at a time.
    pub async fn prefetch_inodes(&self, numbers: &[InodeNumber]) {
        self.view.prefetch_inodes(numbers).await;
    }

    /// The runs of a file or directory whose contents are in blocks, up to its size.
    pub fn runs(&self, inode: &Inode) -> Runs {
        self.view.runs(inode)
    }

    /// The runs of everything that an inode maps, behind its size, too, up to the last block that a map can address. The inode
    /// must have a map.
    pub fn mapped_runs(&self, inode: &Inode) -> Runs {
        self.view.mapped_runs(inode)
    }

    /// The blocks that an inode's map has: those of its contents, whatever the inode's size, and the nodes of the map. The inode
    /// must have a map, or its contents in itself.
    ///
    /// # Errors
    /// A damaged map.
    pub async fn blocks_of(&self, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
        self.view.blocks_of(inode).await
    }

    /// The blocks of the volume's own structures, in order: superblocks, group descriptors, bitmaps and inode tables, and what is
    /// reserved for more descriptors.
    ///
    /// # Errors
    /// A damaged descriptor; bitmaps or tables that share blocks.
    pub async fn own_structures(&self) -> Result<Vec<Range<VolumeBlock>>> {
        let sb = self.superblock();
        let mut descriptors = Vec::with_capacity(sb.group_count() as usize);
        for group in (0..sb.group_count()).map(Group) {
            descriptors.push(self.view.group(group).await?);
        }
        Ok(Layout::new(sb, &descriptors, Vec::new())?.into_ranges())
    }

    /// Checks that a look-up finds every name of a directory with a hash tree.
    ///
    /// # Errors
    /// Names that lie where their hashes do not lead, and other damage of the tree.
    pub async fn check_names(&self, dir: &Inode) -> Result<()> {
        self.view.check_names(dir).await
    }

    /// Begins to read a directory.
    ///
    /// # Errors
    /// [`Error::NotADirectory`](crate::Error::NotADirectory); a directory in its inode that is damaged.
    pub async fn read_dir(&self, dir: &Inode) -> Result<DirReader> {
        self.view.read_dir(dir).await
    }

    /// Brings the first blocks of these directories into the cache, many reads at a time.
    pub async fn prefetch_dirs(&self, numbers: &[InodeNumber]) {
        self.view.prefetch_dirs(numbers).await;
    }

    /// All names of a directory but `.` and `..`, in the order they are stored.
    pub async fn list(&self, dir: &Inode) -> Result<Vec<DirItem>> {
        self.view.list(dir).await
    }

    /// The inode of a name in a directory, `.` and `..` among them.
    pub async fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<InodeNumber>> {
        self.view.lookup(dir, name).await
    }

    /// The inode that an absolute path names, as `path_resolution(7)` has it: `..` goes up, never above the root; every
    /// component but the last leads to a directory, and so does one before a final slash.
    pub async fn resolve(&self, path: &[u8], follow: Follow) -> Result<Inode> {
        self.view.resolve(path, follow).await
    }

    /// Begins a walk below a directory.
    ///
    /// # Errors
    /// [`Error::NotADirectory`](crate::Error::NotADirectory).
    pub async fn walk(&self, dir: &Inode, options: WalkOptions) -> Result<Walk> {
        Walk::new(&self.view, dir, options)
    }

    /// All attributes of an inode, sorted by name; those that Linux keeps to itself (inline data, encryption) left out.
    pub async fn xattrs(&self, inode: &Inode) -> Result<Vec<Attribute>> {
        self.view.xattrs(inode).await
    }

    /// Whether `caller` may read (4) and search or execute (1) an inode as it is stored: the bits of `want`, as in access(2). For
    /// volumes that are open for reading; [`Node::check_access`](crate::Node::check_access) is for others.
    ///
    /// # Errors
    /// [`Error::Access`](crate::Error::Access); attributes that are damaged or cannot be read.
    pub async fn check_access(&self, caller: &Caller, inode: &Inode, want: u8) -> Result<()> {
        check_stored(&self.view, caller, inode, Want::from_bits(want)).await
    }

    /// Opens a regular file (or anything whose contents are mapped) for reading.
    ///
    /// # Errors
    /// [`Error::Encrypted`](crate::Error::Encrypted) where only ciphertext could be had.
    pub async fn open_file(&self, inode: Inode) -> Result<File> {
        let (number, kind) = (inode.number, inode.kind());
        let file = File::stored(&self.view, inode)?;
        if kind != Some(FileKind::Regular) {
            return Ok(file);
        }
        match (self.namespace(), &self.stored) {
            (Some(namespace), _) => Ok(file.with_live(namespace.open(number, FileOptions::default()).await?)),
            (None, Some(stored)) => Ok(file.through(stored)),
            (None, None) => Ok(file),
        }
    }

    /// Reads a regular file from start to end, sparse ranges told apart, several reads at a time. On a volume that is open for
    /// writing, the stream is as long as the file is now, and each piece is as the file is when it is read.
    pub async fn stream(&self, inode: Inode) -> Result<FileStream> {
        let (number, kind) = (inode.number, inode.kind());
        let stream = FileStream::stored(&self.view, inode)?;
        match self.namespace() {
            Some(namespace) if kind == Some(FileKind::Regular) => {
                Ok(stream.with_live(namespace.open(number, FileOptions::default()).await?))
            }
            _ => Ok(stream),
        }
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.view.read_link(inode).await
    }

    /// A structure as text. A damaged part is printed as its error, in place.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a number beyond the volume and for a journal or tree that it does not
    /// have, [`Error::NotADirectory`](crate::Error::NotADirectory) for an inode that is none.
    pub async fn dump(&self, what: Dump) -> Result<String> {
        self.view.dump(what).await
    }
}
