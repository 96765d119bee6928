//! `extant debug`.

use crate::args::{DebugArgs, DebugWhat, InodeAt};
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::session::{Access, Session};
use extant_format::{Group, InodeNumber, VolumeBlock};
use extant_fs::{Dump, Follow};

pub(crate) fn run(session: &mut Session, args: &DebugArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: Vec::new() };
    let volume = session.volume(&place, &args.open, Access::Metadata)?;
    let numbered = |inode: &InodeAt| match inode {
        InodeAt::Number(number) => Ok(InodeNumber(*number)),
        InodeAt::Path(path) => {
            let found = session.rt.block_on(volume.resolve(path, Follow::No))?;
            found.map(|found| found.number).map_err(|error| Failure::at(&place, error))
        }
    };
    let what = match &args.what {
        DebugWhat::Superblock => Dump::Superblock,
        DebugWhat::Group { number } => Dump::Group(Group(*number)),
        DebugWhat::Inode { inode } => Dump::Inode(numbered(inode)?),
        DebugWhat::Map { inode } => Dump::Map(numbered(inode)?),
        DebugWhat::Directory { inode } => Dump::Directory(numbered(inode)?),
        DebugWhat::Htree { inode } => Dump::Htree(numbered(inode)?),
        DebugWhat::Xattrs { inode } => Dump::Xattrs(numbered(inode)?),
        DebugWhat::Journal => Dump::Journal,
        DebugWhat::Block { number } => Dump::Block(VolumeBlock(*number)),
    };
    let text = session.rt.block_on(volume.dump(what))?.map_err(|error| Failure::at(&place, error))?;
    session.out.write(text.as_bytes())
}
