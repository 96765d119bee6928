//! Exports a volume to a tar archive.

use super::file_contents::{self, Allowance, Sink};
use super::hard_links::Links;
use super::tar_header::{Contents, Entry, RECORD_BYTES, sparse_map};
use super::{ExportError, Exported, Loss, Watch};
use crate::Selection;
use extant_cache::ByteRange;
use extant_format::{FileKind, Inode, UintExt};
use extant_fs::{Attribute, FileStream, Volume, WalkOptions};
use std::io::{self, Write};
use tar::EntryType;

/// Writes everything below `top` as a tar archive, or `top` itself under `name` if it is not a
/// directory.
///
/// The format is POSIX.1-2001 (pax) with GNU tar's sparse files (1.0) and star's records for
/// extended attributes and access control lists, which GNU tar and libarchive read. Paths are
/// relative to `top`, which itself is `./`. Names within a directory are in byte order, and nothing
/// depends on when or where the export runs. Files that `selection` leaves out may be damaged.
///
/// # Errors
/// Only errors that end the whole export; others are reported to `watch`. A file's unreadable parts
/// are filled with zeros.
pub async fn to_tar(
    volume: &Volume,
    top: &Inode,
    name: &[u8],
    selection: &Selection,
    out: &mut dyn Write,
    watch: &mut dyn Watch,
) -> Result<Exported, ExportError> {
    super::check_top(top)?;
    let mut archive = Archive::new(volume, out, watch);
    match top.kind() {
        Some(FileKind::Directory) => archive.add_tree(b"", top, selection).await?,
        _ => archive.add(name, top).await?,
    }
    archive.finish()
}

/// Like [`to_tar`], but for several files and directories, each with its path in the archive.
/// `selection` and `watch` get these paths, too. A file below two of them will be in the archive
/// twice.
///
/// # Errors
/// The errors of [`to_tar`].
pub async fn to_tar_of(
    volume: &Volume,
    tops: &[(Vec<u8>, Inode)],
    selection: &Selection,
    out: &mut dyn Write,
    watch: &mut dyn Watch,
) -> Result<Exported, ExportError> {
    tops.iter().try_for_each(|(_, top)| super::check_top(top))?;
    let mut archive = Archive::new(volume, out, watch);
    for (path, top) in tops {
        match top.kind() {
            _ if !path.is_empty() && selection.leaves_out(path) => {}
            Some(FileKind::Directory) => archive.add_tree(path, top, selection).await?,
            _ => archive.add(path, top).await?,
        }
    }
    archive.finish()
}

/// An archive being written.
pub(super) struct Archive<'a> {
    pub(super) volume: Volume,
    out: &'a mut dyn Write,
    pub(super) watch: &'a mut dyn Watch,
    links: Links,
    allowance: Allowance,
    done: Exported,
}

impl<'a> Archive<'a> {
    /// Begins an archive of the files of `volume`.
    pub(super) fn new(volume: &Volume, out: &'a mut dyn Write, watch: &'a mut dyn Watch) -> Self {
        Self {
            volume: volume.clone(),
            out,
            watch,
            links: Links::default(),
            allowance: Allowance::of(volume),
            done: Exported::default(),
        }
    }

    /// Ends the archive with two empty records.
    pub(super) fn finish(self) -> Result<Exported, ExportError> {
        self.out.write_all(&[0; 2 * RECORD_BYTES])?;
        Ok(self.done)
    }

    /// Adds a directory and everything below it; the empty path is the archive's top.
    async fn add_tree(&mut self, path: &[u8], top: &Inode, selection: &Selection) -> Result<(), ExportError> {
        let below = |name: &[u8]| match path {
            b"" => name.to_vec(),
            path => [path, b"/", name].concat(),
        };
        let mut walk = self.volume.walk(top, WalkOptions { inodes: true, ..Default::default() }).await?;
        self.add(if path.is_empty() { b"." } else { path }, top).await?;
        while let Some(next) = walk.next().await {
            match next {
                Ok(_) if selection.leaves_out(&below(walk.path())) => walk.skip(),
                Ok(entry) => {
                    if let Some(inode) = &entry.inode {
                        self.add(&below(walk.path()), inode).await?;
                    }
                }
                Err(failure) if selection.leaves_out_above(&below(&failure.path)) => {}
                Err(failure) => self.watch.missing(&below(&failure.path), failure.error),
            }
        }
        Ok(())
    }

    /// Adds an inode under a path.
    pub(super) async fn add(&mut self, path: &[u8], inode: &Inode) -> Result<(), ExportError> {
        let is_kept = self.store(path, inode).await?;
        self.watch.settled(path, inode, is_kept);
        Ok(())
    }

    /// Adds an inode; returns whether the archive now contains the path.
    async fn store(&mut self, path: &[u8], inode: &Inode) -> Result<bool, ExportError> {
        let Some(kind) = inode.kind() else { return Ok(false) };
        if kind != FileKind::Directory
            && let Some(first) = self.links.earlier(inode)
        {
            self.put(path, EntryType::Link, inode, &first, &[], Contents::None)?;
            self.done.others += 1;
            return Ok(true);
        }
        let xattrs = match self.volume.xattrs(inode).await {
            Ok(xattrs) => xattrs,
            Err(error) => {
                self.watch.unreadable(path, error);
                Vec::new()
            }
        };
        match kind {
            FileKind::Directory => {
                let path = [path, b"/"].concat();
                self.put(&path, EntryType::Directory, inode, b"", &xattrs, Contents::None)?;
                self.done.directories += 1;
                return Ok(true);
            }
            FileKind::Regular => match self.volume.stream(inode.clone()).await {
                Ok(stream) => self.add_file(path, inode, &xattrs, stream).await?,
                Err(error) => {
                    self.watch.unreadable(path, error);
                    return Ok(false);
                }
            },
            FileKind::Symlink => match self.volume.read_link(inode).await {
                Ok(target) => self.put(path, EntryType::Symlink, inode, &target, &xattrs, Contents::None)?,
                Err(error) => {
                    self.watch.unreadable(path, error);
                    return Ok(false);
                }
            },
            FileKind::CharDevice => self.put(path, EntryType::Char, inode, b"", &xattrs, Contents::None)?,
            FileKind::BlockDevice => self.put(path, EntryType::Block, inode, b"", &xattrs, Contents::None)?,
            FileKind::Fifo => self.put(path, EntryType::Fifo, inode, b"", &xattrs, Contents::None)?,
            FileKind::Socket => {
                self.watch.not_kept(path, Loss::Socket);
                return Ok(false);
            }
        }
        self.links.came(inode, path);
        self.done.others += 1;
        Ok(true)
    }

    fn put(
        &mut self,
        path: &[u8],
        kind: EntryType,
        inode: &Inode,
        link: &[u8],
        xattrs: &[Attribute],
        contents: Contents<'_>,
    ) -> Result<(), ExportError> {
        let entry = Entry { path, kind, inode, link, xattrs, contents };
        Ok(self.out.write_all(&entry.to_bytes())?)
    }

    async fn add_file(
        &mut self,
        path: &[u8],
        inode: &Inode,
        xattrs: &[Attribute],
        stream: FileStream,
    ) -> Result<(), ExportError> {
        let size = inode.size();
        let mut regions = file_contents::regions(&self.volume, inode).await;
        let mut data_bytes = regions.iter().map(|region| region.len()).sum();
        self.allowance.spend(inode, data_bytes)?;
        let map = sparse_map(&regions, size);
        if size - data_bytes > map.len().to_u64() {
            let contents = Contents::Sparse { map: &map, data_bytes, real_bytes: size };
            self.put(path, EntryType::Regular, inode, b"", xattrs, contents)?;
            self.out.write_all(&map)?;
        } else {
            // Encoding these holes would not save anything, so write them out.
            regions = file_contents::whole(size);
            data_bytes = size;
            self.put(path, EntryType::Regular, inode, b"", xattrs, Contents::Whole { bytes: size })?;
        }
        let mut laid = Laid { out: self.out, regions: &regions, at: 0, within: 0 };
        self.done.bytes += file_contents::send(stream, path, &mut laid, self.watch).await?;
        laid.zeroes_until(size)?;
        let padding = data_bytes.next_multiple_of(RECORD_BYTES.to_u64()) - data_bytes;
        Ok(self.out.write_all(&[0; RECORD_BYTES][..padding.to_usize()])?)
    }
}

/// Writes a file's regions to the archive back to back; missing data becomes zeros.
struct Laid<'a> {
    out: &'a mut dyn Write,
    regions: &'a [ByteRange],
    /// Index of the current region, and bytes of it already written.
    at: usize,
    within: u64,
}

impl Laid<'_> {
    /// The rest of the current region: file offset and length.
    fn here(&self) -> Option<(u64, u64)> {
        let region = self.regions.get(self.at)?;
        Some((region.start + self.within, region.len() - self.within))
    }

    fn advance(&mut self, bytes: u64, left: u64) {
        self.within += bytes;
        if bytes == left {
            (self.at, self.within) = (self.at + 1, 0);
        }
    }

    fn zeroes_until(&mut self, offset: u64) -> io::Result<()> {
        const ZEROES: [u8; 4 << 10] = [0; 4 << 10];
        while let Some((start, left)) = self.here().filter(|(start, _)| *start < offset) {
            let n = left.min(offset - start).min(ZEROES.len().to_u64());
            self.out.write_all(&ZEROES[..n.to_usize()])?;
            self.advance(n, left);
        }
        Ok(())
    }
}

impl Sink for Laid<'_> {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.zeroes_until(offset)?;
        let end = offset + bytes.len().to_u64();
        while let Some((start, left)) = self.here().filter(|(start, _)| *start < end) {
            let n = left.min(end - start);
            let from = (start - offset).to_usize();
            self.out.write_all(&bytes[from..from + n.to_usize()])?;
            self.advance(n, left);
        }
        Ok(())
    }
}
