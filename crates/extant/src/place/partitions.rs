//! Partition tables: GPT (UEFI specification 2.10, chapter 5) and MBR, with extended partitions.
//!
//! The tables are parsed here because the crates for them trust what they read: `gpt` 4.1 panics on
//! entries that are not 128 bytes long, `gptman` 3.1 reserves memory for as many entries as a
//! header claims, and `mbrman` 0.6 needs a crate that is no longer maintained.

use super::PlaceError;
use extant_block::{Device, Sector, read};
use extant_format::UintExt;

/// A partition of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partition {
    /// Its number, as Linux counts: `/dev/sda1` is 1, and logical partitions of an MBR begin at 5.
    pub number: u32,
    /// Where it begins on the disk.
    pub start_bytes: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Its name in a GPT.
    pub name: Option<String>,
    /// Its type: the GUID in a GPT, the type byte in an MBR (`0x83`).
    pub kind: String,
    /// Whether it begins with the superblock of an ext volume.
    pub is_ext: bool,
}

/// A larger table of a GPT is not read; tables have 16 KiB.
const MOST_TABLE_BYTES: u64 = 1 << 20;
/// Linux looks at no more partitions of a disk.
const MOST_PARTITIONS: usize = 256;
/// The type byte of an MBR's entry for all of a disk with a GPT.
const PROTECTIVE: u8 = 0xee;

/// The partitions of a disk, in the table's order; `None` if there is no partition table.
///
/// If a GPT is damaged, its copy at the disk's end is read.
///
/// # Errors
/// The device fails, or a GPT and its copy are both damaged.
pub async fn partitions(device: &dyn Device) -> Result<Option<Vec<Partition>>, PlaceError> {
    let disk = Disk { device, capacity: device.limits().capacity_bytes };
    let head = disk.bytes(0, 8192).await?;
    let mut found = match gpt(&disk, &head).await? {
        Some(found) => found,
        None => match mbr(&disk, &head).await? {
            Some(found) => found,
            None => return Ok(None),
        },
    };
    for partition in &mut found {
        partition.is_ext = is_ext(&disk, partition).await;
    }
    Ok(Some(found))
}

/// The partitions of this number or, if there are none, of this name.
pub(super) fn find<'a>(there: &'a [Partition], wanted: &str) -> Vec<&'a Partition> {
    let number = wanted.parse().ok();
    let found: Vec<_> = there.iter().filter(|partition| Some(partition.number) == number).collect();
    match found.is_empty() {
        true => there.iter().filter(|partition| partition.name.as_deref() == Some(wanted)).collect(),
        false => found,
    }
}

struct Disk<'a> {
    device: &'a dyn Device,
    capacity: u64,
}

impl Disk<'_> {
    /// Bytes of the disk; fewer at its end.
    async fn bytes(&self, from: u64, len: u64) -> Result<Vec<u8>, PlaceError> {
        let unit = u64::from(self.device.limits().block_bytes).max(Sector::BYTES);
        let end = from.saturating_add(len).min(self.capacity);
        if from >= end {
            return Ok(Vec::new());
        }
        let start = from / unit * unit;
        let whole = (end - start).next_multiple_of(unit).min(self.capacity / unit * unit - start);
        let Ok(whole) = usize::try_from(whole) else { return Ok(Vec::new()) };
        let read = read(self.device, Sector::containing(start), whole).await?;
        let skip = (from - start).to_usize();
        Ok(read.get(skip..).unwrap_or_default().iter().copied().take((end - from).to_usize()).collect())
    }
}

/// Whether the magic number of a superblock is in its place.
async fn is_ext(disk: &Disk<'_>, partition: &Partition) -> bool {
    let at = partition.start_bytes.saturating_add(1024 + 0x38);
    disk.bytes(at, 2).await.is_ok_and(|magic| magic == [0x53, 0xef])
}

fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |word| u16::from_le_bytes([word[0], word[1]]))
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// The partitions of a GPT; `None` if there is none.
async fn gpt(disk: &Disk<'_>, head: &[u8]) -> Result<Option<Vec<Partition>>, PlaceError> {
    const SIGNATURE: &[u8] = b"EFI PART";
    let mut damage = None;
    for unit in [512_u64, 4096] {
        let first = head.get(unit.to_usize()..).unwrap_or_default();
        let last = disk.capacity / unit * unit;
        let copy = match last.checked_sub(unit) {
            // Without a first header, a copy counts only if the MBR says that there is a GPT: a
            // disk that was partitioned anew may have an old copy at its end.
            Some(at) if first.starts_with(SIGNATURE) || is_protective(head) => disk.bytes(at, unit).await?,
            _ => Vec::new(),
        };
        for (header, lba) in [(first, 1), (&copy[..], last / unit - u64::from(last > 0))] {
            if !header.starts_with(SIGNATURE) {
                continue;
            }
            match gpt_at(disk, header, unit, lba).await? {
                Ok(found) => return Ok(Some(found)),
                Err(why) => damage = Some(damage.unwrap_or(why)),
            }
        }
    }
    match damage {
        Some(why) => Err(PlaceError::Damaged(why)),
        None if is_protective(head) => Err(PlaceError::Damaged("the MBR says GPT, and there is none")),
        None => Ok(None),
    }
}

fn is_protective(head: &[u8]) -> bool {
    le16(head, 510) == 0xaa55 && (0..4).any(|entry| head.get(446 + 16 * entry + 4) == Some(&PROTECTIVE))
}

/// The checksum of a GPT: CRC-32 with the polynomial 0x04c11db7, reflected. A table has 16 KiB and
/// is read once, so a bit at a time is fast enough.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 != 0 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

/// Reads the table behind a header. Offsets are those of the specification's tables 5.5 and 5.6.
async fn gpt_at(
    disk: &Disk<'_>,
    header: &[u8],
    unit: u64,
    lba: u64,
) -> Result<Result<Vec<Partition>, &'static str>, PlaceError> {
    let header_bytes = le32(header, 12).to_usize();
    let Some(summed) = header.get(..header_bytes).filter(|_| (92..=unit.to_usize()).contains(&header_bytes))
    else {
        return Ok(Err("the header's size is impossible"));
    };
    let mut summed = summed.to_vec();
    summed[16..20].fill(0);
    if crc32(&summed) != le32(header, 16) {
        return Ok(Err("the header's checksum is wrong"));
    }
    if le64(header, 24) != lba {
        return Ok(Err("the header belongs to another place"));
    }
    let (count, entry_bytes) = (u64::from(le32(header, 80)), u64::from(le32(header, 84)));
    let table_bytes = count * entry_bytes;
    if !entry_bytes.is_multiple_of(128) || entry_bytes == 0 || table_bytes > MOST_TABLE_BYTES {
        return Ok(Err("the table's size is impossible"));
    }
    let Some(at) = le64(header, 72).checked_mul(unit) else { return Ok(Err("the table lies nowhere")) };
    let table = disk.bytes(at, table_bytes).await?;
    if table.len().to_u64() != table_bytes || crc32(&table) != le32(header, 88) {
        return Ok(Err("the table's checksum is wrong"));
    }
    let mut found = Vec::new();
    for (entry, number) in table.chunks_exact(entry_bytes.to_usize()).zip(1..) {
        let (first, last) = (le64(entry, 32), le64(entry, 40));
        let sectors = last.checked_sub(first).and_then(|more| more.checked_add(1));
        let bytes = |lba: u64| lba.checked_mul(unit);
        if entry[..16].iter().all(|&byte| byte == 0) {
            continue;
        }
        let (Some(start_bytes), Some(size_bytes)) = (bytes(first), sectors.and_then(bytes)) else {
            return Ok(Err("a partition ends before it begins"));
        };
        let name: Vec<u16> = (0..36).map(|n| le16(entry, 56 + 2 * n)).take_while(|&unit| unit != 0).collect();
        let name = Some(String::from_utf16_lossy(&name)).filter(|name| !name.is_empty());
        found.push(Partition {
            number,
            start_bytes,
            size_bytes,
            name,
            kind: guid(&entry[..16]),
            is_ext: false,
        });
        if found.len() == MOST_PARTITIONS {
            break;
        }
    }
    Ok(Ok(found))
}

/// A GUID as it is written: its first three fields are little-endian.
fn guid(bytes: &[u8]) -> String {
    let hex = |order: &[usize]| order.iter().map(|&at| format!("{:02X}", bytes[at])).collect::<String>();
    let fields = [&[3, 2, 1, 0][..], &[5, 4], &[7, 6], &[8, 9], &[10, 11, 12, 13, 14, 15]];
    fields.map(hex).join("-")
}

/// An entry of an MBR: type byte, and start and size in sectors.
struct Entry {
    kind: u8,
    start: u64,
    sectors: u64,
}

/// The four entries of a boot sector; `None` if the sector is not one.
fn entries(sector: &[u8]) -> Option<[Entry; 4]> {
    if le16(sector, 510) != 0xaa55 {
        return None;
    }
    Some([0, 1, 2, 3].map(|n| {
        let at = 446 + 16 * n;
        let (start, sectors) = (le32(sector, at + 8).into(), le32(sector, at + 12).into());
        Entry { kind: sector[at + 4], start, sectors }
    }))
}

/// The partitions of an MBR; `None` if the first sector is not an MBR but, for example, a file
/// system's boot sector.
async fn mbr(disk: &Disk<'_>, head: &[u8]) -> Result<Option<Vec<Partition>>, PlaceError> {
    let unit = u64::from(disk.device.limits().block_bytes).max(Sector::BYTES);
    let Some(primary) = entries(head) else { return Ok(None) };
    let states = (0..4).map(|n| head[446 + 16 * n]);
    let used = |entry: &&Entry| entry.kind != 0 && entry.sectors > 0;
    let makes_sense = |entry: &Entry| entry.start > 0 && entry.start < disk.capacity / unit;
    let has_sense = primary.iter().filter(used).all(makes_sense) && primary.iter().filter(used).count() > 0;
    if !has_sense || states.into_iter().any(|state| state & 0x7f != 0) {
        return Ok(None);
    }
    let of = |number: u32, entry: &Entry, base: u64| Partition {
        number,
        start_bytes: (base + entry.start) * unit,
        size_bytes: entry.sectors * unit,
        name: None,
        kind: format!("0x{:02x}", entry.kind),
        is_ext: false,
    };
    let mut found = Vec::new();
    for (entry, number) in primary.iter().zip(1..).filter(|(entry, _)| used(entry)) {
        if !matches!(entry.kind, 0x05 | 0x0f | 0x85) {
            found.push(of(number, entry, 0));
        }
    }
    // Each logical partition has a boot sector of its own, with an entry for the next one.
    if let Some(extended) =
        primary.iter().find(|entry| used(entry) && matches!(entry.kind, 0x05 | 0x0f | 0x85))
    {
        let (base, mut next, mut number) = (extended.start, 0, 5);
        for _ in 0..MOST_PARTITIONS {
            let Some(chain) = entries(&disk.bytes((base + next) * unit, 512).await?) else { break };
            // Linux does not count empty ones.
            if used(&&chain[0]) {
                found.push(of(number, &chain[0], base + next));
                number += 1;
            }
            // The chain goes forward, so that it ends.
            if !used(&&chain[1]) || chain[1].start <= next {
                break;
            }
            next = chain[1].start;
        }
    }
    Ok(Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::MemDevice;
    use extant_rt::{Rng, Rt};

    fn disk_of(bytes: &[u8]) -> MemDevice {
        MemDevice::from_bytes(bytes.to_vec())
    }

    fn look(disk: &MemDevice) -> Result<Option<Vec<Partition>>, PlaceError> {
        Rt::real(Default::default()).block_on(partitions(disk)).unwrap()
    }

    /// A disk of 1 MiB with a GPT of two partitions, and the copy at its end.
    fn with_gpt(unit: usize) -> Vec<u8> {
        let mut disk = vec![0; 1 << 20];
        let last = (1 << 20) / unit - 1;
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        disk[446 + 4] = PROTECTIVE;
        let mut table = vec![0; 1024];
        for (n, (first, end, name)) in [(0, (40_u64, 49_u64, "EFI")), (5, (50, 60, "root"))] {
            let entry = &mut table[n * 128..][..128];
            entry[..16].copy_from_slice(&[n as u8 + 1; 16]);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&end.to_le_bytes());
            for (at, unit) in name.encode_utf16().enumerate() {
                entry[56 + 2 * at..58 + 2 * at].copy_from_slice(&unit.to_le_bytes());
            }
        }
        for (lba, table_lba) in [(1, 2), (last, last - 4096.max(unit) / unit)] {
            disk[table_lba * unit..][..1024].copy_from_slice(&table);
            let header = &mut disk[lba * unit..][..92];
            header[..8].copy_from_slice(b"EFI PART");
            header[12..16].copy_from_slice(&92_u32.to_le_bytes());
            header[24..32].copy_from_slice(&(lba as u64).to_le_bytes());
            header[72..80].copy_from_slice(&(table_lba as u64).to_le_bytes());
            header[80..84].copy_from_slice(&8_u32.to_le_bytes());
            header[84..88].copy_from_slice(&128_u32.to_le_bytes());
            header[88..92].copy_from_slice(&crc32fast::hash(&table).to_le_bytes());
            let sum = crc32fast::hash(header);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
        }
        disk[50 * unit + 1024 + 0x38..][..2].copy_from_slice(&[0x53, 0xef]);
        disk
    }

    #[test]
    fn a_gpt_is_read_or_its_copy() {
        for unit in [512, 4096] {
            let whole = with_gpt(unit);
            for (what, at) in [("whole", None), ("header", Some(unit + 30)), ("table", Some(2 * unit + 33))] {
                let mut bytes = whole.clone();
                if let Some(at) = at {
                    bytes[at] ^= 1;
                }
                let found = look(&disk_of(&bytes)).unwrap().unwrap();
                let seen: Vec<_> = found
                    .iter()
                    .map(|p| (p.number, p.start_bytes, p.size_bytes, p.name.as_deref(), p.is_ext))
                    .collect();
                let unit = unit as u64;
                let expected = [
                    (1, 40 * unit, 10 * unit, Some("EFI"), false),
                    (6, 50 * unit, 11 * unit, Some("root"), true),
                ];
                assert_eq!(seen, expected, "{what}, sectors of {unit}");
                assert_eq!(found[0].kind, "01010101-0101-0101-0101-010101010101");
                assert_eq!(find(&found, "root"), [&found[1]]);
                assert_eq!(find(&found, "6"), [&found[1]]);
                assert!(find(&found, "2").is_empty());
            }
            let mut bytes = whole;
            bytes[unit + 30] ^= 1;
            let end = bytes.len() - unit + 30;
            bytes[end] ^= 1;
            assert!(matches!(look(&disk_of(&bytes)), Err(PlaceError::Damaged(_))));
        }
    }

    #[test]
    fn an_mbr_has_logical_partitions() {
        let mut disk = vec![0; 1 << 20];
        let mut entry = |sector: usize, n: usize, kind: u8, start: u32, sectors: u32| {
            disk[sector * 512 + 510..][..2].copy_from_slice(&[0x55, 0xaa]);
            let at = sector * 512 + 446 + 16 * n;
            disk[at + 4] = kind;
            disk[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
            disk[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        };
        entry(0, 0, 0x83, 64, 100);
        entry(0, 2, 0x0f, 200, 1000);
        entry(200, 0, 0x83, 2, 50);
        entry(200, 1, 0x05, 56, 4);
        // This one is empty.
        entry(256, 1, 0x05, 60, 100);
        entry(260, 0, 0x82, 3, 40);
        // The chain's end points back.
        entry(260, 1, 0x05, 0, 100);
        let found = look(&disk_of(&disk)).unwrap().unwrap();
        let seen: Vec<_> =
            found.iter().map(|p| (p.number, p.start_bytes / 512, p.size_bytes / 512)).collect();
        assert_eq!(seen, [(1, 64, 100), (5, 202, 50), (6, 263, 40)]);
        assert_eq!(found[2].kind, "0x82");
        assert_eq!(look(&disk_of(&[0; 4096])).unwrap(), None);
    }

    #[test]
    fn no_bytes_of_a_table_do_harm() {
        const SEED: u64 = 7;
        println!("seed {SEED}");
        let mut rng = Rng::new(SEED);
        let whole = with_gpt(512);
        for _ in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..=rng.below(4) {
                let at = match rng.below(3) {
                    0 => 446 + rng.below(66),
                    1 => 512 + rng.below(92),
                    _ => 1024 + rng.below(1024),
                };
                bytes[at as usize] = rng.next_u64() as u8;
            }
            if rng.below(2) == 0 {
                // With checksums that agree.
                let sum = crc32fast::hash(&bytes[1024..2048]);
                bytes[512 + 88..512 + 92].copy_from_slice(&sum.to_le_bytes());
                bytes[512 + 16..512 + 20].fill(0);
                let sum = crc32fast::hash(&bytes[512..512 + 92]);
                bytes[512 + 16..512 + 20].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = look(&disk_of(&bytes));
        }
    }
}
