//! `extant debug`.

use crate::args::{DebugArgs, DebugWhat};
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::session::{Access, Session};
use extant_format::{Group, InodeNumber, VolumeBlock};
use extant_fs::Dump;

pub(crate) fn run(session: &mut Session, args: &DebugArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: Vec::new() };
    let volume = session.volume(&place, &args.open, Access::Metadata)?;
    let what = match args.what {
        DebugWhat::Superblock => Dump::Superblock,
        DebugWhat::Group { number } => Dump::Group(Group(number)),
        DebugWhat::Inode { number } => Dump::Inode(InodeNumber(number)),
        DebugWhat::Map { number } => Dump::Map(InodeNumber(number)),
        DebugWhat::Directory { number } => Dump::Directory(InodeNumber(number)),
        DebugWhat::Htree { number } => Dump::Htree(InodeNumber(number)),
        DebugWhat::Xattrs { number } => Dump::Xattrs(InodeNumber(number)),
        DebugWhat::Journal => Dump::Journal,
        DebugWhat::Block { number } => Dump::Block(VolumeBlock(number)),
    };
    let text = session.rt.block_on(volume.dump(what))?.map_err(|error| Failure::at(&place, error))?;
    session.out.write(text.as_bytes())
}
