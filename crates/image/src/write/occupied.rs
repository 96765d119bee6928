//! Recognises what a target already contains, so that it is not overwritten by mistake.

use crate::quoted;
use extant_block::{Device, IoError, Sector, read};
use extant_format::{
    Compat, FOREIGN_HEAD_BYTES, Foreign, Incompat, SUPERBLOCK_BYTES, SUPERBLOCK_MAGIC, Superblock, UintExt,
};

/// Reads begin and end at multiples of this many bytes, which suit every device.
const UNIT: u64 = 4096;
/// A RAID superblock of version 0.90 is up to 128 KiB before the end (kernel: md_p.h).
const TAIL_BYTES: u64 = 128 << 10;
/// Magic number of Linux's RAIDs, little-endian (kernel: md_p.h).
const RAID_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// Magic numbers of DRBD 8.3, 8.4 and 9, which are 60 bytes into the last 4 KiB (drbd_meta_data.h).
const DRBD_MAGIC: [[u8; 4]; 3] = [[0x83, 0x74, 2, 0x6b], [0x83, 0x74, 2, 0x6c], [0x83, 0x74, 2, 0x6d]];

/// What a device or file contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// A description with its article.
    pub name: String,
    /// Whether it is an ext2, ext3 or ext4 volume.
    pub is_ext: bool,
}

/// Identifies the contents of a device; `None` if no signature is found.
///
/// # Errors
/// The device cannot be read.
pub async fn contents(device: &dyn Device) -> Result<Option<Occupant>, IoError> {
    let other = |name: &str| Ok(Some(Occupant { name: name.to_owned(), is_ext: false }));
    let capacity = device.limits().capacity_bytes / UNIT * UNIT;
    let len = FOREIGN_HEAD_BYTES.to_u64().next_multiple_of(UNIT).min(capacity);
    if len == 0 {
        return Ok(None);
    }
    let head = read(device, Sector(0), len.to_usize()).await?;
    if let Some(name) = ext(&head) {
        return Ok(Some(Occupant { name, is_ext: true }));
    }
    if let Some(foreign) = Foreign::identify(&head) {
        return other(foreign.name.strip_prefix("a disk with ").unwrap_or(foreign.name));
    }
    let capacity = device.limits().capacity_bytes;
    let start = capacity.saturating_sub(TAIL_BYTES).next_multiple_of(UNIT).min(capacity);
    let unit = u64::from(device.limits().block_bytes);
    let tail = read(device, Sector::containing(start), ((capacity - start) / unit * unit).to_usize()).await?;
    let at = |byte: u64, signature: &[u8]| {
        let from = byte.checked_sub(start).and_then(|from| tail.get(from.to_usize()..));
        from.is_some_and(|bytes| bytes.starts_with(signature))
    };
    if [512, 4096].iter().any(|unit| capacity > *unit && at(capacity - unit, b"EFI PART")) {
        return other("the copy of a GPT partition table");
    }
    if capacity.checked_sub(UNIT - 60).is_some_and(|byte| DRBD_MAGIC.iter().any(|magic| at(byte, magic))) {
        return other("a DRBD device");
    }
    // Both signatures are in the last sectors: Intel's in the last but one, that of the SNIA's
    // format in the last.
    let fake = [(1024, &b"Intel Raid ISM Cfg Sig. "[..]), (512, b"\xde\x11\xde\x11")];
    if fake.iter().any(|(back, magic)| capacity.checked_sub(*back).is_some_and(|byte| at(byte, magic))) {
        return other("a member of a RAID of the firmware");
    }
    // Version 0.90 begins 64 to 128 KiB before the end, 1.0 8 to 12 KiB (kernel: md.c).
    let raids = [
        (capacity / (64 << 10) * (64 << 10)).checked_sub(64 << 10),
        capacity.checked_sub(8 << 10).map(|at| at / UNIT * UNIT),
    ];
    let is_raid = raids.into_iter().flatten().any(|byte| at(byte, &RAID_MAGIC));
    if is_raid {
        return other("a member of a Linux RAID");
    }
    Ok(None)
}

/// Describes an ext volume, with its label.
fn ext(head: &[u8]) -> Option<String> {
    let bytes = head.get(1024..1024 + SUPERBLOCK_BYTES)?;
    if bytes[0x38..0x3a] != SUPERBLOCK_MAGIC.to_le_bytes() {
        return None;
    }
    let Ok(sb) = Superblock::parse(bytes) else { return Some("a damaged ext volume".to_owned()) };
    let family = match sb {
        _ if sb.incompat().contains(Incompat::EXTENTS) => "ext4",
        _ if sb.compat().contains(Compat::HAS_JOURNAL) => "ext3",
        _ => "ext2",
    };
    let label = match sb.label() {
        [] => String::new(),
        label => format!(" labelled {}", quoted(label)),
    };
    Some(format!("an {family} volume{label}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::MemDevice;
    use extant_rt::Rt;

    fn found(bytes: Vec<u8>) -> Option<String> {
        let found = Rt::real(Default::default()).block_on(contents(&MemDevice::from_bytes(bytes)));
        found.unwrap().unwrap().map(|contents| contents.name)
    }

    #[test]
    fn signatures_at_both_ends_are_found() {
        const SIZE: usize = (1 << 20) + 3 * 512;
        let with = |at: usize, signature: &[u8]| {
            let mut bytes = vec![0; SIZE];
            bytes[at..at + signature.len()].copy_from_slice(signature);
            found(bytes)
        };
        assert_eq!(with(0, b"XFSB").as_deref(), Some("an XFS volume"));
        assert_eq!(with(1024 + 0x38, b"\x53\xef").as_deref(), Some("a damaged ext volume"));
        assert_eq!(with(SIZE - 512, b"EFI PART").as_deref(), Some("the copy of a GPT partition table"));
        let raid = Some("a member of a Linux RAID");
        assert_eq!(with((1 << 20) - (64 << 10), &RAID_MAGIC).as_deref(), raid);
        assert_eq!(with((SIZE - (8 << 10)) / 4096 * 4096, &RAID_MAGIC).as_deref(), raid);
        assert_eq!(with(SIZE - 4096 + 60, &DRBD_MAGIC[1]).as_deref(), Some("a DRBD device"));
        let fake = Some("a member of a RAID of the firmware");
        assert_eq!(with(SIZE - 1024, b"Intel Raid ISM Cfg Sig. ").as_deref(), fake);
        assert_eq!(found(vec![0; SIZE]), None);
        assert_eq!(found(vec![0; 512]), None);
    }
}
