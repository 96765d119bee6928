//! Identifies files that are not ext volumes: formats that people pass by mistake, recognised by
//! the signatures that blkid(8) looks for.

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
const BCACHE: &str = "register it with the kernel, and name the device /dev/bcacheN";
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
    (0, b"MSWIM\0\0\0", "a WIM archive", OTHER),
    (0, b"QED\0", "a QED image", TO_RAW),
    (0, b"WithoutFreeSpace", "a Parallels image", TO_RAW),
    (0, b"WithouFreSpacExt", "a Parallels image", TO_RAW),
    (0, b"COWD", "a VMDK image", TO_RAW),
    (0, b"EVF\x09\x0d\x0a\xff\0", "an EWF (EnCase) image", "make it raw with ewfexport"),
    (0, b"partclone-image", "an image of partclone", "make it raw with partclone.restore -C -O"),
    (0, b"ANDROID!", "an Android boot image", OTHER),
    (0, b"CrAU", "an Android update payload", OTHER),
    (257, b"ustar", "a tar archive", ARCHIVE),
    (0, b"hsqs", "a squashfs volume", OTHER),
    (0, b"XFSB", "an XFS volume", OTHER),
    (0, b"LUKS\xba\xbe", "a LUKS container", MAPPED),
    (
        3,
        b"-FVE-FS-",
        "a BitLocker volume",
        "open it with cryptsetup bitlkOpen, and name the device below /dev/mapper",
    ),
    (0, b"verity\0\0", "hashes of dm-verity", OTHER),
    (0, b"integrt\0", "a device of dm-integrity", MAPPED),
    (0, b"SnAp", "a snapshot store of device-mapper", OTHER),
    (0, b"dmvdo001", "a VDO volume", MAPPED),
    (516, b"!Stra0tis", "a member of a Stratis pool", OTHER),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", "a bcache device", BCACHE),
    (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", "a bcachefs volume", OTHER),
    // The first name in the list that each member's label begins with.
    (0x4014, b"\0\0\0\x07version\0", "a member of a ZFS pool", OTHER),
    (32, b"ORCLDISK", "a disk of Oracle ASM", OTHER),
    (32, b"NXSB", "an APFS container", OTHER),
    (0, b"\x7fELF", "an ELF program", OTHER),
    (512, b"LABELONE", "a physical volume of LVM", MAPPED),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID", RAID),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID", RAID),
    (0, b"bluestore block device", "an OSD of Ceph", OTHER),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS volume", OTHER),
    (0x400, b"\xe2\xe1\xf5\xe0", "an EROFS volume", OTHER),
    (4086, b"SWAPSPACE2", "a swap area", OTHER),
    (16374, b"SWAPSPACE2", "a swap area", OTHER),
    (65526, b"SWAPSPACE2", "a swap area", OTHER),
    (4086, b"S1SUSPEND", "a swap area with a suspended system", OTHER),
    (4086, b"LINHIB0001", "a swap area with a suspended system", OTHER),
    (0x400, b"\x02\0\0\0\0\0\x34\x34", "a NILFS2 volume", OTHER),
    (0x400, b"H+\0\x04", "an HFS+ volume", OTHER),
    (0x400, b"HX\0\x05", "an HFSX volume", OTHER),
    (0x400, b"OCFSV2", "an OCFS2 volume", OTHER),
    (0x800, b"OCFSV2", "an OCFS2 volume", OTHER),
    (0x1000, b"OCFSV2", "an OCFS2 volume", OTHER),
    (0x2000, b"OCFSV2", "an OCFS2 volume", OTHER),
    (0x1_0000, b"\x01\x16\x19\x70\0\0\0\x01", "a GFS2 volume", OTHER),
    (544, b"1SFB", "a BFS volume", OTHER),
    (0x255c, b"\x54\x19\x01\0", "a UFS volume", OTHER),
    (0x255c, b"\x19\x01\x54\x19", "a UFS volume", OTHER),
    (0x1_055c, b"\x19\x01\x54\x19", "a UFS volume", OTHER),
    (0, b"\x45\x3d\xcd\x28", "a cramfs volume", OTHER),
    (0, b"-rom1fs-", "a romfs volume", OTHER),
    (0, b"UBI#", "a UBI image", OTHER),
    (0, b"\x31\x18\x10\x06", "a UBIFS volume", OTHER),
    (0, b"\x85\x19\x03\x20\x0c\0\0\0", "a JFFS2 volume", OTHER),
    (0, b"SFOZ", "a zonefs volume", OTHER),
    (0x8000, b"JFS1", "a JFS volume", OTHER),
    (0x8001, b"CD001", "an ISO 9660 image", OTHER),
    (0x8001, b"BEA01", "a UDF volume", OTHER),
    (0x1_0034, b"ReIsEr", "a ReiserFS volume", OTHER),
    (0x1_0000, b"ReIsEr4", "a Reiser4 volume", OTHER),
    (0x1_0040, b"_BHRfS_M", "a btrfs volume", OTHER),
    (3, b"NTFS    ", "an NTFS volume", OTHER),
    (3, b"EXFAT   ", "an exFAT volume", OTHER),
    (3, b"ReFS\0", "a ReFS volume", OTHER),
    (54, b"FAT1", "a FAT volume", OTHER),
    (82, b"FAT32", "a FAT volume", OTHER),
    (512, b"EFI PART", "a disk with a GPT partition table", PARTITIONS),
    (4096, b"EFI PART", "a disk with a GPT partition table", PARTITIONS),
];

impl Foreign {
    /// Names the format of a file by its first [`FOREIGN_HEAD_BYTES`], or fewer if it is shorter.
    /// `None` if nothing matches. Does not look for ext volumes.
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

/// Whether this is a boot sector with at least one partition, and without impossible ones.
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

/// Whether the file begins like text: UTF-8 without control characters.
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
