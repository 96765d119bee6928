//! Copies of superblocks anywhere on a device.

use super::sweep::sweep;
use extant_block::Mended;
use extant_format::{SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, Superblock, UintExt};

/// Maximum number of copies to try.
const COPIES_MAX: usize = 64;

/// Copies of superblocks, by kind.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Backup superblocks with their byte offsets, for volumes that begin where the device does.
    /// The backups of the volume that has the most of them come first.
    pub(super) backups: Vec<(u64, Superblock)>,
    /// Copies of primary superblocks in other places, such as in a journal.
    pub(super) strays: Vec<Superblock>,
    /// Where volumes begin that do not begin with the device.
    pub(super) elsewhere: Vec<u64>,
}

/// Searches all of a device for copies.
pub(super) async fn search(device: &Mended) -> Copies {
    let mut copies = Copies::default();
    sweep(device, |at, bytes| {
        for (n, unit) in (0..).zip(bytes.chunks_exact(SUPERBLOCK_BYTES)) {
            if unit[56..58] == SUPERBLOCK_MAGIC.to_le_bytes() {
                copies.see(at + n * SUPERBLOCK_BYTES.to_u64(), unit);
            }
        }
    })
    .await;
    let uuids: Vec<_> = copies.backups.iter().map(|(_, sb)| sb.uuid()).collect();
    let frequency = |sb: &Superblock| uuids.iter().filter(|uuid| **uuid == sb.uuid()).count();
    copies.backups.sort_by_key(|(at, sb)| (std::cmp::Reverse(frequency(sb)), *at));
    // The newest copy in a journal is not necessarily the last one.
    copies.strays.sort_by_key(|sb| std::cmp::Reverse(sb.written().seconds));
    copies
}

impl Copies {
    fn see(&mut self, at: u64, bytes: &[u8]) {
        let Ok(sb) = Superblock::parse(bytes) else { return };
        if sb.verify_checksum().is_err() {
            return;
        }
        let mut numbered = sb.clone();
        let log2 = sb.block_size().log2();
        if numbered.raw().s_block_group_nr.get() == 0 && at != 1024 {
            // Old versions of mke2fs left the group number in backups 0.
            let block = (at >> log2).saturating_sub(sb.first_data_block().0);
            let group = u16::try_from(block / u64::from(sb.blocks_per_group())).unwrap_or(0);
            numbered.raw_mut().s_block_group_nr = group.into();
        }
        let group = extant_format::Group(sb.raw().s_block_group_nr.get().into());
        let offset = match group.0 {
            0 => 1024,
            _ => sb.group_first_block(group).0 << log2,
        };
        if numbered.is_backup_at(at) {
            push(&mut self.backups, (at, sb));
        } else if group.0 == 0 && at != 1024 {
            if self.strays.iter().all(|other| other.as_bytes() != sb.as_bytes()) {
                push(&mut self.strays, sb);
            }
            push(&mut self.elsewhere, at - 1024.min(at));
        } else if at > offset {
            push(&mut self.elsewhere, at - offset);
        }
    }
}

fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() < COPIES_MAX {
        list.push(item);
    }
}
