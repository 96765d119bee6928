//! `extant df`.

use crate::args::DfArgs;
use crate::failure::Failure;
use crate::image_path::ImagePath;
use crate::json::{self, Bytes};
use crate::output::outln;
use crate::session::{Access, Session};
use crate::values;
use extant_format::Group;
use extant_fs::{Error, Volume, quote};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;

/// How full a volume is.
#[derive(Serialize)]
struct Fill<'a> {
    image: Bytes<'a>,
    /// Excludes the file system's own structures and its journal.
    bytes: u64,
    used_bytes: u64,
    free_bytes: u64,
    /// Free for users other than root.
    available_bytes: u64,
    inodes: u64,
    used_inodes: u64,
    free_inodes: u64,
}

pub(crate) fn run(session: &mut Session, args: &DfArgs) -> Result<(), Failure> {
    let mut all = Vec::new();
    for image in &args.images {
        let place = ImagePath { image: image.clone(), path: b"/".to_vec() };
        let volume = match session.volume(&place, &args.open, Access::Metadata) {
            Ok(volume) => volume,
            Err(failure) => {
                session.fail(failure);
                continue;
            }
        };
        let rt = session.rt.clone();
        let (free_blocks, free_inodes) = match rt.block_on(free(&volume))? {
            Ok(free) => free,
            Err(error) => {
                session.fail(Failure::Volume { place: place.image_quoted(), error });
                continue;
            }
        };
        let space = volume.space();
        let block_bytes = u64::from(space.block_bytes);
        let free_blocks = free_blocks.min(space.blocks);
        let available = free_blocks.saturating_sub(volume.superblock().reserved_blocks());
        let free_inodes = free_inodes.min(space.inodes);
        all.push(Fill {
            image: Bytes(image.as_os_str().as_bytes()),
            bytes: space.blocks.saturating_mul(block_bytes),
            used_bytes: (space.blocks - free_blocks).saturating_mul(block_bytes),
            free_bytes: free_blocks.saturating_mul(block_bytes),
            available_bytes: available.saturating_mul(block_bytes),
            inodes: space.inodes,
            used_inodes: space.inodes - free_inodes,
            free_inodes,
        });
    }
    if args.json {
        return json::print(&mut session.out, &all);
    }
    let size = |bytes| if args.human_readable { values::human(bytes) } else { bytes.to_string() };
    let columns = match args.inodes {
        true => ["inodes", "used", "free", "use%"],
        false => ["size", "used", "available", "use%"],
    };
    let [one, two, three, four] = columns;
    outln!(session.out, "{one:>15} {two:>15} {three:>15} {four:>5}  image")?;
    for fill in &all {
        let (one, two, three, used, of) = match args.inodes {
            true => {
                let texts = [fill.inodes, fill.used_inodes, fill.free_inodes].map(|n| n.to_string());
                let [one, two, three] = texts;
                (one, two, three, fill.used_inodes, fill.inodes)
            }
            false => {
                let texts = [fill.bytes, fill.used_bytes, fill.available_bytes].map(size);
                let [one, two, three] = texts;
                (one, two, three, fill.used_bytes, fill.used_bytes.saturating_add(fill.available_bytes))
            }
        };
        let percent = used.saturating_mul(100).div_ceil(of.max(1));
        let image = quote(fill.image.0);
        outln!(session.out, "{one:>15} {two:>15} {three:>15} {percent:>4}%  {image}")?;
    }
    Ok(())
}

/// Free blocks and inodes according to the descriptors, because the superblock's counts are written
/// only at unmounting.
async fn free(volume: &Volume) -> Result<(u64, u64), Error> {
    let (mut clusters, mut inodes) = (0_u64, 0_u64);
    for group in (0..volume.superblock().group_count()).map(Group) {
        let descriptor = volume.group(group).await?;
        clusters += u64::from(descriptor.free_blocks);
        inodes += u64::from(descriptor.free_inodes);
    }
    Ok((clusters << volume.superblock().cluster_size().log2(), inodes))
}
