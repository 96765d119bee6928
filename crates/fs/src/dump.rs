//! Structures as text, for people inspecting a volume.

use crate::map::Mapper;
use crate::recovery::Log;
use crate::view::View;
use crate::{Error, Result, Run, RunState};
use extant_format::jbd2::{JournalBlockHeader, JournalBlockKind, JournalRevokes, JournalTags};
use extant_format::{
    Compat, DirEntries, DxNode, DxRoot, ExtentContext, ExtentNode, FileBlock, FileKind, Group, HtreeContext,
    Incompat, Inode, InodeFlags, InodeNumber, UintExt, VolumeBlock, XattrBlock, Xattrs, bit,
};
use std::fmt::Write;

/// The structure to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dump {
    /// The superblock.
    Superblock,
    /// A group's descriptor, and the ranges in use according to its bitmaps.
    Group(Group),
    /// An inode's fields.
    Inode(InodeNumber),
    /// An inode's whole extent tree, or its extents if it has a block map.
    Map(InodeNumber),
    /// Every entry in a directory's blocks, including deleted ones.
    Directory(InodeNumber),
    /// The root and nodes of a directory's hash tree.
    Htree(InodeNumber),
    /// The attributes of an inode, by where they are stored.
    Xattrs(InodeNumber),
    /// The journal's superblock and all journal blocks in its log.
    Journal,
    /// A block's bytes.
    Block(VolumeBlock),
}

/// Maximum number of nodes printed for one tree; hostile trees are cut off here.
const NODES_MAX: usize = 100_000;

impl View {
    /// Prints a structure as text. A damaged part is replaced by its error.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a number beyond the volume, or a journal or tree that does not exist;
    /// [`Error::NotADirectory`] for an inode that is not a directory.
    pub(crate) async fn dump(&self, what: Dump) -> Result<String> {
        self.check_number(what)?;
        let mut out = String::new();
        match what {
            Dump::Superblock => out = format!("{}\n", self.superblock()),
            Dump::Group(group) => self.dump_group(group, &mut out).await?,
            Dump::Inode(number) => out = format!("{}\n", self.inode(number).await?),
            Dump::Map(number) => self.dump_map(&self.inode(number).await?, &mut out).await?,
            Dump::Directory(number) => self.dump_directory(&self.inode(number).await?, &mut out).await?,
            Dump::Htree(number) => self.dump_htree(&self.inode(number).await?, &mut out).await?,
            Dump::Xattrs(number) => self.dump_xattrs(&self.inode(number).await?, &mut out).await?,
            Dump::Journal => self.dump_journal(&mut out).await?,
            Dump::Block(at) => hex(&self.buffers().block(at).await?, &mut out),
        }
        Ok(out)
    }

    /// Rejects numbers beyond the volume: they are the caller's mistakes, not damage.
    fn check_number(&self, what: Dump) -> Result<()> {
        let sb = self.superblock();
        let (what, number, first, last) = match what {
            Dump::Superblock | Dump::Journal => return Ok(()),
            Dump::Group(group) => ("group", u64::from(group.0), 0, u64::from(sb.group_count()) - 1),
            Dump::Block(block) => ("block", block.0, 0, sb.blocks_count() - 1),
            Dump::Inode(number)
            | Dump::Map(number)
            | Dump::Directory(number)
            | Dump::Htree(number)
            | Dump::Xattrs(number) => ("inode", number.0.into(), 1, sb.inodes_count().into()),
        };
        match (first..=last).contains(&number) {
            true => Ok(()),
            false => Err(Error::Invalid(format!("there is no {what} {number}; the volume's last is {last}"))),
        }
    }

    async fn dump_group(&self, group: Group, out: &mut String) -> Result<()> {
        let gd = self.group(group).await?;
        let _ = writeln!(out, "group {group}: {gd}");
        let sb = self.superblock();
        let clusters = sb.group_blocks(group).div_ceil(sb.blocks_per_cluster());
        for (name, at, bits) in [
            ("clusters in use", gd.block_bitmap, clusters),
            ("inodes in use", gd.inode_bitmap, sb.inodes_per_group()),
        ] {
            let bitmap = self.buffers().block(at).await?;
            let _ = write!(out, "{name}:");
            let mut n = 0;
            while n < bits {
                let start = n;
                while n < bits && bit(&bitmap, n) {
                    n += 1;
                }
                if n > start {
                    let _ = write!(out, " {start}-{}", n - 1);
                }
                n += 1;
            }
            out.push('\n');
        }
        Ok(())
    }

    async fn dump_map(&self, inode: &Inode, out: &mut String) -> Result<()> {
        if !inode.flags().contains(InodeFlags::EXTENTS) {
            let mut runs = self.runs(inode);
            loop {
                let _ = match runs.next().await {
                    Ok(Some(run)) => writeln!(out, "{}+{} {:?}", run.logical, run.blocks, run.state),
                    Ok(None) => return Ok(()),
                    Err(lost) => writeln!(out, "{lost}"),
                };
            }
        }
        let sb = self.superblock();
        let root = ExtentContext::root(sb, inode.number);
        let mut todo = vec![(0, root, inode.map().to_vec())];
        let mut nodes = 0;
        while let Some((indent, cx, bytes)) = todo.pop() {
            let (node, damaged) = match ExtentNode::salvage(&bytes, &cx) {
                Ok(parsed) => parsed,
                Err(corrupt) => {
                    let _ = writeln!(out, "{:indent$}{corrupt}", "");
                    continue;
                }
            };
            for (range, corrupt) in &damaged {
                let _ = writeln!(out, "{:indent$}{range}: {corrupt}", "");
            }
            let whence = cx.block.map_or("in the inode".into(), |block| format!("block {block}"));
            for (n, line) in node.to_string().lines().enumerate() {
                let prefix = if n == 0 { format!("{whence}: ") } else { String::new() };
                let _ = writeln!(out, "{:indent$}{prefix}{line}", "");
            }
            nodes += 1;
            if let ExtentNode::Index { depth, entries } = &node
                && nodes < NODES_MAX
            {
                for n in (0..entries.len()).rev() {
                    match self.buffers().block(entries[n].child).await {
                        Ok(block) => todo.push((indent + 2, cx.child(*depth, entries, n), block.to_vec())),
                        Err(error) => {
                            let _ = writeln!(out, "{:indent$}  block {}: {error}", "", entries[n].child);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    async fn dump_directory(&self, dir: &Inode, out: &mut String) -> Result<()> {
        check_directory(dir)?;
        let sb = self.superblock();
        let filetype = sb.incompat().contains(Incompat::FILETYPE);
        let mut runs = self.runs(dir);
        loop {
            let run = match runs.next().await {
                Ok(Some(run)) => run,
                Ok(None) => return Ok(()),
                Err(lost) => {
                    let _ = writeln!(out, "{lost}");
                    continue;
                }
            };
            let RunState::Written(first) = run.state else { continue };
            for n in 0..run.blocks {
                let index = FileBlock((run.logical + n).fit_u32());
                let block = match self.buffers().block(VolumeBlock(first.0 + n)).await {
                    Ok(block) => block,
                    Err(error) => {
                        let _ = writeln!(out, "block {index}: {error}");
                        continue;
                    }
                };
                let _ = writeln!(out, "block {index}, {} on the volume", first.0 + n);
                for entry in DirEntries::new(&block, filetype, sb.inodes_count(), dir.number, index) {
                    let _ = match entry {
                        Ok(e) => writeln!(
                            out,
                            "  {:5} +{:<5} inode {:<8} {} {}",
                            e.offset,
                            e.record_bytes,
                            e.inode,
                            e.kind.map_or('?', FileKind::letter),
                            crate::quote(e.name)
                        ),
                        Err(corrupt) => writeln!(out, "  {corrupt}"),
                    };
                }
            }
        }
    }

    async fn dump_htree(&self, dir: &Inode, out: &mut String) -> Result<()> {
        check_directory(dir)?;
        if !dir.flags().contains(InodeFlags::INDEX) {
            let text =
                format!("directory {} has no hash tree; `debug directory` prints its blocks", dir.number);
            return Err(Error::Invalid(text));
        }
        let sb = self.superblock();
        let mut mapper = Mapper::default();
        let mut todo = vec![(FileBlock(0), 0)];
        let mut nodes = 0;
        while let Some((at, level)) = todo.pop() {
            let context = HtreeContext {
                dir: dir.number,
                block: at,
                checksums: sb.has_metadata_csum(),
                large_dir: sb.incompat().contains(Incompat::LARGEDIR),
            };
            let bytes = match mapper.map(self, dir, at.0.into()).await {
                Ok(Run { state: RunState::Written(block), .. }) => self.buffers().block(block).await,
                Ok(_) => {
                    let _ = writeln!(out, "block {at} is not mapped");
                    continue;
                }
                Err(unmapped) => Err(unmapped.error),
            };
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    let _ = writeln!(out, "block {at}: {error}");
                    continue;
                }
            };
            let parsed = if level == 0 {
                DxRoot::parse(&bytes, &context).map(|root| (root.to_string(), root.info.levels, root.entries))
            } else {
                DxNode::parse(&bytes, &context).map(|node| (node.to_string(), level - 1, node.entries))
            };
            nodes += 1;
            match parsed {
                Err(corrupt) => {
                    let _ = writeln!(out, "{corrupt}");
                }
                Ok((text, below, entries)) => {
                    let _ = writeln!(out, "block {at}: {text}");
                    if below > 0 && nodes < NODES_MAX {
                        todo.extend(entries.iter().map(|entry| (entry.block, below)));
                    }
                }
            }
        }
        Ok(())
    }

    async fn dump_xattrs(&self, inode: &Inode, out: &mut String) -> Result<()> {
        let show = |out: &mut String, list: &Xattrs<'_>| {
            for xattr in list.iter() {
                let _ = writeln!(out, "  {xattr}");
            }
        };
        let _ = writeln!(out, "in the inode:");
        match Xattrs::parse_inode(&inode.tail, inode.number) {
            Ok(list) => show(out, &list),
            Err(corrupt) => {
                let _ = writeln!(out, "  {corrupt}");
            }
        }
        if let Some(at) = inode.xattr_block() {
            let _ = writeln!(out, "in block {at}:");
            let block = self.buffers().block(at).await?;
            match XattrBlock::parse(&block, inode.number, at) {
                Ok(parsed) => {
                    let _ = writeln!(out, "  references {}, hash {:#010x}", parsed.references, parsed.hash);
                    show(out, &parsed.xattrs);
                }
                Err(corrupt) => {
                    let _ = writeln!(out, "  {corrupt}");
                }
            }
        }
        Ok(())
    }

    async fn dump_journal(&self, out: &mut String) -> Result<()> {
        let sb = self.superblock();
        if !sb.compat().contains(Compat::HAS_JOURNAL) {
            return Err(Error::Invalid("the volume has no journal".into()));
        }
        let Some(log) = Log::open(self).await? else {
            return Err(Error::Invalid("the journal lies on another device".into()));
        };
        let _ = writeln!(out, "{}", log.sb);
        let layout = log.sb.layout();
        for n in log.sb.log() {
            let block = log.block(n).await?;
            let Some(header) = JournalBlockHeader::read(&block) else { continue };
            let _ = match header.kind {
                Some(JournalBlockKind::Descriptor) => match JournalTags::parse(&block, &layout, n) {
                    Ok(tags) => write!(out, "block {n}: {tags}"),
                    Err(corrupt) => writeln!(out, "{corrupt}"),
                },
                Some(JournalBlockKind::Revoke) => match JournalRevokes::parse(&block, &layout, n) {
                    Ok(records) => write!(out, "block {n}: {records}"),
                    Err(corrupt) => writeln!(out, "{corrupt}"),
                },
                kind => writeln!(out, "block {n}: {kind:?}, transaction {}", header.sequence),
            };
        }
        Ok(())
    }
}

fn check_directory(inode: &Inode) -> Result<()> {
    match inode.kind() {
        Some(FileKind::Directory) => Ok(()),
        _ => Err(Error::NotADirectory(format!("inode {}", inode.number))),
    }
}

fn hex(bytes: &[u8], out: &mut String) {
    for (n, row) in bytes.chunks(16).enumerate() {
        let _ = write!(out, "{:04x} ", n * 16);
        for byte in row {
            let _ = write!(out, " {byte:02x}");
        }
        let text: String =
            row.iter().map(|&b| if b.is_ascii_graphic() || b == b' ' { b as char } else { '.' }).collect();
        let _ = writeln!(out, "  {text}");
    }
}
