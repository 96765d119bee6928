//! Reading a volume. On one open for writing, reads see the latest changes.

use super::Volume;
use crate::alloc::Layout;
use crate::names::{Want, check_stored};
use crate::{
    Attribute, BlockRef, Caller, DescriptorSource, DirItem, DirReader, Dump, File, FileOptions, FileStream,
    Follow, OldCopy, Result, Runs, Walk, WalkOptions,
};
use extant_block::Device;
use extant_format::{FileKind, Group, GroupDescriptor, Inode, InodeNumber, Superblock, UintExt, VolumeBlock};
use std::ops::Range;
use std::sync::Arc;

impl Volume {
    /// The superblock, as the journal leaves it.
    pub fn superblock(&self) -> &Superblock {
        self.view.superblock()
    }

    /// The device that the volume is on.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.view.device()
    }

    /// The descriptor of a group.
    ///
    /// # Errors
    /// The group does not exist; a damaged descriptor.
    pub async fn group(&self, group: Group) -> Result<GroupDescriptor> {
        self.view.group(group).await
    }

    /// Where a group's descriptor is sound. Only the first was kept up to date by everything that
    /// changed the volume.
    pub async fn descriptor_source(&self, group: Group) -> DescriptorSource {
        self.view.descriptor_source(group).await
    }

    /// The block that a group's descriptor is read from first, and its byte offset in it.
    pub fn descriptor_place(&self, group: Group) -> (VolumeBlock, usize) {
        self.view.descriptor_place(group)
    }

    /// All versions of blocks that the journal's log still holds, the newest first, also of
    /// transactions that have long been written home. Empty without an internal journal.
    ///
    /// # Errors
    /// The journal cannot be opened.
    pub async fn journal_history(&self) -> Result<Vec<OldCopy>> {
        crate::recovery::history(&self.view).await
    }

    /// Reads a block of the volume, as the journal leaves it.
    ///
    /// # Errors
    /// It cannot be read, or lies outside the device.
    pub async fn block(&self, at: VolumeBlock) -> Result<BlockRef> {
        self.view.buffers().block(at).await
    }

    /// Reads an inode. On a volume open for writing, an inode in use is returned with its latest
    /// changes. For a free inode, decodes the bytes on disk.
    ///
    /// # Errors
    /// A number that the volume does not have, or an inode that is corrupt or cannot be read.
    pub async fn inode(&self, number: InodeNumber) -> Result<Inode> {
        self.view.inode(number).await
    }

    /// Reads the root directory's inode.
    ///
    /// # Errors
    /// A damaged root inode is always an error: without it, everything below would silently be
    /// missing.
    pub async fn root(&self) -> Result<Inode> {
        self.view.root().await
    }

    /// Loads the blocks of these inodes into the cache, many at a time.
    pub async fn prefetch_inodes(&self, numbers: &[InodeNumber]) {
        self.view.prefetch_inodes(numbers).await;
    }

    /// The extents of a file or directory whose contents are in blocks, up to its size.
    pub fn runs(&self, inode: &Inode) -> Runs {
        self.view.runs(inode)
    }

    /// The extents of everything that an inode maps, including past its size, up to the last block
    /// that a map can address. The inode must have a map.
    pub fn mapped_runs(&self, inode: &Inode) -> Runs {
        self.view.mapped_runs(inode)
    }

    /// The blocks in an inode's map: its contents, including past its size, and the map's nodes.
    /// The inode must have a map or inline contents.
    ///
    /// # Errors
    /// A damaged map.
    pub async fn blocks_of(&self, inode: &Inode) -> Result<Vec<Range<VolumeBlock>>> {
        self.view.blocks_of(inode).await
    }

    /// The blocks of the volume's own structures, in order: superblocks, group descriptors,
    /// bitmaps, inode tables, and blocks reserved for more descriptors.
    ///
    /// # Errors
    /// A damaged descriptor; bitmaps or tables that share blocks.
    pub async fn own_structures(&self) -> Result<Vec<Range<VolumeBlock>>> {
        let sb = self.superblock();
        let mut descriptors = Vec::with_capacity(sb.group_count().to_usize());
        for group in (0..sb.group_count()).map(Group) {
            descriptors.push(self.view.group(group).await?);
        }
        Ok(Layout::new(sb, &descriptors, Vec::new())?.into_ranges())
    }

    /// Checks that lookups can find every name in a directory with a hash tree.
    ///
    /// # Errors
    /// Names in leaves that their hashes do not lead to, and other damage to the tree.
    pub async fn check_names(&self, dir: &Inode) -> Result<()> {
        self.view.check_names(dir).await
    }

    /// Begins reading a directory.
    ///
    /// # Errors
    /// [`Error::NotADirectory`](crate::Error::NotADirectory); a damaged inline directory.
    pub async fn read_dir(&self, dir: &Inode) -> Result<DirReader> {
        self.view.read_dir(dir).await
    }

    /// Loads the first blocks of these directories into the cache, many at a time.
    pub async fn prefetch_dirs(&self, numbers: &[InodeNumber]) {
        self.view.prefetch_dirs(numbers).await;
    }

    /// Returns all names of a directory except `.` and `..`, in storage order.
    ///
    /// # Errors
    /// Not a directory, or one that is corrupt or cannot be read.
    pub async fn list(&self, dir: &Inode) -> Result<Vec<DirItem>> {
        self.view.list(dir).await
    }

    /// Looks up a name in a directory, including `.` and `..`.
    ///
    /// # Errors
    /// As [`Self::list`]. A name that does not exist is `None`.
    pub async fn lookup(&self, dir: &Inode, name: &[u8]) -> Result<Option<InodeNumber>> {
        let Some(stored) = &self.stored else { return self.view.lookup(dir, name).await };
        if let Some(known) = stored.names.get(dir.number, name) {
            return Ok(Some(known));
        }
        let found = self.view.lookup(dir, name).await?;
        if let Some(inode) = found {
            stored.names.add(dir.number, name, inode);
        }
        Ok(found)
    }

    /// Resolves an absolute path as `path_resolution(7)` describes. `..` never goes above the root.
    /// Every component but the last must be a directory, and so must the last before a trailing
    /// slash.
    ///
    /// # Errors
    /// [`Error::NotFound`](crate::Error::NotFound),
    /// [`Error::NotADirectory`](crate::Error::NotADirectory), [`Error::Loop`](crate::Error::Loop),
    /// or a directory that is corrupt or cannot be read.
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

    /// Returns all attributes of an inode, sorted by name, except those that Linux keeps to itself
    /// (inline data, encryption).
    ///
    /// # Errors
    /// Attributes that are corrupt or cannot be read.
    pub async fn xattrs(&self, inode: &Inode) -> Result<Vec<Attribute>> {
        self.view.xattrs(inode).await
    }

    /// Checks whether `caller` may read (4) and search or execute (1) an inode as stored. `want`
    /// has these bits, as in access(2). For read-only volumes; for others use
    /// [`Node::check_access`](crate::Node::check_access).
    ///
    /// # Errors
    /// [`Error::Access`](crate::Error::Access); attributes that are damaged or cannot be read.
    pub async fn check_access(&self, caller: &Caller, inode: &Inode, want: u8) -> Result<()> {
        check_stored(&self.view, caller, inode, Want::from_bits(want), self.ignores_acls).await
    }

    /// Opens a regular file (or anything whose contents are mapped) for reading.
    ///
    /// # Errors
    /// [`Error::Encrypted`](crate::Error::Encrypted) if only ciphertext is available.
    pub async fn open_file(&self, inode: Inode) -> Result<File> {
        let (number, kind) = (inode.number, inode.kind());
        let file = File::stored(&self.view, inode)?;
        if kind != Some(FileKind::Regular) {
            return Ok(file);
        }
        match (self.namespace(), &self.stored) {
            (Some(namespace), _) => Ok(file.with_live(namespace.open(number, FileOptions::default()).await?)),
            (None, Some(stored)) => Ok(file.through(&stored.files)),
            (None, None) => Ok(file),
        }
    }

    /// Reads a regular file from start to end with several reads in flight, reporting sparse ranges
    /// as such. On a volume open for writing, the stream ends at the file's current size, and each
    /// chunk has the contents at the time it is read.
    ///
    /// # Errors
    /// [`Error::Encrypted`](crate::Error::Encrypted), a size that no file can have, or, on a volume
    /// open for writing, an inode that is corrupt or cannot be read.
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

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// Not a symbolic link, or a target that is encrypted, corrupt or cannot be read.
    pub async fn read_link(&self, inode: &Inode) -> Result<Vec<u8>> {
        self.view.read_link(inode).await
    }

    /// Prints a structure as text. A damaged part is replaced by its error.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a number beyond the volume, or a journal or
    /// tree that does not exist; [`Error::NotADirectory`](crate::Error::NotADirectory) for an inode
    /// that is not a directory.
    pub async fn dump(&self, what: Dump) -> Result<String> {
        self.view.dump(what).await
    }
}
