//! Reads tar archives into the tree: ustar, GNU and pax, from a file or a stream.
//!
//! For an uncompressed archive in a file, only headers are read and contents stay in place.
//! Anything else is decoded once, and contents are spooled.

mod behind;
mod header;
mod input;
mod merged;

pub(crate) use input::Input;

use super::acl_text::NameOf;
use super::pax::Pax;
use super::sparse::{SparseMap, TextMap};
use super::whiteout_marks::{self, Mark};
use super::{Stores, tree_paths};
use crate::tree::{DataRange, Kind, Meta, Node, NodeId, Payload, Tree, XattrSetId};
use crate::{BuildError, quoted};
use extant_format::{Timestamp, UintExt};
use header::{BLOCK, Header};
use merged::{Aliases, Found};
use std::collections::BTreeSet;

/// Maximum length of an extended header or long name to read, in bytes.
const MAX_EXTENDED: u64 = 16 << 20;

/// Reads a whole archive into a separate tree.
///
/// If the archive is a layer to be merged over `below`, its marks become what the tree hides, and
/// its hard links may lead to files of `below`. Otherwise marks are ordinary files, and are
/// counted.
pub(crate) fn read(
    tree: &mut Tree,
    below: Option<&Tree>,
    stores: &mut Stores,
    input: &mut Input,
) -> Result<(), BuildError> {
    let mut private = BTreeSet::new();
    read_entries(tree, below, stores, input, &mut private)?;
    if below.is_some() {
        tree.mark_layered();
        whiteout_marks::remove_private(tree, private)?;
        if whiteout_marks::has_overlay_marks(tree) {
            whiteout_marks::take_marks(tree, &input.name)?;
        }
    }
    Ok(())
}

fn read_entries(
    tree: &mut Tree,
    below: Option<&Tree>,
    stores: &mut Stores,
    input: &mut Input,
    private: &mut BTreeSet<Vec<u8>>,
) -> Result<(), BuildError> {
    let mut global = Pax::default();
    let mut aliases = Aliases::default();
    loop {
        let mut pax = global.clone();
        let mut long_name = None;
        let mut long_link = None;
        let mut announced = false;
        // Extended headers describe the following header.
        let block = loop {
            let Some(block) = input.header()? else {
                // An extended header is never the last one in an archive.
                return if announced { Err(input.bad("the archive is cut short")) } else { Ok(()) };
            };
            let header = Header(&block);
            if !header.checksum_holds() {
                return Err(input.bad_header());
            }
            let size = header.size().and_then(|n| u64::try_from(n).ok());
            announced |= matches!(header.type_flag(), b'L' | b'K' | b'x' | b'X');
            match header.type_flag() {
                b'L' => long_name = Some(extended(input, size)?),
                b'K' => long_link = Some(extended(input, size)?),
                b'x' | b'X' => {
                    let bytes = extended(input, size)?;
                    pax.read(&bytes).map_err(|problem| input.bad(problem))?;
                }
                b'g' => {
                    let bytes = extended(input, size)?;
                    global.read(&bytes).map_err(|problem| input.bad(problem))?;
                    pax.read(&bytes).map_err(|problem| input.bad(problem))?;
                }
                b'V' => input.skip_padded(size.unwrap_or(0))?,
                _ => break block,
            }
        };
        let header = Header(&block);
        let mut path =
            pax.sparse.name.take().or(pax.path.take()).or(long_name).unwrap_or_else(|| header.name());
        path.truncate(path.iter().position(|b| *b == 0).unwrap_or(path.len()));
        input.enter(&path);
        let mut link = pax.link_path.take().or(long_link).unwrap_or_else(|| header.link_name().to_vec());
        link.truncate(link.iter().position(|b| *b == 0).unwrap_or(link.len()));
        let entry = Entry { header, pax, path, link };
        if below.is_some() {
            match whiteout_marks::mark_of(&entry.path) {
                None => {}
                Some(Mark::Hides(hidden)) => {
                    tree.add_hidden(hidden);
                    entry.skip(input)?;
                    continue;
                }
                Some(Mark::Private(path)) => drop(private.insert(path)),
            }
        }
        entry.add(tree, below, &mut aliases, stores, input)?;
    }
}

fn extended(input: &mut Input, size: Option<u64>) -> Result<Vec<u8>, BuildError> {
    let size =
        size.filter(|&n| n <= MAX_EXTENDED).ok_or_else(|| input.bad("an extended header is too long"))?;
    let mut bytes = vec![0; size.to_usize()];
    input.read_exact(&mut bytes)?;
    input.skip_padding(size)?;
    Ok(bytes)
}

/// A header together with the extended headers before it.
struct Entry<'a> {
    header: Header<'a>,
    pax: Pax,
    path: Vec<u8>,
    link: Vec<u8>,
}

impl Entry<'_> {
    /// Skips the contents.
    fn skip(&self, input: &mut Input) -> Result<(), BuildError> {
        // Links, devices, directories and FIFOs have no contents, whatever size their headers give.
        if matches!(self.header.type_flag(), b'1'..=b'6') {
            Ok(())
        } else {
            input.skip_padded(self.size(input)?)
        }
    }

    fn add(
        mut self,
        tree: &mut Tree,
        below: Option<&Tree>,
        aliases: &mut Aliases,
        stores: &mut Stores,
        input: &mut Input,
    ) -> Result<(), BuildError> {
        let mut flag = self.header.type_flag();
        if matches!(flag, 0 | b'0' | b'7') && self.path.ends_with(b"/") {
            flag = b'5'; // v7 marks directories like this
        }
        let meta = self.meta(tree, input)?;
        if let Some(flags) = &self.pax.flags {
            input.count_flags(flags);
        }
        let (user, group) = self.header.owner_names();
        stores.owners.note(NameOf::User, self.pax.user_name.as_deref().unwrap_or(user), meta.uid);
        stores.owners.note(NameOf::Group, self.pax.group_name.as_deref().unwrap_or(group), meta.gid);
        let Some((parent, name)) = tree_paths::split(&self.path) else {
            if flag == b'5' {
                tree.set_meta(NodeId::ROOT, meta);
                return Ok(());
            }
            return Err(input.bad("an entry other than a directory has no name"));
        };
        let before = tree.node_slots();
        let dir = tree_paths::directory_or_make(tree, &parent)?;
        if let Some(below) = below {
            aliases.add(tree, below, before);
        }
        if below.is_none() && whiteout_marks::is_mark(&name) {
            input.count_whiteout();
        }
        if !matches!(flag, b'5' | b'D') {
            input.count_lost(tree, dir, &name);
        }
        match flag {
            b'1' => self.hard_link(tree, below, aliases, input, dir, &name),
            b'2' => tree.put_symlink(dir, &name, meta, &self.link).map(drop),
            b'3' | b'4' => {
                let kind = if flag == b'3' { Kind::CharDevice } else { Kind::BlockDevice };
                let payload = self.device(input)?;
                if below.is_none() && kind == Kind::CharDevice && whiteout_marks::is_whiteout_device(payload)
                {
                    input.count_whiteout();
                }
                tree.put(dir, &name, kind, meta, payload, 0, None).map(drop)
            }
            b'5' | b'D' => {
                tree.put_directory(dir, &name, meta)?;
                // In a GNU incremental archive, this is a list of the directory's contents.
                if flag == b'D' { input.skip_padded(self.size(input)?) } else { Ok(()) }
            }
            b'6' => tree.put(dir, &name, Kind::Fifo, meta, Payload::None, 0, None).map(drop),
            b'M' => Err(input.bad("this entry continues from another volume; join the volumes first")),
            // POSIX: treat an unknown type as a regular file.
            _ => self.file(tree, stores, input, dir, &name, meta),
        }
    }

    fn meta(&mut self, tree: &mut Tree, input: &Input) -> Result<Meta, BuildError> {
        let id = |pax: Option<u64>, header: Option<i64>, what: &str| {
            let id = pax.or(header.and_then(|n| u64::try_from(n).ok()));
            let id = id.and_then(|n| u32::try_from(n).ok());
            id.ok_or_else(|| input.bad(format!("the {what} id does not fit 32 bits")))
        };
        let mtime = match self.pax.mtime {
            Some(mtime) => mtime,
            None => {
                let seconds = self.header.mtime().ok_or_else(|| input.bad("malformed time"))?;
                Timestamp { seconds, nanos: 0 }
            }
        };
        Ok(Meta {
            mode: (self.header.mode().ok_or_else(|| input.bad("malformed mode"))? & 0o7777)
                .cast_unsigned()
                .fit_u16(),
            uid: id(self.pax.uid, self.header.uid(), "user")?,
            gid: id(self.pax.gid, self.header.gid(), "group")?,
            mtime,
            xattrs: tree.intern_xattrs(std::mem::take(&mut self.pax.xattrs)),
        })
    }

    fn size(&self, input: &Input) -> Result<u64, BuildError> {
        let size = self.pax.size.or(self.header.size().and_then(|n| u64::try_from(n).ok()));
        size.filter(|&n| i64::try_from(n).is_ok()).ok_or_else(|| input.bad("malformed size"))
    }

    fn device(&self, input: &Input) -> Result<Payload, BuildError> {
        let (major, minor) = self.header.device().ok_or_else(|| input.bad("malformed device number"))?;
        let fit = |pax: Option<u64>, header: i64| {
            u32::try_from(pax.unwrap_or(header.cast_unsigned()))
                .map_err(|_| input.bad("malformed device number"))
        };
        Ok(Payload::Device { major: fit(self.pax.dev_major, major)?, minor: fit(self.pax.dev_minor, minor)? })
    }

    fn hard_link(
        &self,
        tree: &mut Tree,
        below: Option<&Tree>,
        aliases: &Aliases,
        input: &Input,
        dir: NodeId,
        name: &[u8],
    ) -> Result<(), BuildError> {
        let what = quoted(&self.link);
        let bad_kind = || input.bad(format!("hard link to the directory {what}"));
        let found = match (tree_paths::find(tree, &self.link)?, below) {
            (Some(target), _) => Some(Found::Upper(target)),
            (None, Some(below)) => aliases.find(tree, below, &self.link)?,
            (None, None) => None,
        };
        if let Some(Found::Upper(target)) = found {
            if tree.node(target).kind == Kind::Directory {
                return Err(bad_kind());
            }
            return tree.link(dir, name, target);
        }
        // A whiteout hides a name of lower layers; the file itself stays if this layer gives it
        // another name.
        let target = match (found, below) {
            (Some(Found::Below(target)), Some(below)) => Some((target, below.node(target))),
            // The layer may have replaced a directory on the path.
            (_, Some(below)) => {
                tree_paths::find(below, &self.link)?.map(|target| (target, below.node(target)))
            }
            (_, None) => None,
        };
        // A link that only the volume has is none of the files before.
        let target = target.filter(|(_, node)| node.kind == Kind::Directory || !node.implied);
        let (target, node) =
            target.ok_or_else(|| input.bad(format!("hard link to {what}, which came not before")))?;
        if node.kind == Kind::Directory {
            return Err(bad_kind());
        }
        let Node { mode, uid, gid, mtime, .. } = *node;
        let meta = Meta { mode, uid, gid, mtime, xattrs: XattrSetId::EMPTY };
        tree.put(dir, name, node.kind, meta, Payload::Below { node: target }, 0, None).map(drop)
    }

    fn file(
        &self,
        tree: &mut Tree,
        stores: &mut Stores,
        input: &mut Input,
        dir: NodeId,
        name: &[u8],
        meta: Meta,
    ) -> Result<(), BuildError> {
        let mut stored = self.size(input)?;
        let mut size = stored;
        let mut sparse: Option<SparseMap> = None;
        if self.header.type_flag() == b'S' {
            (size, sparse) = self.old_sparse(input)?;
        } else if self.pax.sparse.major == Some(1) {
            let (map, map_bytes) = text_map(input, stored)?;
            stored -= map_bytes;
            size = self.pax.sparse.real_size.ok_or_else(|| input.bad("a sparse file without its size"))?;
            sparse = Some(map);
        } else if self.pax.sparse.listed {
            let mut map = SparseMap::default();
            map.push_all(&self.pax.sparse.map).map_err(|problem| input.bad(problem))?;
            size = self.pax.sparse.real_size.ok_or_else(|| input.bad("a sparse file without its size"))?;
            sparse = Some(map);
        }
        let ranges: Option<Vec<DataRange>> = match sparse {
            Some(map) => Some(map.finish(size, stored).map_err(|problem| input.bad(problem))?),
            None => None,
        };
        let payload = if stored == 0 {
            Payload::None
        } else {
            if input.is_stream() {
                // Replace whatever has this name; that may free room.
                tree.remove(dir, name);
                stores.check_room(tree, &input.name, &self.path, stored)?;
            }
            let (archive, offset) = input.take(stores, stored)?;
            Payload::Stored { archive, offset }
        };
        input.skip_padding(stored)?;
        tree.put(dir, name, Kind::File, meta, payload, size, ranges).map(drop)
    }

    fn old_sparse(&self, input: &mut Input) -> Result<(u64, Option<SparseMap>), BuildError> {
        let mut map = SparseMap::default();
        let malformed = "malformed sparse header";
        let mut part = self.header.old_sparse().ok_or_else(|| input.bad(malformed))?;
        loop {
            for (offset, len) in part.ranges {
                let (Ok(offset), Ok(len)) = (u64::try_from(offset), u64::try_from(len)) else {
                    return Err(input.bad(malformed));
                };
                map.push(offset, len).map_err(|problem| input.bad(problem))?;
            }
            if !part.more {
                break;
            }
            let mut block = [0; BLOCK];
            input.read_exact(&mut block)?;
            part = Header(&block).more_sparse().ok_or_else(|| input.bad(malformed))?;
        }
        let size = self.header.real_size().and_then(|n| u64::try_from(n).ok());
        let size = size.ok_or_else(|| input.bad(malformed))?;
        Ok((size, Some(map)))
    }
}

fn text_map(input: &mut Input, stored: u64) -> Result<(SparseMap, u64), BuildError> {
    let mut text = TextMap::default();
    let mut used = 0;
    loop {
        if used + BLOCK.to_u64() > stored {
            return Err(input.bad("the map of a sparse file does not end"));
        }
        let mut block = [0; BLOCK];
        input.read_exact(&mut block)?;
        used += BLOCK.to_u64();
        if text.feed(&block).map_err(|problem| input.bad(problem))? {
            break;
        }
    }
    let mut map = SparseMap::default();
    map.push_all(&text.numbers).map_err(|problem| input.bad(problem))?;
    Ok((map, used))
}
