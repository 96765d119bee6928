//! Structures created by mke2fs 1.47 parse, print, and are written back byte for byte; a single
//! changed field is refused by name.
//!
//! `tests/data` has pieces of two 8 MiB volumes with 1 KiB blocks: `mke2fs -t ext4 -b 1024 -d` with
//! a small tree, and `uninit_bg_*` with `-O ^metadata_csum,uninit_bg,^64bit`.

use extant_format::*;

const SUPERBLOCK: &[u8] = include_bytes!("data/superblock.bin");
const DESCRIPTOR: &[u8] = include_bytes!("data/descriptor.bin");
const BLOCK_BITMAP: &[u8] = include_bytes!("data/block_bitmap.bin");
const INODE: &[u8] = include_bytes!("data/inode17.bin");
const DIR_INODE: &[u8] = include_bytes!("data/inode12.bin");
const EXTENTS: &[u8] = include_bytes!("data/extents1627.bin");
const DIR_BLOCK: &[u8] = include_bytes!("data/dir12.bin");

fn sb() -> Superblock {
    Superblock::parse(SUPERBLOCK).unwrap()
}

fn with(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    changed[at..at + new.len()].copy_from_slice(new);
    changed
}

/// Name of the field for which a structure is refused.
fn field<T: std::fmt::Debug>(result: Result<T, Corrupt>) -> &'static str {
    match result.expect_err("the changed structure is refused").problem {
        Problem::Field { field, .. } => field,
        Problem::Magic { .. } => "magic",
        Problem::Checksum { .. } => "checksum",
        Problem::Truncated { .. } => "truncated",
        _ => "another problem",
    }
}

#[test]
fn superblock_reads_as_dumpe2fs_shows_it() {
    let sb = sb();
    sb.verify_checksum().unwrap();
    assert_eq!(sb.block_size().bytes(), 1024);
    assert_eq!(sb.blocks_count(), 8192);
    assert_eq!(sb.inodes_per_group(), 2048);
    assert_eq!(sb.group_count(), 1);
    assert_eq!(sb.reserved_blocks(), 409);
    assert_eq!(sb.journal_inode(), Some(InodeNumber::JOURNAL));
    let shown = sb.to_string();
    for line in [
        "uuid:             6f1f3e5a-0000-4000-8000-000000000001",
        "incompatible:     extent 64bit flex_bg filetype",
        "created:          2023-11-14 22:13:20 UTC",
        "free blocks:      6468",
    ] {
        let words: Vec<_> = line.split_whitespace().collect();
        let found = shown.lines().any(|l| words.iter().all(|w| l.split_whitespace().any(|s| s == *w)));
        assert!(found, "{line} in\n{shown}");
    }
    let mut again = sb.clone();
    again.update_checksum();
    assert_eq!(again.as_bytes(), SUPERBLOCK);
}

#[test]
fn superblock_with_one_bad_field_is_refused_by_its_name() {
    let cases: &[(usize, &[u8], &str)] = &[
        (0x38, &[0, 0], "magic"),
        (0x18, &[7], "s_log_block_size"),
        (0x20, &[0, 0, 0, 0], "s_clusters_per_group"),
        (0x20, &[0xff, 0xff, 0xff, 0xff], "s_clusters_per_group"),
        (0x28, &[0, 0, 0, 0], "s_inodes_per_group"),
        (0x28, &[0xff, 0xff, 0, 0], "s_inodes_per_group"),
        (0x00, &[1, 0, 0, 0], "s_inodes_count"),
        (0x04, &[0, 0, 0, 0], "s_blocks_count"),
        (0x150, &[0xff, 0xff, 0xff, 0xff], "s_blocks_count"),
        (0x14, &[9], "s_first_data_block"),
        (0x4c, &[2], "s_rev_level"),
        (0x58, &[0x81, 0], "s_inode_size"),
        (0x58, &[0, 8], "s_inode_size"),
        (0x58, &[64, 0], "s_inode_size"),
        (0x54, &[3, 0, 0, 0], "s_first_ino"),
        (0xfe, &[32, 0], "s_desc_size"),
        (0xfe, &[0, 8], "s_desc_size"),
        (0xce, &[0xff, 0xff], "s_reserved_gdt_blocks"),
        (0x174, &[32], "s_log_groups_per_flex"),
    ];
    for (at, new, name) in cases {
        assert_eq!(field(Superblock::parse(&with(SUPERBLOCK, *at, new))), *name, "byte {at:#x} = {new:x?}");
    }
    // With bigalloc the cluster size is checked.
    let bigalloc = with(SUPERBLOCK, 0x65, &[SUPERBLOCK[0x65] | 2]);
    assert_eq!(field(Superblock::parse(&with(&bigalloc, 0x1c, &[21]))), "s_log_cluster_size");
    assert_eq!(field(Superblock::parse(&SUPERBLOCK[..1000])), "truncated");
    let other_label = Superblock::parse(&with(SUPERBLOCK, 0x78, b"x")).unwrap();
    assert_eq!(field(other_label.verify_checksum()), "checksum");
    let other_type = Superblock::parse(&with(SUPERBLOCK, 0x175, &[2])).unwrap();
    assert_eq!(field(other_type.verify_checksum()), "s_checksum_type");
}

#[test]
fn descriptors_of_both_checksum_kinds() {
    let old_sb = Superblock::parse(include_bytes!("data/uninit_bg_superblock.bin")).unwrap();
    let old: &[u8] = include_bytes!("data/uninit_bg_descriptor.bin");
    for (sb, bytes, bitmap) in [(sb(), DESCRIPTOR, 66), (old_sb, old, 34)] {
        let gd = GroupDescriptor::parse(bytes, &sb, Group(0)).unwrap();
        assert_eq!(gd.block_bitmap, VolumeBlock(bitmap));
        let mut again = vec![0xaa; bytes.len()];
        gd.write_to(&mut again, &sb, Group(0));
        assert_eq!(again, bytes);
        assert_eq!(field(GroupDescriptor::parse(bytes, &sb, Group(1))), "checksum");
        assert_eq!(field(GroupDescriptor::parse(&with(bytes, 0x0c, &[1, 2]), &sb, Group(0))), "checksum");
        assert_eq!(field(GroupDescriptor::parse(&bytes[..31], &sb, Group(0))), "truncated");
        for (at, name) in [(0x0, "bg_block_bitmap"), (0x4, "bg_inode_bitmap"), (0x8, "bg_inode_table")] {
            for bad in [[0, 0, 0, 0], [0, 0x20, 0, 0], [0xff; 4]] {
                assert_eq!(field(GroupDescriptor::parse(&with(bytes, at, &bad), &sb, Group(0))), name);
            }
        }
        // A table that begins inside the volume and ends outside it.
        assert_eq!(
            field(GroupDescriptor::parse(&with(bytes, 8, &[0xff, 0x1f]), &sb, Group(0))),
            "bg_inode_table"
        );
    }
    let gd = GroupDescriptor::parse(DESCRIPTOR, &sb(), Group(0)).unwrap();
    verify_block_bitmap(BLOCK_BITMAP, &sb(), Group(0), &gd).unwrap();
    assert_eq!(count_free(BLOCK_BITMAP, 8191), gd.free_blocks);
    assert_eq!(field(verify_block_bitmap(&with(BLOCK_BITMAP, 9, &[0]), &sb(), Group(0), &gd)), "checksum");
    assert_eq!(field(verify_inode_bitmap(BLOCK_BITMAP, &sb(), Group(0), &gd)), "checksum");
}

#[test]
fn an_inodes_checksum_tells_its_number() {
    let seed = sb().checksum_seed().unwrap();
    for (number, bytes) in [(17, INODE), (12, DIR_INODE)] {
        assert_eq!(Inode::checksum_origin(bytes), Some(seed.0 ^ number));
    }
    // Without room for the second half of the checksum.
    assert_eq!(Inode::checksum_origin(&INODE[..128]), None);
    assert_eq!(Inode::checksum_origin(&with(INODE, 0x80, &[0, 0])), None);
}

#[test]
fn inodes_come_back_byte_for_byte() {
    let sb = sb();
    for (number, bytes) in [(17, INODE), (12, DIR_INODE)] {
        let inode = Inode::parse(bytes, &sb, InodeNumber(number)).unwrap();
        let mut again = vec![0xaa; bytes.len()];
        inode.write_to(&mut again, &sb);
        assert_eq!(again, bytes);
        assert_eq!(field(Inode::parse(bytes, &sb, InodeNumber(number + 1))), "checksum");
        for at in 0..bytes.len() {
            let changed = with(bytes, at, &[bytes[at] ^ 0x10]);
            let name = field(Inode::parse(&changed, &sb, InodeNumber(number)));
            assert!(
                name == "checksum" || (name == "i_extra_isize" && (0x80..0x82).contains(&at)),
                "{at:#x} {name}"
            );
        }
    }
    let inode = Inode::parse(INODE, &sb, InodeNumber(17)).unwrap();
    assert_eq!((inode.size(), inode.blocks_512(&sb), inode.mode()), (203_776, 204, 0o100_644));
    assert_eq!(inode.created().unwrap().to_string(), "2023-11-14 22:13:20 UTC");
    assert_eq!(field(Inode::parse(&INODE[..200], &sb, InodeNumber(17))), "truncated");
    assert_eq!(
        field(Inode::parse_unchecked(&with(INODE, 0x80, &[129]), &sb, InodeNumber(17))),
        "i_extra_isize"
    );
    assert_eq!(
        field(Inode::parse_unchecked(&with(INODE, 0x80, &[2]), &sb, InodeNumber(17))),
        "i_extra_isize"
    );
}

#[test]
fn device_numbers_of_both_encodings() {
    for (major, minor) in [(8, 1), (255, 255), (259, 3), (1, 0xf_ffff), (4095, 0)] {
        let mut inode = Inode::new(InodeNumber(20), &sb());
        inode.raw.i_mode = FileKind::BlockDevice.mode_bits().into();
        inode.set_device(DeviceNumber { major, minor });
        assert_eq!(inode.device(), Some(DeviceNumber { major, minor }));
    }
}

#[test]
fn huge_files_count_blocks_instead_of_sectors() {
    let mut inode = Inode::new(InodeNumber(20), &sb());
    for count in [0, 8, (1 << 48) - 2, 1 << 48] {
        inode.set_blocks_512(count, &sb());
        assert_eq!(inode.blocks_512(&sb()), count);
    }
    assert!(inode.flags().contains(InodeFlags::HUGE_FILE));
}

fn leaf_context(sb: &Superblock) -> ExtentContext<'_> {
    let root = ExtentContext::root(sb, InodeNumber(17));
    ExtentContext { block: Some(VolumeBlock(1627)), depth: Some(0), range: BlockRange::new(0, 166), ..root }
}

#[test]
fn extent_trees_come_back() {
    let sb = sb();
    let inode = Inode::parse(INODE, &sb, InodeNumber(17)).unwrap();
    let root = ExtentNode::parse(inode.map(), &ExtentContext::root(&sb, inode.number)).unwrap();
    let ExtentNode::Index { depth: 1, ref entries } = root else { panic!("{root}") };
    assert_eq!(entries[0].child, VolumeBlock(1627));
    let mut again = [0xaa; 60];
    root.write_to(&mut again);
    assert_eq!(ExtentNode::parse(&again, &ExtentContext::root(&sb, inode.number)).unwrap(), root);
    assert_eq!(again[..36], inode.map()[..36], "header and entries in use");

    let seed = inode.checksum_seed(sb.checksum_seed().unwrap());
    let cx = leaf_context(&sb);
    verify_extent_checksum(EXTENTS, seed, Place::ExtentNode(inode.number, cx.block)).unwrap();
    let leaf = ExtentNode::parse(EXTENTS, &cx).unwrap();
    let ExtentNode::Leaf(ref extents) = leaf else { panic!("{leaf}") };
    assert_eq!(extents[1].physical, VolumeBlock(1623));
    let mut again = vec![0; 1024];
    leaf.write_to(&mut again);
    write_extent_checksum(&mut again, seed);
    assert_eq!(ExtentNode::parse(&again, &cx).unwrap(), leaf);
    verify_extent_checksum(&again, seed, Place::ExtentNode(inode.number, None)).unwrap();
}

/// The fast path agrees with the parser for every value of each byte.
#[test]
fn the_only_extent_is_that_of_the_parsed_leaf() {
    let sb = sb();
    let cx = ExtentContext::root(&sb, InodeNumber(17));
    let mut one = [0; 60];
    one[..28].copy_from_slice(&[
        0x0a, 0xf3, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, // magic, entries, room, depth, generation
        7, 0, 0, 0, 3, 0, 0, 0, 0x57, 6, 0, 0, // file block, length, block 1623
        9, 0, 0, 0,
    ]);
    let mut sound = 0;
    for at in 0..24 {
        for byte in 0..=255 {
            let bytes = with(&one, at, &[byte]);
            let parsed = match ExtentNode::parse(&bytes, &cx) {
                Ok(ExtentNode::Leaf(extents)) if extents.len() == 1 => Some(extents[0]),
                _ => None,
            };
            assert_eq!(ExtentNode::only_extent(&bytes, &cx), parsed, "byte {at} = {byte:#x}");
            sound += u32::from(parsed.is_some());
        }
    }
    assert!((100..6000).contains(&sound), "{sound} sound leaves");
}

#[test]
fn extent_nodes_with_one_bad_field_are_refused_by_its_name() {
    let sb = sb();
    let cx = leaf_context(&sb);
    let cases: &[(usize, &[u8], &str)] = &[
        (0, &[0], "magic"),
        (2, &[0, 0], "eh_entries"),
        (2, &[0xff, 0], "eh_entries"),
        (4, &[0xff, 0xff], "eh_max"),
        (6, &[6], "eh_depth"),
        (6, &[1], "eh_depth"),
        (12 + 12, &[0], "ee_block"),
        (12 + 4, &[3], "ee_block"),
        (12 + 4, &[0, 0], "ee_len"),
        (12 + 6, &[1], "ee_start"),
        (12 + 8, &[0xff, 0x1f, 0, 0], "none"),
        (12 + 8, &[0, 0x20, 0, 0], "ee_start"),
        (12 + 8, &[0, 0, 0, 0], "ee_start"),
    ];
    for (at, new, name) in cases {
        let parsed = ExtentNode::parse(&with(EXTENTS, *at, new), &cx);
        let found = if parsed.is_ok() { "none" } else { field(parsed) };
        assert_eq!(found, *name, "byte {at} = {new:x?}");
    }
    let narrow = ExtentContext { range: BlockRange::new(0, 100), ..cx };
    assert_eq!(field(ExtentNode::parse(EXTENTS, &narrow)), "ee_block");
    let seed = ChecksumSeed(1);
    let place = Place::ExtentNode(InodeNumber(17), None);
    assert_eq!(field(verify_extent_checksum(EXTENTS, seed, place)), "checksum");
    assert_eq!(field(verify_extent_checksum(&with(EXTENTS, 4, &[0xff, 0xff]), seed, place)), "eh_max");

    let inode = Inode::parse(INODE, &sb, InodeNumber(17)).unwrap();
    let root = ExtentContext::root(&sb, inode.number);
    for (at, new, name) in
        [(12, 255u8, "ei_block"), (16 + 3, 1, "ei_leaf"), (6, 6, "eh_depth"), (2, 0, "eh_entries")]
    {
        assert_eq!(field(ExtentNode::parse(&with(inode.map(), at, &[new]), &root)), name);
    }
}

#[test]
fn directory_blocks() {
    let sb = sb();
    let dir = Inode::parse(DIR_INODE, &sb, InodeNumber(12)).unwrap();
    let entries = |bytes: &[u8]| -> Result<Vec<(u32, Vec<u8>)>, Corrupt> {
        DirEntries::new(bytes, true, sb.inodes_count(), dir.number, FileBlock(0))
            .map(|e| e.map(|e| (e.inode.0, e.name.to_vec())))
            .filter(|e| !matches!(e, Ok((0, _))))
            .collect()
    };
    let names: Vec<_> = entries(DIR_BLOCK).unwrap().into_iter().map(|(_, name)| name).collect();
    assert_eq!(names, [&b"."[..], b"..", b"file1", b"file2", b"file3"]);

    let seed = dir.checksum_seed(sb.checksum_seed().unwrap());
    let place = Place::DirectoryBlock(dir.number, FileBlock(0));
    verify_dirent_checksum(DIR_BLOCK, seed, place).unwrap();
    let mut again = DIR_BLOCK.to_vec();
    again[1012..].fill(0);
    write_dirent_tail(&mut again, seed);
    assert_eq!(again, DIR_BLOCK);

    let cases: &[(usize, &[u8], &str)] = &[
        (4, &[0, 0], "rec_len"),
        (4, &[13, 0], "rec_len"),
        (4, &[8, 0], "rec_len"),
        (4, &[0, 8], "rec_len"),
        (6, &[5], "name_len"),
        (6, &[0], "name_len"),
        (2, &[1], "inode"),
    ];
    for (at, new, name) in cases {
        assert_eq!(field(entries(&with(DIR_BLOCK, *at, new))), *name, "byte {at} = {new:x?}");
    }
    assert_eq!(field(verify_dirent_checksum(&with(DIR_BLOCK, 40, b"x"), seed, place)), "checksum");
    assert_eq!(field(verify_dirent_checksum(&with(DIR_BLOCK, 1019, &[0]), seed, place)), "det_reserved_ft");
    assert_eq!(field(entries(&DIR_BLOCK[..30])), "truncated");
}

#[test]
fn block_pointers_beyond_the_volume_are_refused() {
    let mut block = vec![0; 1024];
    block[4..8].copy_from_slice(&8191u32.to_le_bytes());
    let sb = sb();
    let pointers =
        |b: &[u8]| parse_indirect(b, &sb, InodeNumber(17), VolumeBlock(9)).collect::<Result<Vec<_>, _>>();
    assert_eq!(pointers(&block).unwrap()[..3], [VolumeBlock(0), VolumeBlock(8191), VolumeBlock(0)]);
    block[4..8].copy_from_slice(&8192u32.to_le_bytes());
    let refused = pointers(&block).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "inode 17: indirect block 9: i_block is 8192, must be 0 or a block of the volume"
    );
}

/// By the kernel's documentation, sparse_super keeps copies in groups 0, 1 and powers of 3, 5 and
/// 7.
#[test]
fn backups_lie_where_sparse_super_puts_them() {
    let sb = sb();
    let with_backup: Vec<u32> = (0..400).filter(|&g| sb.has_backup(Group(g))).collect();
    assert_eq!(with_backup, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343]);
}

/// A leaf in a block, with extents of these first blocks, lengths and locations.
fn leaf_of(extents: &[(u32, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    ExtentNode::Leaf(Vec::new()).write_to(&mut bytes);
    bytes[2..4].copy_from_slice(&(extents.len() as u16).to_le_bytes());
    for (slot, &(logical, len, start)) in bytes[12..].chunks_exact_mut(12).zip(extents) {
        slot[..4].copy_from_slice(&logical.to_le_bytes());
        slot[4..6].copy_from_slice(&len.to_le_bytes());
        slot[8..].copy_from_slice(&start.to_le_bytes());
    }
    bytes
}

#[test]
fn one_bad_extent_costs_its_own_blocks_only() {
    let sb = sb();
    let range = BlockRange::new(0, 50);
    let cx = ExtentContext {
        block: Some(VolumeBlock(1627)),
        depth: Some(0),
        range,
        ..ExtentContext::root(&sb, InodeNumber(17))
    };
    let salvage = |extents: &[(u32, u16, u32)]| {
        let (node, damaged) = ExtentNode::salvage(&leaf_of(extents), &cx).unwrap();
        let ExtentNode::Leaf(kept) = node else { panic!("{node}") };
        let kept: Vec<_> = kept.iter().map(|extent| extent.logical.0).collect();
        let damaged: Vec<_> = damaged.iter().map(|(range, _)| (range.start, range.end)).collect();
        (kept, damaged)
    };
    let sound = [(0, 4, 100), (10, 4, 200), (20, 4, 300), (30, 4, 400), (40, 4, 500)];
    let with = |n: usize, extent| {
        let mut changed = sound;
        changed[n] = extent;
        changed
    };
    let all_but = |n: usize| (0..5).filter(|&i| i != n).map(|i| i as u32 * 10).collect::<Vec<_>>();

    assert_eq!(salvage(&sound), (vec![0, 10, 20, 30, 40], vec![]));
    assert_eq!(salvage(&with(2, (20, 4, 0x0fff_ffff))), (all_but(2), vec![(20, 24)]), "outside the volume");
    assert_eq!(salvage(&with(2, (20, 4, 8190))), (all_but(2), vec![(20, 24)]), "its end is outside");
    assert_eq!(
        salvage(&with(2, (0, 0, 0))),
        (all_but(2), vec![(14, 30)]),
        "no length: as far as the neighbours"
    );
    assert_eq!(salvage(&with(0, (0, 0, 0))), (all_but(0), vec![(0, 10)]));
    assert_eq!(salvage(&with(4, (70, 4, 500))), (all_but(4), vec![(34, 50)]), "beyond the parent's range");
    // If two extents contradict each other, either may be wrong.
    assert_eq!(salvage(&with(2, (20, 20, 300))), (vec![0, 10, 40], vec![(14, 40)]));
    assert_eq!(salvage(&with(2, (11, 4, 300))), (vec![0, 30, 40], vec![(4, 30)]));
    // Nothing is lost, but the error must be reported.
    let adjacent = [(0, 10, 100), (3, 0, 0), (10, 4, 200)];
    assert_eq!(salvage(&adjacent), (vec![0, 10], vec![(10, 10)]));
    assert_eq!(field(ExtentNode::salvage(&[0xff; 1024], &cx)), "magic");
}

#[test]
fn one_bad_child_costs_its_own_range_only() {
    let sb = sb();
    let cx = ExtentContext::root(&sb, InodeNumber(17));
    let child = |logical, child| ExtentIndex { logical: FileBlock(logical), child: VolumeBlock(child) };
    let node = |entries| {
        let mut bytes = [0; 60];
        ExtentNode::Index { depth: 1, entries }.write_to(&mut bytes);
        bytes
    };
    let bytes = node(vec![child(0, 100), child(10, 0x0fff_ffff), child(30, 102)]);
    let (ExtentNode::Index { entries, .. }, damaged) = ExtentNode::salvage(&bytes, &cx).unwrap() else {
        panic!("it is a leaf")
    };
    assert_eq!((entries.len(), damaged.len()), (3, 1));
    assert_eq!((damaged[0].0.start, damaged[0].0.end), (10, 30));
    // If children are out of order, it is unknown where each one's range ends.
    let bytes = node(vec![child(0, 100), child(30, 101), child(10, 102)]);
    assert_eq!(field(ExtentNode::salvage(&bytes, &cx)), "ei_block");
}

#[test]
fn descriptors_have_copies_behind_backups_and_in_meta_groups() {
    let bare = |blocks: u32, change: &dyn Fn(&mut RawSuperblock)| {
        let mut raw = *sb().raw();
        raw.s_blocks_count_lo = blocks.into();
        raw.s_inodes_count = (blocks.div_ceil(8192) * 2048).into();
        change(&mut raw);
        Superblock::from_raw(raw).unwrap()
    };
    let copies =
        |sb: &Superblock, index| sb.descriptor_copies(index).iter().map(|c| c.block.0).collect::<Vec<_>>();
    // As listed by `mke2fs -n -b 1024`: 8193, 24577, 40961, 57345, 73729.
    let sparse = bare(90_000, &|_| {});
    assert_eq!(copies(&sparse, 2), [4, 8196, 24580, 40964, 57348, 73732]);
    let every = bare(30_000, &|raw| raw.s_feature_ro_compat = 0.into());
    assert_eq!(copies(&every, 0), [2, 8194, 16386, 24578]);
    let two = bare(90_000, &|raw| {
        raw.s_feature_compat = (raw.s_feature_compat.get() | Compat::SPARSE_SUPER2.bits()).into();
        raw.s_backup_bgs = [1.into(), 10.into()];
    });
    assert_eq!(copies(&two, 0), [2, 8194, 81922]);
    // In a meta group of 16 groups, the block is in the first, second and last group; it follows
    // the superblock if that group has one.
    let meta = bare(8192 * 20, &|raw| {
        raw.s_feature_incompat = (raw.s_feature_incompat.get() | Incompat::META_BG.bits()).into();
    });
    assert_eq!(copies(&meta, 0), [2, 8194, 1 + 15 * 8192]);
    // The second one is cut short at 4 groups, as `dumpe2fs` shows.
    assert_eq!(copies(&meta, 1), [1 + 16 * 8192, 1 + 17 * 8192]);
}
