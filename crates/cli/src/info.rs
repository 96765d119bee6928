//! `extant info`.

use crate::args::InfoArgs;
use crate::failure::{Failure, lacks_superblock};
use crate::image_path::ImagePath;
use crate::json::{self, Bytes, Time};
use crate::output::outln;
use crate::session::{Access, Session};
use extant::Part;
use extant_format::{Compat, Group, GroupDescriptor, GroupFlags, Incompat, RoCompat, Superblock};
use extant_fs::Volume;
use serde::Serialize;

pub(crate) fn run(session: &mut Session, args: &InfoArgs) -> Result<(), Failure> {
    let place = ImagePath { image: args.image.clone(), path: b"/".to_vec() };
    let device = session.device(&place, Access::Metadata)?;
    let first = session.rt.block_on(extant_fs::read_superblock(&*device, 1024))?;
    let is_disk = session.part == Part::Whole
        && args.open.superblock.is_none()
        && first.as_ref().is_err_and(lacks_superblock);
    if let Some(there) = is_disk.then(|| session.partitions(&place.image)).flatten() {
        return crate::place::print(session, &there, args.json);
    }
    let at = session.superblock_byte(&device, &place.image, args.open.superblock)?;
    // The partitions are shown even if the volume cannot be opened.
    let lying = match at {
        None => first,
        Some(at) => session.rt.block_on(extant_fs::read_superblock(&*device, at))?,
    };
    drop(device);
    let volume = match session.volume(&place, &args.open, Access::Metadata) {
        Ok(volume) => Some(volume),
        Err(failure @ Failure::Volume { .. }) if lying.is_ok() => {
            session.fail(failure);
            None
        }
        Err(failure) => return Err(failure),
    };
    let sb = match (&volume, &lying) {
        (Some(volume), _) => volume.superblock(),
        (None, Ok(lying)) => lying,
        (None, Err(error)) => return Err(session.not_opened(&place.image, at, error.clone())),
    };
    let mut groups = Vec::new();
    if let Some(volume) = volume.as_ref().filter(|_| args.verbose) {
        groups = read_groups(session, &place, volume)?;
    }
    let journal = match (&lying, &volume) {
        (Ok(lying), Some(volume)) if !volume.is_from_backup() => journal_state(lying),
        (Ok(lying), None) => journal_state(lying),
        // A backup does not say whether the journal is dirty.
        _ if sb.compat().contains(Compat::HAS_JOURNAL) => "unknown",
        _ => "none",
    };
    if args.json {
        let groups =
            args.verbose.then(|| groups.iter().map(|(n, group)| JsonGroup::new(*n, group)).collect());
        return json::print(&mut session.out, &JsonVolume::new(sb, journal, groups));
    }
    outln!(session.out, "{sb}")?;
    outln!(session.out, "journal:          {journal}")?;
    outln!(session.out, "backups:          {}", shown(&backups(sb)))?;
    for (number, group) in &groups {
        outln!(
            session.out,
            "\ngroup {number}: blocks {} and {} more",
            sb.group_first_block(*number),
            sb.group_blocks(*number).saturating_sub(1)
        )?;
        outln!(session.out, "{group}")?;
    }
    Ok(())
}

/// Maximum number of superblock copies to list: a volume may have one in every group.
const BACKUPS_MAX: usize = 100;

/// Where copies of the superblock lie, in bytes, as `--superblock` takes them.
fn backups(sb: &Superblock) -> Vec<u64> {
    let powers = [3, 5, 7].map(|base: u32| std::iter::successors(Some(base), move |n| n.checked_mul(base)));
    let is_sparse =
        sb.ro_compat().contains(RoCompat::SPARSE_SUPER) || sb.compat().contains(Compat::SPARSE_SUPER2);
    let mut groups: Vec<u32> = match is_sparse {
        true => {
            let two = sb.raw().s_backup_bgs.map(|group| group.get());
            powers.into_iter().flatten().chain(two).chain([1]).collect()
        }
        false => (1..sb.group_count()).take(BACKUPS_MAX).collect(),
    };
    groups.sort_unstable();
    groups.dedup();
    let there = groups
        .into_iter()
        .map(Group)
        .filter(|&group| group.0 > 0 && group.0 < sb.group_count() && sb.has_backup(group));
    there.take(BACKUPS_MAX).map(|group| sb.group_first_block(group).0 << sb.block_size().log2()).collect()
}

fn shown(backups: &[u64]) -> String {
    const MOST: usize = 4;
    match backups {
        [] => "none".into(),
        all => {
            let first: Vec<String> = all.iter().take(MOST).map(|at| format!("byte {at}")).collect();
            let more = if all.len() > MOST { ", …" } else { "" };
            format!("{}{more}", first.join(", "))
        }
    }
}

/// The journal's state, from the superblock as it is on disk.
fn journal_state(sb: &Superblock) -> &'static str {
    match (sb.compat().contains(Compat::HAS_JOURNAL), sb.incompat().contains(Incompat::RECOVER)) {
        (false, _) => "none",
        (true, false) => "clean",
        (true, true) => "needs recovery",
    }
}

fn read_groups(
    session: &mut Session,
    place: &ImagePath,
    volume: &Volume,
) -> Result<Vec<(Group, GroupDescriptor)>, Failure> {
    let mut groups = Vec::new();
    for n in 0..volume.superblock().group_count() {
        match session.rt.block_on(volume.group(Group(n)))? {
            Ok(group) => groups.push((Group(n), group)),
            Err(error) => {
                let ends = matches!(error, extant_fs::Error::Io(_));
                session.fail(Failure::Volume { place: place.image_quoted(), error });
                // There are no copies past the end of the image.
                if ends {
                    break;
                }
            }
        }
    }
    Ok(groups)
}

#[derive(Serialize)]
struct JsonVolume<'a> {
    label: Bytes<'a>,
    uuid: String,
    last_mounted: Bytes<'a>,
    compat: Vec<String>,
    incompat: Vec<String>,
    ro_compat: Vec<String>,
    state: u16,
    journal: &'static str,
    block_bytes: u32,
    cluster_bytes: u64,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_bytes: u16,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    created: Time,
    last_mount: Time,
    last_write: Time,
    last_check: Time,
    /// Copies of the superblock, in bytes.
    backups: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    group_descriptors: Option<Vec<JsonGroup>>,
}

#[derive(Serialize)]
struct JsonGroup {
    group: u32,
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
    free_clusters: u32,
    free_inodes: u32,
    directories: u32,
    unused_inodes: u32,
    flags: Vec<String>,
}

impl<'a> JsonVolume<'a> {
    fn new(sb: &'a Superblock, journal: &'static str, groups: Option<Vec<JsonGroup>>) -> Self {
        Self {
            label: Bytes(sb.label()),
            uuid: json::uuid(&sb.uuid()),
            last_mounted: Bytes(sb.last_mounted()),
            compat: sb.compat().names().collect(),
            incompat: sb.incompat().names().collect(),
            ro_compat: sb.ro_compat().names().collect(),
            state: sb.raw().s_state.get(),
            journal,
            block_bytes: sb.block_size().bytes(),
            cluster_bytes: u64::from(sb.blocks_per_cluster()) << sb.block_size().log2(),
            blocks: sb.blocks_count(),
            free_blocks: sb.free_blocks(),
            reserved_blocks: sb.reserved_blocks(),
            inodes: sb.inodes_count(),
            free_inodes: sb.raw().s_free_inodes_count.get(),
            inode_bytes: sb.inode_size(),
            groups: sb.group_count(),
            blocks_per_group: sb.blocks_per_group(),
            inodes_per_group: sb.inodes_per_group(),
            created: sb.created().into(),
            last_mount: sb.mounted().into(),
            last_write: sb.written().into(),
            last_check: sb.checked().into(),
            backups: backups(sb),
            group_descriptors: groups,
        }
    }
}

impl JsonGroup {
    fn new(number: Group, group: &GroupDescriptor) -> Self {
        let flags = GroupFlags::iter_names(&group.flags).map(|(name, _)| name.to_lowercase()).collect();
        Self {
            group: number.0,
            block_bitmap: group.block_bitmap.0,
            inode_bitmap: group.inode_bitmap.0,
            inode_table: group.inode_table.0,
            free_clusters: group.free_blocks,
            free_inodes: group.free_inodes,
            directories: group.used_dirs,
            unused_inodes: group.unused_inodes,
            flags,
        }
    }
}
