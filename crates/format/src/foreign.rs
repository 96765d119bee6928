//! What a file is that is no ext volume: formats that people pass by mistake, known by their
//! signatures.

/// How much of a file [`Foreign::identify`] looks at: btrfs has its superblock 64 KiB in.
pub const FOREIGN_HEAD_BYTES: usize = 66 << 10;

/// A format that is not ext2, ext3 or ext4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// What the file is, with its article: "a qcow2 image".
    pub name: &'static str,
    /// What its owner may do next.
    pub advice: &'static str,
}

const PARTITIONS: &str = "extant info lists its partitions, and --partition names one";
const DECOMPRESS: &str = "decompress it first";
const TO_RAW: &str = "convert it with qemu-img convert -O raw, or serve it with qemu-nbd";
const OTHER: &str = "extant reads ext2, ext3 and ext4 only";
const ARCHIVE: &str = "extant build makes a volume of it";
const MAPPED: &str = "open it first, and name the device below /dev/mapper";
const RAID: &str = "assemble it with mdadm, and name the device /dev/mdN";

/// Signatures by offset. Formats whose signature lies in the first bytes come first; those of
/// partition tables, which are boot sectors, come after file systems that have boot sectors too.
const SIGNATURES: &[(usize, &[u8], &str, &str)] = &[
    (0, b"QFI\xfb", "a qcow2 image", TO_RAW),
    (0, b"KDMV", "a VMDK image", TO_RAW),
    (0, b"# Disk DescriptorFile", "a VMDK descriptor", TO_RAW),
    (0, b"vhdxfile", "a VHDX image", TO_RAW),
    (0, b"conectix", "a VHD image", TO_RAW),
    (0x40, b"\x7f\x10\xda\xbe", "a VDI image", TO_RAW),
    (0, b"\x3a\xff\x26\xed", "an Android sparse image", "convert it with simg2img"),
    (0, b"\x1f\x8b", "a gzip-compressed file", DECOMPRESS),
    (0, b"\x28\xb5\x2f\xfd", "a zstd-compressed file", DECOMPRESS),
    (0, b"\xfd7zXZ\0", "an xz-compressed file", DECOMPRESS),
    (0, b"BZh", "a bzip2-compressed file", DECOMPRESS),
    (0, b"\x04\x22\x4d\x18", "an lz4-compressed file", DECOMPRESS),
    (0, b"PK\x03\x04", "a zip archive", DECOMPRESS),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", DECOMPRESS),
    (0, b"070701", "a cpio archive", OTHER),
    (257, b"ustar", "a tar archive", ARCHIVE),
    (0, b"hsqs", "a squashfs volume", OTHER),
    (0, b"XFSB", "an XFS volume", OTHER),
    (0, b"LUKS\xba\xbe", "a LUKS container", MAPPED),
    (0, b"\x7fELF", "an ELF program", OTHER),
    (512, b"LABELONE", "a physical volume of LVM", MAPPED),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID", RAID),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID", RAID),
    (0, b"bluestore block device", "an OSD of Ceph", OTHER),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS volume", OTHER),
    (0x400, b"\xe2\xe1\xf5\xe0", "an EROFS volume", OTHER),
    (4086, b"SWAPSPACE2", "a swap area", OTHER),
    (0x8000, b"JFS1", "a JFS volume", OTHER),
    (0x8001, b"CD001", "an ISO 9660 image", OTHER),
    (0x1_0034, b"ReIsEr", "a ReiserFS volume", OTHER),
    (0x1_0040, b"_BHRfS_M", "a btrfs volume", OTHER),
    (3, b"NTFS    ", "an NTFS volume", OTHER),
    (3, b"EXFAT   ", "an exFAT volume", OTHER),
    (54, b"FAT1", "a FAT volume", OTHER),
    (82, b"FAT32", "a FAT volume", OTHER),
    (512, b"EFI PART", "a disk with a GPT partition table", PARTITIONS),
    (4096, b"EFI PART", "a disk with a GPT partition table", PARTITIONS),
];

impl Foreign {
    /// Names the format of a file by its first [`FOREIGN_HEAD_BYTES`], or fewer if it is shorter.
    /// `None` for bytes that nothing is known of; an ext volume is not looked for.
    pub fn identify(head: &[u8]) -> Option<Self> {
        let known = SIGNATURES
            .iter()
            .find(|(at, signature, ..)| head.get(*at..).is_some_and(|bytes| bytes.starts_with(signature)));
        if let Some(&(_, _, name, advice)) = known {
            return Some(Self { name, advice });
        }
        if has_mbr(head) {
            return Some(Self { name: "a disk with an MBR partition table", advice: PARTITIONS });
        }
        is_text(head).then_some(Self { name: "a text file", advice: OTHER })
    }
}

/// A boot sector with at least one partition, and none that makes no sense.
fn has_mbr(head: &[u8]) -> bool {
    let (Some(table), Some(b"\x55\xaa")) = (head.get(446..510), head.get(510..512)) else { return false };
    let entry = |entry: &[u8]| {
        let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        (entry[0], entry[4], number(8), number(12))
    };
    let entries = table.chunks_exact(16).map(entry);
    let is_sound = |&(boot, kind, first, sectors): &(u8, u8, u32, u32)| {
        matches!(boot, 0 | 0x80) && (kind == 0 || first > 0 && sectors > 0)
    };
    entries.clone().all(|entry| is_sound(&entry)) && entries.clone().any(|(_, kind, ..)| kind != 0)
}

/// Lines of text: UTF-8 without control characters, where it begins.
fn is_text(head: &[u8]) -> bool {
    let head = &head[..head.len().min(1024)];
    let is_utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        // A character may be cut off at the end.
        Err(error) => error.error_len().is_none(),
    };
    let is_control = |byte: &u8| *byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r' | 0x0c);
    !head.is_empty() && is_utf8 && !head.iter().any(is_control)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name_of(head: &[u8]) -> Option<&'static str> {
        Foreign::identify(head).map(|foreign| foreign.name)
    }

    fn with(at: usize, signature: &[u8]) -> Vec<u8> {
        let mut head = vec![0; FOREIGN_HEAD_BYTES];
        head[at..at + signature.len()].copy_from_slice(signature);
        head
    }

    #[test]
    fn each_signature_is_found_at_its_place_and_fits_the_head() {
        for &(at, signature, name, _) in SIGNATURES {
            assert_eq!(name_of(&with(at, signature)), Some(name));
        }
    }

    #[test]
    fn an_mbr_has_partitions() {
        let mut head = with(510, b"\x55\xaa");
        assert_eq!(name_of(&head), None, "a boot sector alone");
        head[446 + 4] = 0x83;
        assert_eq!(name_of(&head), None, "a partition of nothing");
        (head[446 + 9], head[446 + 13]) = (8, 64);
        assert_eq!(name_of(&head), Some("a disk with an MBR partition table"));
        head[462] = 0x7e;
        assert_eq!(name_of(&head), None, "code of a boot loader");
    }

    #[test]
    fn text_is_no_binary() {
        assert_eq!(name_of(b"hello\n"), Some("a text file"));
        assert_eq!(name_of(&"\u{e9}".repeat(600).as_bytes()[..1023]), Some("a text file"));
        for head in [&b""[..], &[0; 4096], b"hel\0lo", &[0xff; 100]] {
            assert_eq!(name_of(head), None, "{head:?}");
        }
    }
}
